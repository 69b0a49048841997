"""What a reader of committed transactions sees, and the judge of transactions.

The reader knows the layout of record batches and of markers, and nothing else: it goes through a
partition's bytes in order, keeps what a producer id wrote in a transaction until its marker comes,
and lets it be seen, or forgets it. It shares no code with the producer, and none with the brokers'
own last stable offset and list of aborted transactions, which are held against it.

The judge is `check_history` over that view, with the verdict on a transaction for the outcome of
its records: of one that was committed every record is there, once, in order, at its offset; of one
that was not, none is. Of one whose outcome nobody was told, all is there or nothing; and a group's
offsets share its fate.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# Behind the header of a control batch: length, attributes, two deltas and the key's length, one
# byte each; then the key: version, kind.
_KEY = struct.Struct(">hh")
_KEY_AT = _RECORDS_AT + 5


class Verdict(enum.Enum):
    """What the producer said of a transaction."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Attempt:
    """One transaction, as its application knows it.

    `unsure`: rows of callers who left before they knew whether the record was queued.
    `groups`: those whose offsets it commits, and which of ("src", number + 1).
    """

    number: int
    producer: str
    began: float
    rows: list[Row] = field(default_factory=list)
    unsure: list[Row] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    verdict: Verdict = Verdict.NOT_COMMITTED

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer}, {self.verdict.value}"


def committed_records(
    topic: str, partition: int, batches: Iterable[StoredBatch]
) -> tuple[list[LogRecord], list[int]]:
    """What may be read of a partition, and the producer ids whose transactions are open."""
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
    return sorted(seen, key=lambda record: record.offset), list(pending)


def visible_at_brokers(
    topic: str,
    partition: int,
    batches: Iterable[StoredBatch],
    stable: int,
    aborted: Sequence[tuple[int, int, int]],
) -> list[LogRecord]:
    """The same as consumers find it: up to the last stable offset, without what is in the list of
    aborted transactions (producer id, first offset, offset of its marker).
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
) -> list[Violation]:
    """Everything that is wrong.

    `offsets`: what each group has committed, by topic and partition. Transaction n commits n + 1 of
    ("src", 0), and of ("src", n + 1) what it says.
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
    wrong = check_history(rows, visible)
    there = {parse_value(record.value) for record in visible}
    newest: dict[str, int] = {}
    for attempt in attempts:
        wrong += _check_whole(attempt, there, offsets, newest)
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
) -> Iterator[Violation]:
    parts = {str(row.value): row.value in there for row in attempt.rows}
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
