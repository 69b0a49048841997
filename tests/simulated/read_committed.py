"""What a read_committed consumer sees, and the judge of transactions.

The reader (`committed_records`) knows only the layout of record batches and of markers. It reads a
partition's bytes in order, holds a transaction's records back until the transaction's marker comes,
and then shows the records (commit) or drops them (abort). It uses neither the last stable offset
nor the list of aborted transactions, both of which brokers compute. A run compares the two views:
that of this reader with that of `visible_at_brokers`, which uses what the brokers computed.

The judge gives each record its transaction's outcome, and runs `check_history` over the reader's
view. A committed transaction's records must all be visible, once, in order, at their offsets. A
transaction that was not committed shows none of them. A transaction with an unknown outcome shows
all or none. The same holds for the group offsets that a transaction commits.

A record is "gone" if its topic was deleted while its transaction was open: the log that held it got
no marker. Such a record may be visible or not, since the producer may have written it to the new
topic as well. The others of its transaction are still all visible, or none of them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aioidem._broker.batch import StoredBatch
from aioidem._records import read_batches
from aioidem.testing import (
    Anomaly,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    Violation,
    check_history,
    parse_value,
)

__all__ = ["Attempt", "Verdict", "committed_records", "judge", "visible_at_brokers"]

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_ATTRIBUTES_AT, _PRODUCER_AT, _RECORDS_AT = 21, 43, 61
# The key of a control record (version, kind) follows the batch header and five bytes: the record's
# length, its attributes, its timestamp delta, its offset delta, and the length of the key.
_KEY = struct.Struct(">hh")
_KEY_AT = _RECORDS_AT + 5


class Verdict(enum.Enum):
    """What the producer reported about a transaction."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Attempt:
    """One transaction, as its application knows it.

    Attributes:
        rows: the records that were queued.
        unsure: rows whose callers were cancelled before they knew whether the record was queued.
        groups: for each group whose offsets the transaction commits, the offset that it commits
            for the partition ("src", number + 1), which no other transaction uses.
        verdict: what the producer reported.
        transactional_id: the id under which the transaction began.
        identity: the producer id and epoch with which it began.
        decided: whether the coordinator has decided to commit it: to an EndTxn of that id, producer
            id and epoch.
    """

    number: int
    producer: str
    began: float
    rows: list[Row] = field(default_factory=list)
    unsure: list[Row] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    verdict: Verdict = Verdict.NOT_COMMITTED
    transactional_id: str = "tx"
    identity: tuple[int, int] | None = None
    decided: bool = False

    def __str__(self) -> str:
        who = f"{self.producer} as {self.transactional_id}"
        return f"transaction {self.number} of {who}, {self.verdict.value}"


def committed_records(
    topic: str, partition: int, batches: Iterable[StoredBatch]
) -> tuple[list[LogRecord], dict[int, list[LogRecord]]]:
    """Return a partition's committed records, and by producer id those of open transactions."""
    seen: list[LogRecord] = []
    pending: dict[int, list[LogRecord]] = {}
    for batch in batches:
        data = batch.wire()
        attributes = int.from_bytes(data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big")
        producer = int.from_bytes(data[_PRODUCER_AT : _PRODUCER_AT + 8], "big", signed=True)
        if attributes & _CONTROL:
            ended = pending.pop(producer, [])
            if _KEY.unpack_from(data, _KEY_AT)[1] == 1:
                seen += ended
            continue
        records = [
            LogRecord(topic, partition, record.offset, record.value)
            for record in read_batches(data)[0].records()
        ]
        if attributes & _TRANSACTIONAL:
            pending.setdefault(producer, []).extend(records)
        else:
            seen += records
    return sorted(seen, key=lambda record: record.offset), pending


def visible_at_brokers(
    topic: str,
    partition: int,
    batches: Iterable[StoredBatch],
    stable: int,
    aborted: Sequence[tuple[int, int, int]],
) -> list[LogRecord]:
    """Return a partition's committed records as a real consumer finds them.

    These are the records below `stable` (the last stable offset), without those of the transactions
    in `aborted` (producer id, first offset, offset of the marker).
    """
    seen = []
    for batch in batches:
        data = batch.wire()
        attributes = int.from_bytes(data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big")
        producer = int.from_bytes(data[_PRODUCER_AT : _PRODUCER_AT + 8], "big", signed=True)
        gone = any(
            producer == each[0] and each[1] <= batch.base_offset <= each[2] for each in aborted
        )
        if (
            attributes & _CONTROL
            or batch.base_offset >= stable
            or (gone and attributes & _TRANSACTIONAL)
        ):
            continue
        seen += [
            LogRecord(topic, partition, record.offset, record.value)
            for record in read_batches(data)[0].records()
        ]
    return seen


_OUTCOMES = {
    Verdict.COMMITTED: Outcome.ACKED,
    Verdict.NOT_COMMITTED: Outcome.NOT_WRITTEN,
    Verdict.UNKNOWN: Outcome.UNKNOWN,
}


def judge(
    attempts: Sequence[Attempt],
    visible: Sequence[LogRecord],
    offsets: Mapping[str, Mapping[tuple[str, int], int]],
    gone: Collection[ValueId | None] = frozenset(),
) -> list[Violation]:
    """Return the violations in the visible records and in the offsets of the groups.

    `offsets` maps each group to its committed offsets, by topic and partition. Transaction n
    commits two offsets: n + 1 for the partition ("src", 0), which all transactions share, and a
    number of its own for ("src", n + 1), which shows whether this transaction was committed. `gone`
    are the records that were deleted with their topic while their transactions were open.
    """
    rows = []
    for attempt in attempts:
        for row in (*attempt.rows, *attempt.unsure):
            row.outcome = _OUTCOMES[attempt.verdict]
            row.settled = None
            rows.append(row)
        if attempt.verdict is Verdict.COMMITTED:
            for row in attempt.unsure:
                row.outcome = Outcome.UNKNOWN
    for row in rows:
        if row.value in gone and row.outcome is Outcome.ACKED:
            row.outcome = Outcome.UNKNOWN
    wrong = check_history(rows, visible)
    there = {parse_value(record.value) for record in visible}
    newest: dict[str, int] = {}
    for attempt in attempts:
        wrong += _check_whole(attempt, there, offsets, newest, gone)
    for group, number in newest.items():
        found = offsets.get(group, {}).get(("src", 0))
        if found != number + 1:
            wrong.append(Violation(Anomaly.HALF, f"{group} is at {found}, not at {number + 1}"))
    return wrong


def _check_whole(
    attempt: Attempt,
    there: set[ValueId | None],
    offsets: Mapping[str, Mapping[tuple[str, int], int]],
    newest: dict[str, int],
    gone: Collection[ValueId | None],
) -> Iterator[Violation]:
    left = [row.value for row in attempt.rows if row.value not in gone]
    parts = {str(value): value in there for value in left}
    for group, own in attempt.groups.items():
        found = offsets.get(group, {}).get(("src", attempt.number + 1))
        parts[f"offsets of {group}"] = found is not None
        if found is None:
            continue
        newest[group] = max(newest.get(group, -1), attempt.number)
        if found != own:
            yield Violation(Anomaly.HALF, f"{attempt}: {group} is at {found}, not at {own}")
    if len(set(parts.values())) > 1:
        shown = [name for name, visible in parts.items() if visible]
        hidden = [name for name, visible in parts.items() if not visible]
        yield Violation(Anomaly.HALF, f"{attempt}: {shown[0]} is visible, {hidden[0]} is not")
    for name, visible in parts.items():
        told = attempt.verdict is not Verdict.UNKNOWN
        if told and name.startswith("offsets") and visible is not _expected(attempt):
            yield Violation(Anomaly.HALF, f"{attempt}: {name} visible: {visible}")


def _expected(attempt: Attempt) -> bool:
    return attempt.verdict is Verdict.COMMITTED
