"""The load loop of `aioidem perf`, tested with a producer that simulates time.

`FakeProducer` has the methods of `aioidem.Producer` that the command line uses, a buffer counted in
records, and a link with a round trip. Whenever the loop waits for the producer, the clock jumps to
the next answer, so rates are exact and no test waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from aioidem._load.load import Pace, Workload, run_load
from aioidem._load.measure import RunLabel, RunResult, Tally
from aioidem._load.payload import Numbers
from aioidem.errors import (
    BufferFullError,
    DeliveryTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    ProducerFenced,
)
from aioidem.structs import DeliveryStatus, RecordMetadata

pytestmark = pytest.mark.anyio

LABEL = RunLabel(client="aioidem", version="0", in_flight=5, record_size=1000)


class FakeClock:
    """A clock that advances only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeDelivery:
    """A stand-in for `aioidem.Delivery`: one record's outcome, which `FakeProducer` sets."""

    def __init__(self) -> None:
        self.status = DeliveryStatus.PENDING
        self.error: BaseException | None = None
        self._callbacks: list[Callable[..., object]] = []

    @property
    def metadata(self) -> RecordMetadata:
        raise NotImplementedError("the loop itself does not ask where a record is")

    def exception(self) -> BaseException | None:
        return self.error

    def add_done_callback(self, callback: Callable[..., object], /) -> None:
        self._callbacks.append(callback)

    def end(self, status: DeliveryStatus, error: BaseException | None = None) -> None:
        self.status, self.error = status, error
        for callback in self._callbacks:
            callback(self)


@dataclass
class FakeProducer:
    """A simulated producer: a round trip acknowledges `window` batches of `batch` records each.

    The first round trip acknowledges one batch only.
    """

    clock: FakeClock
    room: int = 1000
    batch: int = 16
    window: int = 5
    rtt: float = 0.15
    fail_at: dict[int, KafkaError] = field(default_factory=dict)
    stuck: bool = False
    sent: list[bytes] = field(default_factory=list)
    queue: deque[FakeDelivery] = field(default_factory=deque)
    waits: int = 0
    answered: bool = False
    transactions: list[int] = field(default_factory=list)
    in_transaction: bool = False

    def send_nowait(
        self, topic: str, value: bytes, *, timestamp: float | None = None
    ) -> FakeDelivery:
        assert topic == "t"
        assert timestamp is None
        if error := self.fail_at.get(len(self.sent)):
            raise error
        if len(self.queue) >= self.room:
            raise BufferFullError("no room")
        delivery = FakeDelivery()
        self.sent.append(value)
        self.queue.append(delivery)
        return delivery

    async def wait_for_room(self) -> None:
        self.waits += 1
        await self._round_trip()

    async def flush(self, timeout: float | None = None) -> None:
        assert timeout is not None
        while self.queue:
            await self._round_trip()

    async def partitions_for(self, topic: str) -> set[int]:
        return {0} if topic == "t" else set()

    async def begin_transaction(self) -> None:
        assert not self.in_transaction
        self.in_transaction = True
        await anyio.lowlevel.checkpoint()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        assert self.in_transaction
        await self.flush(timeout)
        self.clock.now += self.rtt
        self.in_transaction = False
        self.transactions.append(len(self.sent) - sum(self.transactions))

    async def _round_trip(self) -> None:
        if self.stuck:
            await anyio.sleep_forever()
        self.clock.now += self.rtt
        count = self.batch * (self.window if self.answered else 1)
        self.answered = True
        for _ in range(min(count, len(self.queue))):
            self.queue.popleft().end(DeliveryStatus.ACKED)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()  # so that a task can note the end of the first batch


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "topic": "t",
        "values": (b"x" * 1000,),
        "num_records": None,
        "duration": None,
        "throughput": math.inf,
        "flush_timeout": 10.0,
        **changes,
    }
    return Workload(**values)


async def loaded(producer: FakeProducer, work: Workload) -> tuple[RunResult, KafkaError | None]:
    tally = Tally(producer.clock.now)
    with anyio.fail_after(10):
        failure = await run_load(producer, work, tally, producer.clock)
    return tally.result(LABEL), failure


async def test_a_count_is_sent_exactly_and_every_record_is_seen_to_end() -> None:
    """A run sends exactly the requested number of records, and waits for all outcomes."""
    producer = FakeProducer(FakeClock())
    result, failure = await loaded(producer, workload(num_records=5000))
    assert failure is None
    assert len(producer.sent) == result.records == result.acked == 5000
    assert result.complete


@pytest.mark.parametrize(("warmup", "counted"), [(0, None), (1, 999), (999, 1), (1000, None)])
async def test_the_records_after_the_warm_up_are_counted_apart(
    warmup: int, counted: int | None
) -> None:
    """The record with the number of --warmup-records is the first that counts."""
    producer = FakeProducer(FakeClock())
    result, _ = await loaded(producer, workload(num_records=1000, warmup_records=warmup))
    rest = result.after_warmup
    assert (None if rest is None else (rest.warmup, rest.records, rest.acked)) == (
        None if counted is None else (warmup, counted, counted)
    )
    assert result.acked == 1000


async def test_values_are_sent_in_turn_also_where_the_buffer_was_full() -> None:
    producer = FakeProducer(FakeClock())
    await loaded(producer, workload(num_records=5000, values=Numbers(5000)))
    assert producer.sent == [b"%d" % each for each in range(5000)]
    producer = FakeProducer(FakeClock())
    await loaded(producer, workload(num_records=5, values=(b"a", b"b")))
    assert producer.sent == [b"a", b"b", b"a", b"b", b"a"]


@pytest.mark.parametrize("window", [1, 5, 20])
async def test_the_steady_rate_is_window_times_batch_over_rtt(window: int) -> None:
    producer = FakeProducer(FakeClock(), window=window)
    result, _ = await loaded(producer, workload(num_records=16 + 16 * window * 12))
    assert result.steady_records_per_sec == pytest.approx(16 * window / 0.15)
    assert result.acked == result.records


async def test_a_duration_ends_the_sending_and_the_rest_is_drained() -> None:
    producer = FakeProducer(FakeClock())
    result, failure = await loaded(producer, workload(duration=3.0))
    assert failure is None
    assert result.complete
    # The 1000 records in the buffer are acknowledged after 13 further round trips.
    assert 3.0 <= result.seconds <= 3.0 + 0.15 * 14


async def test_a_duration_ends_also_while_there_is_no_room() -> None:
    """The duration ends the sending even while the producer's buffer is full."""
    producer = FakeProducer(FakeClock(), room=3, stuck=True)
    tally = Tally(producer.clock.now)
    with anyio.move_on_after(10) as scope:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await run_load(producer, workload(duration=0.001), tally, producer.clock)

            tasks.start_soon(run)
            while not producer.waits:
                await anyio.lowlevel.checkpoint()
            producer.clock.now += 1
            producer.stuck = False
    assert not scope.cancelled_caught
    assert tally.acked == 3


async def test_transactions_are_committed_when_they_are_old_enough_and_at_the_end() -> None:
    """The loop commits a transaction after `transaction_duration`, and the last one at the end."""
    producer = FakeProducer(FakeClock())
    result, failure = await loaded(producer, workload(num_records=5000, transaction_duration=1.0))
    assert failure is None
    assert result.complete
    assert result.committed is not None
    assert len(producer.transactions) == result.committed.transactions > 2
    assert sum(producer.transactions) == result.committed.records == 5000
    # A transaction takes one second of sending, up to 14 round trips until its records are
    # acknowledged, and one round trip for EndTxn.
    assert 1.0 <= result.seconds / len(producer.transactions) <= 1.0 + 0.15 * 15
    assert not producer.in_transaction


async def test_without_a_duration_there_is_no_transaction() -> None:
    producer = FakeProducer(FakeClock())
    result, _ = await loaded(producer, workload(num_records=100))
    assert producer.transactions == []
    assert result.committed is None


async def test_a_commit_that_fails_ends_the_run() -> None:
    class Fenced(FakeProducer):
        async def commit_transaction(self, timeout: float | None = None) -> None:
            await self.flush(timeout)
            raise ProducerFenced("a newer producer")

    result, failure = await loaded(
        Fenced(FakeClock()), workload(num_records=100, transaction_duration=1.0)
    )
    assert isinstance(failure, ProducerFenced)
    assert (result.acked, result.committed) == (100, None)


async def test_the_values_are_sent_in_turn() -> None:
    """The values of the payload are sent one after the other, again and again."""
    producer = FakeProducer(FakeClock())
    await loaded(producer, workload(num_records=5, values=(b"a", b"b")))
    assert producer.sent == [b"a", b"b", b"a", b"b", b"a"]


async def test_the_loop_gives_way_every_millisecond_while_there_is_room() -> None:
    """While there is room, the loop lets other tasks run every millisecond."""

    class TickingClock(FakeClock):
        def __call__(self) -> float:
            self.now += 1e-5
            return self.now

    class Attentive(FakeProducer):
        turns = 0
        turns_before_flush = 0

        async def flush(self, timeout: float | None = None) -> None:
            self.turns_before_flush = self.turns
            await super().flush(timeout)

    producer = Attentive(TickingClock(), room=10**9)

    async def bystander() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            producer.turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bystander)
        await loaded(producer, workload(num_records=30_000))
        tasks.cancel_scope.cancel()
    # Queueing 30,000 records takes 300 ms of the clock. The loop first queues for 50 ms without a
    # break, because nothing is in flight yet.
    assert 240 <= producer.turns_before_flush <= 300


async def test_waiting_long_for_room_is_no_failure_while_records_end() -> None:
    """A long wait for room is no failure as long as records are settled meanwhile."""

    class Slow(FakeProducer):
        async def wait_for_room(self) -> None:
            await super().wait_for_room()
            raise KafkaTimeoutError("no room within max_block (60 s)")

    result, failure = await loaded(Slow(FakeClock(), room=40), workload(num_records=500))
    assert failure is None
    assert result.complete


async def test_waiting_long_for_room_while_nothing_moves_ends_the_run() -> None:
    """A long wait for room in which no record is settled ends the run."""
    late = KafkaTimeoutError("no room within max_block (60 s)")

    class Dead(FakeProducer):
        async def wait_for_room(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise late

    result, failure = await loaded(Dead(FakeClock(), room=40), workload(num_records=500))
    assert failure is late
    assert (result.records, result.unknown) == (40, 40)


@pytest.mark.parametrize("error", [MessageSizeTooLargeError("large"), ProducerClosed("closed")])
async def test_a_failing_client_ends_the_run_and_keeps_what_was_measured(
    error: KafkaError,
) -> None:
    """If the producer raises, the run ends, and its result has what was measured until then."""
    producer = FakeProducer(FakeClock(), room=10, fail_at={40: error})
    result, failure = await loaded(producer, workload(num_records=100))
    assert failure is error
    assert result.records == 40
    assert result.acked >= 30
    assert result.acked + result.unknown == 40


async def test_outcomes_other_than_acknowledged_are_counted_and_the_first_reason_kept() -> None:
    producer = FakeProducer(FakeClock())
    tally = Tally(producer.clock.now)

    class Failing(FakeProducer):
        async def _round_trip(self) -> None:
            late = DeliveryTimeoutError("120 s are over")
            self.queue.popleft().end(DeliveryStatus.NOT_WRITTEN, late)
            self.queue.popleft().end(DeliveryStatus.UNKNOWN, KafkaError("other"))
            self.queue.popleft().end(DeliveryStatus.ACKED)
            await anyio.lowlevel.checkpoint()

    failing = Failing(producer.clock)
    assert await run_load(failing, workload(num_records=3), tally, producer.clock) is None
    result = tally.result(LABEL)
    assert (result.acked, result.not_written, result.unknown) == (1, 1, 1)
    assert result.failure == "DeliveryTimeoutError: 120 s are over"


async def test_records_cut_off_by_a_cancellation_are_unknown() -> None:
    """Records without an outcome when the run is cancelled count as unknown."""
    producer = FakeProducer(FakeClock(), room=7, stuck=True)
    tally = Tally(producer.clock.now)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await run_load(producer, workload(num_records=100), tally, producer.clock)

            tasks.start_soon(run)
            while not producer.waits:
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    result = tally.result(LABEL)
    assert (result.records, result.acked, result.unknown) == (7, 0, 7)


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["virtual"]
)
async def test_the_throughput_is_kept() -> None:
    """The loop keeps the rate: at 200 records/s, the last of 21 is sent after 20 intervals."""
    producer = FakeProducer(FakeClock(), room=10**6)
    tally = Tally(0.0)
    start = anyio.current_time()
    failure = await run_load(
        producer, workload(num_records=21, throughput=200.0), tally, anyio.current_time
    )
    assert failure is None
    assert tally.records == 21
    assert anyio.current_time() - start == pytest.approx(20 / 200)


# --- pace -----------------------------------------------------------------------------------------


@given(rate=st.floats(0.01, 1e6), sent=st.integers(0, 10**6), late=st.floats(0, 1e3))
def test_a_record_is_due_at_its_time_and_never_before(rate: float, sent: int, late: float) -> None:
    """With a limit on the rate, a record is never sent before it is due."""
    pace = Pace(rate, 50.0)
    due = 50.0 + sent / rate
    assert pace.delay(sent, due + late) == 0
    early = due - 0.5 / rate
    wait = pace.delay(sent, early)
    assert wait >= 0.001 or early == due
    assert wait == pytest.approx(max(due - early, 0.001)) or early == due


def test_without_a_limit_everything_is_due() -> None:
    """Without a limit on the rate, each record is due at once."""
    assert Pace(math.inf, 5.0).delay(10**9, 0.0) == 0
