"""Tests that send the same requests to the embedded broker and to Apache Kafka."""
