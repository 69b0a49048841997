"""Fixtures for tests on real Kafka: see tests/kafka/fixtures.py."""

from __future__ import annotations

from tests.kafka.fixtures import anyio_backend, grouped, kafka_installed

__all__ = ["anyio_backend", "grouped", "kafka_installed"]
