"""What proves a producer right: values that identify themselves, a history checker, a wire monitor.

Public, for tests of code that uses aioidem or any other Kafka client. The checkers need no event
loop and no particular broker: histories are plain rows, logs are plain records from any reader.
`FaultProxy` stands in front of any broker; `KafkaCluster` runs real ones.
"""

from __future__ import annotations

from aioidem.testing.fault_proxy import FaultProxy
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
from aioidem.testing.kafka_cluster import KafkaCluster
from aioidem.testing.kafka_retention import RetentionFace
from aioidem.testing.monitor import WireAnswer, WireBatch, WireMonitor

__all__ = [
    "Anomaly",
    "Expectations",
    "FaultProxy",
    "KafkaCluster",
    "LogRecord",
    "Outcome",
    "RetentionFace",
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
