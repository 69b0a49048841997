"""The producer against real Apache Kafka; see conftest.py."""
