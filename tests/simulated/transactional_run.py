"""Run one seed of transactions through the whole producer.

Tasks are real, time is virtual, brokers are in memory. The application does one transaction after
the other: it begins, queues records and offsets, and commits, aborts, or leaves its transaction
block with an exception. Some of its calls are cancelled at an await or time out; then it calls
again, until it knows how the transaction ended. After a fatal error the application makes a new
producer with the same transactional id, as after the crash of a process. The transactions may have
different transactional ids. Then the producer takes another id between two of them, as in a Python
worker of Spark; if it does not get the id, the application makes a new producer.

Invariants: every call ends within its time limit; a fatal error has a reason
(`Transactional.reasons`); once faults are over and late requests are served, the next transaction
is committed; in the end no transaction is open, and `read_committed.judge` finds no violation.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._broker.batch import StoredBatch
from aioidem._broker.entities import Entity
from aioidem._broker.intercept import (
    Action,
    CloseConnection,
    Delay,
    Drop,
    RequestSeen,
    Rewrite,
)
from aioidem._broker.partition import Topic
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity
from aioidem._broker.transaction_coordinator import TransactionCoordinator
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.settlement import Settlement
from aioidem._network.transport import Connector
from aioidem._producer.delivery import Delivery
from aioidem._producer.native import internals
from aioidem._protocol.metadata import BrokerAddress
from aioidem.structs import DeliveryStatus, TopicPartition
from aioidem.testing import (
    Anomaly,
    Outcome,
    Row,
    ValueId,
    WireAnswer,
    WireMonitor,
    check_counters,
    make_value,
    parse_value,
)

from .frame_watch import FrameWatch
from .read_committed import Attempt, Verdict, committed_records, judge, visible_at_brokers
from .schedule import Call, Fault, Glitch, Schedule, Work
from .trace_lines import answer_lines
from .transactional import FATAL, GROUPS
from .whole import AtAwait, TapProducer, Whole, WholeConnector, WholeInjector, until

__all__ = ["Transactional"]

# A run with more requests to coordinators than this is in an endless loop: a few hundred suffice.
_MOST_ASKED = 20_000
_COORDINATION = frozenset({10, 22, 24, 25, 26, 28})
_NAME = "tx"
_OF_GROUPS = 0  # the type of the keys of FindCoordinator that are groups
# By how many seconds a call may exceed its limit: for turns of the loop, and for brokers' work.
_SLACK = 1.0
_GIVES_UP = 600.0
# Within this many seconds, brokers serve every request that a fault delayed.
_LONGEST_ZOMBIE = 100.0
_LAST_TRIES = 3
# Longer than a turn of the Sender, which takes no virtual time.
_A_TURN = 1e-6
# Round trips of a new producer before its first record is acknowledged, besides one for each
# partition that it adds to the transaction: connections, Metadata, configs, limits, Produce.
_FIRST_QUESTIONS = 8


class _GoneError(Exception):
    """A fatal error or the close of the producer: the application needs a new producer."""


class _Skew(NamedTuple):
    """A time in which the clock of one broker was wrong."""

    until: float
    # By how many seconds: the clock jumps at the beginning if it is ahead, else at the end.
    by: float


class _ApplicationError(Exception):
    """The exception that the application raises in its transaction block, to abort."""


class _Injector(WholeInjector):
    """An injector that also carries out the faults of coordinators."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._whole: Transactional = world
        self._coordination = {glitch.request: glitch for glitch in world.schedule.coordination}
        self._asked = -1
        # By API key: the fault of the next request of that API to a coordinator.
        self._struck: dict[int, Glitch] = {}

    def inject(self, fault: Fault) -> None:
        """Carry one fault out, unless the time of faults in this run is over."""
        if not self._whole.healed:
            super().inject(fault)

    def _do_strike(self, api_key: int, kind: str, *args: Any) -> None:
        self._struck[api_key] = Glitch(-1, kind, args)

    def _do_fail_coordinator(self, key: str, code: int, seconds: float) -> None:
        embedded = self._whole.embedded
        embedded.fail_coordinator(key, code)
        self._later(seconds, lambda: embedded.fail_coordinator(key, None))

    def _do_move_coordinator(self, key: str, broker: int) -> None:
        self._whole.embedded.move_coordinator(key, broker)

    def _do_hold_markers(self, seconds: float) -> None:
        embedded = self._whole.embedded
        embedded.hold_markers()
        self._later(seconds, embedded.release_markers)

    def _do_delay_markers(self, delay: float, seconds: float) -> None:
        embedded = self._whole.embedded
        embedded.set_marker_delay(delay)
        self._later(seconds, lambda: embedded.set_marker_delay(0.0))

    def _do_recreate(self, name: str) -> None:
        topic = self._topic(name)
        if topic is not None:
            self._whole.keep_logs(topic)
        super()._do_recreate(name)

    def _do_skew(self, broker: int, ahead: float, seconds: float) -> None:
        super()._do_skew(broker, ahead, seconds)
        whole = self._whole
        whole.skews.append(_Skew(whole.now + seconds, abs(ahead)))

    def _do_twin(self, records: int, end: str, transactional_id: str = _NAME) -> None:
        self._whole.start_twin(records, end, transactional_id)

    def _do_crash(self) -> None:
        self._whole.crash()

    def heal(self) -> None:
        """End every fault, those of coordinators included."""
        super().heal()
        embedded = self._whole.embedded
        for key in list(embedded.state.coordinator_faults):
            embedded.fail_coordinator(key, None)
        embedded.set_marker_delay(0.0)
        embedded.release_markers()
        embedded.set_rtt(self._whole.schedule.rtt)
        for stream in self._whole.streams:
            stream.heal()
        self._glitches.clear()
        self._refusal = None
        self._unheard.clear()
        self._coordination.clear()
        self._struck.clear()

    def intercept(self, seen: RequestSeen) -> Action | None:
        """Choose what happens to a request; those to coordinators have glitches of their own."""
        self._note_claim(seen)
        if seen.api_key in _COORDINATION:
            self._asked += 1
            if self._asked > _MOST_ASKED:
                raise RuntimeError("coordinators are asked without end")
            glitch = self._coordination.get(self._asked) or self._struck.pop(seen.api_key, None)
            if glitch is not None:
                self._whole.trace(f"coordination {self._asked}: {glitch.kind} {glitch.args}")
                action: Action | None = getattr(self, f"_at_{glitch.kind}")(glitch, seen)
                return action
        return super().intercept(seen)

    def _on_refuse(self, glitch: Glitch, _seen: RequestSeen) -> Action:
        if glitch.args[0] in (*FATAL, *_DISOWNED):
            self._whole.reasons.append(f"a leader says {glitch.args[0]}")
        return super()._on_refuse(glitch, _seen)

    _on_spurious = _on_fence = _on_refuse

    def _at_drop(self, glitch: Glitch, _seen: RequestSeen) -> Action:
        carried_out, silent = glitch.args
        return Drop(carried_out, silent=True) if silent else CloseConnection(carried_out)

    def _at_delay(self, glitch: Glitch, seen: RequestSeen) -> Action:
        self._later(glitch.args[0], lambda: self._note_claim(seen))
        return Delay(glitch.args[0])

    def _note_claim(self, seen: RequestSeen) -> None:
        """Note a request that can fence a producer, as a reason for a fatal error.

        Such requests are the InitProducerId of another producer, a late InitProducerId of the same
        producer, and with transactions v1 a late request that adds partitions or offsets, because
        it can open a new transaction.
        """
        late = not self._whole.is_open(seen.connection_id)
        if seen.api_key in _COORDINATION:
            self._whole.check_identity(seen)
        if seen.api_key == 10:
            self._whole.check_key(seen.request)
        if seen.api_key == 22:
            self._whole.note_init(seen)
        if late and seen.api_key in (22, 24, 25):
            self._whole.reasons.append(_LATE)

    def _at_zombie(self, glitch: Glitch, seen: RequestSeen) -> Action:
        self._later(0.0, lambda: self._do_cut(seen.broker_id, 1.0, True, 0.0))
        return self._at_delay(glitch, seen)

    def _at_refuse(self, glitch: Glitch, seen: RequestSeen) -> Action:
        code = glitch.args[0]
        request: Any = seen.request
        if (seen.api_key, code) == (26, _INVALID_TXN_STATE) and request.committed:
            # With transactions v2, this answer to a commit says that the transaction was aborted. A
            # coordinator never says so of a transaction that it did not abort, so another code is
            # answered instead.
            code = _UNNAMED
        faults = self._whole.embedded.state.coordinator_faults
        key = _key_of(seen)
        if code in (*FATAL, *_DISOWNED) or (seen.api_key, code) in _DEADLY:
            self._whole.reasons.append(f"a coordinator says {code}")
        if seen.api_key in (10, 24):
            # These two requests (FindCoordinator, AddPartitionsToTxn) are carried out; only their
            # answers are changed.
            return Rewrite(lambda answer: _with_code(seen.api_key, answer, code))
        before = faults.get(key)
        faults[key] = ErrorCode.coordinator_not_available

        def told(answer: Entity) -> Entity:
            del faults[key]
            if before is not None:
                faults[key] = before
            return _with_code(seen.api_key, answer, code)

        return Rewrite(told)

    def _at_garbage(self, glitch: Glitch, seen: RequestSeen) -> None:
        self._on_garbage(glitch, seen)

    def _at_after(self, glitch: Glitch, seen: RequestSeen) -> Action:
        code = glitch.args[0]
        if (seen.api_key, code) in _DEADLY:
            self._whole.reasons.append(f"a coordinator says {code} afterwards")
        return Rewrite(lambda answer: _with_code(seen.api_key, answer, code))

    def _at_hollow(self, _glitch: Glitch, seen: RequestSeen) -> Action:
        """Let a success lack the broker, or the producer id and epoch, that it should name."""
        return Rewrite(lambda answer: _hollow(seen.api_key, answer))


# The codes that a coordinator sends for a while only, so that no call may fail for them.
_FOR_A_WHILE = {
    code.value
    for code in (
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.operation_not_attempted,
    )
}

# The codes of a broker that does not know our producer id or its epoch.
_DISOWNED = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unknown_producer_id,
)
_LATE = "a late request of its own"
_INVALID_TXN_STATE = ErrorCode.invalid_txn_state
_UNNAMED = 999
# Pairs (API key, error code) that no healthy coordinator answers, and that may cause a fatal error.
# EndTxn (26) is here with INVALID_TXN_STATE, INVALID_REQUEST and TRANSACTION_ABORTABLE for aborts.
_DEADLY = frozenset(
    {
        (24, ErrorCode.invalid_txn_state),
        (25, ErrorCode.invalid_txn_state),
        (26, ErrorCode.invalid_txn_state),
        (26, ErrorCode.invalid_request),
        (26, ErrorCode.transaction_abortable),
        (26, ErrorCode.invalid_producer_epoch),
        (26, _UNNAMED),
    }
    | {
        (api_key, code)
        for code in (
            ErrorCode.invalid_request,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.invalid_txn_state,
            ErrorCode.transaction_abortable,
            _UNNAMED,
        )
        for api_key in (10, 22)
    }
)


def _key_of(seen: RequestSeen) -> str:
    request: Any = seen.request
    if seen.api_key == 28:
        return str(request.group_id)
    name = getattr(request, "transactional_id", None)
    return str(name if name is not None else getattr(request, "v3_and_below_transactional_id", ""))


def _with_code(api_key: int, answer: Any, number: int) -> Entity:
    code: Any = _code(number)
    if api_key == 24:
        topics = tuple(
            dataclasses.replace(
                topic,
                results_by_partition=tuple(
                    dataclasses.replace(part, partition_error_code=code)
                    for part in topic.results_by_partition
                ),
            )
            for topic in answer.results_by_topic_v3_and_below
        )
        return dataclasses.replace(answer, results_by_topic_v3_and_below=topics)
    if api_key == 28:
        topics = tuple(
            dataclasses.replace(
                topic,
                partitions=tuple(
                    dataclasses.replace(part, error_code=code) for part in topic.partitions
                ),
            )
            for topic in answer.topics
        )
        return dataclasses.replace(answer, topics=topics)
    if api_key == 10:
        return _with_coordinators(answer, error_code=code)
    return dataclasses.replace(answer, error_code=code, **_no_identity(answer))


def _hollow(api_key: int, answer: Any) -> Entity:
    if api_key == 10:
        return _with_coordinators(answer, node_id=-1)
    return dataclasses.replace(answer, **_no_identity(answer))


def _with_coordinators(answer: Any, **values: object) -> Entity:
    """Return an answer to FindCoordinator with other values; since v4 it has them for each key."""
    if not hasattr(answer, "coordinators"):
        return dataclasses.replace(answer, **values)
    found = tuple(dataclasses.replace(each, **values) for each in answer.coordinators)
    return dataclasses.replace(answer, coordinators=found)


def _no_identity(answer: Any) -> dict[str, int]:
    """Return the values with which an answer that can grant an identity grants none."""
    return {"producer_id": -1, "producer_epoch": -1} if hasattr(answer, "producer_id") else {}


def _code(number: int) -> Any:
    try:
        return ErrorCode(number)
    except ValueError:
        return _Unnamed(number)


class _Unnamed:
    """An error code that no version of Kafka has."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.name = f"code {value}"


class _Seat:
    """The `Transactional` run as one producer sees it: with a monitor and streams of its own."""

    def __init__(self, whole: Transactional, name: str, transactional_id: str) -> None:
        self.name = name
        # The transactional id that the application wants the producer to have now.
        self.transactional_id = transactional_id
        self._whole = whole
        self._acked: set[ValueId | None] = set()
        self.own_streams: list[Any] = []
        self.monitor = WireMonitor(
            outcome=self._outcome,
            max_in_flight=whole.schedule.options["max_in_flight_requests_per_connection"],
            trust_base_offset=whole.schedule.options.get("trust_base_offset", True),
            windowed=whole.schedule.options.get("broker_dedup", "window") == "window",
        )
        self.watch = FrameWatch(self.monitor, [], self.note_recreated, self.heard)
        # The transaction that may not be committed any more: an answer has shown that a topic was
        # recreated in which it has acknowledged records. And the one whose commit was requested.
        self._doomed: Attempt | None = None
        self._decided: Attempt | None = None

    def _outcome(self, value: ValueId) -> Outcome:
        return Outcome.ACKED if value in self._acked else Outcome.UNKNOWN

    def note_settled(self, settlements: list[Settlement]) -> None:
        """Note which of this producer's records are acknowledged."""
        for settlement in settlements:
            if settlement.outcome.status is DeliveryStatus.ACKED:
                self._acked.update(parse_value(record.value) for record in settlement.records)

    def _latest(self) -> Attempt | None:
        attempts = reversed(self._whole.attempts)
        return next((each for each in attempts if each.producer == self.name), None)

    def note_recreated(self, topic: str) -> None:
        """Note that an answer has shown this producer that a topic was recreated."""
        attempt = self._latest()
        if attempt is None:
            return
        written = any(row.topic == topic and row.value in self._acked for row in attempt.rows)
        if written and attempt is not self._decided:
            self._doomed = attempt

    def trace_step(self, step: steps.Step) -> None:
        """Trace what the engine does, and report what it must not do.

        That is a commit of which the engine knows that a part is gone, and a batch under another
        transactional id than the producer's.
        """
        self._whole.trace_step(step)
        if isinstance(step, steps.SendProduce) and step.transactional_id != self.transactional_id:
            self._whole.report(
                Anomaly.FOREIGN,
                f"{self.name} sends as {step.transactional_id}, and is {self.transactional_id}",
            )
        if isinstance(step, steps.EndTransaction) and step.commit:
            attempt = self._latest()
            self._decided = attempt
            if attempt is not None and attempt is self._doomed:
                self._whole.report(
                    Anomaly.HALF, f"{attempt} is committed, and a topic of it was recreated"
                )

    def asked_to_commit(self, attempt: Attempt) -> bool:
        """Return whether this producer has sent a request to commit a transaction."""
        return self._decided is attempt

    def heard(self, link_id: Any, token: Any, answers: list[WireAnswer]) -> None:
        """Note a Produce answer that has reached this producer."""
        for line in answer_lines(link_id, token, answers):
            self.trace(line)

    def trace(self, line: str) -> None:
        """Write a line to the trace, with the name of the producer."""
        self._whole.trace(f"{self.name}: {line}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class _Connector(WholeConnector):
    """A connector that keeps a list of its producer's streams."""

    def __init__(self, seat: Any, inner: Connector) -> None:
        super().__init__(seat, inner)
        self._seat: _Seat = seat

    async def connect(self, host: str, port: int) -> Any:
        stream = await super().connect(host, port)
        self._seat.own_streams.append(stream)
        return stream


class Transactional(Whole):
    """One run of a transactional schedule."""

    def __init__(self, schedule: Schedule, *, trace: bool = False) -> None:
        super().__init__(schedule, trace=trace)
        world: Any = self
        self.injector = _Injector(world)
        self.attempts: list[Attempt] = []
        # The events that may cause a fatal error of a producer.
        self.reasons: list[str] = []
        # Another one: a producer took an id from another producer. These are the two names.
        self.takeovers: list[tuple[str, str]] = []
        # A third one: by a clock that jumps, a transaction is older than its timeout.
        self.skews: list[_Skew] = []
        self.seats: list[_Seat] = []
        self._holders: dict[str, str] = {}
        # By transactional id: the producer ids that the coordinator has granted.
        self._granted: dict[str, set[int]] = {}
        self._twins: list[anyio.Event] = []
        self._current: tuple[_Seat, TapProducer] | None = None
        self.healed = False
        # For each partition that was deleted with its topic: the name, the index and the batches.
        self._deleted: list[tuple[str, int, list[StoredBatch]]] = []

    # -- what the injector asks for ----------------------------------------------------------------

    def note_init(self, seen: RequestSeen) -> None:
        """Note that a producer takes a transactional id, if another producer had it before."""
        key, client = _key_of(seen), seen.client_id or ""
        if client != self._holders.get(key):
            self._holders[key] = client
            self.takeovers.append((client, key))

    def check_identity(self, seen: RequestSeen) -> None:
        """Report a request whose producer id was not granted for its transactional id."""
        request: Any = seen.request
        number = getattr(request, "producer_id", -1)
        name = getattr(request, "transactional_id", None)
        if number >= 0 and name is not None and number not in self._granted.get(str(name), ()):
            self.report(
                Anomaly.FOREIGN,
                f"{seen.client_id} has producer id {number} as {name}, to which it was not granted",
            )

    def check_key(self, request: Any) -> None:
        """Report a question for the coordinator of what is none: a group as an id, or an id."""
        keys = getattr(request, "coordinator_keys", None) or [request.key]
        for key in keys:
            if (key in GROUPS) is not (request.key_type == _OF_GROUPS):
                self.report(Anomaly.CONDUCT, f"{key!r} is looked for as a {request.key_type}")

    def note_granted(self, transactional_id: str, identity: Identity) -> None:
        """Note what the coordinator grants to the holder of a transactional id."""
        self._granted.setdefault(transactional_id, set()).add(identity.producer_id)

    def note_decided(self, transactional_id: str, identity: Identity) -> None:
        """Note that the coordinator has decided to commit a transaction."""
        for attempt in reversed(self.attempts):
            if (attempt.transactional_id, attempt.identity) == (transactional_id, identity):
                attempt.decided = True
                return

    def keep_logs(self, topic: Topic) -> None:
        """Keep the logs of a topic that is about to be deleted."""
        for partition in topic.partitions:
            leader = partition.leader_replica or partition.replicas[partition.isr[0]]
            self._deleted.append((topic.name, partition.index, list(leader.log.batches)))

    def crash(self) -> None:
        """Kill the application's process, so that no further byte leaves it."""
        if self._current is None or self._tasks is None or self.healed:
            return
        seat, producer = self._current
        for stream in seat.own_streams:
            stream.mute = stream.deaf = True
        self.reasons.append("crashed")
        self._tasks.start_soon(producer.close, 0)

    def start_twin(self, records: int, end: str, transactional_id: str) -> None:
        """Start another process with a transactional id, which does one transaction."""
        if self._tasks is None or self.healed:
            return
        done = anyio.Event()
        self._twins.append(done)
        topic, partitions = self.schedule.topics[0]
        calls = tuple(Call(0.0, topic, number % partitions, None, 60) for number in range(records))
        name = f"twin{len(self._twins)}"
        end, leaves = ("commit", True) if end == "leave" else (end, False)
        work = Work(calls, end=end, block=False, transactional_id=transactional_id)
        self._tasks.start_soon(self._twin, name, work, leaves, done)

    async def _twin(self, name: str, work: Work, leaves: bool, done: anyio.Event) -> None:
        try:
            twin = _Application(self, name, work.transactional_id)
            if await twin.start():
                with suppress(_GoneError):
                    await (twin.leave_open(work) if leaves else twin.transaction(work))
                await twin.close(0 if leaves else None)
        finally:
            done.set()

    def new_seat(self, name: str, transactional_id: str) -> tuple[_Seat, TapProducer]:
        """Make a producer and its seat, which holds its monitor, its trace and its streams."""
        seat: Any = _Seat(self, name, transactional_id)
        self.seats.append(seat)
        options = {**self.schedule.options, "client_id": name, "transactional_id": transactional_id}
        servers = self.embedded.bootstrap_servers or "embedded-0:9092"
        config = ProducerConfig.build(servers, **options)
        return seat, TapProducer(config, _Connector(seat, self.embedded.connector), seat)

    def new_attempt(self, seat: _Seat, identity: tuple[int, int] | None) -> Attempt:
        """Note that a transaction begins."""
        attempt = Attempt(len(self.attempts), seat.name, self.now)
        attempt.transactional_id, attempt.identity = seat.transactional_id, identity
        self.attempts.append(attempt)
        self.trace(f"{seat.name} begins {attempt.number} as {seat.transactional_id}, {identity}")
        return attempt

    def new_row(self, attempt: Attempt, call: Call) -> tuple[Row, bytes]:
        """Return the row in the run's history, and the value, of a new record of a transaction."""
        partition = -1 if call.partition is None else call.partition
        producer = attempt.producer.rstrip("0123456789")
        if producer == "twin":
            # Twins with different transactional ids do not fence each other, so their records may
            # come in any order. Those of one id keep the order in which they were started.
            producer = f"twin {attempt.transactional_id}"
        value = ValueId(producer, call.topic, partition, self._calls)
        self._calls += 1
        return Row(value, call.topic, partition, self.now), make_value(value, call.size)

    # -- the application ---------------------------------------------------------------------------

    async def _main(self) -> None:
        schedule = self.schedule
        began = self._began = self.now
        with anyio.fail_after(20_000.0):
            async with self.embedded as cluster, anyio.create_task_group() as tasks:
                self._create_topics()
                self._watch_coordinator()
                if schedule.used_epochs:
                    self._use_epochs_up(schedule.used_epochs)
                cluster.intercept(self.injector.intercept)
                self._tasks = tasks
                for fault in schedule.faults:
                    self.at(began + fault.at, self._injection(fault))
                await self._work()
                tasks.cancel_scope.cancel()
                self._judge_all()
        self.result.took = self.now - began

    def _create_topics(self) -> None:
        schedule = self.schedule
        for name, partitions in schedule.topics:
            self.embedded.create_topic(
                name,
                partitions=partitions,
                replication=schedule.replication,
                configs=schedule.topic_configs,
            )
        self.embedded.create_topic("src", partitions=len(schedule.work) + 24)

    def _watch_coordinator(self) -> None:
        whole = self

        class Watched(TransactionCoordinator):
            """A coordinator that tells what it has granted and decided."""

            __slots__ = ()

            def init(
                self, broker: Broker, name: str, timeout_ms: int, claimed: Identity | None
            ) -> Identity:
                granted = super().init(broker, name, timeout_ms, claimed)
                whole.note_granted(name, granted)
                return granted

            def end(
                self, broker: Broker, name: str, identity: Identity, *, commit: bool, raises: bool
            ) -> Identity:
                following = super().end(broker, name, identity, commit=commit, raises=raises)
                whole.note_granted(name, following)
                if commit:
                    whole.note_decided(name, identity)
                return following

        self.cluster.transactions.__class__ = Watched

    @property
    def ids(self) -> list[str]:
        """The transactional ids of the application, in the order of their first use."""
        return list(dict.fromkeys(work.transactional_id for work in self.schedule.work)) or [_NAME]

    def _use_epochs_up(self, epoch: int) -> None:
        coordinator = self.cluster.transactions
        broker = self.cluster.brokers[0]
        for name in self.ids:
            coordinator.init(broker, name, 60_000, None)
            known = coordinator.find(name)
            if known is not None:
                known.epoch = epoch

    async def _work(self) -> None:
        application = None
        for work in self.schedule.work:
            await until(self.now + work.pause)
            application = await self._continue(application, work)
            try:
                await application.transaction(work)
            except _GoneError:
                await application.close(None)
                application = None
        self.injector.heal()
        self.healed = True
        for done in self._twins:
            with anyio.move_on_after(_GIVES_UP) as scope:
                await done.wait()
            if scope.cancelled_caught:
                self.report(Anomaly.STUCK, "a twin never ends")
        await until(self.now + _LONGEST_ZOMBIE)
        for name in self.ids:
            application = await self._last_transaction(application, name)
        if application is not None:
            await application.close(None)

    async def _continue(self, application: _Application | None, work: Work) -> _Application:
        """Return `application` if its producer gets the id of the work, else a new one."""
        if application is not None:
            with suppress(_GoneError):
                if await application.take_id(work):
                    return application
            await application.close(None)
        began = self.now
        while True:
            started = _Application(self, f"main{len(self.seats)}", work.transactional_id)
            self._current = started.seat, started.producer
            if await started.start():
                return started
            await until(self.now + 0.5)
            if self.now - began > _GIVES_UP:
                raise RuntimeError("no producer comes up any more")

    async def _last_transaction(
        self, application: _Application | None, name: str
    ) -> _Application | None:
        """Commit a last transaction of an id, by a new producer if the present one was fenced."""
        topics = self.schedule.topics
        calls = tuple(Call(0.0, t, p, None, 60) for t, count in topics for p in range(count))
        work = Work(calls, ("g",), block=False, transactional_id=name)
        # With transactions v1, a leader that verified a late request refuses higher sequences of
        # the request's epoch until its batch is appended. So one attempt to commit can fail.
        # And a producer may not have noticed yet that a topic was recreated: the first batch of
        # each partition may be stored at an offset that was acknowledged before, and one batch may
        # be refused, after which all partitions have another epoch.
        # A leader that forgot the producer early refuses its next batch, once.
        # And with a short delivery timeout, a new producer's first records can expire.
        excused = int(bool(self.late) and not self.schedule.transaction_version)
        excused += self.schedule.forgets_early
        excused += len(self._deleted) + bool(self._deleted)
        excused += self._knows_too_late(len(calls))
        for _ in range(_LAST_TRIES + excused):
            application = await self._continue(application, work)
            try:
                committed = await application.transaction(work)
            except _GoneError:
                await application.close(None)
                application = None
                continue
            if committed:
                return application
            # If another producer took the transactional id (`outdone`), this producer learns that
            # only when it requests a new epoch, so the commit may fail first.
            if not (excused or application.outdone):
                break
            excused = max(0, excused - 1)
        self.report(Anomaly.STUCK, f"the transaction of {name} after all faults was not committed")
        return application

    def _knows_too_late(self, partitions: int) -> bool:
        """Return whether records of a new producer can expire while it asks what it needs to know.

        It asks for Metadata, the brokers' configs and the topics' limits, and with transactions v1
        adds partitions one by one. Its next transaction need not ask again.
        """
        timeout: float | None = self.schedule.options.get("delivery_timeout")
        return timeout is not None and timeout < (_FIRST_QUESTIONS + partitions) * self.schedule.rtt

    # -- the end -----------------------------------------------------------------------------------

    def _judge_all(self) -> None:
        result = self.result
        visible, offsets, gone = [], {}, set()
        for number, (name, index, batches) in enumerate(self._deleted):
            seen, left_open = committed_records(name, index, batches)
            visible += [record._replace(log=number) for record in seen]
            gone |= {parse_value(each.value) for some in left_open.values() for each in some}
        for name, partitions in self.schedule.topics:
            for index in range(partitions):
                seen = self._read(name, index)
                visible += [record._replace(log=len(self._deleted)) for record in seen]
        for group in ("g", "h"):
            known = self.cluster.groups.committed(group)
            offsets[group] = {where: each.offset for where, each in known.items()}
        result.violations += judge(self.attempts, visible, offsets, gone)
        for attempt in self.attempts:
            told = attempt.verdict is Verdict.COMMITTED and (attempt.rows or attempt.groups)
            if told and not attempt.decided:
                self.report(Anomaly.HALF, f"{attempt}: the coordinator has not decided so")
        for attempt in self.attempts:
            for row in (*attempt.rows, *attempt.unsure):
                result.outcomes[row.outcome] = result.outcomes.get(row.outcome, 0) + 1
            verdict = attempt.verdict.value
            result.transactions[verdict] = result.transactions.get(verdict, 0) + 1
        for seat in self.seats:
            # With transactions v2, the producer need not await the first acknowledgement of a
            # leader: one that does not know the producer refuses all sequences but 0.
            result.violations += [
                each
                for each in seat.monitor.violations
                if each.anomaly is not Anomaly.GATE or not self.schedule.transaction_version
            ]
            result.max_span = max(result.max_span, seat.monitor.max_span)

    def _read(self, name: str, index: int) -> list[Any]:
        partition = self.embedded._partition(name, index)
        log = self.embedded._log(name, index)
        batches = log.log.batches
        seen, left_open = committed_records(name, index, batches)
        if left_open:
            self.report(Anomaly.HANGING, f"{name}-{index}: of producer ids {list(left_open)}")
        stable = partition.last_stable_offset
        aborted = log.producers.transactions.aborted(0, stable)
        told = visible_at_brokers(name, index, batches, stable, aborted)
        if told != seen:
            self.report(Anomaly.HALF, f"{name}-{index}: brokers and markers differ")
        return seen


class _Application:
    """One process of the application, with one producer."""

    def __init__(self, whole: Transactional, name: str, transactional_id: str) -> None:
        self.whole = whole
        self.seat, self.producer = whole.new_seat(name, transactional_id)
        self._reasons_before = len(whole.reasons)
        self._takeovers_before = len(whole.takeovers)
        self._tries = 0
        self._work = Work(())

    async def start(self) -> bool:
        """Start the producer, and return whether that succeeded."""
        try:
            await self._timed("start", self.producer.start, self._max_block)
        except errors.KafkaError as error:
            self.seat.trace(f"start: {error!r}")
            await self.close(None)
            return False
        return True

    async def close(self, timeout: float | None) -> None:
        """Close the producer within its bound, and check that it leaves nothing behind."""
        whole, core = self.whole, self.producer.core
        config = self.producer.config
        limit = config.delivery_timeout + config.request_timeout + config.max_block
        await self._timed("close", lambda: self.producer.close(timeout), limit)
        whole.result.violations += check_counters(
            {
                "buffer_bytes_used": core.budget.in_use,
                "records_queued": core.unsettled,
                "connections": len(core.connections.links),
            }
        )
        whole.result.violations += core.numbers.judge(whole.now)
        unknown = core.counters.records_unknown
        if whole.schedule.all_acked and unknown:
            whole.report(Anomaly.BASELESS, f"{unknown} records, whose doubt could be resolved")
        whole.result.batches += core.counters.batches_sent
        whole.result.retries += core.counters.batches_retried

    @property
    def _max_block(self) -> float:
        return self.producer.config.max_block

    async def take_id(self, work: Work) -> bool:
        """Take the transactional id of a transaction; return False if a new producer must do it.

        An application with several ids takes each anew, as a Spark worker does for each task, even
        if the producer has it already. With one id the producer keeps it.

        Raises:
            _GoneError: the producer can do nothing any more, or was refused the id.
        """
        seat, whole, parts = self.seat, self.whole, internals(self.producer)
        if len(whole.ids) == 1:
            return True
        self._work = work
        chance, began = self._chance("id"), whole.now
        # Once faults are over, the coordinator refuses the id only while a transaction is ending.
        patience = _GIVES_UP if not whole.healed else _GIVES_UP / 10
        while not parts.may_change_id():
            if chance.random() < 0.3 or self.producer.core.fatal_error is not None:
                return False
            self._check_patience(began, "the epoch of the former id")
            await until(whole.now + 0.1)
        seat.transactional_id = work.transactional_id
        self._takeovers_before = len(whole.takeovers)
        seat.trace(f"takes {work.transactional_id}")
        asked = False

        async def take() -> None:
            nonlocal asked
            if asked:
                await self.producer.init_transactions(self._patience())
            else:
                asked = True
                await parts.change_id(work.transactional_id, self._patience() or self._max_block)

        while not await self._attempted("id", take, None):
            self._check_patience(began, "another id", patience)
            if not whole.healed and chance.random() < 0.3:
                return False
            await self._pause(chance)
        return True

    # -- one transaction ---------------------------------------------------------------------------

    async def transaction(self, work: Work) -> bool:
        """Do one transaction until its outcome is known, and return whether it was committed.

        Raises:
            _GoneError: the producer can do nothing any more.
        """
        self._work = work
        if work.block:
            attempt = await self._in_a_block(work)
        else:
            producer = self.producer
            await self._misuse(
                functools.partial(producer.commit_transaction, 1.0),
                functools.partial(producer.abort_transaction, 1.0),
            )
            await self._insist("begin", producer.begin_transaction)
            await self._misuse(
                producer.begin_transaction,
                functools.partial(internals(producer).change_id, work.transactional_id, 1.0),
            )
            attempt = await self._by_calls(work)
        if attempt is None:
            return False
        self.seat.trace(str(attempt))
        return attempt.verdict is Verdict.COMMITTED

    async def _misuse(self, *calls: Callable[[], Awaitable[object]]) -> None:
        """Make calls that the state of the transaction forbids, if the schedule has such."""
        if not self.whole.schedule.odd.misuses:
            return
        for call in calls:
            try:
                await call()
            except errors.InternalError as error:
                self.whole.report(Anomaly.CONDUCT, f"{call} was refused as {error!r}")
            except errors.KafkaError as error:
                self.seat.trace(f"misuse: {error!r}")
            else:
                self.whole.report(Anomaly.CONDUCT, f"{call} was not refused")

    async def leave_open(self, work: Work) -> None:
        """Begin a transaction, and never end it."""
        await self._insist("begin", self.producer.begin_transaction)
        attempt = self._new_attempt()
        await self._fill(attempt, work)
        await until(self.whole.now + 1.0)

    def _new_attempt(self) -> Attempt:
        return self.whole.new_attempt(self.seat, self.producer.core.identity.current)

    async def _by_calls(self, work: Work) -> Attempt:
        attempt = self._new_attempt()
        deliveries = await self._fill(attempt, work)
        try:
            if work.end == "commit":
                await self._commit(attempt)
            else:
                await self._abort(attempt)
        except errors.AbortableTransactionError as error:
            self._take_abortable(attempt, error)
            await self._abort(attempt)
        self._check_settled(attempt, deliveries)
        return attempt

    async def _commit(self, attempt: Attempt) -> None:
        """Commit until the outcome is known, or sometimes lose patience and try to abort."""
        chance = self._chance("patience")

        async def commit() -> None:
            attempt.verdict = Verdict.UNKNOWN
            await self.producer.commit_transaction(self._patience())
            attempt.verdict = Verdict.COMMITTED

        began = self.whole.now
        while not await self._attempted("commit", commit, attempt):
            self._check_patience(began, "commit")
            await self._pause(chance)
            gives_up = not self.whole.healed and chance.random() < 0.2
            if gives_up and await self._tried_to_abort(attempt):
                return

    async def _tried_to_abort(self, attempt: Attempt) -> bool:
        try:
            await self._abort(attempt)
        except errors.IllegalStateError:
            return False
        return True

    async def _abort(self, attempt: Attempt) -> None:
        async def abort() -> None:
            await self.producer.abort_transaction(self._patience())
            attempt.verdict = Verdict.NOT_COMMITTED

        began = self.whole.now
        chance = self._chance("abort")
        while not await self._attempted("abort", abort, attempt):
            self._check_patience(began, "abort")
            await self._pause(chance)

    async def _in_a_block(self, work: Work) -> Attempt | None:
        attempt: Attempt | None = None
        deliveries: list[tuple[Row, Delivery]] = []

        async def block() -> None:
            nonlocal attempt
            async with self.producer.transaction():
                attempt = self._new_attempt()
                deliveries.extend(await self._fill(attempt, work))
                if work.end != "commit":
                    raise _ApplicationError
                attempt.verdict = Verdict.UNKNOWN
            attempt.verdict = Verdict.COMMITTED

        ended = False
        try:
            limit = 4 * self._max_block + work.dawdle + self._filling(work)
            ended = await self._attempted("block", block, attempt, limit, cancel_within=25)
        except (errors.AbortableTransactionError, errors.TransactionAborted) as error:
            if attempt is None:
                raise
            self._take_abortable(attempt, error)
        except _ApplicationError:
            pass  # only `block` raises it, and only inside of the transaction, before its commit
        except _GoneError as gone:
            if attempt is not None:
                self._take_fatal(attempt, gone.__cause__)
            raise
        if attempt is None:
            return None
        if not ended:
            await self._learn(attempt)
            # A call that ran out of time returns in the middle of the Sender's turn, which settles
            # records at its end.
            if not all(delivery.done() for _, delivery in deliveries):
                await until(self.whole.now + _A_TURN)
        self._check_settled(attempt, deliveries)
        return attempt

    async def _learn(self, attempt: Attempt) -> None:
        """Find out how a transaction ended after an exception or cancellation left its block."""
        began = self.whole.now
        while True:
            self._check_patience(began, "a block")
            try:
                await self._abort(attempt)
            except errors.IllegalStateError:
                pass
            else:
                return
            try:
                await self._commit(attempt)
            except errors.IllegalStateError:
                # There is nothing to abort and nothing to commit, so the transaction's `async with`
                # block has aborted it.
                attempt.verdict = Verdict.NOT_COMMITTED
            except errors.AbortableTransactionError as error:
                self._take_abortable(attempt, error)
                continue
            return

    # -- records and offsets -----------------------------------------------------------------------

    def _filling(self, work: Work) -> float:
        config = self.producer.config
        per_send = config.delivery_timeout + config.request_timeout + 2 * config.max_block
        spread = work.records[-1].at if work.records else 0.0
        return spread + (1 + len(work.groups)) * 6 * self._max_block + per_send

    async def _fill(self, attempt: Attempt, work: Work) -> list[tuple[Row, Delivery]]:
        began = self.whole.now
        deliveries: list[tuple[Row, Delivery]] = []
        async with anyio.create_task_group() as senders:
            for call in work.records:
                await until(began + call.at)
                if self._chance("how", call).random() < 0.8:
                    if not self._send_nowait(attempt, call, deliveries):
                        break
                else:
                    senders.start_soon(self._send, attempt, call)
        for group in work.groups:
            if not await self._send_offsets(attempt, group):
                break
        await until(self.whole.now + work.dawdle)
        return deliveries

    def _send_nowait(
        self, attempt: Attempt, call: Call, deliveries: list[tuple[Row, Delivery]]
    ) -> bool:
        row, value = self.whole.new_row(attempt, call)
        try:
            delivery = self.producer.send_nowait(
                call.topic, value, partition=call.partition, timestamp=self.whole.wall()
            )
        except errors.BufferFullError:
            return True
        except errors.KafkaError as error:
            self.seat.trace(f"send: {error!r}")
            return False
        attempt.rows.append(row)
        deliveries.append((row, delivery))
        delivery.add_done_callback(functools.partial(_settle, row))
        return True

    async def _send(self, attempt: Attempt, call: Call) -> None:
        row, value = self.whole.new_row(attempt, call)
        attempt.unsure.append(row)
        send = functools.partial(
            self.producer.send,
            call.topic,
            value,
            partition=call.partition,
            timestamp=self.whole.wall(),
        )
        config = self.producer.config
        limit = config.delivery_timeout + config.request_timeout + 2 * config.max_block

        async def sent() -> None:
            meta = await send()
            row.partition, row.offset = meta.partition, meta.offset
            attempt.unsure.remove(row)
            attempt.rows.append(row)

        try:
            await self._attempted("send", sent, attempt, limit)
        except (errors.KafkaError, _GoneError) as error:
            self.seat.trace(f"send: {error!r}")

    async def _send_offsets(self, attempt: Attempt, group: str) -> bool:
        number, own = attempt.number, 1

        async def send() -> None:
            offsets = {TopicPartition("src", 0): number + 1, TopicPartition("src", number + 1): own}
            try:
                await self.producer.send_offsets_to_transaction(offsets, group, self._patience())
            except (errors.KafkaTimeoutError, anyio.get_cancelled_exc_class()):
                # The call has ended early, but the offsets are still part of the transaction.
                attempt.groups[group] = own
                raise
            attempt.groups[group] = own

        began = self.whole.now
        chance = self._chance("offsets")
        if self.whole.schedule.odd.tells_coordinators:
            self._tell_coordinator(group)
        try:
            while not await self._attempted("offsets", send, attempt):
                self._check_patience(began, "offsets")
                match chance.choice(("again", "again", "others", "leave")):
                    case "others":
                        own += 1
                    case "leave":
                        return True
        except (errors.KafkaError, _GoneError) as error:
            self.seat.trace(f"offsets: {error!r}")
            return False
        return True

    def _tell_coordinator(self, group: str) -> None:
        """Tell the producer which broker coordinates a group; it may be another one by now."""
        chance, state = self._chance("told"), self.whole.embedded.state
        broker = state.topology.coordinator_of(group)
        if broker is None or chance.random() < 0.3:
            broker = chance.choice(list(state.brokers.values()))
        with suppress(errors.KafkaError):
            address = BrokerAddress(broker.id, broker.host, broker.port)
            internals(self.producer).learn_coordinator(group, address)

    def _check_settled(self, attempt: Attempt, deliveries: list[tuple[Row, Delivery]]) -> None:
        for row, delivery in deliveries:
            if not delivery.done():
                self.whole.report(Anomaly.UNSETTLED, f"{row.value} after {attempt}")
            elif attempt.verdict is Verdict.COMMITTED and delivery.exception() is not None:
                self.whole.report(Anomaly.LOST, f"{row.value} failed: {delivery.exception()!r}")

    # -- calls -------------------------------------------------------------------------------------

    def _chance(self, *what: object) -> random.Random:
        self._tries += 1
        return random.Random(f"{self.whole.schedule.seed} {self.seat.name} {self._tries} {what}")

    def _patience(self) -> float | None:
        patience = self._work.patience
        return patience if self._chance("patience").random() < 0.5 else None

    def _check_patience(self, began: float, what: str, seconds: float = _GIVES_UP) -> None:
        if self.whole.now - began > seconds:
            self.whole.report(Anomaly.STUCK, f"{what} never ends")
            raise _GoneError

    async def _pause(self, chance: random.Random) -> None:
        """Let some time pass, in which a call that was given up may still be carried out."""
        if chance.random() < 0.4:
            await until(self.whole.now + 6 * self.whole.schedule.rtt)

    async def _insist(self, name: str, call: Callable[[], Awaitable[None]]) -> None:
        began = self.whole.now
        while not await self._attempted(name, call, None):
            self._check_patience(began, name)

    async def _attempted(
        self,
        name: str,
        call: Callable[[], Awaitable[None]],
        attempt: Attempt | None,
        limit: float | None = None,
        cancel_within: int = 6,
    ) -> bool:
        """Make one call; return True if it ends well, False if it times out or is cancelled.

        Raises:
            _GoneError: the producer had a fatal error, or was closed during the call. Errors that
                the application must deal with are raised unchanged.
        """
        chance = self._chance(name)
        coroutine: Any = call()
        try:
            if self._work.restless and chance.random() < 0.3:
                with anyio.CancelScope() as scope:
                    waited = AtAwait(coroutine, chance.randint(1, cancel_within), scope)
                    await self._timed(name, lambda: waited, limit)
                return not scope.cancelled_caught
            await self._timed(name, lambda: coroutine, limit)
        except errors.KafkaTimeoutError as error:
            self.seat.trace(f"{name}: {error!r}")
            return False
        except (
            errors.AbortableTransactionError,
            errors.TransactionAborted,
            errors.IllegalStateError,
            errors.IllegalOperation,
        ) as error:
            self._judge_cause(name, error.__cause__)
            raise
        except errors.KafkaError as error:
            self._judge_cause(name, error)
            self._fatal(name, error, attempt)
        return True

    def _judge_cause(self, name: str, cause: BaseException | None) -> None:
        """Report a call that fails for a code that a coordinator sends for a while only."""
        if isinstance(cause, errors.BrokerResponseError) and cause.errno in _FOR_A_WHILE:
            self.whole.report(Anomaly.FATAL, f"{name} fails for a code that may pass: {cause!r}")

    async def _timed(
        self, name: str, call: Callable[[], Awaitable[None]], limit: float | None
    ) -> None:
        """Make a call, and report it if it takes longer than `limit` seconds."""
        whole = self.whole
        limit = self._max_block if limit is None else limit
        began, stalled = whole.now, whole._stalled_for
        try:
            with anyio.move_on_after(10 * limit + 100.0):
                await call()
        finally:
            took = whole.now - began - (whole._stalled_for - stalled)
            if took > limit + _SLACK:
                whole.report(Anomaly.LATE, f"{name}: {took:.3f} s of {limit:.3f}")

    def _fatal(self, name: str, error: errors.KafkaError, attempt: Attempt | None) -> None:
        """Check that a fatal error has a reason, and that the next call raises it at once."""
        self.seat.trace(f"{name}: fatal {error!r}")
        if name == "send" and self.producer.core.fatal_error is None:
            raise error  # it is this record's error; the producer goes on
        whole = self.whole
        if not self._explained(attempt):
            whole.report(Anomaly.FATAL, f"{name}: {error!r}")
        if attempt is not None:
            self._take_fatal(attempt, error)
        try:
            self.producer.send_nowait(whole.schedule.topics[0][0], b"")
        except errors.KafkaError:
            raise _GoneError from error
        whole.report(Anomaly.FATAL, f"a record is taken after {error!r}")
        raise _GoneError from error

    def _take_abortable(self, attempt: Attempt, error: errors.KafkaError) -> None:
        """Note that the transaction was not committed, unless its commit may have been carried out.

        The commit may have been carried out if TRANSACTION_ABORTABLE answers a repeated commit
        whose first request was never answered. Then the verdict stays as it is until an abort
        succeeds, which shows that nothing was committed.
        """
        if not isinstance(error.__cause__, errors.TransactionAbortable):
            attempt.verdict = Verdict.NOT_COMMITTED

    def _take_fatal(self, attempt: Attempt, error: BaseException | None) -> None:
        status = getattr(error, "status", None)
        asked = self.seat.asked_to_commit(attempt)
        if status is DeliveryStatus.UNKNOWN and not asked and attempt.verdict is Verdict.UNKNOWN:
            self.whole.report(Anomaly.BASELESS, f"{attempt}: no commit was sent, but {error!r}")
        if attempt.verdict is Verdict.UNKNOWN and status is DeliveryStatus.NOT_WRITTEN:
            attempt.verdict = Verdict.NOT_COMMITTED

    @property
    def outdone(self) -> bool:
        """Whether another producer took the transactional id from this one."""
        name, mine = self.seat.transactional_id, self.seat.name
        taken = self.whole.takeovers[self._takeovers_before :]
        late = _LATE in self.whole.reasons[self._reasons_before :]
        return late or any(which == name and who != mine for who, which in taken)

    def _explained(self, attempt: Attempt | None) -> bool:
        whole = self.whole
        if self.outdone or whole.reasons[self._reasons_before :]:
            return True
        # With transactions v1, the coordinator fences a producer whose transaction is open for
        # longer than transaction_timeout (with v2 it does not: KIP-588).
        own = (self.seat.name, self.seat.transactional_id)
        latest = attempt or next(
            (a for a in reversed(whole.attempts) if (a.producer, a.transactional_id) == own), None
        )
        if whole.schedule.transaction_version or latest is None:
            return False
        # The coordinator measures that by its clock.
        jumps = [skew.by for skew in whole.skews if skew.until >= latest.began]
        took = whole.now - latest.began + max(jumps, default=0.0)
        return took >= self.producer.config.transaction_timeout


def _settle(row: Row, delivery: Delivery) -> None:
    if delivery.exception() is None:
        row.partition = delivery.metadata.partition
        row.offset = delivery.metadata.offset
