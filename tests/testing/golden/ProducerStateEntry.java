package org.apache.kafka.storage.internals.log;

import java.util.ArrayDeque;
import java.util.Deque;

/** A class of the form that the patch expects, with frames, a handler and branches behind it. */
public class ProducerStateEntry {
    static final long LIMIT = 1L << 40;
    static final double RATIO = 0.5;
    private final Deque<Integer> batchMetadata = new ArrayDeque<>();

    private void addBatchMetadata(Integer batch) {
        if (batchMetadata.size() == 5)
            batchMetadata.removeFirst();
        batchMetadata.add(batch);
        Integer last = null;
        for (int i = 0; i < 2; i++) {
            try {
                last = i > 0 ? batch : Integer.valueOf(String.valueOf(new StringBuilder(i == 0 ? "7" : "8")));
            } catch (NumberFormatException error) {
                last = null;
            }
        }
        if (last == null)
            throw new IllegalStateException();
    }

    public static void main(String[] args) {
        ProducerStateEntry entry = new ProducerStateEntry();
        for (int i = 0; i < 40000; i++)
            entry.addBatchMetadata(i);
        System.out.println(entry.batchMetadata.size());
    }
}
