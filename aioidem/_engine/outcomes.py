"""Outcomes: the outcomes of records, counted and kept until the Sender takes them.

Invariants
- Each record that was queued is settled once: ACKED, NOT_WRITTEN or UNKNOWN.
- A flush waits for the records that were queued before it, and for no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from aioidem import errors
from aioidem._engine.flushing import FlushCount
from aioidem._engine.incidents import Event
from aioidem._engine.memory import ByteBudget
from aioidem._engine.meters import Meters
from aioidem._engine.settlement import Settlement
from aioidem._engine.transactions import Transactions
from aioidem._log import LogLine
from aioidem.structs import DeliveryStatus

__all__ = ["Counters", "Outcomes"]

_ACKED = DeliveryStatus.ACKED  # a member's name is looked up slowly in Python 3.11, see `Named`
_MOST_EVENTS = 1000
"""The most events for the log that are kept until they are taken; older ones are dropped."""


class Counters:
    """The numbers of batches, records and bytes so far, by what happened to them."""

    __slots__ = (
        "batches_retried",
        "batches_sent",
        "batches_split",
        "bytes_acked",
        "data_loss_events",
        "records_acked",
        "records_not_written",
        "records_unknown",
    )

    def __init__(self) -> None:
        self.batches_sent = 0
        self.batches_retried = 0
        self.batches_split = 0
        self.bytes_acked = 0
        self.data_loss_events = 0
        self.records_acked = 0
        self.records_not_written = 0
        self.records_unknown = 0


class Outcomes:
    """The outcomes of one producer's records, and the messages for its operator.

    Args:
        budget: gets the bytes of settled records back.
        transactions: the open transaction fails if a record of it is not acknowledged.
    """

    __slots__ = (
        "_budget",
        "_events",
        "_flush_counts",
        "_left",
        "_settled",
        "_transactions",
        "counters",
        "meters",
        "on_failure",
        "settled",
    )

    def __init__(self, budget: ByteBudget, transactions: Transactions) -> None:
        self._budget = budget
        self._transactions = transactions
        self.counters = Counters()
        self.meters = Meters()
        # Called with the outcome of records that were not acknowledged, before it is kept.
        self.on_failure: Callable[[Settlement], None] | None = None
        # The number of records settled so far.
        self.settled = 0
        self._settled: list[Settlement] = []
        # For each closed generation (the records queued between two flushes), the number of its
        # records without an outcome. A generation without any has no entry.
        self._left: dict[int, int] = {}
        self._flush_counts: list[FlushCount] = []
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)

    def settle(self, settlement: Settlement) -> None:
        """Count records that share an outcome, and keep the outcome until the Sender takes it."""
        outcome, count, size = settlement.outcome, len(settlement.records), settlement.size()
        self.settled += count
        if self._left or self._flush_counts:
            self._count_for_flushes(settlement)
        counters = self.counters
        if outcome.status is _ACKED:
            counters.records_acked += count
            counters.bytes_acked += size
        else:
            if outcome.status is DeliveryStatus.NOT_WRITTEN:
                counters.records_not_written += count
            else:
                counters.records_unknown += count
            error = outcome.error
            if error is not None:
                self.meters.failed(outcome.topic, count, error, self.meters.now)
            self._transactions.fail(error if isinstance(error, errors.KafkaError) else None)
            if self.on_failure is not None:
                self.on_failure(settlement)
        self._settled.append(settlement)
        self._budget.release(size + settlement.overhead())

    def _count_for_flushes(self, settlement: Settlement) -> None:
        left = self._left
        generations = settlement.by_generation()
        for generation, count in generations.items():
            if generation in left:
                left[generation] -= count
                if not left[generation]:
                    del left[generation]
        for flush in self._flush_counts:
            flush.add(generations, settlement.outcome.status)

    # -- flushes

    def close_generation(self, generation: int, unsettled: int) -> None:
        """Begin to count down the unsettled records of a generation.

        Args:
            generation: the generation (the records queued between two flushes) that a flush closes.
            unsettled: the number of records without an outcome now, of this generation and all
            earlier ones.
        """
        left = unsettled - sum(self._left.values())
        if left:
            self._left[generation] = left

    def flushed(self, generation: int) -> bool:
        """Return whether all records queued before a flush are settled.

        Args:
            generation: the generation that the flush has closed.
        """
        return all(g > generation for g in self._left)

    def count_for(self, flush: FlushCount) -> None:
        """Begin to add new outcomes to `flush`; its count becomes the result of the flush."""
        self._flush_counts.append(flush)

    def stop_counting(self, flush: FlushCount) -> None:
        """Stop adding outcomes to a flush's count."""
        self._flush_counts.remove(flush)

    @property
    def flushes(self) -> int:
        """The number of flushes for which outcomes are counted."""
        return len(self._flush_counts)

    # -- what an operator reads

    def event(self, line: LogLine, text: str, level: int | None = None) -> None:
        """Keep a message about something that has happened, for the log.

        Args:
            line: which line of the log it is.
            text: the message.
            level: its level of the logging module; None is the line's own.
        """
        self._events.append(Event(line, text, level=level))

    def add_event(self, event: Event) -> None:
        """Keep a line for the log."""
        self._events.append(event)

    # -- what the Sender takes

    @property
    def has_events(self) -> bool:
        """Whether there are lines for the log that were not taken yet."""
        return bool(self._events)

    def take_settled(self) -> Sequence[Settlement]:
        """Take out the outcomes kept since the last call, oldest first."""
        if not self._settled:
            return ()
        settled, self._settled = self._settled, []
        return settled

    def peek_settled(self) -> tuple[Settlement, ...]:
        """Return the outcomes that `take_settled` has not taken yet, oldest first; keep them."""
        return tuple(self._settled)

    def take_events(self) -> list[Event]:
        """Take out the lines for the log kept since the last call, oldest first."""
        if not self._events:
            return []
        taken = list(self._events)
        self._events.clear()
        return taken
