"""Tests of `aioidem.testing` on real Apache Kafka."""
