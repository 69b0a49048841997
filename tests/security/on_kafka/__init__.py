"""Authentication, TLS and permissions, on real Apache Kafka."""
