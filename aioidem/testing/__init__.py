"""What proves a producer right: values that identify themselves, a history checker, a wire monitor.

Public, for tests of code that uses aioidem or any other Kafka client. Nothing here needs a running
event loop or a particular broker: histories are plain rows, logs are plain records from any reader.
"""

from __future__ import annotations

from aioidem.testing.history import (
    Anomaly,
    Expectations,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    Violation,
    check_counters,
    check_history,
    log_records,
    make_value,
    parse_value,
)
from aioidem.testing.monitor import WireAnswer, WireBatch, WireMonitor

__all__ = [
    "Anomaly",
    "Expectations",
    "LogRecord",
    "Outcome",
    "Row",
    "ValueId",
    "Violation",
    "WireAnswer",
    "WireBatch",
    "WireMonitor",
    "check_counters",
    "check_history",
    "log_records",
    "make_value",
    "parse_value",
]
