"""What `aioidem.testing` offers, on real Apache Kafka."""
