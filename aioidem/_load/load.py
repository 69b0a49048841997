"""The load loop: queue records as fast as the producer takes them, and see each one end.

Invariants:

* `send_nowait` until the producer has no room, then `wait_for_room`: the loop never awaits a
  single record, so it measures the producer and not itself.
* It ends: by count or by the clock, also while it waits for room; then `flush`, whose timeout is
  past every record's own deadline.
* In transactions: whatever is sent is in one, and the last is committed before the run is over. A
  commit empties the pipeline, which is part of what is measured.
* A failure of the client ends the run and is returned, never raised: what was measured until then
  is still a result.

Rejected: a task per record, and `send_many` (its outcomes are per call, the latencies here are per
record).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Protocol

import anyio
import anyio.lowlevel

from aioidem._load.measure import Tally
from aioidem.errors import BufferFullError, KafkaError, KafkaTimeoutError
from aioidem.structs import DeliveryStatus

__all__ = ["Clock", "LoadDelivery", "LoadProducer", "Pace", "Workload", "run_load"]

Clock = Callable[[], float]

# A producer with much room would otherwise keep the loop here for its whole buffer, with the
# network idle. Short enough not to delay an answer, long enough not to send batches half full.
_LONGEST_TURN = 0.001
_FIRST_TURN = 0.05  # Nothing is in flight yet that could be delayed.
_SHORTEST_NAP = 0.001


class LoadDelivery(Protocol):
    """What the loop needs of `aioidem.Delivery`."""

    @property
    def status(self) -> DeliveryStatus:
        """What is known of the record."""
        ...

    def exception(self) -> BaseException | None:
        """Why it was not acknowledged."""
        ...

    def add_done_callback(self, callback: Callable[..., object], /) -> object:
        """Call with the delivery once it has ended."""


class LoadProducer(Protocol):
    """What the loop needs of `aioidem.Producer`."""

    def send_nowait(self, topic: str, value: bytes) -> LoadDelivery:
        """Queue a record; BufferFullError when there is no room."""
        ...

    async def wait_for_room(self) -> object:
        """Return when there may be room."""

    async def flush(self, timeout: float | None = None) -> object:
        """Return when every record queued so far has ended."""

    async def begin_transaction(self) -> object:
        """Begin a transaction."""

    async def commit_transaction(self, timeout: float | None = None) -> object:
        """Return when every record of it has ended and it is committed."""

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic, asked for where not known yet."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """An even rate: record number n is due at start + n / rate.

    Attributes:
        records_per_sec: the rate, `math.inf` for as fast as possible.
        start: time of the first record, in seconds.
    """

    records_per_sec: float
    start: float

    def delay(self, sent: int, now: float) -> float:
        """Seconds until the next record is due after `sent` of them; 0 when it is.

        Waits too short for a timer are one millisecond, and what falls due meanwhile goes at once.
        """
        if self.records_per_sec == math.inf:
            return 0.0
        wait = self.start + sent / self.records_per_sec - now
        return max(wait, _SHORTEST_NAP) if wait > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run sends: `values` in turn, until `num_records` or `duration` seconds are over."""

    topic: str
    values: Sequence[bytes]
    num_records: int | None
    duration: float | None
    throughput: float
    flush_timeout: float
    transaction_duration: float | None = None


class _Transactions:
    """Begins one when a record is due, and commits it when it is old enough."""

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

    async def turn(self, now: float) -> None:
        """Before a record is sent at `now`."""
        if self._begun_at is not None and now - self._begun_at >= self._duration:
            await self.end()
        if self._begun_at is None:
            await self._producer.begin_transaction()
            self._begun_at = self._clock()
            self._before = self._tally.records

    async def end(self) -> None:
        """Commit what is open, if there is anything."""
        if self._begun_at is None:
            return
        asked_at = self._clock()
        await self._producer.commit_transaction(self._timeout)
        self._begun_at = None
        self._tally.committed(self._tally.records - self._before, asked_at, self._clock())


async def run_load(
    producer: LoadProducer, work: Workload, tally: Tally, clock: Clock
) -> KafkaError | None:
    """Send the workload and wait until every record has ended.

    Args:
        producer: a started producer that knows `work.topic`.
        tally: told of every record and outcome.
        clock: seconds, the clock `tally` was started by.

    Returns:
        None, or the error that ended the run early. Outcomes of records are the tally's, not an
        error of the run.
    """
    failure: KafkaError | None = None
    first = anyio.Event()
    transactions = None
    if work.transaction_duration is not None:
        transactions = _Transactions(producer, work, tally, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_close_first_batch, first, tally)
        # Caught inside: leaving the task group, it would be wrapped in an exception group.
        try:
            await _fill(producer, work, tally, clock, first, transactions)
            if transactions is not None:
                await transactions.end()
            await producer.flush(timeout=work.flush_timeout)
        except KafkaError as error:
            failure = error
        tasks.cancel_scope.cancel()
    return failure


async def _close_first_batch(first: anyio.Event, tally: Tally) -> None:
    """A batch completes its records without a turn of the event loop between them."""
    await first.wait()
    tally.first_batch_over()


async def _fill(
    producer: LoadProducer,
    work: Workload,
    tally: Tally,
    clock: Clock,
    first: anyio.Event,
    transactions: _Transactions | None,
) -> None:
    start = clock()
    end = math.inf if work.duration is None else start + work.duration
    count = math.inf if work.num_records is None else work.num_records
    pace = Pace(work.throughput, start)
    values: Iterator[bytes] = cycle(work.values)
    value = next(values)
    turn_ends = start + _FIRST_TURN
    while tally.records < count and (now := clock()) < end:
        if now >= turn_ends:
            await anyio.lowlevel.checkpoint()
            turn_ends = clock() + _LONGEST_TURN
        if delay := pace.delay(tally.records, now):
            await anyio.sleep(min(delay, end - now))
            continue
        if transactions is not None:
            await transactions.turn(now)
        try:
            delivery = producer.send_nowait(work.topic, value)
        except BufferFullError:
            with anyio.move_on_after(None if end == math.inf else end - now):
                await _wait_for_room(producer, tally)
            continue
        tally.queued()
        delivery.add_done_callback(partial(_done, tally, first, clock, len(value), now))
        value = next(values)


async def _wait_for_room(producer: LoadProducer, tally: Tally) -> None:
    """Wait for room; that it takes long is an error only when nothing moves."""
    before = tally.open
    try:
        await producer.wait_for_room()
    except KafkaTimeoutError:
        # A thin link may need longer than max.block to free a part of a large buffer.
        if tally.open == before:
            raise


def _done(
    tally: Tally,
    first: anyio.Event,
    clock: Clock,
    size: int,
    sent_at: float,
    delivery: LoadDelivery,
) -> None:
    status = delivery.status
    if status is not DeliveryStatus.ACKED:
        tally.failed(status, delivery.exception(), clock())
        return
    tally.acknowledged(size, sent_at, clock())
    if tally.acked == 1:
        first.set()
