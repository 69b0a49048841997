"""Tests of the benchmarks on real Apache Kafka."""
