"""Tests of the drop-in for aiokafka on real Apache Kafka."""
