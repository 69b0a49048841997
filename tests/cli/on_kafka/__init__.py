"""Tests of `aioidem doctor` on real Kafka."""

from __future__ import annotations
