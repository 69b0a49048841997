"""A producer and a cluster on one virtual clock: no tasks, no sockets, no event loop.

`World` runs one `Schedule`. The engine is the real one, driven by the real `Sender`'s own code
(`SimSender` overrides only what needs a loop: the clock and the life of a connection), and every
request and answer is real protocol bytes. The other side is the embedded broker's `ClusterState`.
Between the two lie connections that delay, cut, block and go deaf (`SimConnection`), an application
that sends, waits for memory, flushes and closes, and a `WireMonitor` where the bytes leave the
client.

Invariants: the same schedule gives the same run, to the byte. The schedule decides everything, with
one exception: whether the Sender takes a turn between two things that happen at the same instant. A
random generator decides that, which is seeded with the schedule's seed.
"""

from __future__ import annotations

import heapq
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._broker.intercept import Action, Delay, RequestSeen
from aioidem._broker.requests import Connection as BrokerConnection
from aioidem._broker.requests import Delivery
from aioidem._broker.state import ClusterState
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.record_block import RecordBlock, SharedHeaders
from aioidem._engine.settlement import Settlement
from aioidem._flight.recorder import Draws, FlightRecorder
from aioidem._protocol.messages import decode_request
from aioidem._protocol.versions import ApiKey
from aioidem._records import build_batch, record_size_bound
from aioidem._testing.wire_frames import batch_values
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
    WireMonitor,
    check_counters,
    make_value,
    parse_value,
)

from .allowances import FALSE_EVENT, judge_history, names_of
from .attempts import Attempts
from .audit import left_over
from .broker_changes import (
    left_behind,
    reassigned,
    repeatable,
    steady,
    unread,
    unresolved_while,
    written_late,
)
from .credentials import Credentials
from .deadlines import Deadlines
from .faults import Injector
from .flushes import Flushes
from .frame_watch import FrameWatch
from .freshness import Freshness
from .missing import MissingPartitions
from .observed import Observed
from .partitioner import Partitioner
from .progress import Progress
from .reasons import Reasons, lost_place
from .removed import RemovedBatches, whole_log
from .schedule import Call, Schedule
from .sim_connection import SimConnection
from .sim_core import SimCore
from .sim_records import OUTCOMES, SimRecord, block_of, incompressible
from .sim_sender import MOVED, SPIN, SimSender
from .trace_lines import answer_lines, step_lines

__all__ = [
    "EXPIRATION",
    "START_MS",
    "Result",
    "World",
    "run",
]

START_MS = 1_750_000_000_000
EXPIRATION = ("producer.id.expiration.ms", "86400000")
"""The config after which brokers forget a producer, and its default, in milliseconds."""
# How long after the last deadline everything must have come to rest, in seconds.
_REST = 30.0
# How much a turn of the loop may add to a deadline, stalls apart, in seconds.
_SLACK = 0.001
_LONGEST_ZOMBIE = 400.0
# By how much the seeds of two clusters differ. It is no power of two: `random.Random(257)` and
# `random.Random(257 + 2**40)` give the same numbers, and so the same cluster id.
_OTHER_CLUSTER = 0x9E3779B97F
_CONNECTIONS = 1_000_000
# The broker that leads the only partition in schedules of the profile "sprint".
_SPRINT_LEADER = 0
# Fetch and DescribeProducers, by which a producer reads what is in a log.
_READS = (1, 61)
# How often the engine is polled before anything is due.
_EARLY = 0.25
# One seed in so many has an observer.
_OBSERVED = 3
# Lengths at which a varint gets another byte, in the protocol or in the producer's reader.
_LENGTHS = (0, 1, 63, 64, 127, 128)


@dataclass
class Result:
    """The outcome of one schedule.

    Attributes:
        outcomes: How many records ended with each outcome.
        batches: How many times a batch was sent; `retries` of these were resends.
        bumps: How often the producer's epoch was bumped.
        max_span: The largest span, as `WireMonitor` measures it, in batches.
        events: How many data-loss events the producer raised.
        losses: How many losses of acknowledged records the brokers' answers proved.
        convictions: How often the producer found that a broker retains fewer batches than it says.
        lost: How many acknowledged records are in no log at the end.
        took: How long the run took in virtual time, in seconds.
        transactions: How many transactions were committed, not committed, or ended unknown.
        reasons: How many batches ended UNKNOWN, by reason (`Reasons`).
        allowances: The allowances of the judge without which there would be violations.
    """

    schedule: Schedule
    violations: list[Violation] = field(default_factory=list)
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    batches: int = 0
    retries: int = 0
    bumps: int = 0
    max_span: int = 0
    events: int = 0
    losses: int = 0
    convictions: int = 0
    lost: int = 0
    took: float = 0.0
    transactions: dict[str, int] = field(default_factory=dict)
    allowances: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """How many records ended UNKNOWN."""
        return self.outcomes.get(Outcome.UNKNOWN, 0)


def run(schedule: Schedule, *, trace: bool = False) -> Result:
    """Run a schedule to its end, and judge the run."""
    return World(schedule, trace=trace).run()


def _together(schedule: Schedule) -> list[list[Call]]:
    """Return the calls of a schedule in groups; the calls of a group are carried out as one.

    If `Schedule.blocks` is set, calls at the same time for one topic and partition form a group,
    except for about one call in ten. Every other call is a group of its own.
    """
    chance = random.Random(schedule.seed ^ 0xB10C)
    groups: dict[Any, list[Call]] = {}
    for number, call in enumerate(schedule.calls):
        alone = not schedule.blocks or chance.random() < 0.1
        group: Any = number if alone else (call.at, call.topic, call.partition)
        groups.setdefault(group, []).append(call)
    return list(groups.values())


class World:
    """One run of a schedule on the engine."""

    knows_when_queued = True
    """Whether `rows` have the times when records were queued, not when they were to be queued."""
    resumed_at = 0.0
    """When the process last went on after a stall; read only where a Sender may poll too late."""

    def __init__(self, schedule: Schedule, *, trace: bool = False, flight: int = 0) -> None:
        self.schedule = schedule
        self.now = 100.0
        self.start = self.now
        self._last_call = self.start + max((call.at for call in schedule.calls), default=0.0)
        self.wall_jump = 0.0
        # The furthest that the client has seen its clock ahead of the brokers', in seconds.
        self._wall_ahead = -math.inf
        self.result = Result(schedule)
        self.rows: dict[ValueId, Row] = {}
        self.keys: dict[ValueId, bytes | None] = {}
        self.closed = False
        self.ended = False
        self.incarnations = dict.fromkeys(range(schedule.brokers), 0)
        self._tracing = trace
        self._random = random.Random(schedule.seed ^ 0xACE)
        self._early = random.Random(schedule.seed ^ 0xEA71)
        self._thread_times = random.Random(schedule.seed ^ 0x7EAD)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._calls = count()
        self._waiting = 0
        # The callers that wait for room and were not woken yet, by their record's value.
        self._unwoken: set[ValueId] = set()
        self._stalled = self._disturbing = False
        self._inbox: list[Callable[[], None]] = []
        self._closing: int | None = None
        self.connections: dict[int, SimConnection] = {}
        self._by_peer: dict[int, SimConnection] = {}
        self._listeners: dict[int, Callable[[Delivery], None]] = {}
        # By cluster, the records of deleted topics.
        self.archive: dict[str, list[list[LogRecord]]] = {}
        # The records of other producers.
        self.strangers: dict[ValueId, Row] = {}
        self.strange_names = count()
        # When the producer learned that its topic was recreated.
        # Whether another client was seen to write under the producer's id.
        self._shared = False
        self._recreated_at: float | None = None
        # In the profile "sprint": when the client had a connection to broker `_SPRINT_LEADER` again
        # for the first time after the last incident (`note_sent`); None if that has not happened.
        self.healed_at: float | None = None
        self._sent_at_incident: set[ValueId] = set()
        # By partition: the producer's window at the end, and how many batches the leader retains.
        self._windows: dict[tuple[str, int], tuple[int, int]] = {}
        self.lost: set[ValueId] = set()
        # The values in requests that were served after the client had closed their connection.
        self.late: set[ValueId] = set()
        least = min((partitions for _, partitions in schedule.topics), default=1)
        self.partitioner = Partitioner(least) if schedule.odd.partitioner else None
        # The broker that each host name leads to, in every cluster.
        self.addresses = {f"b{i}": i for i in range(schedule.brokers)}
        self.config = ProducerConfig.build(
            [(f"b{i}", 9092) for i in range(schedule.brokers)],
            client_id="sim",
            partitioner=None if self.partitioner is None else self.partitioner.choose,
            **schedule.options,
        )
        self.rtt = schedule.rtt
        # The bytes per second of each connection, upwards; None means no limit.
        self.bandwidth: float | None = None
        # `cluster`: the cluster to which the brokers' host names lead now. `clusters`: all clusters
        # to which they have led since the run began, with the present one as the last.
        self.clusters: list[ClusterState] = []
        # The ids of the clusters that the producer has left, in this order.
        self.left: list[str] = []
        # The clusters to one of which each new connection leads, by turns; empty: all to `cluster`.
        self.behind: list[ClusterState] = []
        self._turns = count()
        self.removed = RemovedBatches()
        self.cluster = self._build_cluster()
        self.injector = Injector(self)
        self.cluster.interceptor = self._intercept
        draws = Draws(random.random) if flight else None
        self.core = SimCore(self.config, self, schedule, draws)
        self.flight = FlightRecorder(self.core, draws, flight) if draws else None
        if self.flight is not None:
            self.flight.clock = lambda: 0.0
        misconduct = partial(self.report, Anomaly.CONDUCT)
        self.observed: Observed | None = None
        if schedule.seed % _OBSERVED == 0:
            self.observed = Observed(lambda: self.now, misconduct)
        self.sender = SimSender(self.core, self.config, self, self.flight)
        self.credentials = Credentials(self.core, misconduct)
        self.missing = MissingPartitions(self.rows)
        self._decided: dict[ValueId, Outcome] = {}
        self.flushes = Flushes(self.core.outcomes, self._decided)
        firsts = {
            (t, p): schedule.first_sequence
            for t, n in schedule.most_partitions.items()
            for p in range(n)
        }
        secret = any(fault.kind == "secret" for fault in schedule.faults)
        tells_range = schedule.grants_describe and not secret
        self.monitor = WireMonitor(
            max_in_flight=self.config.max_in_flight_requests_per_connection,
            outcome=lambda value: self._decided.get(value, Outcome.PENDING),
            first_sequences=firsts,
            trust_base_offset=self.config.trust_base_offset,
            windowed=self.config.broker_dedup == "window",
            max_records=schedule.sequence_range if tells_range else None,
            renumbers=self.config.in_doubt == "resend",
        )
        self.witness = Attempts(
            lambda: self.now,
            self.monitor.before_append,
            pause=schedule.shortest_pause,
            storm=partial(self.report, Anomaly.STUCK),
        )
        self.watch = FrameWatch(
            self.monitor, [self.witness], self.note_recreated, self.heard, self._described
        )
        self.deadlines = Deadlines(self.config, self.witness, lambda: self.now)
        self.progress = Progress(self.config, schedule)
        rates = [fault.args[0] for fault in schedule.faults if fault.kind == "rtt"]
        self._longest_rtt = max([schedule.rtt, *rates])
        self.freshness = Freshness(self.config, self._longest_rtt, self.monitor.violations.append)
        expiration = int(schedule.broker_configs.get(*EXPIRATION))
        if schedule.forgets_early:
            expiration = 0
        self.unknowns = Reasons(
            self.config,
            self.witness,
            lambda: self.now,
            lambda: self.wall_ms + self._wall_ahead * 1000,
            expiration / 1000,
            (lambda: self.wall_ms) if schedule.stamps_by_log else None,
        )
        self.unknowns.forgotten = lambda: self.removed.forgotten
        self.unknowns.unread = partial(unread, self)
        self.unknowns.steady = partial(steady, self)
        self.unknowns.refused_by_partitioner = self._refused_by_partitioner
        self.unknowns.denied = self.missing.denied

    def _build_cluster(self) -> ClusterState:
        s = self.schedule
        cluster = ClusterState(
            brokers=s.brokers,
            retain=dict(enumerate(s.retain)),
            produce_versions=dict(enumerate(s.versions)),
            # A Metadata request must not create a topic while it is being recreated.
            configs={"auto.create.topics.enable": "false", **s.broker_configs},
            rtt=0.0,
            seed=s.seed + len(self.clusters) * _OTHER_CLUSTER,
            encode=True,
            sequence_range=s.sequence_range,
            # Connections of all clusters are told apart by their ids.
            first_connection_id=1 + len(self.clusters) * _CONNECTIONS,
        )
        for broker in cluster.brokers.values():
            broker.host = f"b{broker.id}"
        self.clusters.append(cluster)
        cluster.advance(self.now, self.wall_ms)
        for name, partitions in s.topics:
            self.create_topic(cluster, name, partitions)
        return cluster

    def change_cluster(self) -> ClusterState:
        """Let every host name lead to a new cluster, which shares no state with the old one."""
        self.cluster = self._build_cluster()
        self.cluster.interceptor = self._intercept
        return self.cluster

    def listen(self, peer: BrokerConnection, hear: Callable[[Delivery], None]) -> None:
        """Pass the answers on a connection of a stranger (another producer) to `hear`."""
        self._listeners[peer.id] = hear

    def create_topic(self, cluster: ClusterState, name: str, partitions: int) -> None:
        """Create a topic with the schedule's replication and configs."""
        plan = {
            p: [(p + r) % self.schedule.brokers for r in range(self.schedule.replication)]
            for p in range(partitions)
        }
        cluster.topology.create_topic(
            name, assignments=plan, configs=dict(self.schedule.topic_configs)
        )

    # -- clocks -------------------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The brokers' wall clock, in milliseconds since the epoch."""
        return START_MS + round(self.now * 1000)

    def client_wall(self) -> float:
        """Return the client's wall clock, in seconds since the epoch."""
        self._wall_ahead = max(self._wall_ahead, self.wall_jump)
        return self.wall_ms / 1000 + self.wall_jump

    def _disturb(self, act: Callable[[], None]) -> None:
        """Carry out a fault, or a later part of it: what that schedules is a part of it, too."""
        self.progress.disturbed(self.now)
        before, self._disturbing = self._disturbing, True
        act()
        self._disturbing = before

    def _intercept(self, seen: RequestSeen) -> Action | None:
        """Choose what happens to a request, and note how long a fault of it lasts."""
        before, self._disturbing = self._disturbing, True
        action = self.injector.intercept(seen)
        self._disturbing = before
        if action is not None and not self._everlasting(seen):
            lasts = action.seconds if isinstance(action, Delay) else 0.0
            self.progress.disturbed(self.now + lasts)
        return action

    def _everlasting(self, seen: RequestSeen) -> bool:
        """Return whether what happens to a request is a property of its brokers, and no fault."""
        schedule = self.schedule
        if seen.api_key in _READS:
            return not schedule.grants_read
        return seen.api_key == ApiKey.DESCRIBE_CONFIGS and not schedule.grants_describe

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at the given time."""
        if self._disturbing:
            self.progress.disturbed(when)
            act = partial(self._disturb, act)
        heapq.heappush(self._events, (max(when, self.now), next(self._order), act))

    # -- the run ------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run the schedule to its end, and judge the run."""
        for calls in _together(self.schedule):
            self.at(
                self.start + calls[0].at,
                lambda calls=calls: self._client(lambda: self.send(*calls)),  # type: ignore[misc]
            )
        for fault in self.schedule.faults:
            inject = partial(self.injector.inject, fault)
            self.at(self.start + fault.at, partial(self._disturb, inject))
        if self.schedule.close_at is not None:
            self.at(self.start + self.schedule.close_at, self._close_early)
        if self.schedule.quiet_at is not None:
            self.at(self.start + self.schedule.quiet_at, self.injector.end_glitches)
        try:
            self._turn()
            self._loop()
            self._finish()
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.report(
                Anomaly.CRASH, f"{error!r} at {where.filename.rpartition('/')[2]}:{where.lineno}"
            )
            self.trace(traceback.format_exc())
        else:
            self._judge()
        self.result.took = self.now - self.start
        return self.result

    def _loop(self) -> None:
        idle_turns = 0
        while not self.ended:
            due = self._next_due()
            if due is None or due > self._horizon():
                return
            idle_turns = idle_turns + 1 if due <= self.now else 0
            if idle_turns > SPIN:
                self.report(Anomaly.STUCK, f"spins at {self.now - self.start:.3f}")
                return
            self._poll_early(due)
            self.now = max(self.now, due)
            self._instant()
            self._end_if_done()

    def _poll_early(self, due: float) -> None:
        """Poll the engine, now and then, before anything is due: nothing may come of that.

        An engine that does something then has done too little in the poll before, or has asked to
        be woken too late; in a quiet hour it would have waited for that long.
        """
        early = self.now + (due - self.now) * self._early.choice((0.0, self._early.random()))
        if self._stalled or early >= due or self._early.random() >= _EARLY:
            return
        self.now = early
        self.core.early = True
        self._turn()
        self.core.early = False

    def _horizon(self) -> float:
        """Return when every record must have its outcome, those sent from callbacks included."""
        stalls: float = sum(f.args[0] for f in self.schedule.faults if f.kind == "stall")
        config = self.config
        waits = config.max_block + config.delivery_timeout + config.request_timeout
        return self._last_call + waits + stalls + _REST

    def _next_due(self) -> float | None:
        times = [self._events[0][0]] if self._events else []
        due = self._brokers_due()
        if due is not None:
            times.append(due)
        wake = self.core.wake_at
        if wake is not None and not self._stalled and not self.ended:
            times.append(wake)
        return min(times, default=None)

    def _brokers_due(self) -> float | None:
        due = (cluster.next_due() for cluster in self.clusters)
        return min((at for at in due if at is not None), default=None)

    def _instant(self) -> None:
        """Let everything happen that is due at this instant."""
        while True:
            for cluster in list(self.clusters):
                for delivery in cluster.advance(self.now, self.wall_ms):
                    self._receive(delivery)
            self.deadlines.led(self.cluster)
            if self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
                continue
            due = self._brokers_due()
            if due is None or due > self.now:
                break
        self._turn()

    def note_recreated(self, topic: str) -> None:
        """Note that an answer has shown the producer that a topic was recreated."""
        self.unknowns.recreated[topic] = self.now

    def note_settled(self, settlements: Sequence[Settlement]) -> None:
        """Note outcomes that the engine has decided; callers may get them in a later turn."""
        self.injector.late_copies.passed()
        if self.observed is not None:
            self.observed.ends(settlements)
        for settlement in settlements:
            outcome = settlement.outcome
            rows = [record.row for record in settlement.records if isinstance(record, SimRecord)]
            unknown = outcome.status is DeliveryStatus.UNKNOWN
            if rows and rows[0].value not in self._decided:
                complaint = self.unknowns.judge_end(rows, outcome)
                if complaint is not None:
                    self.report(Anomaly.BASELESS, f"{complaint} ({outcome.error!r})")
            self.core.numbers.settled(settlement, self.now)
            self._decided.update((row.value, OUTCOMES[outcome.status]) for row in rows)
            if unknown and isinstance(outcome.error, errors.OutOfOrderSequenceNumber):
                self.monitor.refused(outcome.topic, outcome.partition, rows[0].value)

    def doubts(self) -> list[float]:
        """Return for each record in doubt since when it is, in seconds."""
        stories = (self.witness.of(each) for each in self.rows if each not in self._decided)
        return [story.doubted_at for story in stories if story and story.doubted_at is not None]

    def _turn(self) -> None:
        before, self._disturbing = self._disturbing, False
        self._take_a_turn()
        self._disturbing = before

    def _take_a_turn(self) -> None:
        if not self._stalled and not self.ended:
            self.sender.turn()
            for violation in self.flushes.judge():
                self.report(violation.anomaly, violation.detail)
            if self._closing is not None and self.core.outcomes.flushed(self._closing):
                self._shut()

    def _client(self, act: Callable[[], None], *, always: bool = False) -> None:
        """Run `act` in the client's process: now, or as soon as the process is no longer stalled.

        After the producer has ended, `act` runs only if `always` is True.
        """
        if self._stalled:
            self._inbox.append(lambda: self._client(act, always=always))
            return
        if self.ended and not always:
            return
        before, self._disturbing = self._disturbing, False
        act()
        self._disturbing = before
        # A real loop may let several things happen before the Sender's next turn.
        if self._random.random() < 0.5:
            self._turn()

    def stall(self, seconds: float, polls_first: bool) -> None:
        """Let the client's process stand still for a while."""
        if self._stalled:
            return
        self._stalled = True
        self.deadlines.stalled(seconds)

        def wake() -> None:
            self._stalled = False
            if polls_first:
                self._turn()
            inbox, self._inbox = self._inbox, []
            for act in inbox:
                act()

        self.at(self.now + seconds, wake)

    def _end_if_done(self) -> None:
        if self._closing is None and self._events == [] and not self._stalled:
            idle = not self.core.unsettled and not self._waiting and not self._inbox
            if idle:
                # A producer that was closed at once is not polled any more.
                for what in () if self.ended else left_over(self.core):
                    self.report(Anomaly.LEAK, what)
                self._close(None)

    # -- the application ----------------------------------------------------------------------

    def send(self, *calls: Call) -> None:
        """Make one call of the application to send a record, or several for one partition."""
        if self.closed:
            return
        self._last_call = max(self._last_call, self.now)
        records = [self._record(call) for call in calls]
        # With a partitioner of the user's, `send_many` queues records without a partition singly.
        if len(records) > 1 and not (self.partitioner and records[0].partition is None):
            if self._is_callers_batch(records[0]):
                self._append_group(records)
                return
            block = block_of(records)
            if self.core.budget.try_take(block.charge()):
                self._append_block(block, records)
                return
        for call, record in zip(calls, records, strict=True):
            if self.core.budget.try_take(record.charge()):
                self._append(call.topic, record, record.row, self.now + self.config.max_block)
            else:
                self._wait_for_room(call.topic, record, record.row)

    def _record(self, call: Call) -> SimRecord:
        number = next(self._calls)
        partition = -1 if call.partition is None else call.partition
        value = ValueId("p", call.topic, partition, number)
        self.keys[value] = call.key
        data = make_value(value, call.size)
        if self.now >= self.start + self.schedule.odd.swells_at:
            data = incompressible(value, len(data))
        headers = self._headers(number)
        size = record_size_bound(call.key, data, headers)
        stamp = max(0, int((self.client_wall() - call.age) * 1000))
        row = Row(value, call.topic, -1, 0.0)
        record = SimRecord(self, row, call, data, headers, stamp, size)
        self.core.contents.expect(value, call.key, headers, stamp)
        if self.schedule.callbacks and number % 5 == 0:
            record.follow_up = call
        return record

    def _headers(self, number: int) -> SharedHeaders:
        """Draw the headers of a record, in a schedule whose records have some."""
        if not self.schedule.varied:
            return ()
        chance = random.Random(f"{self.schedule.seed} headers {number}")
        values = (None, b"", b"v" * chance.randrange(20), b"w" * chance.choice(_LENGTHS))
        return tuple((f"h{n}", chance.choice(values)) for n in range(chance.randrange(4)))

    def _is_callers_batch(self, first: SimRecord) -> bool:
        """Decide whether the records of one call are a batch, as `send_batch` has them."""
        if not self.schedule.varied or first.partition is None:
            return False
        chance = random.Random(f"{self.schedule.seed} batch {first.row.value.call}")
        return chance.random() < 0.4

    def _append_group(self, records: list[SimRecord]) -> None:
        """Queue records as a batch of the caller's, or none if there is no room for them."""
        if not self.core.budget.try_take(sum(record.charge() for record in records)):
            return
        whole = build_batch(records, producer_id=0, producer_epoch=0, base_sequence=0)
        group = RecordGroup(len(whole.data))
        self.core.filling.grouped([record.row.value for record in records], group.size)
        for record in records:
            record.group = group
            self._append(record.row.topic, record, record.row, self.now + self.config.max_block)

    def _append_block(self, block: RecordBlock, records: list[SimRecord]) -> None:
        """Queue records as one block, as `send_many` does."""
        topic, charge = records[0].row.topic, block.charge()
        for record in records:
            record.row.started = self.now
            self.rows[record.row.value] = record.row
        try:
            self.core.accumulator.append_block(
                topic, block, self.now, self.now + self.config.max_block
            )
        except errors.KafkaError:
            self.core.budget.release(charge)
            for record in records:
                del self.rows[record.row.value]
            return
        for record in records:
            self.missing.queued(record.row.value)
        if records[0].partition is not None:
            values = [record.row.value for record in records]
            self.core.filling.queued(values, [record.size for record in records])
        self.trace(f"queued {records[0].row.value} and {len(records) - 1} more")
        self.sender.wakeup.set()

    def compress(self, step: steps.Compress) -> None:
        """Let a thread compress records, for a time drawn from those in `schedule.threads`."""
        done = self.now + self._thread_times.choice(self.schedule.threads[1])
        self.at(done, lambda: self._client(lambda: self.sender.compressed(step)))

    def _append(self, topic: str, record: PendingRecord, row: Row, block_until: float) -> None:
        row.started = self.now
        self.rows[row.value] = row
        self.unknowns.blocked_until[row.value] = block_until
        try:
            self.core.accumulator.append(topic, record, self.now, block_until)
        except errors.KafkaError:
            self.core.budget.release(record.charge())
            del self.rows[row.value]
            return
        if self.core.fatal_error is not None:
            self.report(Anomaly.FATAL, f"{row.value} is taken after {self.core.fatal_error!r}")
        self.missing.queued(row.value)
        self.trace(f"queued {row.value}")
        self.sender.wakeup.set()

    def _wait_for_room(self, topic: str, record: PendingRecord, row: Row) -> None:
        self._waiting += 1
        block_until = self.now + self.config.max_block
        over = False

        def end() -> None:
            nonlocal over
            if over:
                return
            over = True
            self._waiting -= 1
            self._unwoken.discard(row.value)
            if waiter.granted and not self.closed and not self._gives_up(row):
                self.core.budget.claim(waiter)
                self._append(topic, record, row, block_until)
            else:
                self.core.budget.abandon(waiter)

        def wake() -> None:
            self._unwoken.discard(row.value)
            self.at(self.now, lambda: self._client(end, always=True))

        self._unwoken.add(row.value)
        waiter = self.core.budget.wait(record.charge(), wake)
        self.at(block_until, lambda: self._client(end, always=True))

    def _gives_up(self, row: Row) -> bool:
        """Return whether a caller is cancelled after it was granted room."""
        chance = random.Random(f"gives up {self.schedule.seed} {row.value}").random()
        return self.schedule.impatient and chance < 0.5

    def flush(self) -> None:
        """Let the application flush."""
        self._client(self._flush)

    def _flush(self) -> None:
        self._begin_flush()

    def _begin_flush(self) -> int:
        if self.flight is not None:
            self.flight.flushed(self.now)
        generation = self.core.accumulator.begin_flush()
        self.flushes.began(generation, self.rows)
        return generation

    def _close_early(self) -> None:
        self._client(lambda: self._close(self.schedule.close_timeout))

    def _close(self, timeout: float | None) -> None:
        """Close as `Producer.close` does."""
        if self.closed:
            return
        self.closed = True
        for waiter in self.core.budget.wake_all():
            waiter.granted = False
        self._judge_unwoken()
        if timeout == 0:
            self._shut()
            return
        self._closing = self._begin_flush()
        if self.core.outcomes.flushed(self._closing):
            self._shut()
        elif timeout is not None:
            self.at(self.now + timeout, lambda: self._client(self._shut))

    def _judge_unwoken(self) -> None:
        """Report a caller that goes on to wait for room in a producer that gives none any more."""
        for value in self._unwoken:
            self.report(Anomaly.STUCK, f"{value} waits for room, and the producer is closed")
        self._unwoken.clear()

    def _shut(self) -> None:
        if not self.ended:
            self.trace("the producer ends")
            self._note_windows()
            self.unknowns.closing = self.core.numbers.lines.closing = True
            self.sender.shut()
            self._judge_unwoken()
            self.ended = True

    def _note_windows(self) -> None:
        for (name, index), state in self.core.partitions.items():
            topic = self.cluster.topics.get(name)
            partition = None if topic is None else topic.partition(index)
            if partition is not None and partition.leader in self.cluster.brokers:
                kept = partition.retain_on(partition.leader)
                self._windows[name, index] = state.window.limit, kept

    # -- the network --------------------------------------------------------------------------

    def is_open(self, peer_id: int) -> bool:
        """Return whether the client still has that connection."""
        return self.connection_of(peer_id) is not None

    def connection_of(self, peer_id: int) -> SimConnection | None:
        """Return the client's end of a connection; None if the client has closed it."""
        connection = self._by_peer.get(peer_id)
        return connection if connection is not None and connection.open else None

    def connect(self, step: steps.OpenLink) -> None:
        """Open a connection of the client: one round trip for TCP, one for ApiVersions."""
        self.credentials.opens(step.link_id)
        broker_id = self.addresses.get(step.host)
        refused = errors.KafkaConnectionError(f"nobody listens at {step.host}")
        rtt, cluster = self.rtt, self.cluster
        if self.behind:
            cluster = self.behind[next(self._turns) % len(self.behind)]

        def turn_away() -> None:
            self.sender.link_refused(step.link_id, refused)

        if broker_id is None or not cluster.brokers[broker_id].online:
            self.at(self.now + rtt, lambda: self._client(turn_away))
            return

        def finish() -> None:
            if self.injector.refuses_passwords:
                self._client(lambda: self._refuse_password(step.link_id))
                return
            try:
                peer = cluster.connect(broker_id)
            except ConnectionRefusedError:
                self._client(turn_away)
                return
            connection = SimConnection(self, step.link_id, cluster, peer, rtt)
            peer.link.up.delay = 0.0
            peer.link.down.delay = rtt / 2
            self.connections[step.link_id] = connection
            self._by_peer[peer.id] = connection
            if broker_id == _SPRINT_LEADER and self.healed_at is None:
                self.healed_at = self.now - rtt
            self._client(lambda: self._opened(step.link_id, connection))

        self.at(self.now + 2 * rtt, finish)

    def _opened(self, link_id: int, connection: SimConnection) -> None:
        self.sender.link_opened(link_id, connection)
        if connection.open:
            self.credentials.opened()

    def _refuse_password(self, link_id: int) -> None:
        error = errors.SaslAuthenticationFailed("the broker refuses the password")
        if self.sender.link_refused(link_id, error):
            self.credentials.refused(link_id)
        if self.credentials.given_up and self.witness.ended_at is None:
            self.witness.ended_at = self.now

    def renew_password(self) -> None:
        """Give the producer another password."""

        def renew() -> None:
            self.sender.on_new_credentials()
            self.credentials.renewed()

        self._client(renew)

    def finds_another_cluster(self) -> None:
        """Note that the brokers' names lead to another cluster, where the producer goes or ends."""
        if self.config.on_cluster_change == "continue":
            self.unknowns.moved_at = self.now
            self.unknowns.moves += 1
            return
        if self.witness.ended_at is None:
            self.witness.ended_at = self.now
        if not isinstance(self.core.fatal_error, errors.ClusterChangedError):
            self.report(Anomaly.FATAL, "the producer goes to another cluster, where it is to end")

    def event(self, event: str) -> None:
        """Note an event that the producer reports to its operator."""
        self.trace(f"event: {event}")
        if "was deleted and recreated" in event:
            self._recreated_at = self.now
        self._shared |= "another client writes under this producer's id" in event
        self.result.convictions += "was seen to deduplicate" in event
        moved = MOVED.match(event)
        if moved is not None and self.config.on_cluster_change == "continue":
            self.left.append(moved[1])
            self.watch.cluster_changed(moved[2])
            self.freshness.moved(self.now)
            self.core.beliefs.other_cluster()
        lost = lost_place(event)
        if lost is not None:
            self.monitor.loss_reported(*lost)

    def heard(self, link_id: Any, token: Any, answers: list[WireAnswer]) -> None:
        """Note a Produce answer that has reached the client."""
        self.injector.late_copies.passed()
        if self._tracing:
            for line in answer_lines(link_id, token, answers):
                self.trace(line)
        self.deadlines.answered(self.connections[link_id].broker)
        self.freshness.answered(link_id, self.now, self.progress.healed_at)

    def _described(self, link_id: Any, token: Any) -> None:
        self.freshness.told(link_id, token, self.now)

    def progressed(self, connection: SimConnection, *, oldest: bool) -> None:
        """Tell the Sender, in a separate event at the same instant, that bytes have left.

        Args:
            connection: The connection.
            oldest: What `network.Connection.sends_oldest` is then.
        """

        def tell() -> None:
            connection.sends_oldest = oldest
            self.sender.link_progress(connection.link_id)

        self.at(self.now, lambda: self._client(tell))

    def arrived(self, connection: SimConnection, frame: bytes) -> None:
        """Let a request that arrived be served by its broker."""
        peer = connection.peer
        alive = self.incarnations[connection.broker] == connection.incarnation
        cluster = connection.cluster
        if peer.ended_by_broker or not alive or not cluster.brokers[connection.broker].online:
            return
        header, request = decode_request(frame[4:])
        cluster.submit(
            peer,
            request,
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            now=self.now,
            wall_ms=self.wall_ms,
            size=len(frame),
        )

    def _receive(self, delivery: Delivery) -> None:
        hear_it = self._listeners.pop(delivery.connection.id, None)
        if hear_it is not None:
            hear_it(delivery)
            return
        connection = self._by_peer.get(delivery.connection.id)
        if connection is None or not connection.open or connection.deaf:
            return
        if connection.held_until > self.now:
            self.at(connection.held_until, lambda: self._receive(delivery))
            return
        if delivery.close:
            self.lose(connection, errors.KafkaConnectionError("the broker closed it"))
            return
        frame = delivery.frame
        if frame is None:
            return
        if connection.cut_short("down", len(frame)):
            return
        payload = self.injector.garbled(connection, frame[4:])

        def hear() -> None:
            if connection.open:
                error = self.sender.link_frame(connection.link_id, payload)
                if error is not None:
                    self._end(connection, error)

        self._client(hear)
        if self.injector.hangs_up_after(connection, frame[4:]):
            self.lose(connection, errors.KafkaConnectionError("reset by peer"))

    def lose(self, connection: SimConnection, error: Exception) -> None:
        """Let the client find a connection closed."""
        connection.mute = connection.deaf = True
        self._client(lambda: self._end(connection, error))

    def client_closes(self, connection: SimConnection, reason: str) -> None:
        """Close a connection on the client's side."""
        self._end(connection, None)
        self.trace(f"link {connection.link_id} closed: {reason}")

    def _end(self, connection: SimConnection, error: Exception | None) -> None:
        if not connection.open:
            return
        connection.open = False
        connection.deaf = True
        self.connections.pop(connection.link_id, None)
        connection.cluster.disconnect(connection.peer)
        self.trace(f"link {connection.link_id} to {connection.broker} gone: {error}")
        self.sender.link_ended(connection.link_id, error)

    # -- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let every request that is still under way be served, and close."""
        if not self.ended:
            pending = [r.value for r in self.rows.values() if r.outcome is Outcome.PENDING]
            if pending:
                self.report(Anomaly.UNSETTLED, f"{len(pending)} records, the first {pending[0]}")
            self.closed = True
            self._shut()
        self.injector.heal()
        stop = self.now + _LONGEST_ZOMBIE
        while True:
            due = self._next_due()
            if due is None or due > stop:
                break
            self.now = max(self.now, due)
            for cluster in self.clusters:
                for delivery in cluster.advance(self.now, self.wall_ms):
                    self._receive(delivery)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

    def log(self) -> list[LogRecord]:
        """Return all records of all partitions of all clusters, those of deleted topics first.

        The clusters are in the order in which the producer left them, before those that it did not.
        """
        left = {cluster_id: place for place, cluster_id in enumerate(self.left)}
        logs: list[list[LogRecord]] = []
        for cluster in sorted(self.clusters, key=lambda c: left.get(c.cluster_id, len(left))):
            logs += [*self.archive.get(cluster.cluster_id, []), self.standing(cluster)]
        return [record._replace(log=n) for n, records in enumerate(logs) for record in records]

    def standing(self, cluster: ClusterState) -> list[LogRecord]:
        """Return every record of every partition that a cluster has now."""
        found: list[LogRecord] = []
        for name, topic in cluster.topics.items():
            for partition in topic.partitions:
                raw = whole_log(partition, self.removed)
                found += [
                    LogRecord(name, partition.index, record.offset, record.value)
                    for record in batch_values(raw)
                ]
        return found

    def _judge(self) -> None:
        schedule, result, core = self.schedule, self.result, self.core
        result.violations += self.monitor.violations
        result.violations += self._unreported_losses()
        result.violations += self.missing.violations()
        if self.observed is not None:
            self.observed.over()
        result.violations += core.numbers.judge(self.now)
        rows = self.rows.values()
        early = unresolved_while(self.injector.forgets_early, rows)
        late = written_late(self)
        moved = reassigned(self.rows, schedule) | left_behind(rows, self.unknowns.moved_at)
        # Order is promised in each cluster, and the logs of two are compared as if the producer had
        # left the first for good. Where it came back they cannot be compared.
        anyhow = schedule.resends_backwards or self.unknowns.moves > 1
        expect = Expectations(
            lost=self.lost | early,
            may_reorder=set(self.rows) if anyhow else late | early | moved,
            may_repeat=self.repeatable(),
            unpromised=not self.config.enable_idempotence,
        )
        log, use = self.log(), result.allowances.add
        everybody = [*rows, *self.strangers.values()]
        result.violations += judge_history(everybody, log, expect, names_of(schedule), use)
        result.violations += self.deadlines.judge(rows, use)
        result.violations += self.progress.judge(rows, self._longest_rtt, self._held())
        there = {parse_value(record.value) for record in log}
        acked = {row.value for row in rows if row.outcome is Outcome.ACKED}
        result.lost = len((acked & self.lost) - there)
        result.violations += check_counters(
            {
                "buffer_bytes_used": core.budget.in_use,
                "buffer_waiters": core.budget.waiting,
                "records_queued": core.unsettled,
                "connections": len(core.connections.links),
                "batches outstanding": sum(s.batches.outstanding for s in core.partitions.values()),
                "batches unresolved": sum(
                    len(s.batches.unresolved) for s in core.partitions.values()
                ),
            }
        )
        for row in rows:
            result.outcomes[row.outcome] = result.outcomes.get(row.outcome, 0) + 1
        result.reasons = self.unknowns.found
        result.batches = core.counters.batches_sent
        result.retries = core.counters.batches_retried
        result.bumps = core.epoch_bumps
        result.events = core.counters.data_loss_events
        result.max_span = self.monitor.max_span
        result.losses = self.monitor.losses_proved
        if result.events and not self.lost:
            if schedule.events_allowed or self.removed.forgotten:
                use(FALSE_EVENT)
            else:
                self.report(Anomaly.EVENT, f"{result.events} events where no broker lost anything")
        self._judge_windows()
        if schedule.all_acked:
            self._judge_gentle()
        if schedule.round_trips is not None:
            self._judge_sprint(schedule.round_trips)

    def _unreported_losses(self) -> list[Violation]:
        """Return a violation for each proved loss that the producer should have reported.

        With `in_doubt="resend"` it may resend under new numbers because it may be forgotten, before
        it has found out whether there is a gap. A producer whose id another client uses takes a
        refusal for that client's doing.
        """
        losses, schedule = self.monitor.unreported_losses(), self.schedule
        if schedule.resends_backwards:
            return []
        if self._shared or (schedule.ages_records and self.config.in_doubt == "resend"):
            return [loss for loss in losses if "over a gap" not in loss.detail]
        return losses

    def _held(self) -> set[ValueId]:
        """Return the records of partitions in which brokers said only that they know a sequence.

        Under KIP-758 they do so for each copy of a batch, before and after it is replicated, so it
        shows nothing. The batch ends with its deadline, and those behind it may wait for that.
        """
        if self.config.broker_dedup == "window":
            return set()
        stories = {value: self.witness.of(value) for value in self.rows}
        known = ErrorCode.duplicate_sequence_number
        places = {story.place for story in stories.values() if story and story.codes[known]}
        topics = {topic for topic, _ in places}
        return {
            value
            for value, story in stories.items()
            if (value.topic in topics if story is None else story.place in places)
        }

    def _refused_by_partitioner(self, value: ValueId) -> bool:
        """Return whether the user's partitioner fails for a record."""
        if self.partitioner is None or value.partition >= 0:
            return False
        return self.partitioner.chosen(self.keys[value]) is None

    def repeatable(self) -> Collection[ValueId]:
        """Return the values that may be in the log twice."""
        return repeatable(self)

    def _judge_windows(self) -> None:
        schedule, convictions = self.schedule, self.result.convictions
        # A broker that forgets the producer early remembers only the batches since.
        misleads = schedule.lies_about_memory or schedule.forgets_early or self.removed.forgotten
        if convictions and not (misleads or schedule.memory_grows_back):
            self.report(Anomaly.EVENT, f"{convictions} brokers accused that keep what they say")
        if schedule.noticed and not convictions:
            self.report(Anomaly.EVENT, "none raised for a broker that keeps less than it says")
        if not (schedule.noticed or (schedule.wide_at_end and not convictions)):
            return
        # Where sequences wrap to 0 that batch is probed last, so the distances of those before it
        # may be counted from the one before it, and be one less than they are.
        slack = 1 if schedule.noticed and schedule.first_sequence else 0
        for (topic, index), (limit, kept) in self._windows.items():
            if not kept - slack <= limit <= kept:
                self.report(
                    Anomaly.STUCK, f"{topic}-{index} ends at a window of {limit}, not {kept}"
                )

    def _judge_gentle(self) -> None:
        left = [row for row in self.rows.values() if row.outcome is not Outcome.ACKED]
        if any(fault.kind == "recreate" for fault in self.schedule.faults):
            # A batch that is in doubt when the producer learns of the recreation is not probed (not
            # resent to see whether it is stored), so it may end UNKNOWN.
            left = [
                row
                for row in left
                if row.outcome is Outcome.NOT_WRITTEN or row.settled != self._recreated_at
            ]
        if left:
            self.report(
                Anomaly.STUCK,
                f"{len(left)} of {len(self.rows)} not acknowledged, the first {left[0].value} "
                f"{left[0].outcome.value}",
            )

    def note_sent(self) -> None:
        """Note an incident: the records in flight are about to be in doubt."""
        self.healed_at = None
        for state in self.core.partitions.values():
            for batch in state.batches.unresolved:
                for record in batch.records:
                    if isinstance(record, SimRecord):
                        self._sent_at_incident.add(record.row.value)

    def _judge_sprint(self, round_trips: int) -> None:
        healed_at = self.healed_at
        if healed_at is None:
            self.report(Anomaly.STUCK, "the leader was not connected to again")
            return
        until = healed_at + round_trips * self.rtt + _SLACK
        for value in sorted(self._sent_at_incident):
            settled = self.rows[value].settled
            if settled is not None and settled > until:
                late = (settled - healed_at) / self.rtt
                self.report(Anomaly.STUCK, f"{value} took {late:.1f} round trips")
                return

    def report(self, anomaly: Anomaly, detail: str) -> None:
        """Note a violation."""
        self.trace(f"!! {anomaly.name}: {detail}")
        self.result.violations.append(Violation(anomaly, detail))

    def trace(self, line: str) -> None:
        """Write a line to the trace, if there is one."""
        if self._tracing:
            self.result.trace.append(f"{self.now - self.start:9.4f} {line}")

    def trace_step(self, step: steps.Step) -> None:
        """Write a step of the engine to the trace."""
        if self._tracing:
            for line in step_lines(step):
                self.trace(line)
