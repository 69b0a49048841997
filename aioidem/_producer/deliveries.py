"""Deliveries: the outcomes of the records of one `send_many` or `send_table`.

The outcomes are kept as ranges: a batch's records share one `Outcome`, so a call with millions of
records keeps a few objects per batch. A `Delivery` of one record is made when somebody looks at it,
and kept from then on. Callers see `Deliveries`; the methods that set outcomes are in its subclass
`BulkDeliveries`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import overload

from aioidem._engine.record import Outcome
from aioidem._network.waiting import Signal, new_signal
from aioidem._producer.delivery import Delivery, DeliveryContext, stored_at
from aioidem.errors import InternalError, KafkaError, PartialDeliveryError, TransactionAborted
from aioidem.structs import DeliveryCounts, DeliveryStatus, RecordMetadata

__all__ = ["BulkDeliveries", "Deliveries", "DeliveryRange", "Piece"]


@dataclass(frozen=True, slots=True)
class DeliveryRange:
    """Records of one call that share an outcome, because they were in one batch.

    Attributes:
        topic: The topic.
        partition: The partition; -1 if the records failed before they got one.
        positions: The records' positions in the call, from 0 on, rising. The record at
            `positions[i]` has the offset `first_offset + i`, if the offset is known.
        status: What became of them.
        first_offset: The offset of the first record in the log; -1 if it is not known.
        error: The error that they failed with; None if they have not failed.
    """

    topic: str
    partition: int
    positions: Sequence[int]
    status: DeliveryStatus
    first_offset: int
    error: KafkaError | None

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.positions)


class _Run:
    """Some records of one `send_many` or `send_table` that share an outcome.

    `positions` are the positions of the records in the call, rising. `counted` is how many of them
    were counted as failures that nobody has looked at.
    """

    __slots__ = ("counted", "first", "outcome", "place", "positions")

    def __init__(self, positions: Sequence[int], outcome: Outcome, place: int) -> None:
        self.positions = positions
        self.first = positions[0]
        self.counted = 0
        self.outcome = outcome
        # The index of the first of these records among all records that share the outcome.
        self.place = place

    def continues(self, positions: Sequence[int], outcome: Outcome, place: int) -> bool:
        """Return whether other records directly follow this run, in the call and in the batch."""
        mine = self.positions
        return (
            self.outcome is outcome
            and isinstance(mine, range)
            and isinstance(positions, range)
            and mine.stop == positions.start
            and self.place + len(mine) == place
        )

    def index(self, position: int) -> int:
        """Return the index of a position among `positions`; -1 if it is not one of them."""
        positions = self.positions
        if isinstance(positions, range):
            return position - positions.start if position in positions else -1
        index = bisect_left(positions, position)
        return index if index < len(positions) and positions[index] == position else -1


class Deliveries(Sequence[Delivery]):
    """The outcomes of one call with several records: `Delivery` objects in the records' order.

    `ranges`, `counts` and `failures()` give the same outcomes without creating an object for each
    record.
    """

    __slots__ = (
        "_context",
        "_count",
        "_event",
        "_made",
        "_pending",
        "_runs",
        "_sorted",
        "_stamps",
        "watched",
    )

    # Whether the caller is going to look at every outcome, so that failures need not be logged.
    watched: bool
    _context: DeliveryContext
    _count: int
    _event: Signal | None
    _made: dict[int, Delivery]
    _pending: int
    _runs: list[_Run]
    # Whether the runs (`_Run`) are in the order of their first positions.
    _sorted: bool
    # Pairs of a position and the timestamps of the records from there to the next pair's position:
    # one timestamp for all of them, or an array.
    _stamps: list[tuple[int, array[int] | int]]

    async def settled(self) -> None:
        """Wait until every outcome is known.

        Raises:
            WrongLoopError: A record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: A record is pending, and the producer's event loop was closed.
        """
        if self._pending:
            self._context.home.check(True)
        self.watched = True
        try:
            while self._pending:
                if self._event is None:
                    self._event = new_signal()
                await self._event.wait()
        except BaseException:
            self.unwatch()
            raise

    def unwatch(self) -> None:
        """Have the failures logged: the call was cancelled, and its caller sees no outcome."""
        if not self.watched:
            return
        self.watched = False
        for run in self._runs:
            error = run.outcome.error
            self._count_unseen(run.outcome, error, len(run.positions) - run.counted)
            run.counted = len(run.positions)

    def _count_unseen(self, outcome: Outcome, error: Exception | None, count: int) -> None:
        # The caller that aborts a transaction knows that its records fail, so they are not counted.
        if count and error is not None and not isinstance(error, TransactionAborted):
            self._context.unseen.add(outcome.topic, _shown(error), count)

    @property
    def ranges(self) -> list[DeliveryRange]:
        """The outcomes as ranges, sorted by the first position of each range in the call."""
        return [
            DeliveryRange(
                run.outcome.topic,
                run.outcome.partition,
                run.positions,
                run.outcome.status,
                -1 if run.outcome.base_offset < 0 else run.outcome.base_offset + run.place,
                None if run.outcome.error is None else _shown(run.outcome.error),
            )
            for run in self._in_order()
        ]

    @property
    def counts(self) -> DeliveryCounts:
        """How many records have had each outcome so far."""
        return DeliveryCounts(
            self.count(DeliveryStatus.ACKED),
            self.count(DeliveryStatus.NOT_WRITTEN),
            self.count(DeliveryStatus.UNKNOWN),
        )

    def count(self, value: object) -> int:
        """Return how many of the records have this `DeliveryStatus`."""
        if value is DeliveryStatus.PENDING:
            return self._pending
        return sum(len(run.positions) for run in self._runs if run.outcome.status is value)

    def failures(self) -> Iterator[tuple[int, KafkaError]]:
        """Yield the position in the call and the error of each record that failed, in order."""
        positions: list[int] = []
        for run in self._runs:
            if run.outcome.error is not None:
                positions += run.positions
        for position in sorted(positions):
            error = self[position].exception()
            if error is not None:
                yield position, error

    def raise_for_status(self) -> None:
        """Raise an error if a record has failed.

        Raises:
            PartialDeliveryError: At least one record failed; the error's `deliveries` attribute is
                this object.
        """
        first = next(self.failures(), None)
        if first is None:
            return
        failed = sum(len(run.positions) for run in self._runs if run.outcome.error is not None)
        raise PartialDeliveryError(
            f"{failed} of {self._count} records failed: "
            f"{self.count(DeliveryStatus.NOT_WRITTEN)} not written, "
            f"{self.count(DeliveryStatus.UNKNOWN)} unknown; the first: {first[1]}",
            deliveries=self,
        ) from first[1]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        if isinstance(index, slice):
            return [self[position] for position in range(self._count)[index]]
        position = range(self._count)[index]
        made = self._made.get(position)
        if made is None:
            made = self._made[position] = self._make(position)
        return made

    def _in_order(self) -> list[_Run]:
        if not self._sorted:
            self._runs.sort(key=attrgetter("first"))
            self._sorted = True
        return self._runs

    def _make(self, position: int) -> Delivery:
        runs = self._in_order()
        # Most often the position is in the last run that begins at or before it. But if keys have
        # spread the records over partitions, runs are interleaved, and an earlier one may have it.
        for number in range(bisect_right(runs, position, key=attrgetter("first")) - 1, -1, -1):
            run = runs[number]
            index = run.index(position)
            if index >= 0:
                place = run.place + index
                return _OneOfMany(run.outcome, place, self._stamp(position), self._context)
        raise InternalError(f"the outcome of record {position} is not known yet: await settled()")

    def _stamp(self, position: int) -> int:
        number = bisect_right(self._stamps, position, key=lambda each: each[0]) - 1
        first, stamps = self._stamps[number]
        return stamps if isinstance(stamps, int) else stamps[position - first]

    def __iter__(self) -> Iterator[Delivery]:
        return map(self.__getitem__, range(self._count))

    def __repr__(self) -> str:
        return f"<Deliveries {self._count} records, {self._pending} pending>"


class BulkDeliveries(Deliveries):
    """The outcomes of a `send_many` or `send_table` whose records are being queued.

    Args:
        context: What all deliveries of the producer have in common.
    """

    __slots__ = ()

    def __init__(self, context: DeliveryContext) -> None:
        self._context = context
        self.watched = False
        self._count = self._pending = 0
        self._event = None
        self._runs = []
        self._sorted = True
        self._stamps = []
        self._made = {}

    def piece(self, stamps: array[int] | int) -> Piece:
        """Return the object that receives the outcomes of the records that are queued next.

        Args:
            stamps: The timestamps of these records, or the one that all of them have, in
                milliseconds since the epoch.
        """
        self._stamps.append((self._count, stamps))
        return Piece(self, self._count)

    def queued(self, count: int) -> None:
        """Note that `count` more records of the call were queued."""
        self._count += count
        self._pending += count

    def settle(self, positions: Sequence[int], outcome: Outcome, place: int) -> None:
        """Set the outcome of some records; if it is the call's last one, wake the waiting tasks.

        Args:
            positions: The positions of the records in the call, rising.
            outcome: The outcome, which other records may share.
            place: The index of the first of these records among all records that share the outcome;
                the others follow it.
        """
        count = len(positions)
        runs = self._runs
        if runs and runs[-1].continues(positions, outcome, place):
            runs[-1].positions = range(runs[-1].first, positions[-1] + 1)
        else:
            run = _Run(positions, outcome, place)
            self._sorted = self._sorted and (not runs or runs[-1].first < run.first)
            runs.append(run)
        if outcome.error is not None and not self.watched:
            self._count_unseen(outcome, outcome.error, count)
            runs[-1].counted += count
        self._pending -= count
        if not self._pending and self._event is not None:
            event, self._event = self._event, None
            event.set()


class Piece:
    """Receives the outcomes of some consecutive records of a `send_many` or `send_table`.

    A `RecordBlock`, which queues the records together, calls `take` when some have their outcome.

    Args:
        deliveries: The outcomes of the whole call.
        first: The position of the piece's first record in the call.
    """

    __slots__ = ("_deliveries", "_first")

    def __init__(self, deliveries: BulkDeliveries, first: int) -> None:
        self._deliveries = deliveries
        self._first = first

    def take(self, rows: Sequence[int], outcome: Outcome, place: int) -> None:
        """Take the outcome of some records.

        Args:
            rows: The positions of the records in this piece.
            outcome: The outcome, which other records may share.
            place: The index of the first of these records among all records that share the outcome.
        """
        first = self._first
        if isinstance(rows, range):
            rows = range(first + rows.start, first + rows.stop)
        elif first:
            rows = array("q", [first + row for row in rows])
        self._deliveries.settle(rows, outcome, place)


class _OneOfMany(Delivery):
    """The delivery of one record of a call, whose outcome is known."""

    __slots__ = (
        "_callbacks",
        "_context",
        "_looking",
        "_outcome",
        "_place",
        "_result",
        "_timestamp_ms",
        "_waiter",
    )

    def __init__(
        self, outcome: Outcome, place: int, timestamp_ms: int, context: DeliveryContext
    ) -> None:
        self._outcome = outcome
        self._place = place
        self._timestamp_ms = timestamp_ms
        self._context = context
        self._result = self._waiter = self._callbacks = None
        self._looking = 1

    def _stored_at(self, outcome: Outcome) -> RecordMetadata:
        return stored_at(outcome, self._place, self._timestamp_ms)


def _shown(error: Exception) -> KafkaError:
    return error if isinstance(error, KafkaError) else InternalError(error)
