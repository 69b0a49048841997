"""The benchmarks, on real Apache Kafka."""
