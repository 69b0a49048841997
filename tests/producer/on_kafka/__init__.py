"""The producer, on real Apache Kafka."""
