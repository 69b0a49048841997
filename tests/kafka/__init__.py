"""Helpers of the tests on real Apache Kafka, which are in the folders named ``on_kafka``."""
