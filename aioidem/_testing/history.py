"""The history checker: compares what a producer said of each record with what the log contains.

A history is one `Row` per record. The log is a list of `LogRecord`, read by any reader after the
last append; a reader that shares no code with aioidem is the better witness. The anomalies are
those of Jepsen's Kafka workload that concern a producer without transactions. One differs: the
records of a producer must be in each partition in the order of the calls of ``send``, because the
calls of a pipelined producer overlap.

The checker checks that an acknowledged record is in the log, at the reported offset if the producer
reported one; that no record is in the log twice, acknowledged or not; that a record reported as
NOT_WRITTEN is not in the log; that records are in the order of the calls; that values are neither
torn (their CRC is wrong) nor foreign (in a wrong place, or of no call in the history); and that
every outcome came in time. `check_counters` checks that a producer's counters are back at zero.

Invariants
    The checks are pure functions over plain data, linear in rows and records. A value contains its
    sender, its destination and the number of its call, with a CRC, so the log alone shows if a
    value is on the wrong partition.

Rejected
    Comparing whole values: two records with equal bytes would be indistinguishable, and a reordered
    pair of them would pass.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from aioidem._protocol.foreign_text import printable
from aioidem._records import RecordBatch

__all__ = [
    "Anomaly",
    "Expectations",
    "LogRecord",
    "Outcome",
    "Row",
    "ValueId",
    "Violation",
    "check_counters",
    "check_history",
    "log_records",
    "make_value",
    "parse_value",
]

_MAGIC = b"aiv1"
_HEAD = struct.Struct(">4sIiQHH")
_CHECKED_FROM = 8


class ValueId(NamedTuple):
    """The identity of a value: its producer, its destination and the number of its ``send`` call.

    ``partition`` is -1 if the caller named none, so that the producer chose the partition.
    """

    producer: str
    topic: str
    partition: int
    call: int

    def __str__(self) -> str:
        where = "*" if self.partition < 0 else self.partition
        # A foreign record may have any text in place of the names, so `printable` escapes them.
        return f"{printable(self.producer)}/{printable(self.topic)}-{where}#{self.call}"


def make_value(value: ValueId, size: int = 0) -> bytes:
    """Return the bytes of a value: an identity and a CRC32, padded to at least ``size`` bytes."""
    producer, topic = value.producer.encode(), value.topic.encode()
    head = _HEAD.pack(_MAGIC, 0, value.partition, value.call, len(producer), len(topic))
    body = head[_CHECKED_FROM:] + producer + topic
    # The padding differs from call to call, so that a buffer that is used twice is noticed.
    body += bytes([value.call & 0xFF]) * (size - _CHECKED_FROM - len(body))
    return _MAGIC + struct.pack(">I", crc32(body)) + body


def parse_value(data: bytes | memoryview | None) -> ValueId | None:
    """Return the identity in the bytes of a value; None if `make_value` did not make them."""
    if data is None or len(data) < _HEAD.size:
        return None
    data = bytes(data)
    magic, crc, partition, call, producer_size, topic_size = _HEAD.unpack_from(data)
    end = _HEAD.size + producer_size
    if magic != _MAGIC or crc != crc32(data[_CHECKED_FROM:]) or len(data) < end + topic_size:
        return None
    try:
        producer, topic = data[_HEAD.size : end].decode(), data[end : end + topic_size].decode()
    except UnicodeDecodeError:  # the CRC is right, but the name is not UTF-8
        return None
    return ValueId(producer, topic, partition, call)


class Outcome(enum.Enum):
    """The outcome that the producer reported for a record."""

    PENDING = "pending"
    ACKED = "acked"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Row:
    """One record that was sent: who sent it, to where, and the outcome that was reported.

    Attributes:
        value: Identity of the value.
        topic: Name of the topic.
        partition: Index of the partition; -1 if the producer has not reported it.
        started: When the record was sent, in seconds.
        outcome: The outcome that the producer reported.
        offset: Offset that the producer reported; -1 if it reported none.
        settled: When the producer reported the outcome, in seconds on the same clock; None while
            the outcome is PENDING.
    """

    value: ValueId
    topic: str
    partition: int
    started: float
    outcome: Outcome = Outcome.PENDING
    offset: int = -1
    settled: float | None = None


class LogRecord(NamedTuple):
    """One record that a reader found; `check_history` takes a partition's records in log order."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    log: int = 0
    """Number of the log, if the partition has had several: because its topic was deleted and
    recreated, or because the producer moved to another cluster."""


def log_records(topic: str, partition: int, batches: Iterable[RecordBatch]) -> Iterator[LogRecord]:
    """Yield a partition's records from its batches; a transaction's markers have none.

    Records of aborted transactions are among them. `EmbeddedCluster.records` can leave them out.
    """
    for batch in batches:
        if batch.control:
            continue
        for record in batch.records():
            yield LogRecord(topic, partition, record.offset, record.value)


class Anomaly(enum.Enum):
    """The kinds of violation that the checkers report, each with a description."""

    LOST = "acknowledged, and not in the log"
    WRONG_OFFSET = "acknowledged at an offset where it is not"
    DUPLICATE = "in the log more than once"
    NOT_ABSENT = "said to be not written, and in the log"
    REORDERED = "after a later call in the log"
    TORN = "a value that no producer can have sent"
    FOREIGN = "a value in the wrong place, or of a call that is not in the history"
    UNSETTLED = "no outcome"
    LATE = "settled after its deadline"
    BASELESS = "not acknowledged, and nothing explains why"
    LEAK = "something is left over"
    GAP = "a first send that does not continue its partition's sequences"
    MISSTATED = "a batch whose header says something else than its records"
    CHANGED_RETRY = "the same sequence sent with other bytes"
    SPAN = "a first send beyond the window"
    GATE = "sent beside another batch before the leader has shown that it has our state"
    EPOCH_OVERLAP = "two identities at once on one partition"
    TWO_ROUTES = "outstanding on two connections at once"
    IN_FLIGHT = "more requests in flight than the connection may have"
    EVENT = "a data-loss event where nothing was lost, or none where it was"
    STUCK = "no progress where nothing hindered it"
    STALE = "metadata that was not asked for again, though brokers answered"
    OUTGREW = "a batch larger than batch.size, and than its topic has ever taken"
    BLAMED = "a record failed because of another record of its batch"
    MISCOUNTED = "a number that the producer tells, and that is not so"
    CONDUCT = "a request that nothing asks for, or an answer that is taken for another"
    HALF = "of one transaction, some is visible and some is not"
    HANGING = "a transaction that is never ended"
    FATAL = "a fatal error that nothing explains"
    CRASH = "an exception that must not happen"


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding of a checker: the kind of the violation, and the details in words."""

    anomaly: Anomaly
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly.name}: {self.anomaly.value}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Expectations:
    """Anomalies that are expected in a history, and therefore not violations.

    Args:
        deadline: Seconds from a row's ``started`` within which it must be settled; None: no limit.
        lost: Values that were acknowledged and then lost by the broker: by an unclean election, or
            with acks=1 by a clean election of a follower that had not copied them.
        may_repeat: Values that may be in the log twice, as without idempotence or with
            ``in_doubt="resend"``.
        may_reorder: Values that may be out of order: those with the outcome UNKNOWN whose request
            may be appended late, because no newer producer epoch fences the request.
        unpromised: Whether neither order nor uniqueness is promised for any record.
    """

    deadline: float | None = None
    lost: Collection[ValueId] = field(default_factory=frozenset)
    may_repeat: Collection[ValueId] = field(default_factory=frozenset)
    may_reorder: Collection[ValueId] = field(default_factory=frozenset)
    unpromised: bool = False


class _Found(NamedTuple):
    """Where a value was found; ``log`` tells successive logs of a partition apart (`LogRecord`)."""

    topic: str
    partition: int
    offset: int
    log: int


def check_history(
    rows: Iterable[Row], log: Iterable[LogRecord], expect: Expectations | None = None
) -> list[Violation]:
    """Return all violations in a history, in no particular order.

    Args:
        rows: One row per record that was sent.
        log: All records of all partitions, each partition in log order.
        expect: Anomalies that are not violations; None: every anomaly is a violation.

    Raises:
        ValueError: Two rows have the same value, so one record could stand for both.
    """
    expect = expect or Expectations()
    known: dict[ValueId, Row] = {}
    for row in rows:
        if known.setdefault(row.value, row) is not row:
            raise ValueError(f"two rows have the same value: {row.value}")
    found: dict[ValueId, list[_Found]] = {}
    wrong = list(_index(log, known, found))
    for row in known.values():
        wrong += _check_row(row, found.get(row.value, []), expect)
    if not expect.unpromised:
        wrong += _check_order(found, expect)
    return wrong


def _index(
    log: Iterable[LogRecord], known: Mapping[ValueId, Row], found: dict[ValueId, list[_Found]]
) -> Iterator[Violation]:
    for record in log:
        at = f"{record.topic}-{record.partition}@{record.offset}"
        value = parse_value(record.value)
        if value is None:
            yield Violation(Anomaly.TORN, at)
        elif (
            value not in known
            or value.topic != record.topic
            or value.partition not in (-1, record.partition)
        ):
            yield Violation(Anomaly.FOREIGN, f"{value} at {at}")
        else:
            place = _Found(record.topic, record.partition, record.offset, record.log)
            found.setdefault(value, []).append(place)


def _check_row(row: Row, places: list[_Found], expect: Expectations) -> Iterator[Violation]:
    value = row.value
    if len(places) > 1 and not expect.unpromised and value not in expect.may_repeat:
        yield Violation(Anomaly.DUPLICATE, f"{value}, {row.outcome.value}, at {_at(places)}")
    if row.outcome is Outcome.PENDING:
        yield Violation(Anomaly.UNSETTLED, str(value))
    elif row.outcome is Outcome.NOT_WRITTEN and places:
        yield Violation(Anomaly.NOT_ABSENT, f"{value} at {_at(places)}")
    elif row.outcome is Outcome.ACKED and value not in expect.lost:
        if not places:
            yield Violation(Anomaly.LOST, f"{value}, acknowledged at {row.partition}@{row.offset}")
        elif row.offset >= 0 and not any(_is_at(row, place) for place in places):
            told = row.offset if row.partition < 0 else f"{row.partition}@{row.offset}"
            yield Violation(Anomaly.WRONG_OFFSET, f"{value}: {told}, not {_at(places)}")
    if row.settled is not None and expect.deadline is not None:
        took = row.settled - row.started
        if took > expect.deadline:
            yield Violation(Anomaly.LATE, f"{value} after {took:.3f} s of {expect.deadline:.3f}")


def _is_at(row: Row, place: _Found) -> bool:
    """Return whether a value was found where its record was acknowledged."""
    return row.offset == place.offset and row.partition in (-1, place.partition)


def _at(places: Sequence[_Found]) -> str:
    return ", ".join(f"{place.partition}@{place.offset}" for place in places)


def _check_order(
    found: Mapping[ValueId, Sequence[_Found]], expect: Expectations
) -> Iterator[Violation]:
    # `found` is in log order, partition by partition. A value that is in the log more than once
    # counts at its first place.
    latest: dict[tuple[str, str, int, int | None], ValueId] = {}
    for value, places in found.items():
        place = places[0]
        if value in expect.may_reorder:
            continue
        # A partition has several logs if its topic was recreated or the cluster changed. If the
        # caller named the partition, its values must be in order across all logs (the key with
        # `None`). If the producer chose it, it may have chosen another one in an earlier log, so
        # the values must be in order only within each log.
        logs = [place.log] if value.partition < 0 else [place.log, None]
        keys = [(value.producer, place.topic, place.partition, log) for log in logs]
        before = [latest[key] for key in keys if key in latest and latest[key].call > value.call]
        if before:
            yield Violation(Anomaly.REORDERED, f"{value} at {_at(places)}, after {before[0]}")
        else:
            latest.update(dict.fromkeys(keys, value))


def check_counters(counters: Mapping[str, int]) -> list[Violation]:
    """Return a violation for each counter, such as requests in flight, that is not zero."""
    return [
        Violation(Anomaly.LEAK, f"{name} is {value}")
        for name, value in counters.items()
        if value != 0
    ]
