"""What proves a producer right: values that identify themselves, a history checker, a wire monitor.

Public, for tests of code that uses aioidem or any other Kafka client. The checkers need no event
loop and no particular broker: histories are plain rows, logs are plain records from any reader.
`FaultProxy` stands in front of any broker, and what its hooks return (`Cut`, `Hold`, ...) befalls
the frame they were asked about; `KafkaCluster` runs real brokers. docs/testing.md shows how.
"""

from __future__ import annotations

from aioidem._testing.fault_proxy import (
    Action,
    BlackHole,
    Cut,
    Delay,
    Drop,
    FaultProxy,
    FrameHook,
    FrameSeen,
    Hold,
    Inspect,
    Rewrite,
)
from aioidem._testing.history import (
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
from aioidem._testing.kafka_cluster import KafkaCluster, KafkaStartError, KafkaToolError
from aioidem._testing.kafka_install import KafkaInstallError
from aioidem._testing.kafka_retention import RetentionFace
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem._testing.monitor import WireAnswer, WireBatch, WireMonitor

__all__ = [
    "Action",
    "Anomaly",
    "BlackHole",
    "Cut",
    "Delay",
    "Drop",
    "Expectations",
    "FaultProxy",
    "FrameHook",
    "FrameSeen",
    "Hold",
    "Inspect",
    "KafkaCluster",
    "KafkaInstallError",
    "KafkaSecurity",
    "KafkaStartError",
    "KafkaToolError",
    "KafkaUnavailableError",
    "LogRecord",
    "Outcome",
    "RetentionFace",
    "Rewrite",
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

KafkaUnavailableError = KafkaInstallError
"""The name that `KafkaInstallError` had at first."""
