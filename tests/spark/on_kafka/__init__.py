"""Tests of aioidem on Spark with real Apache Kafka."""
