"""Tools to test a Kafka producer: history checker, wire monitor, fault proxy, real brokers.

They work with aioidem and with any other Kafka client. The checkers need no event loop and no
broker: a history (the records that were sent, with their outcomes) is a list of plain rows, and
a log is a list of plain records from any reader. A `FaultProxy` is placed in front of a broker, and
applies the actions (`Cut`, `Hold`, ...) that its hooks return for a frame. `KafkaCluster` runs real
brokers. See docs/testing.md.
"""

from __future__ import annotations

from aioidem._testing.fault_actions import (
    Action,
    BlackHole,
    Cut,
    Delay,
    Drop,
    FrameHook,
    FrameSeen,
    Hold,
    Inspect,
    Rewrite,
)
from aioidem._testing.fault_proxy import FaultProxy
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
from aioidem._testing.kafka_broker import KafkaBroker
from aioidem._testing.kafka_cluster import KafkaCluster, KafkaStartError
from aioidem._testing.kafka_dump import DumpedBatch, DumpedRecord, LogDumpError
from aioidem._testing.kafka_install import KafkaInstallError
from aioidem._testing.kafka_retention import RetentionFace
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem._testing.kafka_tools import KafkaToolError
from aioidem._testing.monitor import WireMonitor
from aioidem._testing.wire_account import WireAnswer, WireBatch

__all__ = [
    "Action",
    "Anomaly",
    "BlackHole",
    "Cut",
    "Delay",
    "Drop",
    "DumpedBatch",
    "DumpedRecord",
    "Expectations",
    "FaultProxy",
    "FrameHook",
    "FrameSeen",
    "Hold",
    "Inspect",
    "KafkaBroker",
    "KafkaCluster",
    "KafkaInstallError",
    "KafkaSecurity",
    "KafkaStartError",
    "KafkaToolError",
    "KafkaUnavailableError",
    "LogDumpError",
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
"""An earlier name of `KafkaInstallError`, kept for code that imports it."""
