import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Java's producer as a worker, which reads and prints the lines that workers.py defines.
 *
 * <p>Java's source launcher runs this file, so that it needs only a JDK and Kafka's jars. Arguments
 * are name=value; one whose name contains a dot is a property of the producer.
 */
public final class JavaProducer {
  private static final CountDownLatch GO = new CountDownLatch(1);
  private static volatile boolean stopped = false;

  private JavaProducer() {}

  public static void main(String[] args) throws Exception {
    Properties config = new Properties();
    Map<String, String> job = new HashMap<>();
    for (String arg : args) {
      int at = arg.indexOf('=');
      String name = arg.substring(0, at);
      if (name.contains(".")) {
        config.setProperty(name, arg.substring(at + 1));
      } else {
        job.put(name, arg.substring(at + 1));
      }
    }
    config.put("key.serializer", ByteArraySerializer.class.getName());
    config.put("value.serializer", ByteArraySerializer.class.getName());
    Thread listener = new Thread(JavaProducer::listen);
    listener.setDaemon(true);
    listener.start();
    try (Closing closing = new Closing(new KafkaProducer<>(config), number(job, "patience"))) {
      drive(closing.producer(), job);
    }
    say("closed");
    // Threads of a producer that failed to close must not keep the process alive.
    System.exit(0);
  }

  private static void drive(KafkaProducer<byte[], byte[]> producer, Map<String, String> job)
      throws Exception {
    String topic = job.get("topic");
    byte[] first = value(0, number(job, "size"));
    producer.send(new ProducerRecord<>(job.get("warm"), 0, null, first)).get();
    producer.partitionsFor(topic);
    if (number(job, "sequence") > 0) {
      startAt(producer, new TopicPartition(topic, 0), number(job, "sequence"));
    }
    say("ready " + AppInfoParser.getVersion());
    GO.await();
    Semaphore room = new Semaphore(number(job, "backlog"));
    double rate = Double.parseDouble(job.get("rate"));
    long start = System.nanoTime();
    for (int index = 1; !stopped; index++) {
      if (rate > 0) {
        long due = start + (long) (1e9 * index / rate);
        for (long left; !stopped && (left = due - System.nanoTime()) > 0; ) {
          Thread.sleep(Math.max(1, Math.min(100, left / 1_000_000)));
        }
      }
      room.acquire();
      boolean big = index == number(job, "big");
      int id = index;
      say("sent " + id + " " + System.nanoTime());
      try {
        producer.send(
            new ProducerRecord<>(topic, 0, null, value(id, number(job, big ? "bigsize" : "size"))),
            (metadata, error) -> {
              long now = System.nanoTime();
              room.release();
              say(
                  error == null
                      ? "acked " + id + " " + metadata.offset() + " " + now
                      : failure(id, error));
            });
      } catch (RuntimeException error) {
        // An exception raised by the call means that the record was not queued.
        room.release();
        say(failure(id, error, true));
      }
    }
  }

  private static String failure(int id, Throwable error) {
    boolean refused =
        error instanceof RecordTooLargeException || error instanceof InvalidTimestampException;
    return failure(id, error, refused);
  }

  private static String failure(int id, Throwable error, boolean refused) {
    String text = error.getClass().getSimpleName() + ": " + error.getMessage();
    String verdict = refused ? "not-written" : "unknown";
    return "failed " + id + " " + verdict + " " + text.replace('\n', ' ');
  }

  private static byte[] value(int index, int size) {
    byte[] value = new byte[size];
    Arrays.fill(value, (byte) '.');
    byte[] head = String.format("%08d", index).getBytes(StandardCharsets.US_ASCII);
    System.arraycopy(head, 0, value, 0, head.length);
    return value;
  }

  /** Sets the partition's next sequence number, because sending 2^31 records takes too long. */
  private static void startAt(Object producer, TopicPartition partition, int sequence)
      throws Exception {
    Object manager = get(producer, "transactionManager");
    Object map = get(manager, "txnPartitionMap");
    Method getOrCreate = map.getClass().getDeclaredMethod("getOrCreate", TopicPartition.class);
    getOrCreate.setAccessible(true);
    Object entry = getOrCreate.invoke(map, partition);
    field(entry, "producerIdAndEpoch").set(entry, get(manager, "producerIdAndEpoch"));
    field(entry, "nextSequence").set(entry, sequence);
  }

  private static Object get(Object owner, String name) throws Exception {
    return field(owner, name).get(owner);
  }

  private static Field field(Object owner, String name) throws Exception {
    Field field = owner.getClass().getDeclaredField(name);
    field.setAccessible(true);
    return field;
  }

  private static int number(Map<String, String> job, String name) {
    return Integer.parseInt(job.get(name));
  }

  private static void listen() {
    try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
      for (String line = lines.readLine(); "go".equals(line); line = lines.readLine()) {
        GO.countDown();
      }
    } catch (java.io.IOException gone) {
      // The end of the input means the same as `stop`.
    }
    stopped = true;
    GO.countDown();
  }

  private static synchronized void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  /** A producer with a limit in seconds for closing. */
  private record Closing(KafkaProducer<byte[], byte[]> producer, int seconds)
      implements AutoCloseable {
    @Override
    public void close() {
      producer.close(Duration.ofSeconds(seconds));
    }
  }
}
