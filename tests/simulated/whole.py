"""Run one seed through the whole producer: real tasks, virtual time, a cluster in memory.

The application is several tasks that send records, flush and close, and are cancelled at any await.
trio runs on its `MockClock`, and asyncio on `VirtualLoop`, whose selector does not wait but moves
the time. So a minute of timeout costs nothing on either. Of a schedule's faults, only those are
carried out that make sense over byte streams: `FAULTS` (faults at a time) and `GLITCHES` (faults of
single requests). A stall of the client is a jump of the clock, so it stops the brokers too.

Invariant: the same schedule gives the same run. trio shuffles the tasks that are ready at the same
time; its random generator is therefore seeded here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
import random
import selectors
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest import mock

import anyio
import trio
import trio.testing
from anyio import CancelScope
from anyio.abc import ByteStream, TaskGroup

from aioidem import Producer, errors
from aioidem._broker.intercept import RequestSeen
from aioidem._broker.state import ClusterState
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.settlement import Settlement
from aioidem._errors.local import RecordOutcome
from aioidem._network.threads import Threads
from aioidem._network.transport import Connector
from aioidem._producer import sender as sender_module
from aioidem._producer.compressing import compressed
from aioidem._producer.intake import RecordIntake
from aioidem._producer.life import ProducerLife
from aioidem._producer.sender import _Channel
from aioidem._producer.topic_lookup import TopicLookup
from aioidem._protocol.frames import FrameLimit
from aioidem._testing.wire_frames import batch_values
from aioidem.broker import EmbeddedCluster
from aioidem.structs import DeliveryCounts, DeliveryStatus
from aioidem.testing import (
    Anomaly,
    Expectations,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    Violation,
    WireAnswer,
    WireMonitor,
    check_counters,
    make_value,
    parse_value,
)

from .allowances import FALSE_EVENT, judge_history, names_of
from .attempts import Attempts
from .broker_changes import reassigned, repeatable, steady, unread, unresolved_while, written_late
from .deadlines import Deadlines
from .faults import Injector
from .flushes import counted
from .frame_watch import FrameWatch
from .line_tap import LineTap
from .missing import MissingPartitions
from .reasons import Reasons
from .removed import RemovedBatches, whole_log
from .schedule import Call, Fault, Glitch, Schedule, draw
from .sim_core import SimCore
from .trace_lines import answer_lines, step_lines
from .world import EXPIRATION, START_MS, Result

__all__ = [
    "FAULTS",
    "GLITCHES",
    "AtAwait",
    "TapProducer",
    "VirtualLoop",
    "Whole",
    "WholeConnector",
    "WholeInjector",
    "draw_whole",
    "until",
]

_T = TypeVar("_T")

FAULTS = frozenset(
    {"cut", "kill", "move", "retain", "throttle", "hold", "pause", "isr", "limit", "stamps", "pid"}
    | {"stale", "gone", "leaderless", "flush", "rtt", "lag", "unclean", "refuse_next"}
    | {"block", "stall", "reset", "unheard", "secret", "grow"}
)
GLITCHES = frozenset(
    {"drop", "delay", "refuse", "after", "missing", "doubled", "invented", "absurd", "spurious"}
    | {"fence", "garbage", "zombie"}
)
_OUTCOMES = {
    DeliveryStatus.ACKED: Outcome.ACKED,
    DeliveryStatus.NOT_WRITTEN: Outcome.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN: Outcome.UNKNOWN,
}
_PROFILES = ("links", "brokers", "codes", "answers", "gentle", "storm", "unclean", "forgetful")
# Within this many seconds, brokers serve every request that a fault delayed.
_LONGEST_ZOMBIE = 100.0
_START = START_MS / 1000
_DEADLOCK = 5000.0
# One seed in so many decodes all answers in threads that are longer than so many bytes. With this
# remainder the corpus takes the most rows.
_IN_THREADS, _REMAINDER, _LONG = 4, 2, 60
# This is the resolution of asyncio's clock.
_RESOLUTION = time.get_clock_info("monotonic").resolution


def draw_whole(seed: int, backend: str) -> Schedule:
    """Return the schedule of a seed that drives the whole producer on "trio" or "asyncio"."""
    schedule = draw(seed, random.Random(seed).choice(_PROFILES))
    return dataclasses.replace(
        schedule,
        backend=backend,
        faults=tuple(fault for fault in schedule.faults if fault.kind in FAULTS),
        glitches=tuple(glitch for glitch in schedule.glitches if glitch.kind in GLITCHES),
        calls=schedule.calls[:60],
        first_epoch=0,
    )


class _VirtualSelector(selectors.SelectSelector):
    """A selector that never waits: it advances the loop's virtual time instead.

    An asyncio loop runs a timer early if the timer is due within the clock's resolution. A task
    that is woken early would see that its time has not come, and set its timer again, for ever. So
    `select` advances the time also to a timer that is less than the clock's resolution away.
    """

    def __init__(self, next_timer: Callable[[], float]) -> None:
        super().__init__()
        self.now = 0.0
        self._next_timer = next_timer

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and for nothing that time brings")
        self.now += max(0.0, timeout)
        if self.now < self._next_timer() <= self.now + _RESOLUTION:
            self.now = self._next_timer()
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer when nothing else is to be done."""

    _scheduled: list[Any]
    """asyncio's heap of timers."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector(self._next_timer)
        super().__init__(self._virtual)

    def _next_timer(self) -> float:
        return self._scheduled[0].when() if self._scheduled else math.inf

    def time(self) -> float:
        """Return the seconds since the loop was made."""
        return self._virtual.now

    def jump(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        self._virtual.now += seconds


class AtAwait:
    """An awaitable that runs a coroutine, and cancels a scope when it suspends the n-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], n: int, scope: CancelScope) -> None:
        self._coroutine = coroutine
        self._left = n
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._coroutine.__await__()
        resume: Callable[[], Any] = functools.partial(next, inner)
        while True:
            try:
                asked = resume()
            except StopIteration:
                return
            self._left -= 1
            if not self._left:
                self._scope.cancel()
            try:
                resume = functools.partial(inner.send, (yield asked))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the coroutine's
                resume = functools.partial(inner.throw, error)


class _Stream(ByteStream):
    """A stream that can be cut (at once or after some bytes), made silent, and blocked."""

    def __init__(self, inner: ByteStream, broker: int) -> None:
        self._inner = inner
        self.broker = broker
        self.mute = self.deaf = self._cut = False
        # By direction ("up" to the broker, "down" from it): how many bytes pass before the cut.
        self.reset_after: dict[str, int] = {}
        # How many bytes of the next answer arrive; None for all of them.
        self.garble: int | None = None
        # How many bytes arrive one by one, and the seconds before each of them.
        self.trickle: tuple[int, float] = (0, 0.0)
        self._arrived = b""
        # How many bytes the stream still takes before it blocks; None: it does not.
        self.accepts: int | None = None
        self._open = anyio.Event()
        self._open.set()
        self._scope: CancelScope | None = None

    def cut(self) -> None:
        """Cut the stream, so that both ends find it closed."""
        self._cut = True
        self._open.set()
        if self._scope is not None:
            self._scope.cancel()

    def heal(self) -> None:
        """End the faults that no timer ends; a silent stream is cut, because bytes are missing."""
        self.trickle = (0, 0.0)
        # Answers that were too short to be cut left these for a longer one.
        self.garble = None
        self.reset_after.clear()
        if self.mute:
            self.cut()

    def block(self) -> None:
        """Make the stream take no more bytes."""
        self._open = anyio.Event()

    def unblock(self) -> None:
        """Let the stream take bytes again."""
        self._open.set()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            if self._cut:
                raise anyio.BrokenResourceError
            data = b""
            with anyio.CancelScope() as self._scope:
                data = await self._received(max_bytes)
            if self._cut:
                raise anyio.BrokenResourceError
            if not self.deaf:
                return self._garbled(self._passing("down", data))

    async def _received(self, max_bytes: int) -> bytes:
        """Return what has arrived; one byte, after a while, as long as the bytes trickle in."""
        data = self._arrived or await self._inner.receive(max_bytes)
        left, seconds = self.trickle
        if left:
            self.trickle = left - 1, seconds
            await until(anyio.current_time() + seconds)
        taken = min(1 if left else max_bytes, len(data))
        self._arrived = data[taken:]
        return data[:taken]

    async def send(self, item: bytes) -> None:
        await self._open.wait()
        if self._cut:
            raise anyio.BrokenResourceError
        if self.accepts is not None and self.accepts < len(item):
            taken, self.accepts = self.accepts, 0
            if taken:
                await self._send(item[:taken])
            self.block()
            await self._open.wait()
            if self._cut:
                raise anyio.BrokenResourceError
            item = item[taken:]
        await self._send(item)

    async def _send(self, item: bytes) -> None:
        if self.accepts is not None:
            self.accepts -= len(item)
        if self.mute:
            await anyio.lowlevel.checkpoint()
        else:
            await self._inner.send(self._passing("up", item))
            if self._cut:
                raise anyio.BrokenResourceError

    def _passing(self, way: str, data: bytes) -> bytes:
        left = self.reset_after.get(way)
        if left is None:
            return data
        self.reset_after[way] = left - len(data)
        if left >= len(data):
            return data
        self._cut = True
        return data[:left]

    def _garbled(self, data: bytes) -> bytes:
        cut, size = self.garble, len(data) - 4
        if cut is None or size <= cut or int.from_bytes(data[:4], "big") != size:
            return data
        self.garble = None
        return cut.to_bytes(4, "big") + data[4 : 4 + cut]

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class WholeConnector:
    """A connector whose streams can be cut."""

    def __init__(self, whole: Whole, inner: Connector) -> None:
        self._whole = whole
        self._inner = inner

    async def connect(self, host: str, port: int) -> ByteStream:
        stream = _Stream(await self._inner.connect(host, port), int(host.rpartition("-")[2]))
        self._whole.streams.append(stream)
        return stream


class _LoopThreads(Threads):
    """Threads that do their work on the event loop, after a virtual delay: one at a time.

    Real threads would take real time. One call in eight finds that the system permits no more.
    """

    __slots__ = ("_chance", "_idle", "_whole")

    def __init__(self, whole: Whole) -> None:
        super().__init__(1)
        self._whole = whole
        self._chance = random.Random(whole.schedule.seed ^ 0x10F6)
        self._idle = anyio.Lock()

    async def run(self, function: Callable[[], _T]) -> _T:
        """Call a function, and return what it returns, or raise what it raises."""
        async with self._idle:
            if self._chance.random() < 1 / 8:
                raise RuntimeError("no more threads")
            await until(self._whole.now + self._chance.choice(self._whole.schedule.threads[1]))
            return function()


class _TapSender(LineTap):
    """A Sender that tells the `WireMonitor` what batches it sends and what connections it loses."""

    def __init__(
        self, core: SimCore, config: ProducerConfig, connector: Connector, whole: Whole
    ) -> None:
        super().__init__(core, config, connector, wall_clock=whole.client_wall)
        self._numbers = core.numbers
        take = self.settled._take_settled

        def taken() -> Sequence[Settlement]:
            """Take outcomes; callbacks may cause some while others are delivered."""
            settlements = take()
            self._count(settlements)
            return settlements

        self.settled._take_settled = taken
        self.settled.at_once = whole.schedule.at_once[0]
        core.accumulator.drafts.at_once = 3  # on every machine
        self._whole = whole
        # By connection: the frame that is being decoded in a thread.
        self._decoding: dict[int, bytes] = {}
        core.merging = self._merging
        self._thread_times = random.Random(whole.schedule.seed ^ 0x7EAD)
        self._reading = _LoopThreads(whole)

    def deliver(self) -> None:
        """Deliver as usual, and write the producer's events to the trace."""
        settlements = self._core.outcomes.peek_settled()
        events = self._new_lines()
        self._count(settlements)
        for event in events:
            self._whole.trace(f"event: {event.text}")
            self._numbers.logged(event)
            if self._whole.unknowns is not None:
                self._whole.unknowns.logged(event.text)
        self._whole.note_settled(settlements)
        super().deliver()

    def _count(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._numbers.settled(settlement, self._whole.now)

    def shut(self) -> None:
        """End the Sender as usual; what has no outcome gets one now."""
        if self._whole.unknowns is not None:
            self._whole.unknowns.closing = True
        self._numbers.lines.closing = True
        super().shut()

    def _perform(self, step: steps.Step) -> None:
        self.deliver()
        self._whole.trace_step(step)
        if isinstance(step, steps.OpenLink):
            self._whole.brokers[step.link_id] = int(step.host.rpartition("-")[2])
        super()._perform(step)

    async def _compress(self, step: steps.Compress) -> None:
        """Compress records on the loop after a virtual delay; a thread would take real time."""
        takes = self._thread_times.choice(self._whole.schedule.threads[1])
        await until(self._whole.now + takes)
        self._on_compressed(step, compressed(step))

    def _write(
        self,
        channel: _Channel,
        frame: bytes,
        correlation_id: int,
        token: int,
        limit: FrameLimit | None,
    ) -> None:
        self._whole.watch.sent(channel.link_id, token, frame[4:])
        super()._write(channel, frame, correlation_id, token, limit)

    def _on_frame(
        self, channel: _Channel, correlation_id: int, frame: bytes
    ) -> Awaitable[None] | None:
        if len(frame) <= sender_module.LONG_ANSWER:
            self._whole.watch.received(channel.link_id, frame)
        return super()._on_frame(channel, correlation_id, frame)

    async def _on_long_frame(
        self,
        channel: _Channel,
        step: steps.Request,
        read: Callable[[bytes], Any],
        frame: bytes,
    ) -> None:
        self._decoding[channel.link_id] = frame
        await super()._on_long_frame(channel, step, read, frame)

    def _merging(self, link_id: int, names: Collection[str]) -> None:
        """Show the judges the leaders in a part of an answer, which the engine knows now."""
        self._whole.watch.merging(link_id, self._decoding[link_id], names)

    def _arrive(self, link_id: int) -> None:
        """Show the judges a frame that was decoded in a thread, when the engine is told of it."""
        frame = self._decoding.pop(link_id, None)
        if frame is not None:
            self._whole.watch.received(link_id, frame)

    def _answered(
        self, step: steps.Request, answer: Any, merge: MetadataMerge | None = None
    ) -> None:
        self._arrive(step.link_id)
        super()._answered(step, answer, merge)

    def _undecodable(
        self, channel: _Channel, step: steps.Request, error: errors.ProtocolError
    ) -> None:
        self._arrive(channel.link_id)
        super()._undecodable(channel, step, error)

    def _close(self, link_id: int, reason: str) -> None:
        self._whole.watch.lost(link_id)
        super()._close(link_id, reason)

    def _lost(
        self, link_id: int, error: Exception | None, unwritten: list[int] | tuple[()]
    ) -> None:
        known = link_id in self._core.connections.links
        self._whole.watch.lost(link_id, unwritten if known else ())
        if unwritten:
            self._numbers.taken_back()
        super()._lost(link_id, error, unwritten)


_SCOPE: ContextVar[CancelScope | None] = ContextVar("scope", default=None)


class _ImpatientBudget(ByteBudget):
    """A budget that, half of the time, cancels a caller in the moment when it is granted room."""

    __slots__ = ()

    def wait(self, size: int, wake: Callable[[], None]) -> MemoryWaiter:
        """Queue a waiter as usual."""
        scope = _SCOPE.get()

        def woken() -> None:
            wake()
            if scope is not None and size % 2:
                scope.cancel()

        return super().wait(size, woken)


class TapProducer(Producer):
    """A producer whose parts tell the `WireMonitor` what they send and receive."""

    def __init__(self, config: ProducerConfig, connector: Connector, whole: Whole) -> None:
        super().__init__(config=config, connector=connector)
        self._core = self._engine = SimCore(config, whole, whole.schedule)
        if whole.schedule.impatient:
            self._core.budget.__class__ = _ImpatientBudget
        self._budget = self._core.budget
        self._sender = _TapSender(self._engine, config, connector, whole)
        self._life = ProducerLife(self._core, self._sender, config)
        self._intake = RecordIntake(self._core, self._sender, self._life, config, None)
        self._topics = TopicLookup(self._core, self._sender, self._life, config)

    @property
    def core(self) -> SimCore:
        """The engine, for tests to look into."""
        return self._engine


class WholeInjector(Injector):
    """An `Injector` that carries out its faults on the byte streams of a run."""

    def _do_cut(self, broker: int, _arriving: float, noticed: bool, _answers: float) -> None:
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == broker]:
            if noticed:
                whole.streams.remove(stream)
                stream.cut()
            else:
                stream.mute = stream.deaf = True

    def _do_partial(self, broker: int, nbytes: int, seconds: float) -> None:
        whole: Any = self._world

        def end(stream: _Stream) -> None:
            stream.accepts = None
            stream.unblock()

        for stream in [s for s in whole.streams if s.broker == broker]:
            stream.accepts = nbytes
            self._later(seconds, functools.partial(end, stream))

    def _do_trickle(self, broker: int, nbytes: int, seconds: float) -> None:
        """Let the next bytes from a broker arrive one by one, each after some seconds."""
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == broker]:
            stream.trickle = nbytes, seconds

    def _do_narrow(self, bandwidth: float, seconds: float) -> None:
        whole: Any = self._world
        whole.embedded.set_bandwidth(bandwidth)
        self._later(seconds, lambda: whole.embedded.set_bandwidth(None))

    def _do_rtt(self, rtt: float) -> None:
        whole: Any = self._world
        whole.embedded.set_rtt(rtt)

    def _do_block(self, broker: int, seconds: float) -> None:
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == broker]:
            stream.block()
            self._later(seconds, stream.unblock)

    def _do_reset(self, broker: int, nbytes: int, way: str) -> None:
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == broker]:
            stream.reset_after[way] = nbytes

    def _on_garbage(self, glitch: Glitch, seen: RequestSeen) -> None:
        whole: Any = self._world
        for stream in [s for s in whole.streams if s.broker == seen.broker_id]:
            stream.garble = glitch.args[0]


class Whole:
    """One run of the whole producer; `Injector` and `SimCore` use it in place of a `World`."""

    knows_when_queued = False

    def __init__(self, schedule: Schedule, *, trace: bool = False) -> None:
        self.schedule = schedule
        self.result = Result(schedule)
        self._tracing = trace
        self._began = 0.0
        self._stalled_for = 0.0
        self.resumed_at = 0.0
        """When the client's process last went on after a stall, in seconds."""
        self._jump: Callable[[float], None] = _stay
        self.rows: dict[ValueId, Row] = {}
        self.streams: list[_Stream] = []
        # The broker of each connection, by its number.
        self.brokers: dict[int, int] = {}
        self.incarnations = dict.fromkeys(range(schedule.brokers), 0)
        self.lost: set[ValueId] = set()
        self.late: set[ValueId] = set()
        # By cluster, the records of deleted topics.
        self.archive: dict[str, list[list[LogRecord]]] = {}
        self.removed = RemovedBatches()
        self.wall_jump = 0.0
        # The furthest that the client has seen its clock ahead of the brokers', in seconds.
        self._wall_ahead = -math.inf
        self.rtt = schedule.rtt
        self.embedded = EmbeddedCluster(
            transaction_version=schedule.transaction_version,
            brokers=schedule.brokers,
            retain=dict(enumerate(schedule.retain)),
            produce_versions=dict(enumerate(schedule.versions)),
            rtt=schedule.rtt,
            transport="memory",
            seed=schedule.seed,
            configs=schedule.broker_configs,
            sequence_range=schedule.sequence_range,
            wall_clock=self.wall,
        )
        self.cluster = self.embedded.state
        self.clusters = [self.cluster]
        self._calls = 0
        self._tasks: TaskGroup | None = None
        self._producer: TapProducer | None = None
        injector_world: Any = self
        self.injector = WholeInjector(injector_world)
        # `SimCore` needs this judge to report Metadata requests and answers to. Nobody tells the
        # judge about records here (`MissingPartitions.queued`), so it never finds a violation.
        self.missing = MissingPartitions(self.rows)
        self._acked: set[ValueId | None] = set()
        # The values of `send_many` that may have been queued after those of later calls.
        self._read_ahead: set[ValueId] = set()
        # The records that `send_nowait` has queued.
        self._handed: list[Row] = []
        # For each value of a `send_many` but the first: the value before it in the same call.
        self.before: dict[ValueId, ValueId] = {}
        self._most_values = 1  # of one call of `send_many`
        self.monitor = WireMonitor(
            outcome=self._outcome,  # a batch may also be acknowledged because the log contains it
            max_in_flight=schedule.options["max_in_flight_requests_per_connection"],
            trust_base_offset=schedule.options.get("trust_base_offset", True),
            windowed=schedule.options.get("broker_dedup", "window") == "window",
            renumbers=schedule.options.get("in_doubt") == "resend",
            first_sequences={
                (t, p): schedule.first_sequence
                for t, n in schedule.most_partitions.items()
                for p in range(n)
            },
        )
        self.witness = Attempts(
            lambda: self.now,
            self.monitor.before_append,
            pause=schedule.shortest_pause,
            storm=functools.partial(self.report, Anomaly.STUCK),
        )
        self.watch = FrameWatch(self.monitor, [self.witness], self.note_recreated, self.heard)
        self._deadlines: Deadlines | None = None
        self.unknowns: Reasons | None = None
        # One row per record that the engine has settled: when it was queued, and its outcome.
        self._settled: dict[ValueId, Row] = {}

    def run(self) -> Result:
        """Run the schedule to its end, and judge the run."""
        in_threads = self.schedule.seed // 10 % _IN_THREADS == _REMAINDER
        longest = _LONG if in_threads else sender_module.LONG_ANSWER
        try:
            with mock.patch.object(sender_module, "LONG_ANSWER", longest):
                self._run_on_backend()
        except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
            crash = "".join(traceback.format_exception(error))[-600:]
            self.result.violations.append(Violation(Anomaly.CRASH, crash))
        return self.result

    def _run_on_backend(self) -> None:
        if self.schedule.backend == "trio":
            self._run_on_trio()
            return
        loop = VirtualLoop()
        self._jump = loop.jump
        anyio.run(self._main, backend="asyncio", backend_options={"loop_factory": lambda: loop})

    def _run_on_trio(self) -> None:
        clock = trio.testing.MockClock(autojump_threshold=0)
        self._jump = clock.jump
        scheduler: Any = trio._core._run
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        scheduler._r.seed(self.schedule.seed)
        # anyio before 4.14 does not pass the clock on, so trio is run directly.
        trio.run(self._main, clock=clock)

    # -- what the injector and the engine's tap ask for ----------------------------------------

    @property
    def now(self) -> float:
        """The loop's time, in seconds."""
        return anyio.current_time()

    def wall(self) -> float:
        """Return the brokers' wall clock, in seconds."""
        return _START + self.now - self._began

    def client_wall(self) -> float:
        """Return the client's wall clock, in seconds."""
        self._wall_ahead = max(self._wall_ahead, self.wall_jump)
        return self.wall() + self.wall_jump

    def stall(self, seconds: float, _polls_first: bool) -> None:
        """Let the whole process stand still for a while, brokers included."""
        self._stalled_for += seconds
        if self._deadlines is not None:
            self._deadlines.stalled(seconds)
        self._jump(seconds)
        self.resumed_at = self.now

    def is_open(self, peer_id: int) -> bool:
        """Return whether the client still has that connection."""
        # The cluster also lists a closed connection, until it has served every request that it
        # read from that connection.
        return any(c.id == peer_id and not c.closed for c in self.cluster.connections)

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at the given time."""
        if self._tasks is not None:
            self._tasks.start_soon(self._run_at, when, act)

    async def _run_at(self, when: float, act: Callable[[], None]) -> None:
        await until(when)
        self._do(act)

    def _do(self, act: Callable[[], None]) -> None:
        self._catch_up()
        self._note_leaders()  # who has led until now
        act()
        self._catch_up()
        self._note_leaders()

    def _catch_up(self) -> None:
        """Let the cluster carry out what is due by now.

        Each of its controls first does so. This one changes nothing, as it sets a clock to what it
        shows already.
        """
        self.embedded.set_clock_offset(0, self.cluster.brokers[0].clock_offset_ms / 1000)

    def trace(self, line: str) -> None:
        """Write a line to the trace, if there is one."""
        if self._tracing:
            self.result.trace.append(f"{self.now - self._began:9.4f} {line}")

    def trace_step(self, step: steps.Step) -> None:
        """Write a step of the engine to the trace."""
        if self._tracing:
            for line in step_lines(step):
                self.trace(line)

    def note_sent(self) -> None:
        """Do nothing: only a `World` notes the records in flight here, to time their recovery."""

    def _note_leaders(self) -> None:
        if self._deadlines is not None:
            self._deadlines.led(self.cluster)

    @property
    def core(self) -> SimCore:
        """The engine of the producer, which has been started."""
        assert self._producer is not None
        return self._producer.core

    def note_recreated(self, topic: str) -> None:
        """Note that an answer has shown the producer that a topic was recreated."""
        if self.unknowns is not None:
            self.unknowns.recreated[topic] = self.now

    def note_settled(self, settlements: Sequence[Settlement]) -> None:
        """Note which outcomes the engine has decided.

        The callers may get them in a later turn of the loop, or may have been cancelled.
        """
        self.injector.late_copies.passed()
        for settlement in settlements:
            outcome = settlement.outcome
            fresh: list[Row] = []
            for record in settlement.records:
                value = parse_value(record.value)
                assert value is not None
                queued = record.deadline - self.schedule.options.get("delivery_timeout", 120.0)
                started = max(queued, self.rows[value].started)
                row = Row(value, outcome.topic, outcome.partition, started)
                row.outcome, row.settled = _OUTCOMES[outcome.status], self.now
                if value not in self._settled:
                    self._settled[value] = row
                    fresh.append(row)
                if outcome.status is DeliveryStatus.ACKED:
                    self._acked.add(value)
            if fresh and self.unknowns is not None:
                first, longest = fresh[0].value, self.schedule.options.get("max_block", 60.0)
                self.unknowns.blocked_until[first] = self.rows[first].started + longest
                complaint = self.unknowns.judge_end(fresh, outcome)
                if complaint is not None:
                    self.report(Anomaly.BASELESS, f"{complaint} ({outcome.error!r})")

    def counted(self) -> list[Row]:
        """Return one row per record that the engine has settled, started when it was queued.

        The engine says when that was, and is believed within a bound: a record waits for room for
        up to `max_block`. It waits from the call on, or as a later value of a `send_many`, from the
        moment when the value before it was queued.
        """
        patience = self.schedule.options.get("max_block", 60.0) + self._stalled_for
        for value in sorted(self._settled, key=lambda value: value.call):
            waits_from = self.rows[value].started
            before = self._settled.get(self.before[value]) if value in self.before else None
            if before is not None:
                waits_from = max(waits_from, before.started)
            row = self._settled[value]
            row.started = min(row.started, waits_from + patience)
        return list(self._settled.values())

    def _outcome(self, value: ValueId) -> Outcome:
        return Outcome.ACKED if value in self._acked else Outcome.UNKNOWN

    def heard(self, link_id: Any, token: Any, answers: list[WireAnswer]) -> None:
        """Note a Produce answer that has reached the client."""
        self.injector.late_copies.passed()
        if self._tracing:
            for line in answer_lines(link_id, token, answers):
                self.trace(line)
        self._note_leaders()
        if self._deadlines is not None:
            self._deadlines.answered(self.brokers[link_id])

    def flush(self) -> None:
        """Let the application flush, for as long as it chooses to wait."""
        if self._tasks is not None:
            self._tasks.start_soon(self._flush)

    def report(self, anomaly: Anomaly, detail: str) -> None:
        """Note a violation."""
        self.trace(f"!! {anomaly.name}: {detail}")
        self.result.violations.append(Violation(anomaly, detail))

    # -- the application -----------------------------------------------------------------------

    async def _main(self) -> None:
        schedule = self.schedule
        began = self._began = self.now
        with anyio.fail_after(_DEADLOCK):
            async with self.embedded as cluster, anyio.create_task_group() as tasks:
                for name, partitions in schedule.topics:
                    self.create_topic(self.cluster, name, partitions)
                cluster.intercept(self.injector.intercept)
                self._tasks = tasks
                config = ProducerConfig.build(
                    cluster.bootstrap_servers, client_id="whole", **schedule.options
                )
                self._deadlines = Deadlines(config, self.witness, lambda: self.now)
                expiration = int(self.schedule.broker_configs.get(*EXPIRATION))
                if self.schedule.forgets_early:
                    expiration = 0
                self.unknowns = Reasons(
                    config,
                    self.witness,
                    lambda: self.now,
                    lambda: (self.wall() + self._wall_ahead) * 1000,
                    expiration / 1000,
                    (lambda: self.wall() * 1000) if self.schedule.stamps_by_log else None,
                )
                self.unknowns.forgotten = lambda: self.removed.forgotten
                self.unknowns.unread = functools.partial(unread, self)
                self.unknowns.steady = functools.partial(steady, self)
                connector = WholeConnector(self, cluster.connector)
                await self._life(TapProducer(config, connector, self))
                self.injector.heal()
                await until(self.now + _LONGEST_ZOMBIE)
                tasks.cancel_scope.cancel()
                self._judge(config)
        self.result.took = self.now - began

    async def _life(self, producer: TapProducer) -> None:
        self._producer = producer
        started = self.now
        for fault in self.schedule.faults:
            self.at(started + fault.at, self._injection(fault))
        try:
            await producer.start()
        except errors.KafkaError:
            await producer.close()
            # A start may give up if every bootstrap address was tried while the brokers were down.
            return
        try:
            async with anyio.create_task_group() as senders:
                for call in self.schedule.calls:
                    await until(started + call.at)
                    senders.start_soon(self._call, producer, call)
                close_at = self.schedule.close_at
                if close_at is not None:
                    await until(started + close_at)
                    await self._close(producer)
        finally:
            with anyio.CancelScope(shield=True):
                await producer.close()

    async def _close(self, producer: TapProducer) -> None:
        """Close the producer, and half of the time cancel that at some await."""
        chance = self._chance("close")
        closing = producer.close(self.schedule.close_timeout)
        if chance.random() < 0.5:
            await closing
            return
        with anyio.CancelScope() as scope:
            await AtAwait(closing, chance.randint(1, 6), scope)

    def _injection(self, fault: Fault) -> Callable[[], None]:
        return lambda: self.injector.inject(fault)

    def _chance(self, *what: object) -> random.Random:
        # Each call has a random generator of its own, so that a shrunk schedule, which leaves some
        # calls out, does not change the others.
        return random.Random(f"{self.schedule.seed} {what}")

    async def _call(self, producer: TapProducer, call: Call) -> None:
        """Send by `send`, `send_nowait` or `send_many`, and cancel about one call in four.

        A call is cancelled at one of its first awaits or after a time. A schedule whose records
        must all be acknowledged has no call cancelled.
        """
        chance = self._chance(call)
        how = chance.randrange(4)
        send = (self._send_nowait, self._send_many, self._send, self._send)[how](producer, call)
        if self.schedule.impatient:
            with anyio.CancelScope() as scope:
                _SCOPE.set(scope)
                await send
        elif self.schedule.all_acked or chance.random() >= 0.25:
            await send
        elif chance.random() < 0.5:
            with anyio.CancelScope() as scope:
                await AtAwait(send, chance.randint(1, 6), scope)
        else:
            patience = chance.choice((0.0, 0.5, 1.0, 3.0, 30.0)) * self.schedule.rtt
            with anyio.move_on_after(patience):
                await send

    def _stamp(self, call: Call) -> float:
        return self.client_wall() - call.age

    def _row(self, call: Call) -> tuple[Row, bytes]:
        partition = -1 if call.partition is None else call.partition
        value = ValueId("p", call.topic, partition, self._calls)
        self._calls += 1
        row = self.rows[value] = Row(value, call.topic, partition, self.now)
        return row, make_value(value, call.size)

    async def _send(self, producer: TapProducer, call: Call) -> None:
        row, value = self._row(call)
        # A caller that is cancelled does not know the outcome.
        row.outcome = Outcome.UNKNOWN
        try:
            meta = await producer.send(
                call.topic,
                value,
                key=call.key,
                partition=call.partition,
                timestamp=self._stamp(call),
            )
        except errors.KafkaError as error:
            row.outcome = _OUTCOMES[error.status] if error.status else Outcome.NOT_WRITTEN
        else:
            # With acks=0 no broker has said anything about the record.
            told = self.schedule.options.get("acks") != 0
            row.outcome = Outcome.ACKED if told else Outcome.UNKNOWN
            row.partition, row.offset = meta.partition, meta.offset
        row.settled = None if row.outcome is Outcome.NOT_WRITTEN else self.now

    async def _send_nowait(self, producer: TapProducer, call: Call) -> None:
        while True:
            row, value = self._row(call)
            try:
                delivery = producer.send_nowait(
                    call.topic,
                    value,
                    key=call.key,
                    partition=call.partition,
                    timestamp=self._stamp(call),
                )
            except errors.KafkaError as error:
                del self.rows[row.value]
                if not isinstance(error, errors.BufferFullError):
                    return
                try:
                    await producer.wait_for_room()
                except errors.KafkaError:
                    return
                # There may be room, but not enough for this record.
                await until(self.now + self.schedule.rtt)
            else:
                self._handed.append(row)
                delivery.add_done_callback(functools.partial(self._settle, row))
                return

    async def _send_many(self, producer: TapProducer, call: Call) -> None:
        made: list[Row] = []

        def values() -> Any:
            for _ in range(3 if call.size else 12):
                row, value = self._row(call)
                row.outcome = Outcome.UNKNOWN
                if made:
                    self.before[row.value] = made[-1].value
                if made and "buffer_memory" in self.schedule.options:
                    # `send_many` reads several values before it queues them. If the buffer has no
                    # room for this one, records of later calls may be queued before it.
                    self._read_ahead.add(row.value)
                made.append(row)
                self._most_values = max(self._most_values, len(made))
                yield value

        settled: list[RecordOutcome] = []
        try:
            settled += await producer.send_many(
                call.topic,
                values(),
                key=call.key,
                partition=call.partition,
                timestamp=self._stamp(call),
            )
        except errors.PartialDeliveryError as error:
            settled += error.deliveries
        except errors.KafkaError:
            settled.clear()
        for row, delivery in zip(made, settled, strict=False):
            self._settle(row, delivery)
        for row in made[len(settled) :]:
            row.outcome = Outcome.NOT_WRITTEN

    def _settle(self, row: Row, delivery: RecordOutcome) -> None:
        row.outcome = _OUTCOMES[delivery.status]
        row.settled = self.now
        if delivery.exception() is None:
            row.partition = delivery.metadata.partition
            row.offset = delivery.metadata.offset

    async def _flush(self) -> None:
        producer = self._producer
        if producer is not None:
            try:
                chance = self._chance("flush", self.now)
                with anyio.move_on_after(chance.choice((0.0, self.schedule.rtt, 10.0))):
                    waits_for = [row for row in self._handed if row.outcome is Outcome.PENDING]
                    said = await producer.flush(chance.choice((0.1, 5.0)))
                    self._judge_flush(said, waits_for)
            except errors.KafkaError:
                return

    def _judge_flush(self, said: DeliveryCounts, waits_for: list[Row]) -> None:
        """Judge a flush that returned; besides these records it may count some of other calls."""
        left = [row.value for row in waits_for if row.outcome is Outcome.PENDING]
        if left:
            self.report(Anomaly.UNSETTLED, f"a flush returns before {left[0]}")
        least = counted(row.outcome for row in waits_for)
        if any(count < known for count, known in zip(said, least, strict=True)):
            self.report(Anomaly.MISCOUNTED, f"a flush counts {said}, and at least {least} ended")

    # -- the end -------------------------------------------------------------------------------

    def log(self) -> list[LogRecord]:
        """Return all records of all partitions, those of deleted topics first."""
        logs = [*self.archive.get(self.cluster.cluster_id, []), self.standing(self.cluster)]
        return [record._replace(log=n) for n, records in enumerate(logs) for record in records]

    def standing(self, cluster: ClusterState) -> list[LogRecord]:
        """Return every record of every partition that the cluster has now."""
        return [
            LogRecord(name, partition.index, record.offset, record.value)
            for name, topic in cluster.topics.items()
            for partition in topic.partitions
            for record in batch_values(whole_log(partition, self.removed))
        ]

    def create_topic(self, _cluster: ClusterState, name: str, partitions: int) -> None:
        """Create a topic with the schedule's replication and configs."""
        brokers, replication = self.schedule.brokers, self.schedule.replication
        self.cluster.topology.create_topic(
            name,
            assignments={
                p: [(p + r) % brokers for r in range(replication)] for p in range(partitions)
            },
            configs=dict(self.schedule.topic_configs),
        )

    def _judge(self, config: ProducerConfig) -> None:
        result, schedule = self.result, self.schedule
        result.violations += self.monitor.violations
        producer = self._producer
        if producer is None:
            return
        core = producer.core
        # The time until the caller has the outcome counts from the application's call, so it
        # includes waiting for memory. `Deadlines` judges the time from the queue to the decision.
        # One of several values of a call may wait for the room of each of those before it.
        waits = 1 + (self._most_values if "buffer_memory" in schedule.options else 1)
        patience = waits * config.max_block + config.delivery_timeout + config.request_timeout
        early = unresolved_while(self.injector.forgets_early, self.rows.values())
        backwards = self.rows.keys() if schedule.resends_backwards else set()
        expect = Expectations(
            deadline=patience + self._stalled_for + 1.0,
            lost=self.lost | early,
            may_reorder=(written_late(self) | self._read_ahead | early)
            | (backwards | reassigned(self.rows, schedule)),
            may_repeat=repeatable(self),
            unpromised=not config.enable_idempotence,
        )
        use = result.allowances.add
        result.violations += judge_history(
            self.rows.values(), self.log(), expect, names_of(schedule), use
        )
        assert self._deadlines is not None
        result.violations += self._deadlines.judge(self.counted(), use)
        result.violations += core.numbers.judge(self.now)
        result.violations += check_counters(
            {
                "buffer_bytes_used": core.budget.in_use,
                "buffer_waiters": core.budget.waiting,
                "records_queued": core.unsettled,
                "connections": len(core.connections.links),
            }
        )
        for row in self.rows.values():
            result.outcomes[row.outcome] = result.outcomes.get(row.outcome, 0) + 1
        assert self.unknowns is not None
        result.reasons = self.unknowns.found
        result.batches = core.counters.batches_sent
        result.retries = core.counters.batches_retried
        result.bumps = core.epoch_bumps
        result.events = core.counters.data_loss_events
        result.max_span = self.monitor.max_span
        if result.events and not self.lost:
            if schedule.events_allowed or self.removed.forgotten:
                use(FALSE_EVENT)
            else:
                self.report(Anomaly.EVENT, f"{result.events} events where no broker lost anything")
        if isinstance(core.fatal_error, errors.InternalError):
            self.report(Anomaly.CRASH, str(core.fatal_error))
        left = [row for row in self.rows.values() if row.outcome is not Outcome.ACKED]
        if schedule.all_acked and left:
            self.report(Anomaly.STUCK, f"{left[0].value} {left[0].outcome.value}")


def _stay(_seconds: float) -> None:
    """Ignore a jump of the clock, because no clock is running yet."""


async def until(when: float) -> None:
    """Sleep until the loop's time is `when`."""
    with anyio.CancelScope(deadline=when):
        await anyio.sleep_forever()
