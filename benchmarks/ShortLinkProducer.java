import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Java's producer for one run of short_link.py: what short_link_clients.py is for Python's.
 *
 * <p>Java's source launcher runs this file. Arguments are name=value, the fields of
 * short_link_job.Job. The last line of the output is the figures as JSON.
 */
public final class ShortLinkProducer {
  private static final long TICK = 1_000_000;
  private static final int DISTINCT = 1000;
  private static final int DISTINCT_BYTES = 16_000_000;
  private static final int KEY_SIZE = 36;
  private static final double[] PERCENTILES = {0.5, 0.99, 0.999, 1.0};
  private static final String[] NAMES = {"p50", "p99", "p99.9", "max"};

  private final Map<String, String> job;
  private final KafkaProducer<byte[], byte[]> producer;
  private final byte[][] values;
  private final byte[][] keys;
  private final AtomicLong acked = new AtomicLong();
  private volatile Exception failure;
  // Only the producer's thread writes latencies; they are read after flush().
  private long[] latencies = new long[1 << 16];
  private int timed = 0;
  private long begun;
  private long cpuBegun;
  private long ackedBegun;
  private long ended;
  private long cpuEnded;
  private long ackedEnded;

  private ShortLinkProducer(Map<String, String> job) {
    this.job = job;
    Properties config = new Properties();
    config.put("bootstrap.servers", job.get("bootstrap"));
    config.put("enable.idempotence", "true");
    config.put("acks", "all");
    config.put("compression.type", job.get("codec"));
    config.put("key.serializer", ByteArraySerializer.class.getName());
    config.put("value.serializer", ByteArraySerializer.class.getName());
    producer = new KafkaProducer<>(config);
    Random drawn = new Random(1);
    int size = Integer.parseInt(job.get("size"));
    values = new byte[Math.max(1, Math.min(DISTINCT, DISTINCT_BYTES / size))][];
    keys = new byte[values.length][];
    boolean keyed = job.get("keyed").equals("True");
    for (int index = 0; index < values.length; index++) {
      byte[] value = new byte[size];
      Arrays.fill(value, (byte) '.');
      String digits = new BigInteger(4 * (size / 2), drawn).toString(16);
      byte[] head = digits.getBytes(StandardCharsets.US_ASCII);
      System.arraycopy(head, 0, value, 0, head.length);
      values[index] = value;
      keys[index] =
          keyed
              ? String.format("%0" + KEY_SIZE + "d", index).getBytes(StandardCharsets.US_ASCII)
              : null;
    }
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> job = new HashMap<>();
    for (String arg : args) {
      int at = arg.indexOf('=');
      job.put(arg.substring(0, at), arg.substring(at + 1));
    }
    String printed = new ShortLinkProducer(job).run();
    System.out.println(printed);
    System.out.flush();
    System.exit(0);
  }

  private String run() throws Exception {
    String way = job.get("way");
    if (way.equals("await")) {
      return "{\"cannot\": \"a record cannot be awaited in a task\"}";
    }
    double warmUp = number("warm_up");
    double seconds = number("seconds");
    String figures;
    if (way.equals("start") || way.equals("idle")) {
      producer.send(record(0)).get(60, TimeUnit.SECONDS);
      figures = way.equals("idle") ? idle(warmUp, seconds) : started();
    } else {
      // The warm-up begins when the client has its producer id and its connections.
      producer.send(record(0)).get(60, TimeUnit.SECONDS);
      double asked = 0;
      long late = -1;
      if (way.equals("one")) {
        one(warmUp, seconds);
      } else if (way.equals("paced")) {
        asked = number("rate");
        if (asked == 0) {
          queue(warmUp, seconds / 2);
          asked = (ackedEnded - ackedBegun) / ((ended - begun) / 1e9) / 2;
        }
        late = paced(asked, warmUp, seconds);
      } else {
        queue(warmUp, seconds);
      }
      figures = measured(asked, late, way.equals("bulk") ? "no bulk call: queues one by one" : "");
    }
    producer.close(Duration.ofSeconds(60));
    return figures;
  }

  private void one(double warmUp, double seconds) throws Exception {
    long begin = System.nanoTime() + (long) (1e9 * warmUp);
    boolean begins = true;
    for (int index = 0; ; index++) {
      long now = System.nanoTime();
      if (begins && now >= begin) {
        begins = false;
        begin();
      }
      if (now >= begin + (long) (1e9 * seconds)) {
        end();
        return;
      }
      producer.send(record(index)).get(60, TimeUnit.SECONDS);
      acked.incrementAndGet();
      if (now >= begin) {
        note(System.nanoTime() - now);
      }
    }
  }

  private void queue(double warmUp, double seconds) throws Exception {
    long limit = (long) number("queued");
    long sent = acked.get();
    long begin = System.nanoTime() + (long) (1e9 * warmUp);
    boolean begins = true;
    while (true) {
      long now = System.nanoTime();
      if (begins && now >= begin) {
        begins = false;
        begin();
      }
      if (now >= begin + (long) (1e9 * seconds)) {
        end();
        break;
      }
      for (int index = 0; index < values.length; index++) {
        producer.send(record(index), (metadata, error) -> ended(error));
      }
      sent += values.length;
      if (sent - acked.get() >= limit) {
        while ((sent - acked.get()) * 2 > limit && failure == null) {
          LockSupport.parkNanos(TICK);
        }
      }
      check();
    }
    producer.flush();
    check();
  }

  private long paced(double rate, double warmUp, double seconds) throws Exception {
    long start = System.nanoTime();
    long begin = start + (long) (1e9 * warmUp);
    int ticks = (int) Math.round((warmUp + seconds) * 1000);
    long[] late = new long[ticks];
    long sent = 0;
    boolean begins = true;
    for (int tick = 0; tick < ticks; tick++) {
      long due = start + tick * TICK;
      long now;
      while ((now = System.nanoTime()) < due) {
        LockSupport.parkNanos(due - now);
      }
      if (begins && now >= begin) {
        begins = false;
        begin();
      }
      late[tick] = now - due;
      long until = (long) (rate / 1000 * (tick + 1));
      for (; sent < until; sent++) {
        producer.send(
            record((int) (sent % values.length)),
            (metadata, error) -> {
              if (due >= begin) {
                note(System.nanoTime() - due);
              }
              ended(error);
            });
      }
      check();
    }
    end();
    producer.flush();
    check();
    Arrays.sort(late);
    return late[(int) (0.99 * ticks)];
  }

  private String idle(double warmUp, double seconds) throws Exception {
    Thread.sleep((long) (1000 * warmUp));
    begin();
    Thread.sleep((long) (1000 * seconds));
    double share = 100.0 * (cpu() - cpuBegun) / (System.nanoTime() - begun);
    return json("\"acked\": 1, \"cpu_percent\": " + share);
  }

  private String started() {
    // Both clocks are the machine's monotonic one.
    double took = System.nanoTime() / 1e9 - number("spawned");
    return json("\"acked\": 1, \"first_ack_s\": " + took);
  }

  private String measured(double asked, long late, String note) throws Exception {
    long count = ackedEnded - ackedBegun;
    double seconds = (ended - begun) / 1e9;
    double cpu = (cpuEnded - cpuBegun) / 1e9;
    if (count == 0) {
      return "{\"cannot\": \"no record was acknowledged within the measured time\"}";
    }
    StringBuilder found = new StringBuilder();
    found.append("\"acked\": " + count);
    found.append(", \"records_per_sec\": " + count / seconds);
    found.append(", \"cpu_us_per_record\": " + 1e6 * cpu / count);
    found.append(", \"cpu_percent\": " + 100 * cpu / seconds);
    found.append(", \"note\": \"" + note + "\"");
    if (timed > 0) {
      long[] sorted = Arrays.copyOf(latencies, timed);
      Arrays.sort(sorted);
      String[] parts = new String[NAMES.length];
      for (int at = 0; at < NAMES.length; at++) {
        int rank = Math.max(0, (int) Math.ceil(PERCENTILES[at] * timed) - 1);
        parts[at] = String.format(Locale.ROOT, "\"%s\": %.3f", NAMES[at], sorted[rank] / 1e6);
      }
      found.append(", \"latency_ms\": {" + String.join(", ", parts) + "}");
    }
    if (late >= 0) {
      found.append(", \"asked_rate\": " + asked + ", \"late_ms\": " + late / 1e6);
    }
    return json(found.toString());
  }

  private String json(String found) {
    return "{\"version\": \""
        + AppInfoParser.getVersion()
        + "\", \"peak_rss_mb\": "
        + peakRss()
        + ", "
        + found
        + "}";
  }

  private void begin() {
    begun = System.nanoTime();
    cpuBegun = cpu();
    ackedBegun = acked.get();
  }

  private void end() {
    ended = System.nanoTime();
    cpuEnded = cpu();
    ackedEnded = acked.get();
  }

  private void ended(Exception error) {
    if (error != null) {
      failure = error;
    }
    acked.incrementAndGet();
  }

  private void check() throws Exception {
    if (failure != null) {
      throw failure;
    }
  }

  private void note(long nanoseconds) {
    if (timed == latencies.length) {
      latencies = Arrays.copyOf(latencies, 2 * timed);
    }
    latencies[timed++] = nanoseconds;
  }

  private ProducerRecord<byte[], byte[]> record(int index) {
    int at = index % values.length;
    return new ProducerRecord<>(job.get("topic"), keys[at], values[at]);
  }

  private double number(String name) {
    return Double.parseDouble(job.get(name));
  }

  private static long cpu() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static String peakRss() {
    try {
      for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
        if (line.startsWith("VmHWM:")) {
          return "" + Long.parseLong(line.split("\\s+")[1]) * 1024 / 1e6;
        }
      }
    } catch (java.io.IOException unknown) {
      // There is no such file outside of Linux.
    }
    return "null";
  }
}
