"""Tests of the producer on real Apache Kafka."""
