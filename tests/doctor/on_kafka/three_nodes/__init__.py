"""Tests of `aioidem doctor` on three brokers of real Kafka."""

from __future__ import annotations
