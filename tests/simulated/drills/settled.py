"""The drill of outcomes: what is counted of them, what flushes wait for, what is given back.

In a run few flushes overlap, and records have outcomes of a few kinds. Here records are queued,
flushed and settled in any order. A row is kept of each record, or of each block; what the counters
say, which records a flush waits for and what it returns is derived from the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from aioidem import errors
from aioidem._engine.flushing import FlushCount
from aioidem._engine.incidents import Event
from aioidem._engine.memory import ByteBudget
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.record import (
    BLOCK_MEMORY,
    HEADER_MEMORY,
    RECORD_MEMORY,
    Outcome,
    PendingRecord,
    RecordGroup,
)
from aioidem._engine.record_block import Columns, RecordBlock
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine
from aioidem.structs import DeliveryCounts, DeliveryStatus, TopicPartition

from .comparing import raises_internal, unequal
from .made_batches import Nobody
from .reported import ToldTransactions

__all__ = ["a_block", "a_record", "drill_settled"]

_STEPS: Final = 25
_ACKED, _NOT_WRITTEN = DeliveryStatus.ACKED, DeliveryStatus.NOT_WRITTEN
_UNKNOWN: Final = DeliveryStatus.UNKNOWN
_ENDS: Final = (_ACKED, _NOT_WRITTEN, _UNKNOWN)
_MOST_LINES: Final = 1000
"""So many lines are kept for the log; older ones are dropped."""


def drill_settled(dice: Random) -> Iterator[str]:
    """Yield what is told of the outcomes of records that does not follow from their rows."""
    for wrong in (*_OutcomeDrill(dice).run(), *_of_outcome(dice)):
        yield f"outcomes: {wrong}"
        return


def a_record(dice: Random) -> PendingRecord:
    """Return a record, perhaps with headers."""
    headers = [("name", b"value")] * dice.choice((0, 0, 1, 3))
    return PendingRecord(None, b"", headers, 0, None, dice.choice((10, 20, 500)))


def a_block(dice: Random) -> RecordBlock:
    """Return two to four records of one call, of which one is larger."""
    values = [b"a"] * dice.randrange(1, 4)
    values.insert(dice.randrange(len(values) + 1), b"b" * dice.choice((2, 30, 600)))
    headers = (("name", b"value"),) * dice.choice((0, 0, 2))
    return RecordBlock(Columns(tuple(values), None, headers, 0), Nobody(), None)


@dataclass
class _Row:
    """One record, or the records of one call."""

    item: PendingRecord
    headers: int
    """The number of all their headers."""
    generation: int
    """How many flushes had begun before."""
    status: DeliveryStatus | None = None
    error: Exception | None = None
    taken: bool = False
    """Whether the outcome was taken, so that the caller can be told."""

    @property
    def count(self) -> int:
        """The number of records."""
        return self.item.count

    @property
    def charge(self) -> int:
        """The bytes that they have in the buffer."""
        each = BLOCK_MEMORY if isinstance(self.item, RecordBlock) else RECORD_MEMORY
        return self.item.size + self.count * each + self.headers * HEADER_MEMORY


@dataclass
class _Flush:
    """A call of `flush`."""

    told: FlushCount
    awaited: list[_Row]
    """The records whose callers had not been told an outcome when it began."""
    counts: bool = True
    """Whether its caller still waits."""
    result: DeliveryCounts | None = None
    """What it returns; final once nobody counts for it."""


class _OutcomeDrill:
    """`Outcomes`, and a row of each record."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._budget = ByteBudget(10_000_000)
        self._transactions = ToldTransactions()
        self._outcomes = Outcomes(self._budget, self._transactions)
        self._rows: list[_Row] = []
        self._flushes: list[_Flush] = []
        self._settlements: list[Settlement] = []
        self._taken = 0  # how many settlements were taken
        # Settlements of records that were not acknowledged; those that `on_failure` got; and
        # whether one could be taken before.
        self._failed: list[Settlement] = []
        self._heard: list[Settlement] = []
        self._heard_late = False
        self._events: list[Event] = []
        if dice.random() < 0.8:
            self._outcomes.on_failure = self._hear

    def _hear(self, settlement: Settlement) -> None:
        self._heard_late = settlement in self._outcomes.peek_settled()
        self._heard.append(settlement)

    def run(self) -> Iterator[str]:
        """Queue, flush and settle records, and yield what is told against that."""
        actions = [self._queue, self._queue, self._settle, self._settle, self._settle]
        actions += [self._flush, self._take, self._stop, self._log]
        for _ in range(_STEPS):
            action = self._dice.choice(actions)
            for wrong in (action(), *self._differences()):
                if wrong is not None:
                    yield f"{wrong} after {action.__name__}"
                    return

    def _queue(self) -> str | None:
        for _ in range(self._dice.randrange(1, 4)):
            block = self._dice.random() < 0.3
            item = a_block(self._dice) if block else a_record(self._dice)
            headers = item.columns.headers if isinstance(item, RecordBlock) else item.headers
            item.generation = len(self._flushes)
            row = _Row(item, len(headers) * item.count, item.generation)
            told = item.charge(), item.overhead()
            due = row.charge, row.charge - item.size
            if told != due:
                return f"{item.count} records take (all, overhead) {told} bytes, not {due}"
            if not isinstance(item, RecordBlock) and item.count != 1:
                return f"a record counts as {item.count}, not 1"
            self._budget.try_take(row.charge)
            self._rows.append(row)
        return None

    def _settle(self) -> str | None:
        left = [row for row in self._rows if row.status is None]
        rows = self._dice.sample(left, self._dice.randrange(len(left) + 1))
        if not rows:
            return None
        status = self._dice.choice(_ENDS)
        error: Exception | None = None
        if status is not _ACKED:
            text = f"error {len(self._settlements)}"
            kinds: tuple[type[Exception] | None, ...]
            kinds = errors.KafkaTimeoutError, errors.TransactionAborted, ValueError, None
            kind = self._dice.choice(kinds)
            error = None if kind is None else kind(text)
        made = Settlement.of_items(Outcome("t", 0, status, error=error), [row.item for row in rows])
        for row in rows:
            row.status, row.error = status, error
        self._settlements.append(made)
        told = len(self._transactions.told)
        self._outcomes.settle(made)
        self._failed += [made] if status is not _ACKED else []
        known = error if isinstance(error, errors.KafkaError) else None
        due = [] if status is _ACKED else [("fail", known)]
        if self._transactions.told[told:] != due:
            return f"the transaction is told {self._transactions.told[told:]}, not {due}"
        return None

    def _flush(self) -> str | None:
        """Begin a flush, which counts the outcomes that callers have not been told."""
        untold: Counter[DeliveryStatus] = Counter()
        awaited = [row for row in self._rows if not row.taken]
        for row in awaited:
            if row.status is not None:
                untold[row.status] += row.count
        generation = len(self._flushes)
        left = sum(row.count for row in self._rows if row.status is None)
        self._outcomes.close_generation(generation, left)
        counted = FlushCount(generation, untold) if untold else FlushCount(generation)
        self._outcomes.count_for(counted)
        self._flushes.append(_Flush(counted, awaited))
        return None

    def _stop(self) -> str | None:
        """Let the caller of a flush wait no longer."""
        counting = [flush for flush in self._flushes if flush.counts]
        if counting:
            flush = self._dice.choice(counting)
            self._outcomes.stop_counting(flush.told)
            flush.counts = False
        return None

    def _take(self) -> str | None:
        """Take the outcomes, so that callers can be told."""
        due = self._settlements[self._taken :]
        seen, taken = self._outcomes.peek_settled(), self._outcomes.take_settled()
        self._taken = len(self._settlements)
        for row in self._rows:
            row.taken = row.status is not None
        if list(seen) != due or list(taken) != due:
            many = f"{len(due)}, or not the same ones"
            return f"{len(seen)} outcomes are seen and {len(taken)} taken, not {many}"
        return None

    def _log(self) -> str | None:
        """Give lines for the log, and take all of them perhaps."""
        outcomes, dice = self._outcomes, self._dice
        many = dice.choice((1, 1, 2)) if dice.random() < 0.95 else _MOST_LINES + 1
        for number in range(many):
            event = Event(LogLine.DATA_LOSS, str(number), level=dice.choice((None, 20)))
            self._events.append(event)
            if number % 2:
                outcomes.add_event(event)
            else:
                outcomes.event(event.line, event.text, event.level)
        if dice.random() < 0.5:
            due, self._events = self._events[-_MOST_LINES:], []
            taken = outcomes.take_events()
            if taken != due:
                told, expected = [event.text for event in taken], [event.text for event in due]
                return f"lines {told} are taken, not {expected}"
        return None

    # -- what follows

    def _differences(self) -> Iterator[str | None]:
        outcomes, rows = self._outcomes, self._rows
        of = {status: [row for row in rows if row.status is status] for status in DeliveryStatus}
        failed = [row for row in (*of[_NOT_WRITTEN], *of[_UNKNOWN]) if row.error is not None]
        counted = [row for row in failed if not isinstance(row.error, errors.TransactionAborted)]
        left = [row for row in rows if row.status is None]
        counters = outcomes.counters
        heard = self._failed if outcomes.on_failure is not None else []
        counting = [flush for flush in self._flushes if flush.counts]
        pairs: dict[str, tuple[object, object]] = {
            "acked": (counters.records_acked, _count(of[_ACKED])),
            "not written": (counters.records_not_written, _count(of[_NOT_WRITTEN])),
            "unknown": (counters.records_unknown, _count(of[_UNKNOWN])),
            "bytes acked": (counters.bytes_acked, sum(row.item.size for row in of[_ACKED])),
            "records settled": (outcomes.settled, _count(rows) - _count(left)),
            "records in the error rate": (outcomes.meters.errors.total, _count(counted)),
            "bytes in the buffer": (self._budget.used, sum(row.charge for row in left)),
            "errors that on_failure got": (
                [str(each.outcome.error) for each in self._heard],
                [str(each.outcome.error) for each in heard],
            ),
            "on_failure got the failures": (self._heard == heard, True),
            "an outcome could be taken before on_failure": (self._heard_late, False),
            "flushes": (outcomes.flushes, len(counting)),
            "has lines": (outcomes.has_events, bool(self._events)),
            "batches sent": (counters.batches_sent, 0),
            "batches retried": (counters.batches_retried, 0),
            "batches split": (counters.batches_split, 0),
            "losses": (counters.data_loss_events, 0),
        }
        for number, flush in enumerate(self._flushes):
            over = [row.status is not None for row in rows if row.generation <= number]
            pairs[f"flush {number} is over"] = outcomes.flushed(number), all(over)
            if flush.counts or flush.result is None:
                ended = (
                    _count([row for row in flush.awaited if row.status is end]) for end in _ENDS
                )
                flush.result = DeliveryCounts(*ended)
            pairs[f"result of flush {number}"] = flush.told.counts, flush.result
        yield unequal(pairs)


def _count(rows: list[_Row]) -> int:
    return sum(row.count for row in rows)


def _of_outcome(dice: Random) -> Iterator[str]:
    """Yield which attribute of an outcome is not as it was given, or as it is by default."""
    given: dict[str, int] = {
        name: dice.randrange(2, 9)
        for name in ("base_offset", "log_append_time_ms", "log_start_offset", "attempts")
        if dice.random() < 0.5
    }
    error = dice.choice((None, errors.KafkaError("why")))
    which = dice.choice((None, TopicPartition("t", 3)))
    told = Outcome("t", 3, _UNKNOWN, error=error, topic_partition=which, **given)
    usual = {"base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1, "attempts": 0}
    for name, due in (usual | given).items():
        if getattr(told, name) != due:
            yield f"{name} of an outcome is {getattr(told, name)}, not {due}"
    facts, due_facts = (
        (told.topic, told.partition, told.status, told.error),
        ("t", 3, _UNKNOWN, error),
    )
    if facts != due_facts:
        yield f"an outcome is {facts}, not {due_facts}"
    if told.topic_partition != ("t", 3) or (which and told.topic_partition is not which):
        yield f"an outcome's topic_partition is {told.topic_partition}, not t-3, or not as given"
    if not raises_internal(lambda: a_record(dice).settle(told, 0)):
        yield "a record without a caller gets its outcome, and no InternalError is raised"
    if RecordGroup(7).size != 7:
        yield f"a group of 7 bytes has {RecordGroup(7).size}"
