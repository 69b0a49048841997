"""One seed through the whole producer: real tasks, virtual time, a cluster in memory.

The application here is several tasks that `send`, `send_nowait` and `send_many`, that are cancelled
at any await, that flush and close. trio runs on its `MockClock`; asyncio on a loop of its own whose
selector does not wait but moves the time (`VirtualLoop`), so that a minute of timeout costs nothing
on either. Faults and glitches are those of the schedule that make sense over streams.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import selectors
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream, TaskGroup

from aioidem import Producer, errors
from aioidem.broker import EmbeddedCluster
from aioidem.config import ProducerConfig
from aioidem.delivery import Delivery
from aioidem.engine import ProducerCore, steps
from aioidem.network.transport import Connector
from aioidem.sender import Sender
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Anomaly,
    Expectations,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    Violation,
    WireAnswer,
    WireBatch,
    WireMonitor,
    check_counters,
    check_history,
    log_records,
    make_value,
)

from .faults import Injector
from .schedule import Call, Fault, Schedule, draw
from .world import Result, SimCore

__all__ = ["VirtualLoop", "run_whole"]

_FAULTS = frozenset(
    {"cut", "kill", "move", "retain", "throttle", "hold", "pause", "isr", "limit", "stamps", "pid"}
    | {"stale", "gone", "leaderless", "flush", "rtt", "lag", "unclean", "refuse_next"}
)
_GLITCHES = frozenset(
    {"drop", "delay", "refuse", "after", "missing", "doubled", "invented", "absurd", "spurious"}
    | {"fence"}
)
_OUTCOMES = {
    DeliveryStatus.ACKED: Outcome.ACKED,
    DeliveryStatus.NOT_WRITTEN: Outcome.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN: Outcome.UNKNOWN,
}
_PROFILES = ("links", "brokers", "codes", "answers", "gentle", "storm", "unclean")
_DEADLOCK = 5000.0


def run_whole(seed: int, backend: str) -> Result:
    """Run one seed on "trio" or "asyncio"."""
    schedule = draw(seed, random.Random(seed).choice(_PROFILES))
    schedule = dataclasses.replace(
        schedule,
        profile=f"{backend}:{schedule.profile}",
        faults=tuple(fault for fault in schedule.faults if fault.kind in _FAULTS),
        glitches=tuple(glitch for glitch in schedule.glitches if glitch.kind in _GLITCHES),
        calls=schedule.calls[:60],
        first_epoch=0,
    )
    return _Whole(schedule).run(backend)


class _VirtualSelector(selectors.SelectSelector):
    """Never waits: it moves the loop's time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and for nothing that time brings")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now


class _Stream(ByteStream):
    """A stream that can be cut, noticed or not."""

    def __init__(self, inner: ByteStream, broker: int) -> None:
        self._inner = inner
        self.broker = broker
        self.mute = self.deaf = self._cut = False
        self._scope: anyio.CancelScope | None = None

    def cut(self) -> None:
        """Both ends find it gone."""
        self._cut = True
        if self._scope is not None:
            self._scope.cancel()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            if self._cut:
                raise anyio.BrokenResourceError
            data = b""
            with anyio.CancelScope() as self._scope:
                data = await self._inner.receive(max_bytes)
            if self._cut:
                raise anyio.BrokenResourceError
            if not self.deaf:
                return data

    async def send(self, item: bytes) -> None:
        if self._cut:
            raise anyio.BrokenResourceError
        if self.mute:
            await anyio.lowlevel.checkpoint()
        else:
            await self._inner.send(item)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class _Connector:
    """Hands out streams that can be cut."""

    def __init__(self, whole: _Whole, inner: Connector) -> None:
        self._whole = whole
        self._inner = inner

    async def connect(self, host: str, port: int) -> ByteStream:
        stream = _Stream(await self._inner.connect(host, port), int(host.rpartition("-")[2]))
        self._whole.streams.append(stream)
        return stream


class _TapSender(Sender):
    """The Sender, telling the monitor what it hands over and what it loses."""

    def __init__(
        self, core: ProducerCore, config: ProducerConfig, connector: Connector, whole: _Whole
    ) -> None:
        super().__init__(core, config, connector)
        self._whole = whole

    def _perform(self, step: steps.Step) -> None:
        self.deliver()
        super()._perform(step)

    def _produce(self, step: steps.SendProduce) -> None:
        if step.link_id in self._channels and self._config.acks:
            batches = [
                WireBatch(topic.name, index, data)
                for topic in step.topics
                for index, data in topic.partitions
            ]
            self._whole.monitor.wrote(step.link_id, step.token, batches)
        super()._produce(step)

    def _close(self, link_id: int, reason: str) -> None:
        self._whole.monitor.lost(link_id)
        super()._close(link_id, reason)

    def _lost(
        self, link_id: int, error: Exception | None, unwritten: list[int] | tuple[()]
    ) -> None:
        known = link_id in self._core.connections.links
        self._whole.monitor.lost(link_id, unwritten if known else ())
        super()._lost(link_id, error, unwritten)


class _TapProducer(Producer):
    """A producer whose parts tell the monitor."""

    def __init__(self, config: ProducerConfig, connector: Connector, whole: _Whole) -> None:
        super().__init__(config=config, connector=connector)
        world: Any = whole
        self._core = SimCore(config, world, whole.schedule)
        self._sender = _TapSender(self._core, config, connector, whole)

    @property
    def core(self) -> ProducerCore:
        """The engine, to look into."""
        return self._core


class _WholeInjector(Injector):
    """Faults over streams."""

    def _do_cut(self, broker: int, _arriving: float, noticed: bool, _answers: float) -> None:
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == broker]:
            if noticed:
                whole.streams.remove(stream)
                stream.cut()
            else:
                stream.mute = stream.deaf = True

    def _do_rtt(self, rtt: float) -> None:
        whole: Any = self._world
        whole.embedded.set_rtt(rtt)

    def _note_late(self, _seen: Any) -> None:
        pass


class _Whole:
    """One run. What `Injector` and `SimCore` need of a world is here too."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.result = Result(schedule)
        self.rows: dict[ValueId, Row] = {}
        self.streams: list[_Stream] = []
        self.incarnations = dict.fromkeys(range(schedule.brokers), 0)
        self.lost: set[ValueId] = set()
        self.archive: list[LogRecord] = []
        self.rtt = schedule.rtt
        self.embedded = EmbeddedCluster(
            brokers=schedule.brokers,
            retain=dict(enumerate(schedule.retain)),
            produce_versions=dict(enumerate(schedule.versions)),
            rtt=schedule.rtt,
            transport="memory",
            seed=schedule.seed,
        )
        self.cluster = self.embedded.state
        self._random = random.Random(schedule.seed ^ 0xF00D)
        self._calls = 0
        self._tasks: TaskGroup | None = None
        self._producer: _TapProducer | None = None
        injector_world: Any = self
        self.injector = _WholeInjector(injector_world)
        self.monitor = WireMonitor(
            max_in_flight=schedule.options["max_in_flight_requests_per_connection"],
            first_sequences={
                (t, p): schedule.first_sequence for t, n in schedule.topics for p in range(n)
            },
        )

    def run(self, backend: str) -> Result:
        """Run it and judge it."""
        options: dict[str, Any]
        if backend == "trio":
            import trio.testing

            options = {"clock": trio.testing.MockClock(autojump_threshold=0)}
        else:
            options = {"loop_factory": VirtualLoop}
        try:
            anyio.run(self._main, backend=backend, backend_options=options)
        except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
            self.report(Anomaly.CRASH, "".join(traceback.format_exception(error))[-600:])
        return self.result

    # -- what the injector and the engine's tap ask for ----------------------------------------

    @property
    def now(self) -> float:
        """The loop's time."""
        return anyio.current_time()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        if self._tasks is not None:
            self._tasks.start_soon(self._run_at, when, act)

    async def _run_at(self, when: float, act: Callable[[], None]) -> None:
        await _until(when)
        self._do(act)

    def _do(self, act: Callable[[], None]) -> None:
        # The cluster looks at its state when one of its own methods is called: any will do.
        self.embedded.set_clock_offset(0, 0.0)
        act()
        self.embedded.set_clock_offset(0, 0.0)

    def trace(self, _line: str) -> None:
        """Nobody reads along here."""

    def note_sent(self) -> None:
        """Nobody holds a stopwatch here."""

    def heard(self, link_id: int, token: int, answers: list[WireAnswer]) -> None:
        """A Produce answer reached the client."""
        self.monitor.answered(link_id, token, answers)

    def flush(self) -> None:
        """The application flushes, for as long as it likes to wait."""
        if self._tasks is not None:
            self._tasks.start_soon(self._flush)

    def report(self, anomaly: Anomaly, detail: str) -> None:
        """Something is wrong."""
        self.result.violations.append(Violation(anomaly, detail))

    # -- the application -----------------------------------------------------------------------

    async def _main(self) -> None:
        schedule = self.schedule
        began = self.now
        with anyio.fail_after(_DEADLOCK):
            async with self.embedded as cluster, anyio.create_task_group() as tasks:
                for name, partitions in schedule.topics:
                    cluster.create_topic(
                        name,
                        partitions=partitions,
                        replication=schedule.replication,
                        configs=schedule.topic_configs,
                    )
                cluster.intercept(self.injector.intercept)
                self._tasks = tasks
                config = ProducerConfig.build(
                    cluster.bootstrap_servers, client_id="whole", **schedule.options
                )
                connector = _Connector(self, cluster.connector)
                await self._life(_TapProducer(config, connector, self))
                self.injector.heal()
                await _until(self.now + 10.0)
                tasks.cancel_scope.cancel()
                self._judge(config)
        self.result.took = self.now - began

    async def _life(self, producer: _TapProducer) -> None:
        self._producer = producer
        started = self.now
        for fault in self.schedule.faults:
            self.at(started + fault.at, self._injection(fault))
        try:
            await producer.start()
        except errors.KafkaError:
            await producer.close()
            # Every bootstrap address was tried while the brokers were down: it may give up.
            return
        try:
            async with anyio.create_task_group() as senders:
                for call in self.schedule.calls:
                    await _until(started + call.at)
                    senders.start_soon(self._call, producer, call)
                close_at = self.schedule.close_at
                if close_at is not None:
                    await _until(started + close_at)
                    await producer.close(self.schedule.close_timeout)
        finally:
            with anyio.CancelScope(shield=True):
                await producer.close()

    def _injection(self, fault: Fault) -> Callable[[], None]:
        return lambda: self.injector.inject(fault)

    async def _call(self, producer: _TapProducer, call: Call) -> None:
        """One of four ways to send, and one in four is cancelled at some await."""
        how = self._random.randrange(4)
        patience = None
        if self._random.random() < 0.25 and not self.schedule.all_acked:
            patience = self._random.choice((0.0, 0.0, 0.5, 1.0, 3.0, 30.0)) * self.schedule.rtt
        with anyio.move_on_after(patience):
            if how == 0:
                await self._send_nowait(producer, call)
            elif how == 1:
                await self._send_many(producer, call)
            else:
                await self._send(producer, call)

    def _row(self, call: Call) -> tuple[Row, bytes]:
        partition = -1 if call.partition is None else call.partition
        value = ValueId("p", call.topic, partition, self._calls)
        self._calls += 1
        row = self.rows[value] = Row(value, call.topic, partition, self.now)
        return row, make_value(value, call.size)

    async def _send(self, producer: _TapProducer, call: Call) -> None:
        row, value = self._row(call)
        # Whoever leaves does not know.
        row.outcome = Outcome.UNKNOWN
        try:
            meta = await producer.send(call.topic, value, key=call.key, partition=call.partition)
        except errors.KafkaError as error:
            row.outcome = _OUTCOMES[error.status] if error.status else Outcome.NOT_WRITTEN
        else:
            row.outcome, row.partition, row.offset = Outcome.ACKED, meta.partition, meta.offset
        row.settled = None if row.outcome is Outcome.NOT_WRITTEN else self.now

    async def _send_nowait(self, producer: _TapProducer, call: Call) -> None:
        while True:
            row, value = self._row(call)
            try:
                delivery = producer.send_nowait(
                    call.topic, value, key=call.key, partition=call.partition
                )
            except errors.KafkaError as error:
                del self.rows[row.value]
                if not isinstance(error, errors.BufferFullError):
                    return
                try:
                    await producer.wait_for_room()
                except errors.KafkaError:
                    return
                # There may be room, and not enough for this record.
                await _until(self.now + self.schedule.rtt)
            else:
                delivery.add_done_callback(functools.partial(self._settle, row))
                return

    async def _send_many(self, producer: _TapProducer, call: Call) -> None:
        made: list[Row] = []

        def values() -> Any:
            for _ in range(3):
                row, value = self._row(call)
                row.outcome = Outcome.UNKNOWN
                made.append(row)
                yield value

        settled: list[Delivery] = []
        try:
            settled += await producer.send_many(
                call.topic, values(), key=call.key, partition=call.partition
            )
        except errors.PartialDeliveryError as error:
            settled += error.deliveries
        except errors.KafkaError:
            settled.clear()
        for row, delivery in zip(made, settled, strict=False):
            self._settle(row, delivery)
        for row in made[len(settled) :]:
            row.outcome = Outcome.NOT_WRITTEN

    def _settle(self, row: Row, delivery: Delivery) -> None:
        row.outcome = _OUTCOMES[delivery.status]
        row.settled = self.now
        if delivery.exception() is None:
            row.partition = delivery.metadata.partition
            row.offset = delivery.metadata.offset

    async def _flush(self) -> None:
        producer = self._producer
        if producer is not None:
            try:
                with anyio.move_on_after(self._random.choice((0.0, self.schedule.rtt, 10.0))):
                    await producer.flush(self._random.choice((0.1, 5.0)))
            except errors.KafkaError:
                return

    # -- the end -------------------------------------------------------------------------------

    def log(self) -> list[LogRecord]:
        """Every record of every partition."""
        found: list[LogRecord] = []
        for name, partitions in self.schedule.topics:
            for index in range(partitions):
                found += log_records(name, index, self.embedded.batches(name, index))
        return found

    def _judge(self, config: ProducerConfig) -> None:
        result, schedule = self.result, self.schedule
        result.violations += self.monitor.violations
        producer = self._producer
        if producer is None:
            return
        core = producer.core
        # From the call, not from the queueing: waiting for room and for the topic count.
        patience = 2 * config.max_block + config.delivery_timeout + config.request_timeout
        late = {row.value for row in self.rows.values() if row.outcome is Outcome.UNKNOWN}
        expect = Expectations(
            deadline=patience + 1.0,
            lost=self.lost,
            may_reorder=late if schedule.lossy else frozenset(),
        )
        result.violations += check_history(self.rows.values(), self.log(), expect)
        result.violations += check_counters(
            {
                "buffer_bytes_used": core.budget.used,
                "buffer_waiters": core.budget.waiting,
                "records_queued": core.unsettled,
                "connections": len(core.connections.links),
            }
        )
        for row in self.rows.values():
            result.outcomes[row.outcome] = result.outcomes.get(row.outcome, 0) + 1
        result.batches = core.counters.batches_sent
        result.retries = core.counters.batches_retried
        result.bumps = core.identity.bumps
        result.events = core.counters.data_loss_events
        result.max_span = self.monitor.max_span
        left = [row for row in self.rows.values() if row.outcome is not Outcome.ACKED]
        if schedule.all_acked and left:
            self.report(Anomaly.STUCK, f"{left[0].value} {left[0].outcome.value}")


async def _until(when: float) -> None:
    """Let virtual time pass."""
    with anyio.CancelScope(deadline=when):
        await anyio.sleep_forever()
