"""The load loop of `aioidem perf`: send records with a producer, and count their outcomes.

It queues records as fast as the producer and the flag `--throughput` allow.

Invariants:

- The loop calls `send_nowait` until the buffer is full, then awaits `wait_for_room`. It never
  awaits a single record, so that it measures the producer and not itself.
- The loop ends after a number of records or seconds, even while it waits for room. Then it calls
  `flush`, whose timeout is longer than any record's own deadline.
- The clock is read once when a record is sent and once when its outcome is known. Both the tally
  (`measure.Tally`, which counts) and the journal (`Journal`, which stores each record's outcome)
  get these two times, so their latencies are equal.
- With transactions, every record belongs to a transaction, and the last transaction is committed
  before the run ends. A commit waits until no batch is in flight; that time is part of the
  measurement.
- A KafkaError that the producer raises ends the run and is returned, never raised, because what was
  measured until then is still a result. A failed record is only counted.

Rejected: one task per record; `send_many` (it has one outcome per call, but latencies are measured
per record).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from aioidem._load.measure import Tally
from aioidem.errors import BufferFullError, KafkaError, KafkaTimeoutError
from aioidem.structs import DeliveryStatus, RecordMetadata

__all__ = ["Clock", "Journal", "LoadDelivery", "LoadProducer", "Pace", "Workload", "run_load"]

Clock = Callable[[], float]

# How many seconds the loop queues records before it lets other tasks run. Without a limit the loop
# would fill a large buffer to the end while the network is idle. A millisecond is short enough not
# to delay the reading of answers, and long enough for batches to fill.
_LONGEST_TURN = 0.001
_FIRST_TURN = 0.05  # nothing is in flight yet, so no answer can be delayed
_SHORTEST_NAP = 0.001


class LoadDelivery(Protocol):
    """The members of `aioidem.Delivery` that the load loop and a journal use."""

    @property
    def status(self) -> DeliveryStatus:
        """The outcome of the record; PENDING until it is known."""
        ...

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is in the log; a failed record raises its error."""
        ...

    def exception(self) -> BaseException | None:
        """Return the error that the record failed with; None if it was acknowledged."""
        ...

    def add_done_callback(self, callback: Callable[..., object], /) -> object:
        """Call ``callback(delivery)`` when the outcome is known."""


class LoadProducer(Protocol):
    """The methods of `aioidem.Producer` that the load loop uses."""

    def send_nowait(
        self, topic: str, value: bytes, *, timestamp: float | None = None
    ) -> LoadDelivery:
        """Queue a record; raise BufferFullError if there is no room."""
        ...

    async def wait_for_room(self) -> object:
        """Wait until the buffer may have room."""

    async def flush(self, timeout: float | None = None) -> object:
        """Wait until every record queued so far has an outcome."""

    async def begin_transaction(self) -> object:
        """Begin a transaction, to which the next records belong."""

    async def commit_transaction(self, timeout: float | None = None) -> object:
        """Commit the transaction, and wait until it is committed."""

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the topic's partitions, asking a broker if they are not known yet."""
        ...


class Journal(Protocol):
    """An object that makes the records of a run and stores the outcome of each.

    Records are numbered from 0 in the order in which they are sent. `sent_at` and `ended_at` are in
    seconds on the clock of `run_load`. The `Tally`, which counts outcomes, gets the same times.
    """

    def record(self, number: int, sent_at: float) -> tuple[bytes, float]:
        """Return the record's value, and its timestamp in seconds since the epoch."""
        ...

    def ended(self, number: int, delivery: LoadDelivery, sent_at: float, ended_at: float) -> None:
        """Store the outcome of a record."""


@dataclass(frozen=True, slots=True)
class Pace:
    """An even rate: record number n, counted from 0, is due at start + n / rate.

    Attributes:
        records_per_sec: the rate; `math.inf` for as fast as possible.
        start: the time of the first record, in seconds.
    """

    records_per_sec: float
    start: float

    def delay(self, sent: int, now: float) -> float:
        """Return how many seconds remain until the next record is due, after `sent` records.

        The result is 0 if the record is due. A timer cannot resolve less than one millisecond, so a
        shorter wait becomes one millisecond; the records that become due meanwhile are then sent at
        once.
        """
        if self.records_per_sec == math.inf:
            return 0.0
        wait = self.start + sent / self.records_per_sec - now
        return max(wait, _SHORTEST_NAP) if wait > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run sends: `values` in turn, for `num_records` or for `duration` seconds.

    The first `warmup_records` are sent like all others, and the tally counts the rest on its own.
    `throughput` is the limit in records per second, `math.inf` for none. `flush_timeout` and
    `transaction_duration` are in seconds; a `transaction_duration` of None means no transactions.
    """

    topic: str
    values: Sequence[bytes]
    num_records: int | None
    duration: float | None
    throughput: float
    flush_timeout: float
    transaction_duration: float | None = None
    warmup_records: int = 0


class _Transactions:
    """The transactions of a run.

    Each begins before a record, and is committed before the first record that comes
    `transaction_duration` later, or at the end of the run.
    """

    def __init__(self, producer: LoadProducer, work: Workload, tally: Tally, clock: Clock) -> None:
        self._producer = producer
        self._timeout = work.flush_timeout
        self._duration = (
            math.inf if work.transaction_duration is None else work.transaction_duration
        )
        self._tally = tally
        self._clock = clock
        self._begun_at: float | None = None
        self._before = 0

    async def turn(self, now: float) -> float:
        """Commit the open transaction if its duration is over, and begin one if none is open.

        Returns:
            The time afterwards, in seconds: `now` if nothing was done.
        """
        if self._begun_at is not None and now - self._begun_at >= self._duration:
            await self.end()
        if self._begun_at is None:
            await self._producer.begin_transaction()
            now = self._begun_at = self._clock()
            self._before = self._tally.records
        return now

    async def end(self) -> None:
        """Commit the open transaction, if there is one."""
        if self._begun_at is None:
            return
        asked_at = self._clock()
        await self._producer.commit_transaction(self._timeout)
        self._begun_at = None
        self._tally.committed(self._tally.records - self._before, asked_at, self._clock())


class _Outcomes:
    """The receiver of each record's outcome, which it enters into the tally and the journal.

    The tally counts outcomes, and the journal stores each of them. The clock is read once per
    outcome, so both get the same time. Records from number `warmup` on are counted a second time,
    in the tally of those after the warm-up.

    Attributes:
        first: the event of the first acknowledgement.
    """

    def __init__(self, tally: Tally, warmup: int, clock: Clock, journal: Journal | None) -> None:
        self.first = anyio.Event()
        self._tally = tally
        self._warmup = warmup
        self._clock = clock
        self._journal = journal

    def ended(self, number: int, size: int, sent_at: float, delivery: LoadDelivery) -> None:
        """Enter the outcome of record `number`, of `size` bytes, which was sent at `sent_at`."""
        now = self._clock()
        self._count(self._tally, size, sent_at, now, delivery)
        if self._tally.acked == 1:
            self.first.set()
        rest = self._tally.after_warmup
        if rest is not None and number >= self._warmup:
            self._count(rest, size, sent_at, now, delivery)
        if self._journal is not None:
            self._journal.ended(number, delivery, sent_at, now)

    @staticmethod
    def _count(tally: Tally, size: int, sent_at: float, now: float, delivery: LoadDelivery) -> None:
        status = delivery.status
        if status is DeliveryStatus.ACKED:
            tally.acknowledged(size, sent_at, now)
        else:
            tally.failed(status, delivery.exception(), now)

    async def close_first_batch(self) -> None:
        """Tell the tally when all records of the first batch are acknowledged.

        All records of a batch get their outcomes before another task runs. So when this task runs,
        the records acknowledged by then are those of the first batch.
        """
        await self.first.wait()
        self._tally.first_batch_over()


async def run_load(
    producer: LoadProducer,
    work: Workload,
    tally: Tally,
    clock: Clock,
    journal: Journal | None = None,
) -> KafkaError | None:
    """Send the workload, and wait until every record has an outcome.

    Args:
        producer: a started producer that knows the partitions of `work.topic`.
        work: what to send.
        tally: counts every record and outcome; it must be new.
        clock: returns seconds; the same clock as that of `tally`.
        journal: makes the records, instead of `work.values`, and notes how each one ended.

    Returns:
        None, or the error that ended the run early. Failed records are counted by the tally and do
        not end the run.
    """
    failure: KafkaError | None = None
    outcomes = _Outcomes(tally, work.warmup_records, clock, journal)
    transactions = None
    if work.transaction_duration is not None:
        transactions = _Transactions(producer, work, tally, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcomes.close_first_batch)
        # The error is caught inside the task group, which would wrap it in an ExceptionGroup.
        try:
            await _fill(producer, work, tally, clock, outcomes, transactions, journal)
            if transactions is not None:
                await transactions.end()
            await producer.flush(timeout=work.flush_timeout)
        except KafkaError as error:
            failure = error
        tasks.cancel_scope.cancel()
    return failure


async def _fill(
    producer: LoadProducer,
    work: Workload,
    tally: Tally,
    clock: Clock,
    outcomes: _Outcomes,
    transactions: _Transactions | None,
    journal: Journal | None,
) -> None:
    start = clock()
    end = math.inf if work.duration is None else start + work.duration
    count = math.inf if work.num_records is None else work.num_records
    pace = Pace(work.throughput, start)
    values, different = work.values, len(work.values)
    timestamp: float | None = None
    turn_ends = start + _FIRST_TURN
    while tally.records < count and (now := clock()) < end:
        if now >= turn_ends:
            await anyio.lowlevel.checkpoint()
            now = clock()
            turn_ends = now + _LONGEST_TURN
        if delay := pace.delay(tally.records, now):
            await anyio.sleep(min(delay, end - now))
            continue
        if transactions is not None:
            now = await transactions.turn(now)
        number = tally.records
        if journal is not None:
            value, timestamp = journal.record(number, now)
        else:
            value = values[number % different]
        if tally.after_warmup is None and number == work.warmup_records > 0:
            tally.warmed_up(now)
        try:
            delivery = producer.send_nowait(work.topic, value, timestamp=timestamp)
        except BufferFullError:
            with anyio.move_on_after(None if end == math.inf else end - now):
                await _wait_for_room(producer, tally)
            continue
        tally.queued()
        delivery.add_done_callback(partial(outcomes.ended, number, len(value), now))


async def _wait_for_room(producer: LoadProducer, tally: Tally) -> None:
    """Wait for room in the buffer; a timeout is an error only if no record ended meanwhile."""
    before = tally.open
    try:
        await producer.wait_for_room()
    except KafkaTimeoutError:
        # On a slow link, freeing a part of a large buffer can take longer than max.block.ms.
        if tally.open == before:
            raise
