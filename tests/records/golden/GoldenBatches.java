// Kafka's own record batches, for aioidem to be compared with. Run by regenerate.py; Java 17, kafka-clients 4.3.1.
//
//   build: stdin has tab-separated lines "batch ...", "record ..." and "end"; stdout one hex line per batch.
//   read:  stdin has one batch in hex per line; stdout repeats it as the same kind of lines, ended by "end".
//
// Bytes are hex, "-" is null. The producer and the broker themselves write with MemoryRecordsBuilder.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;

public class GoldenBatches {
    private static final HexFormat HEX = HexFormat.of();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            if (args[0].equals("build")) {
                OUT.println(HEX.formatHex(build(line.split("\t", -1), in)));
            } else {
                read(HEX.parseHex(line));
            }
        }
        OUT.flush();
    }

    private static byte[] build(String[] batch, BufferedReader in) throws Exception {
        byte magic = Byte.parseByte(batch[2]);
        Compression codec = Compression.of(batch[3]).build();
        long baseOffset = Long.parseLong(batch[4]);
        int leaderEpoch = Integer.parseInt(batch[5]);
        boolean logAppend = !batch[6].equals("-");
        long appendTime = logAppend ? Long.parseLong(batch[6]) : RecordBatch.NO_TIMESTAMP;
        TimestampType type = logAppend ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        long producerId = Long.parseLong(batch[7]);
        short producerEpoch = Short.parseShort(batch[8]);
        int baseSequence = Integer.parseInt(batch[9]);
        boolean transactional = batch[10].equals("1");
        boolean control = batch[11].equals("1");
        ByteBuffer buffer = ByteBuffer.allocate(1024);

        if (batch[1].equals("empty")) {
            int lastOffsetDelta = Integer.parseInt(batch[12]);
            in.readLine();
            DefaultRecordBatch.writeEmptyHeader(buffer, magic, producerId, producerEpoch, baseSequence,
                baseOffset, baseOffset + lastOffsetDelta, leaderEpoch, type, appendTime, transactional, control);
            buffer.flip();
            return bytes(buffer);
        }
        if (batch[1].equals("marker")) {
            String[] record = in.readLine().split("\t", -1);
            in.readLine();
            ControlRecordType outcome = ControlRecordType.valueOf(record[1]);
            EndTransactionMarker marker = new EndTransactionMarker(outcome, Integer.parseInt(record[2]));
            return bytes(MemoryRecords.withEndTransactionMarker(
                baseOffset, Long.parseLong(record[3]), leaderEpoch, producerId, producerEpoch, marker).buffer());
        }
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(buffer, magic, codec, type, baseOffset, appendTime,
            producerId, producerEpoch, baseSequence, transactional, control, leaderEpoch, Integer.MAX_VALUE);
        String line;
        while (!(line = in.readLine()).equals("end")) {
            String[] record = line.split("\t", -1);
            Header[] headers = new Header[(record.length - 5) / 2];
            for (int i = 0; i < headers.length; i++) {
                String name = new String(HEX.parseHex(record[5 + 2 * i]), StandardCharsets.UTF_8);
                headers[i] = new RecordHeader(name, parse(record[6 + 2 * i]));
            }
            long offset = baseOffset + Long.parseLong(record[1]);
            SimpleRecord simple =
                new SimpleRecord(Long.parseLong(record[2]), parse(record[3]), parse(record[4]), headers);
            if (control) {
                builder.appendControlRecordWithOffset(offset, simple);
            } else {
                builder.appendWithOffset(offset, simple);
            }
        }
        return bytes(builder.build().buffer());
    }

    private static void read(byte[] data) {
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            boolean logAppend = batch.timestampType() == TimestampType.LOG_APPEND_TIME;
            OUT.println(String.join("\t", "batch", "plain", "" + batch.magic(), batch.compressionType().name,
                "" + batch.baseOffset(), "" + batch.partitionLeaderEpoch(), logAppend ? "" + batch.maxTimestamp() : "-",
                "" + batch.producerId(), "" + batch.producerEpoch(), "" + batch.baseSequence(),
                batch.isTransactional() ? "1" : "0", batch.isControlBatch() ? "1" : "0",
                "" + (batch.lastOffset() - batch.baseOffset())));
            for (Record record : batch) {
                record.ensureValid();
                StringBuilder line = new StringBuilder(String.join("\t", "record",
                    "" + (record.offset() - batch.baseOffset()), "" + record.timestamp(),
                    format(record.key()), format(record.value())));
                for (Header header : record.headers()) {
                    line.append('\t').append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8)));
                    line.append('\t').append(header.value() == null ? "-" : HEX.formatHex(header.value()));
                }
                OUT.println(line);
            }
        }
        OUT.println("end");
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return data;
    }

    private static byte[] parse(String hex) {
        return hex.equals("-") ? null : HEX.parseHex(hex);
    }

    private static String format(ByteBuffer data) {
        return data == null ? "-" : HEX.formatHex(bytes(data));
    }
}
