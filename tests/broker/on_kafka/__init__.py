"""The embedded broker and Apache Kafka, asked the same."""
