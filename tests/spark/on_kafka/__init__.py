"""The Spark parts, on real Apache Kafka."""
