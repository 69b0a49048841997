"""Tests of `aioidem perf` beside Kafka's own tool."""

from __future__ import annotations
