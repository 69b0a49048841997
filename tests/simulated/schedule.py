"""Everything that one seed draws: the cluster, the producer's options, the load, and the faults.

A `Schedule` is plain data drawn once, before anything runs, so that a failing one can be printed,
run again, and shrunk by leaving things out. Faults come in two kinds. A `Fault` happens at a time
(a broker dies, a leader moves, a connection is cut, the client stalls); a `Glitch` happens to the
n-th Produce request served (its answer is lost, it is refused, it is appended and then refused).

The alternative, drawing while running, was rejected: leaving one fault out would change all later
ones.
"""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kio.schema.errors import ErrorCode

from aioidem._engine.assigning import SLICE
from aioidem._producer.settled_records import AT_ONCE

__all__ = [
    "AFTER",
    "ANY_CODE",
    "IDLE_TIME",
    "PERMANENT",
    "PROFILES",
    "RETRIABLE_BEFORE",
    "Call",
    "Drawer",
    "Fault",
    "Glitch",
    "Oddities",
    "Schedule",
    "Work",
    "draw",
]


IDLE_TIME = "idle time"
"""What a schedule that ends with an idle time has among its features (`idle_time`)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One record handed to the producer; `age` is how old its timestamp is, in seconds."""

    at: float
    topic: str
    partition: int | None
    key: bytes | None
    size: int
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault `at` seconds into the run; `args` are the arguments of `Injector._do_<kind>`."""

    at: float
    kind: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Glitch:
    """A fault of the n-th Produce request that any broker serves."""

    request: int
    kind: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction of the application; its records' `at` count from when it begins."""

    records: tuple[Call, ...]
    groups: tuple[str, ...] = ()
    """The groups whose offsets the transaction commits, after its records were queued."""
    end: str = "commit"
    """How the transaction ends: "commit", "abort", or "raise" (an exception in its block)."""
    block: bool = True
    """Whether the transaction is written as `async with producer.transaction()`."""
    pause: float = 0.0
    """The seconds before the transaction begins."""
    dawdle: float = 0.0
    """The seconds between the last record of the transaction and its end."""
    patience: float | None = None
    """The `timeout`, in seconds, of about half of the calls that commit, abort or send offsets.

    The other half wait for `max_block`; all of them do if this is None.
    """
    restless: bool = False
    """Whether the application's calls are cancelled now and then."""
    transactional_id: str = "tx"
    """The id of the transaction; a producer that has another one changes it before."""


@dataclass(frozen=True, slots=True)
class Oddities:
    """What few clusters and callers have (`variations`)."""

    lacks: tuple[tuple[int, int], ...] = ()
    """The requests that brokers do not offer: the broker, and the API key."""
    partitioner: bool = False
    """Whether a `Partitioner` of the user's chooses the partition, if a call names none."""
    swells_at: float = math.inf
    """The time from which on records do not compress, in seconds."""
    tells_coordinators: bool = False
    """Whether the application tells a producer which brokers coordinate groups, and errs at times.

    The Spark sink does so, which has asked for the coordinator itself.
    """
    misuses: bool = False
    """Whether the application makes calls that the state of its transaction forbids."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything drawn from one seed: the cluster, the options, the load and the faults."""

    seed: int
    profile: str
    backend: str = ""
    """The loop that the whole producer runs on, "trio" or "asyncio"; "" runs the engine alone."""
    brokers: int = 1
    replication: int = 1
    topics: tuple[tuple[str, int], ...] = (("t", 1),)
    retain: tuple[int, ...] = (5,)
    versions: tuple[int, ...] = (14,)
    broker_configs: dict[str, str] = field(default_factory=dict)
    topic_configs: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sequence_range: int | None = None
    """How far behind the last sequence a KIP-758 broker answers DUPLICATE; None: no KIP-758."""
    rtt: float = 0.02
    grants_read: bool = True
    grants_describe: bool = True
    first_sequence: int = 0
    first_epoch: int = 0
    callbacks: bool = False
    varied: bool = False
    """Whether records have headers, and some calls are batches of the caller's (`send_batch`)."""
    blocks: bool = False
    """Whether calls at the same time for the same partition are mostly joined into one call."""
    calls: tuple[Call, ...] = ()
    faults: tuple[Fault, ...] = ()
    glitches: tuple[Glitch, ...] = ()
    reads: tuple[Glitch, ...] = ()
    """What happens to the n-th Fetch request that any broker serves (`read_faults`)."""
    close_at: float | None = None
    close_timeout: float | None = None
    all_acked: bool = False
    """Whether nothing in the schedule entitles the producer to lose or doubt a record."""
    round_trips: int | None = None
    """How many round trips after a reconnection may pass until earlier records are settled."""
    says: int | None = None
    """How many batches brokers claim to retain, true or not; None: as many as they do retain."""
    noticed: bool = False
    """Whether the only incident shows that a broker retains fewer batches than it claims.

    The producer must notice that.
    """
    wide_at_end: bool = False
    """Whether the producer must know at the end how many batches each broker retains.

    Every fault that hides this number (the window) ends long before the last records are sent.
    """
    quiet_at: float | None = None
    """The time from which on no glitch happens, in seconds; None means that glitches never stop."""
    work: tuple[Work, ...] = ()
    """The transactions, one after the other: see `transactional`; `calls` is empty then."""
    coordination: tuple[Glitch, ...] = ()
    """What happens to the n-th request to a coordinator, where FindCoordinator counts too."""
    transaction_version: Literal[0, 2] = 2
    small_limit: int = 0
    """The `max.message.bytes` of every topic from the beginning; 0 means Kafka's default."""
    bad_records: bool = False
    """Whether topics are compacted, and some records have no key (KIP-467)."""
    used_epochs: int = 0
    """How many epochs of the transactional id are used up before any producer starts."""
    odd: Oddities = Oddities()
    impatient: bool = False
    """Whether callers that were granted room may be cancelled before they claim it."""
    features: tuple[str, ...] = ()
    """What `swarm` chose for this seed; empty if the schedule was drawn by a profile."""

    @property
    def at_once(self) -> tuple[int, int]:
        """How many outcomes are delivered, and how many records are assigned, in one slice.

        A slice is the work of one turn of the loop. The slices are small here, so that a run has
        many of them although no seed has thousands of records. A separate random generator draws
        their sizes, so that they change no other draw of a seed.
        """
        r = random.Random(f"pieces {self.seed}")
        return r.choice((2, 5, 20, AT_ONCE)), r.choice((2, 5, 20, SLICE))

    @property
    def threads(self) -> tuple[float, tuple[float, ...]]:
        """The most bytes that are compressed without a thread, and the seconds that threads take.

        No seed has batches that take long to compress, so small ones go to threads here, and each
        takes one of the times in the second part. A separate random generator draws both parts.
        """
        r = random.Random(f"threads {self.seed}")
        takes: tuple[float, ...] = (0.0, 0.0005)
        if self.work:  # short, so that transactions with short timeouts are committed in the end
            takes = (0.0, 0.001, 0.02)
        elif not (self.all_acked or self.round_trips or self.noticed or self.wide_at_end):
            takes = r.choice((takes, (0.0, 0.01, 0.2), (0.0, 0.001, self.rtt, 2.0)))
        return r.choice((0, 0, 250, math.inf)), takes

    @property
    def shortest_pause(self) -> float:
        """The shortest back-off before something is tried again, in seconds."""
        options = self.options
        retry: float = options.get("retry_backoff", 0.1)
        reconnect: float = options.get("reconnect_backoff", 0.05)
        return min(retry, reconnect)

    @property
    def most_partitions(self) -> dict[str, int]:
        """The largest number of partitions that each topic ever has."""
        most = dict(self.topics)
        for fault in self.faults:
            if fault.kind == "grow":
                topic, count = fault.args
                most[topic] = max(most[topic], count)
        return most

    @property
    def lossy(self) -> bool:
        """Whether brokers lose acknowledged data."""
        return any(fault.kind in ("unclean", "recreate") for fault in self.faults)

    @property
    def forgets_early(self) -> bool:
        """Whether brokers forget the producer earlier than they said when it asked them."""
        return any(fault.kind in ("expire", "skew") for fault in self.faults)

    @property
    def expires_untold(self) -> bool:
        """Whether brokers that refuse DescribeConfigs forget the producer earlier than it assumes.

        Who may not read `producer.id.expiration.ms` assumes Kafka's default of a day, and can name
        a shorter time by an option.
        """
        short = "producer.id.expiration.ms" in self.broker_configs
        return short and "producer_id_expiration" not in self.options

    @property
    def forgetful(self) -> bool:
        """Whether brokers forget the producer because of its records' timestamps (KIP-854)."""
        if self.forgets_early or self.profile == "forgetful":
            return True
        return not {"old records", IDLE_TIME}.isdisjoint(self.features)

    @property
    def forgets(self) -> bool:
        """Whether brokers forget the producer by timestamps, or together with removed batches."""
        return self.forgetful or any(f.kind in ("purge", "retention") for f in self.faults)

    @property
    def by_name(self) -> bool:
        """Whether a request may name a topic that is recreated, instead of giving its id.

        A late request is then appended to the new topic. Produce has topic ids from v13 on.
        """
        recreated = any(fault.kind == "recreate" for fault in self.faults)
        return recreated and min(self.versions) < _FIRST_WITH_TOPIC_IDS

    @property
    def stamps_by_log(self) -> bool:
        """Whether brokers replace the records' timestamps by their own time."""
        return self.topic_configs.get("message.timestamp.type") == "LogAppendTime"

    @property
    def limits_stand(self) -> bool:
        """Whether the topics' size limits stay the same to the end.

        A deleted topic may be created by the producer's Metadata request, and has no limit then.
        """
        return bool(self.small_limit) and all(
            fault.kind not in ("limit", "recreate") for fault in self.faults
        )

    @property
    def names_culprits(self) -> bool:
        """Whether a broker that refuses a batch for some records always names those records."""
        refusals = [glitch.args for glitch in self.glitches if glitch.kind == "refuse"]
        refusals += [fault.args for fault in self.faults if fault.kind == "refuse_next"]
        told = min(self.versions) >= _FIRST_WITH_RECORD_ERRORS
        return self.bad_records and told and all(a[0] != _INVALID_RECORD for a in refusals)

    @property
    def fenced(self) -> bool:
        """Whether the producer must take a new producer id, which does not fence the old id."""
        return any(fault.kind == "stranger" for fault in self.faults) or any(
            glitch.kind == "fence" or glitch.args[:1] == (ErrorCode.invalid_producer_id_mapping,)
            for glitch in self.glitches
        )

    @property
    def leaves_ids(self) -> bool:
        """Whether the old producer id is fenced by nothing, though no broker forgets a producer."""
        return self.lossy or bool(self.first_epoch) or self.fenced

    @property
    def unfenced(self) -> bool:
        """Whether a record that ended UNKNOWN can still be written after records of later calls.

        The first append in a new epoch fences late requests of the old epoch. Nothing fences them
        at a broker that has forgotten the producer, or after the producer took a new producer id
        (because it used up its epochs, or another producer uses its id).
        """
        return self.forgetful or self.leaves_ids

    @property
    def resends_backwards(self) -> bool:
        """Whether records that end ACKED may be stored in another order than that of the calls.

        With `in_doubt="resend"`, a batch in doubt is resent after a later one was acknowledged. A
        broker that has forgotten the producer in between appends it there.
        """
        return self.forgetful and self.options.get("in_doubt") == "resend"

    @property
    def ages_records(self) -> bool:
        """Whether the client's clock jumps so far that its records may look too old (KIP-854).

        The producer is then as careful as with brokers that forget it.
        """
        kept = int(self.broker_configs.get("producer.id.expiration.ms", "86400000")) / 1000
        jumped: float = sum(abs(fault.args[0]) for fault in self.faults if fault.kind == "jump")
        return jumped >= kept / 2

    @property
    def events_allowed(self) -> bool:
        """Whether a data-loss event may be raised although nothing was lost.

        That is so where brokers lose or forget data, answer with false codes, or serve a request
        long after its connection was closed.
        """
        lies = {"spurious", "fence", "zombie"}
        return self.lossy or self.forgetful or any(glitch.kind in lies for glitch in self.glitches)

    @property
    def lies_about_memory(self) -> bool:
        """Whether a broker says that it retains more batches than it does."""
        boasts = any(fault.kind == "boast" for fault in self.faults)
        absurd = any(glitch.kind == "absurd" for glitch in self.glitches)
        return self.says is not None or boasts or absurd

    @property
    def memory_grows_back(self) -> bool:
        """Whether brokers are made to retain fewer batches of a topic, and then more again.

        While the number was small, the broker forgot batches. By the larger number that it names
        later it should still retain them. The producer cannot tell such a broker from one that
        overstates how many batches it retains.
        """
        if any(fault.kind == "upgrade" for fault in self.faults):
            return True  # below Produce v14 a broker retains 5 batches
        retained: dict[str, int] = {}
        shrunk: set[str] = set()
        for fault in sorted(self.faults, key=lambda fault: fault.at):
            if fault.kind != "retain":
                continue
            topic, now = fault.args
            before = retained.get(topic, max(self.retain))
            if now > before and topic in shrunk:
                return True
            if now < before:
                shrunk.add(topic)
            retained[topic] = now
        return False

    def describe(self) -> str:
        """Return a line for each setting, transaction and fault, and the number of the calls."""
        lines = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in _TOLD_APART and getattr(self, f.name) != f.default
        ]
        lines.append(f"calls: {len(self.calls)}")
        lines += [f"transaction {n}: {_told(work)}" for n, work in enumerate(self.work)]
        lines += [f"at {fault.at:.3f}: {fault.kind} {fault.args}" for fault in self.faults]
        lines += [f"request {g.request}: {g.kind} {g.args}" for g in self.glitches]
        lines += [f"fetch {g.request}: {g.kind} {g.args}" for g in self.reads]
        lines += [f"coordination {g.request}: {g.kind} {g.args}" for g in self.coordination]
        return "\n".join(lines)


_TOLD_APART = ("calls", "faults", "glitches", "reads", "work", "coordination")


def _told(work: Work) -> str:
    return f"{len(work.records)} records, {dataclasses.replace(work, records=())}"


# The weights add up to 1000. `make soak` prints how many schedules of each profile ran.
PROFILES: dict[str, int] = {
    "links": 120,
    "brokers": 160,
    "codes": 110,
    "answers": 90,
    "forgetful": 110,
    "unclean": 70,
    "ladder": 100,
    "sprint": 20,
    "gentle": 90,
    "storm": 80,
    "range": 50,
    "resend": 20,
    "plain": 20,
}

_INVALID_RECORD = int(ErrorCode.invalid_record)
_FIRST_WITH_RECORD_ERRORS = 8
_FIRST_WITH_TOPIC_IDS = 13


def _numbers(*codes: int) -> tuple[int, ...]:
    """Return codes as plain numbers, which is how a schedule is printed."""
    return tuple(int(code) for code in codes)


# UNKNOWN_SERVER_ERROR and KAFKA_STORAGE_ERROR are in `AFTER` too: brokers answer with these codes
# both before and after an append.
RETRIABLE_BEFORE = _numbers(
    ErrorCode.corrupt_message,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.throttling_quota_exceeded,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.unknown_server_error,
    ErrorCode.kafka_storage_error,
)
AFTER = _numbers(
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.request_timed_out,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.kafka_storage_error,
    ErrorCode.unknown_server_error,
    999,
)
_AMBIGUOUS = _numbers(
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.kafka_storage_error,
    ErrorCode.unknown_server_error,
    999,
    1234,
)
PERMANENT = _numbers(
    ErrorCode.message_too_large,
    ErrorCode.message_too_large,
    ErrorCode.invalid_timestamp,
    ErrorCode.topic_authorization_failed,
    ErrorCode.invalid_record,
    ErrorCode.policy_violation,
    ErrorCode.invalid_topic_exception,
    ErrorCode.invalid_request,
)
ANY_CODE = _numbers(
    *(c for c in ErrorCode if c not in (ErrorCode.none, ErrorCode.duplicate_sequence_number))
)
"""Every error code of Kafka that says that a batch was not appended, or may not have been."""
_DAY = 86400.0
# Without faults, every record is acknowledged within this many seconds.
_AMPLE = 20.0


def draw(seed: int, profile: str | None = None) -> Schedule:
    """Return the schedule of a seed; `profile` overrides the one that the seed would draw."""
    return Drawer(seed, profile).draw()


class Drawer:
    """The drawer of one schedule; it draws in a fixed order, mostly from one random generator."""

    def __init__(self, seed: int, profile: str | None) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        drawn = self.r.choices(list(PROFILES), weights=list(PROFILES.values()))[0]
        self.profile = profile or drawn
        self.values: dict[str, Any] = {}
        self.faults: list[Fault] = []
        self.glitches: list[Glitch] = []

    def draw(self) -> Schedule:
        self._cluster()
        self._options()
        self._load()
        if self.r.random() < 0.5:
            self._pipeline()
        getattr(self, f"_{self.profile}")()
        self._end()
        self._add_to_it()
        self._hide_windows()
        self._missing_partitions()
        self._limit_topics()
        self._spoil_records()
        self._other_clusters()
        return Schedule(
            self.seed,
            self.profile,
            faults=tuple(sorted(self.faults, key=lambda fault: fault.at)),
            glitches=tuple(sorted(self.glitches, key=lambda glitch: glitch.request)),
            # Drawn apart, so that the schedules of all seeds are otherwise what they were.
            blocks=random.Random(self.seed ^ 0xB10C).random() < 0.5,
            **self.values,
        )

    # -- what it runs on ----------------------------------------------------------------------

    def _cluster(self) -> None:
        r, v = self.r, self.values
        v["brokers"] = brokers = r.choice((1, 2, 2, 3, 3))
        v["replication"] = r.randint(1, brokers)
        if self.profile == "unclean":
            v["brokers"] = brokers = r.choice((2, 3))
            v["replication"] = brokers
        topics = [("t", r.choice((1, 1, 2, 3)))]
        if r.random() < 0.2:
            topics.append(("u", r.choice((1, 2))))
        v["topics"] = tuple(topics)
        if r.random() < 0.6:
            v["retain"] = (r.choice((5, 20, 20)),) * brokers
        else:
            v["retain"] = tuple(r.choice((5, 6, 20)) for _ in range(brokers))
        v["versions"] = tuple(
            14 if r.random() < 0.8 else r.choice((7, 9, 12, 13)) for _ in range(brokers)
        )
        v["rtt"] = r.choice((0.001, 0.02, 0.02, 0.1, 0.15))
        v["grants_read"] = r.random() < 0.5
        v["grants_describe"] = r.random() < 0.8
        if r.random() < 0.15:
            v["first_sequence"] = 2**31 - r.randint(1, 60)
        if r.random() < 0.1:
            v["first_epoch"] = 32767 - r.choice((0, 0, 1, 2))
        if r.random() < 0.1:
            v["topic_configs"] = {"message.timestamp.type": "LogAppendTime"}

    def _options(self) -> None:
        r, v = self.r, self.values
        request = r.choice((0.5, 1.0, 2.0, 5.0, 30.0))
        linger = r.choice((0.0, 0.0, 0.005, 0.05))
        delivery = linger + request + r.choice((0.1, 1.0, 5.0, 20.0, 90.0))
        options: dict[str, Any] = {
            "request_timeout": request,
            "delivery_timeout": delivery,
            "linger": linger,
            "batch_size": r.choice((150, 300, 300, 600, 2000)),
            "late_sealing": r.random() < 0.5,
            "max_in_flight_requests_per_connection": r.choice((1, 2, 5, 5, 20, 20)),
            "window_discovery": r.choices(("on", "auto", "off"), weights=(6, 3, 1))[0],
            "max_block": r.choice((1.0, 10.0, 60.0)),
            "retry_backoff": r.choice((0.005, 0.01, 0.1)),
            "reconnect_backoff": r.choice((0.01, 0.05)),
        }
        if r.random() < 0.12:
            options["compression_type"] = r.choice(("gzip", "lz4", "zstd"))
        if r.random() < 0.15:
            options["buffer_memory"] = r.choice((4000, 10_000, 27_000))
        if r.random() < 0.05:
            options["trust_base_offset"] = False
        v["options"] = options

    def _load(self) -> None:
        r = self.r
        count = r.choice((15, 40, 40, 70, 110))
        spacing = r.choice((0.0, 0.0005, 0.003, 0.01, 0.05))
        burst = r.choice((1, 1, 4, 12))
        at, calls = r.random() * 0.05, []
        for number in range(count):
            topic, partitions = r.choice(self.values["topics"])
            partition = r.randrange(partitions) if r.random() < 0.9 else None
            key = b"k%d" % r.randrange(4) if partition is None and r.random() < 0.5 else None
            calls.append(Call(round(at, 6), topic, partition, key, r.choice((0, 60, 90, 150))))
            if number % burst == burst - 1:
                at += spacing * burst * (0.5 + r.random())
                if r.random() < 0.03:
                    at += r.choice((0.2, 1.0, 3.0))
        self.values["calls"] = tuple(calls)
        self.until = at + 0.3 + 4 * self.values["rtt"]
        self.requests = count

    def _pipeline(self) -> None:
        """Draw a long round trip and small batches, so that many batches are in flight."""
        r, v = self.r, self.values
        v["rtt"] = r.choice((0.1, 0.15))
        v["topics"] = (("t", r.choice((1, 1, 1, 2))),)
        if r.random() < 0.7:
            v["retain"] = tuple(20 if r.random() < 0.8 else 5 for _ in range(v["brokers"]))
            v["versions"] = tuple(14 if r.random() < 0.85 else 13 for _ in range(v["brokers"]))
        v["options"] |= {
            "linger": 0.0,
            "batch_size": r.choice((150, 150, 300)),
            "late_sealing": r.random() < 0.2,
            "max_in_flight_requests_per_connection": r.choice((5, 20, 20, 50)),
            "window_discovery": "on" if r.random() < 0.8 else "auto",
        }
        v["options"].pop("buffer_memory", None)
        spacing = r.choice((0.003, 0.006, 0.012))
        partitions = v["topics"][0][1]
        v["calls"] = tuple(
            Call(round(0.01 + i * spacing, 6), "t", r.randrange(partitions), None, 60)
            for i in range(r.choice((60, 100, 140)))
        )
        self.until = v["calls"][-1].at + 0.6
        self.requests = len(v["calls"])

    def _end(self) -> None:
        r = self.r
        if self.values.get("all_acked"):
            return
        if r.random() < 0.12:
            self.values["close_at"] = round(r.random() * self.until * 1.3, 4)
            self.values["close_timeout"] = r.choice((0, 0.05, 0.5, 5.0, None))
        if r.random() < 0.15:
            self.values["callbacks"] = True
        for _ in range(r.choice((0, 0, 1, 2))):
            self._fault("flush")

    def _add_to_it(self) -> None:
        """Add faults of kinds that were introduced after all others.

        A separate random generator draws them, so that they change no other draw of a seed.
        """
        if self.profile in ("gentle", "sprint", "ladder", "unclean"):
            return
        self.r = random.Random(self.seed ^ 0xADD)
        if self.r.random() < 0.12:
            for _ in self._times(1, 2):
                # The arguments are (broker, bytes that pass, which way).
                self._fault(
                    "reset", self._broker(), self.r.randint(0, 900), self.r.choice(("up", "down"))
                )
        if self.r.random() < 0.06:
            self._fault("narrow", self.r.choice((2_000.0, 10_000.0, 50_000.0)), self._duration())
        if self.profile == "codes" and self.r.random() < 0.2:
            self._refused_for_good()

    def _other_clusters(self) -> None:
        """Add another producer (a stranger) with our producer id.

        Either our producer is moved to a cluster where the stranger owns the id, or the stranger is
        moved into our cluster and brings the id along.
        """
        v, counts = self.values, dict(self.values["topics"])
        if any(v.get(name) for name in ("noticed", "wide_at_end", "small_limit", "bad_records")):
            return  # such a schedule tests something else, so its cluster stays the same
        if any((call.partition or 0) >= counts[call.topic] for call in v["calls"]):
            return  # a schedule with missing partitions tests only those
        self.r = random.Random(self.seed ^ 0xC1)
        draw = self.r.random()
        if self.profile in ("links", "brokers", "codes", "answers", "range") and draw < 0.08:
            for _ in self._times(1, 2):
                self._other_cluster()
        elif self.profile == "plain" or draw < 0.95 or not self._is_calm():
            return
        else:
            self._carried_here()

    def _other_cluster(self) -> None:
        # The arguments: the share of the requests under way that still arrive; True if the
        # client's connections are reset, False if they fall silent; a broker of the old
        # cluster that stays reachable for a while, or -1; for how many seconds it does.
        self._fault(
            "cluster",
            self.r.choice((0.0, 0.5, 1.0)),
            self.r.random() < 0.7,
            self.r.choice((-1, -1, self._broker())),
            self._duration(),
        )

    def _is_calm(self) -> bool:
        return self.profile in ("links", "brokers", "codes", "answers")

    def _carried_here(self) -> None:
        """Draw a stranger in our cluster, and only faults that cause no epoch bump.

        After a bump, our producer could have the epoch of the stranger, and no broker could tell
        the two apart.
        """
        r, v = self.r, self.values
        v["first_epoch"] = 0
        v["options"] |= {"request_timeout": 2.0, "delivery_timeout": 120.0, "max_block": 60.0}
        v["options"].pop("trust_base_offset", None)
        v["topic_configs"] = {}
        v.pop("close_at", None)
        self.faults.clear()
        self.glitches.clear()
        for _ in self._times(0, 3):
            match r.choice(("cut", "drop", "move", "delay")):
                case "cut":
                    self._cut()
                case "drop":
                    self._glitch("drop", r.random() < 0.7, r.random() < 0.5)
                case "move":
                    self._move()
                case "delay":
                    self._glitch("delay", self._duration())
        self._fault("stranger", *self._some_partition(), r.randint(1, 4))

    def _hide_windows(self) -> None:
        """Draw brokers that overstate how many batches they retain, or hide it for a while.

        A separate random generator draws these faults, so that they change no other draw of a seed.
        """
        if self.profile in ("sprint", "forgetful", "unclean", "range", "resend", "plain"):
            return
        self.r = random.Random(f"windows {self.seed}")
        draw = self.r.random()
        if draw < 0.06:
            self._lose_discovery()
        elif draw < 0.09:
            self._speak_of_more()
        elif draw < 0.11:
            self._lie_in_the_open()

    def _lose_discovery(self) -> None:
        """Draw brokers that close connections at Produce v14, and may refuse DescribeConfigs.

        So the producer does not learn how many batches they retain (their windows). Minutes without
        further faults follow, in which the producer only sends records and must learn the windows.
        """
        r, v = self.r, self.values
        brokers = v["brokers"]
        v["versions"], v["grants_describe"], v["wide_at_end"] = (14,) * brokers, True, True
        v["retain"] = tuple(r.choice((6, 20)) for _ in range(brokers))
        v["options"]["window_discovery"] = r.choice(("on", "auto"))
        v.pop("close_at", None)
        v.pop("close_timeout", None)
        for _ in self._times(1, 2):
            # The arguments are (broker, how many connections it closes at their first Produce v14
            # request, whether it carries that request out).
            self._fault("unheard", self._broker(), r.choice((1, 2, 3, 4)), r.random() < 0.5)
        if r.random() < 0.5:
            self._fault("secret", 10 * r.random(), at=0.0)
        # The producer must get acknowledgements, because only they name a window. So its clock does
        # not jump a day ahead: brokers would refuse all of its records.
        self.faults[:] = [f for f in self.faults if f.kind != "jump" or f.args[0] < _DAY]
        # An acknowledgement that comes after its record has expired names no window either.
        options = v["options"]
        options["delivery_timeout"] = max(options["delivery_timeout"], _AMPLE)
        v["quiet_at"] = round(self.until, 6)
        self._many_more()

    def _many_more(self) -> None:
        """Add a minute of many records, and then one record a minute.

        After each connection that a broker closed at v14, the producer waits longer before it uses
        v14 again. The minutes outlast the waits after ten such connections in a row.
        """
        v = self.values
        minutes = 2 if v["options"]["window_discovery"] == "on" else 12
        times = [0.6 * i for i in range(100)] + [60.0 * (i + 1) for i in range(minutes)]
        every = [(topic, p) for topic, count in v["topics"] for p in range(count)]
        v["calls"] += tuple(
            Call(round(self.until + after, 6), topic, partition, None, 60)
            for after in times
            for topic, partition in every
        )

    def _speak_of_more(self) -> None:
        """Let all brokers retain fewer batches than they say; the faults drawn so far stay."""
        r, v = self.r, self.values
        brokers = v["brokers"]
        v["says"], v["versions"] = r.choice((20, 50)), (14,) * brokers
        v["retain"] = (r.choice((5, 6, 8)),) * brokers
        v["options"]["window_discovery"] = "on"
        v["options"]["max_in_flight_requests_per_connection"] = r.choice((20, 50))

    def _lie_in_the_open(self) -> None:
        """Draw a broker that claims to retain 20 batches, and one incident that disproves it.

        Twenty batches are appended and their answers are lost with the connection. When the batches
        are resent, the broker recognises only the newest of them as duplicates.
        """
        r, v = self.r, self.values
        self.faults.clear()
        self.glitches.clear()
        for name in ("close_at", "close_timeout", "callbacks"):
            v.pop(name, None)
        v["noticed"] = v["all_acked"] = True
        v["brokers"] = v["replication"] = 1
        v["topics"], v["topic_configs"] = (("t", 1),), {}
        v["says"], v["retain"], v["versions"], v["rtt"] = 20, (r.choice((5, 7, 12)),), (14,), 0.1
        v["options"] = {
            "request_timeout": 2.0,
            "delivery_timeout": 60.0,
            "batch_size": 150,
            "late_sealing": False,
            "max_in_flight_requests_per_connection": 20,
            "window_discovery": r.choice(("on", "auto")),
        }
        v["grants_describe"] = True
        v["calls"] = tuple(Call(round(0.01 + i * 0.005, 6), "t", 0, None, 60) for i in range(300))
        self.until = 1.5
        self._fault("cut", 0, 1.0, True, 0.0, at=round(0.9 + 0.3 * r.random(), 5))

    def _missing_partitions(self) -> None:
        """Add records for partitions that their topic does not have, or not yet.

        A separate random generator draws them, so that they change no other draw of a seed.
        """
        if self.profile in ("sprint", "ladder"):
            return
        if self.values.get("noticed") or self.values.get("wide_at_end"):
            return  # such a schedule tests only what the producer learns about windows
        self.r = random.Random(self.seed ^ 0x9A27)
        if self.r.random() < 0.15:
            self._name_missing_partitions()

    def _name_missing_partitions(self) -> None:
        r, v = self.r, self.values
        topic, partitions = r.choice(v["topics"])
        more = [call.at for call in v["calls"]]
        grows = round(r.random() * self.until, 5) if r.random() < 0.6 else None
        count = partitions + r.randint(1, 3)
        if grows is not None:
            self._fault("grow", topic, count, at=grows)
        for _ in self._times(2, 8):
            # A record for a missing partition makes the producer request Metadata, which may be
            # answered before or after the topic grows. So many of these records come at that time.
            at = r.choice(more) if grows is None or r.random() < 0.5 else None
            if at is None:
                at = (grows or 0.0) + (r.random() - 0.2) * 3 * v["rtt"]
            missing = partitions + r.randrange(4)
            if v.get("all_acked") and (grows is None or missing >= count):
                continue  # that would fail, as it should
            if v.get("all_acked"):
                at = max(at, (grows or 0.0) + 1e-5)
            v["calls"] += (Call(round(max(0.0, at), 6), topic, missing, None, r.choice((0, 60))),)
        v["calls"] = tuple(sorted(v["calls"], key=lambda call: call.at))

    def _limit_topics(self) -> None:
        """Draw topics with a low size limit, batches that could outgrow it, and lost answers.

        Separate random generators draw these faults, and those of the methods that run after this
        one, so that they change no other draw of a seed.
        """
        self.r = r = random.Random(self.seed ^ 0x512E)
        v = self.values
        if self.profile in ("sprint", "ladder") or r.random() >= 0.12:
            return
        if v.get("noticed") or v.get("wide_at_end"):
            return  # such a schedule tests only what the producer learns about windows
        self._small_limit()

    def _small_limit(self) -> None:
        r, v = self.r, self.values
        options = v["options"] = {**v["options"], "late_sealing": True}
        v["small_limit"] = max(options["batch_size"], 300) + r.choice((0, 60, 300))
        v["topic_configs"] = {
            **v.get("topic_configs", {}),
            "max.message.bytes": str(v["small_limit"]),
        }
        for _ in self._times(1, 3):
            self._glitch("drop", True, r.random() < 0.5)

    def _spoil_records(self) -> None:
        """Draw compacted topics, and a few records without a key, which they refuse (KIP-467)."""
        self.r = r = random.Random(self.seed ^ 0x467)
        v = self.values
        alone = v.get("all_acked") or v.get("wide_at_end") or self.profile == "ladder"
        if not alone and r.random() < 0.08:
            self._records_without_keys()

    def _records_without_keys(self) -> None:
        r, v = self.r, self.values
        v["bad_records"] = True
        v["topic_configs"] = {**v.get("topic_configs", {}), "cleanup.policy": "compact"}
        v["options"] = {**v["options"], "linger": r.choice((0.005, 0.05))}
        v["calls"] = tuple(
            dataclasses.replace(call, key=None if r.random() < 0.06 else call.key or b"k")
            for call in v["calls"]
        )

    def _refused_for_good(self) -> None:
        """Draw a batch in doubt that was not appended, and whose resends are refused for good."""
        v = self.values
        v["options"] |= {"request_timeout": 0.5, "delivery_timeout": 10.0}
        topic, partition = self._some_partition()
        at = self._when()
        self._fault("refuse_next", -1, topic, partition, at=at)
        self._fault("stamps", topic, 8.0, at=round(at + v["rtt"], 5))

    # -- faults -------------------------------------------------------------------------------

    def _when(self) -> float:
        # Faults come in company: half of them happen soon after an earlier one.
        if self.faults and self.r.random() < 0.5:
            near = self.r.choice(self.faults).at + self.r.random() * 6 * self.values["rtt"]
        else:
            near = self.r.random() * self.until
        return float(round(near, 5))

    def _fault(self, kind: str, *args: Any, at: float | None = None) -> None:
        self.faults.append(Fault(self._when() if at is None else at, kind, args))

    def _glitch(self, kind: str, *args: Any) -> None:
        r = self.r
        if self.glitches and r.random() < 0.5:
            request = r.choice(self.glitches).request + r.randint(0, 4)
        else:
            request = int(r.random() ** 2 * self.requests)
        if all(glitch.request != request for glitch in self.glitches):
            self.glitches.append(Glitch(request, kind, args))

    def _broker(self) -> int:
        return self.r.randrange(self.values["brokers"])

    def _some_partition(self) -> tuple[str, int]:
        topic, partitions = self.r.choice(self.values["topics"])
        return topic, self.r.randrange(partitions)

    def _only(self) -> tuple[tuple[str, int], ...] | None:
        return None if self.r.random() < 0.4 else (self._some_partition(),)

    def _duration(self) -> float:
        longest: float = self.r.choice((0.01, 0.1, 0.3, 1.0, 3.0))
        return longest * (0.5 + self.r.random())

    def _cut(self) -> None:
        # The arguments are (broker, share of the requests under way that arrive, whether the client
        # notices at once, for how many round trips answers still arrive if it does not notice).
        r = self.r
        self._fault(
            "cut", self._broker(), r.choice((0.0, 0.3, 0.7, 1.0, 1.0)), r.random() < 0.7, r.random()
        )

    def _kill(self, clean: bool | None = None) -> None:
        how = self.r.random() < 0.6 if clean is None else clean
        # The arguments are (broker, clean, seconds it is down, whether answers under way are lost).
        self._fault("kill", self._broker(), how, self._duration(), self.r.random() < 0.7)

    def _move(self) -> None:
        self._fault("move", *self._some_partition(), self._broker())

    def _flap(self) -> None:
        topic, partition = self._some_partition()
        at = self._when()
        for _ in range(self.r.randint(2, 6)):
            self._fault("move", topic, partition, self._broker(), at=round(at, 5))
            at += self.r.random() * 4 * self.values["rtt"]

    def _link_trouble(self) -> None:
        r = self.r
        kind = r.choice(("cut", "cut", "drop", "drop", "delay", "block", "slow", "zombie", "stall"))
        match kind:
            case "cut":
                self._cut()
            case "drop":
                # The arguments are (whether the broker carries the request out, whether the
                # connection stays open without an answer).
                self._glitch("drop", r.random() < 0.7, r.random() < 0.5)
            case "delay":
                self._glitch("delay", self._duration())
            case "zombie":
                # The request is appended long after the client has closed the connection.
                self._glitch("zombie", r.choice((1.0, 6.0, 40.0, 90.0)))
            case "block":
                self._fault("block", self._broker(), self._duration())
            case "slow":
                self._fault("rtt", r.choice((0.001, 0.05, 0.4)))
            case "stall":
                self._fault("stall", self._duration(), r.random() < 0.5)

    def _broker_trouble(self) -> None:
        r = self.r
        match r.choice(("kill", "kill", "move", "move", "flap", "retain", "throttle", "replicas")):
            case "kill":
                self._kill()
            case "move":
                self._move()
            case "flap":
                self._flap()
            case "retain":
                self._fault("retain", r.choice(self.values["topics"])[0], r.choice((5, 6, 20, 50)))
            case "throttle":
                throttle = r.choice((0.05, 0.5, 8.0))
                self._fault("throttle", self._broker(), throttle, self._duration())
            case "replicas":
                topic, partition = self._some_partition()
                kind = r.choice(("hold", "pause", "isr"))
                self._fault(kind, topic, partition, self._broker(), self._duration())

    def _code_trouble(self) -> None:
        r = self.r
        match r.choice(("refuse", "refuse", "after", "after", "permanent", "limit", "pid", "old")):
            case "refuse":
                self._glitch("refuse", r.choice(RETRIABLE_BEFORE), self._only())
            case "after":
                self._glitch("after", r.choice(AFTER), self._only())
            case "permanent":
                self._glitch("refuse", r.choice(PERMANENT), self._only())
            case "limit":
                # The limit falls while batches are in doubt, so stored batches are refused for
                # their size when they are resent.
                name = r.choice(self.values["topics"])[0]
                self._fault("limit", name, r.choice((120, 200, 330)), self._duration())
            case "pid":
                self._fault("pid", r.choice((7, 14, 15, 16, 51, -1)), self._duration(), at=0.0)
            case "old":
                name = r.choice(self.values["topics"])[0]
                self._fault("stamps", name, self._duration())

    def _answer_trouble(self) -> None:
        r = self.r
        match r.choice(("odd", "window", "garbage", "stale", "gone", "leaderless")):
            case "odd":
                self._glitch(r.choice(("missing", "missing", "doubled", "invented")))
            case "window":
                self._glitch("absurd", r.choice((0, -1, 1, 2, 2**31 - 1, 40)))
            case "garbage":
                self._glitch("garbage", r.choice((0, 5, 9, 30)))
            case "stale":
                self._fault("stale", self._duration())
            case "gone":
                self._fault("gone", r.choice(self.values["topics"])[0], self._duration())
            case "leaderless":
                self._fault("leaderless", self._duration())

    def _times(self, few: int, many: int) -> range:
        return range(self.r.randint(few, many))

    # -- profiles -----------------------------------------------------------------------------

    def _links(self) -> None:
        for _ in self._times(1, 6):
            self._link_trouble()

    def _brokers(self) -> None:
        for _ in self._times(1, 5):
            self._broker_trouble()
        for _ in self._times(0, 2):
            self._link_trouble()

    def _codes(self) -> None:
        for _ in self._times(1, 5):
            self._code_trouble()
        for _ in self._times(0, 3):
            self.r.choice((self._link_trouble, self._broker_trouble))()

    def _answers(self) -> None:
        for _ in self._times(1, 4):
            self._answer_trouble()
        for _ in self._times(0, 2):
            self.r.choice((self._link_trouble, self._broker_trouble))()
        if self.r.random() < 0.25:
            self._fault("recreate", self.r.choice(self.values["topics"])[0])

    def _old_records(self) -> float:
        """Draw brokers that forget us: a short expiration, and records of all ages (KIP-854).

        Returns:
            The expiration, in seconds.
        """
        r, v = self.r, self.values
        expiration = r.choice((40.0, 200.0, 1000.0))
        v["broker_configs"] = {
            "producer.id.expiration.ms": str(int(expiration * 1000)),
            "producer.id.expiration.check.interval.ms": str(r.choice((10, 30, 100))),
        }
        if not v["grants_describe"]:
            v["options"]["producer_id_expiration"] = expiration
        ages = [0.0]
        for position in range(len(v["calls"])):
            # Consecutive records often have the same age. Otherwise hardly any batch would be old,
            # because a broker takes the age of a batch's youngest record for the batch's age.
            if position == 0 or r.random() < 0.06:
                ages.append(self._age(expiration))
            else:
                ages.append(ages[-1])
        v["calls"] = tuple(
            Call(c.at, c.topic, c.partition, c.key, c.size, age)
            for c, age in zip(v["calls"], ages[1:], strict=True)
        )
        return float(expiration)

    def _forgetful(self) -> None:
        r, v = self.r, self.values
        expiration = self._old_records()
        if r.random() < 0.3:
            # The records of later calls are older than the producer id expiration. So the broker
            # forgets the producer between two of the many batches that are in flight.
            v["broker_configs"]["producer.id.expiration.check.interval.ms"] = "5"
            self._pipeline()
            v["options"]["max_in_flight_requests_per_connection"] = 20
            v["calls"] = tuple(
                Call(c.at, c.topic, c.partition, c.key, c.size, 1.5 * expiration * (i > 25))
                for i, c in enumerate(v["calls"])
            )
            for request in sorted(r.sample(range(15, 60), 6)):
                self.glitches.append(Glitch(request, "refuse", (-1, None)))
            return
        for _ in self._times(0, 2):
            self._glitch("drop", True, False)
        for _ in self._times(0, 2):
            self._glitch("refuse", r.choice((19, -1)), None)
        for _ in self._times(0, 3):
            r.choice((self._link_trouble, self._broker_trouble, self._code_trouble))()

    def _age(self, expiration: float) -> float:
        r = self.r
        if r.random() < 0.3:
            return 0.0
        return float(expiration * r.choice((-0.5, 0.4, 0.6, 0.97, 1.5, 3.0)))

    def _unclean(self) -> None:
        """Draw brokers that lose acknowledged data."""
        r = self.r
        if r.random() < 0.4:
            self._old_epoch()
            return
        topic, partition = self._some_partition()
        at = round(self.until * (0.1 + 0.5 * r.random()), 5)
        later = round(at + r.random() * self.until / 3, 5)
        if r.random() < 0.6:
            # The epoch is bumped; the lagging follower may hold few or no batches of the new epoch.
            self._fault("refuse_next", 87, topic, partition, at=round(at + r.random() / 10, 5))
        self._fault("lag", topic, partition, at=at)
        self._fault("unclean", topic, partition, at=later)
        if r.random() < 0.6:
            arriving = r.choice((0.0, 0.5, 1.0))
            for broker in range(self.values["brokers"]):
                self._fault("cut", broker, arriving, True, 0.0, at=later)
        for _ in self._times(0, 3):
            r.choice((self._link_trouble, self._broker_trouble))()

    def _old_epoch(self) -> None:
        """Draw an epoch bump that the next leader has not seen: its log ends in the old epoch."""
        r, v = self.r, self.values
        self._pipeline()
        v["topics"], v["grants_read"] = (("t", 1),), r.random() < 0.8
        v["calls"] = tuple(Call(c.at, "t", 0, None, 60) for c in v["calls"])
        v["options"] |= {"request_timeout": 2.0, "delivery_timeout": 20.0}
        rtt = v["rtt"]
        at = round(8 * rtt + r.random() * 0.3, 5)
        later = round(at + rtt * (3 + 4 * r.random()), 5)
        self._fault("lag", "t", 0, at=at)
        self._fault("refuse_next", 87, "t", 0, at=round(at + 0.02, 5))
        self._fault("unclean", "t", 0, at=later)
        for broker in range(v["brokers"]):
            self._fault("cut", broker, 0.0, True, 0.0, at=later)

    def _ladder(self) -> None:
        """Draw many batches in doubt at a leader that cannot deduplicate them any more.

        The leader remembers one batch after a restart, or its window shrank, or the end of its log
        is not replicated, or it has not yet served the first copies of the resent batches.
        """
        r, v = self.r, self.values
        self._pipeline()
        v["options"] |= {"request_timeout": r.choice((0.5, 1.0, 2.0)), "window_discovery": "on"}
        v["options"]["delivery_timeout"] = v["options"]["request_timeout"] + r.choice((3.0, 20.0))
        v["retain"], v["versions"] = (20,) * v["brokers"], (14,) * v["brokers"]
        rtt = v["rtt"]
        at = round(self.until * (0.3 + 0.4 * r.random()), 5)
        if r.random() < 0.25:
            self._jump()
            return
        leaders = range(min(v["brokers"], v["topics"][0][1]))
        if r.random() < 0.5:
            # Batches that are appended from here on are not committed.
            for broker in range(v["brokers"]):
                for partition in range(v["topics"][0][1]):
                    self._fault("pause", "t", partition, broker, 2.0 + 3 * r.random(), at=at)
        if r.random() < 0.6:
            self._fault("retain", "t", 5, at=round(at + r.random() * rtt, 5))
        if r.random() < 0.3:
            # The broker holds the first connection's requests back, and serves them in one burst.
            self._glitch("delay", r.choice((0.3, 0.6, 1.2, 2.5)))
        if r.random() < 0.2:
            self._fault("throttle", 0, r.choice((0.02, 0.1)), 1.0, at=at)
        cut = round(at + rtt * (0.2 + r.random()), 5)
        for broker in leaders:
            if r.random() < 0.5:
                self._fault("kill", broker, True, 0.05, True, at=cut)
            else:
                self._fault("cut", broker, r.choice((0.3, 1.0, 1.0)), True, 0.0, at=cut)
        if r.random() < 0.5:
            self._fault("kill", 0, False, 3.0, True, at=round(cut + rtt * (3 + 8 * r.random()), 5))
        for _ in self._times(0, 1):
            self._link_trouble()

    def _jump(self) -> None:
        """Draw a broker that may serve a batch's first copy between two resends of the batch.

        The broker serves the requests of the closed connection (the first copies) and those of the
        new one (the resends, by which the producer finds out whether a batch is stored) in turns,
        slowly at first and then all at once.
        """
        r, v = self.r, self.values
        v["grants_read"] = False
        v["topics"] = (("t", 1),)
        v["rtt"] = 0.1
        v["options"]["max_in_flight_requests_per_connection"] = 50
        v["options"] |= {"request_timeout": 2.0, "delivery_timeout": 30.0}
        v["retain"] = (50,) * v["brokers"]
        v["calls"] = tuple(Call(round(0.01 + i * 0.002, 6), "t", 0, None, 60) for i in range(500))
        at = round(0.85 + 0.1 * r.random(), 5)
        self._fault("retain", "t", 5, at=at)
        self._fault("throttle", 0, r.choice((0.04, 0.05)), 0.7 + 0.7 * r.random(), at=at)
        self._fault("cut", 0, 1.0, True, 0.0, at=round(at + 0.04 + 0.1 * r.random(), 5))

    def _sprint(self) -> None:
        """Draw one incident, from which the producer must recover within 11 round trips."""
        r, v = self.r, self.values
        self._gentle()
        self.faults.clear()
        self.glitches.clear()
        self._pipeline()
        v["options"] |= {
            "max_in_flight_requests_per_connection": 20,
            "window_discovery": "on",
            "retry_backoff": 0.005,
            "reconnect_backoff": 0.01,
        }
        brokers = v["brokers"]
        v["replication"], v["topics"] = 1, (("t", 1),)
        v["retain"], v["versions"] = (20,) * brokers, (14,) * brokers
        v["calls"] = tuple(Call(round(0.01 + i * 0.005, 6), "t", 0, None, 60) for i in range(240))
        v["round_trips"] = 11
        at = round(7 * v["rtt"] + 0.2 * r.random(), 5)
        if r.random() < 0.4:
            self._fault("retain", "t", 5, at=at)
        if r.random() < 0.6:
            self._fault("cut", 0, r.choice((0.0, 0.5, 1.0)), True, 0.0, at=at + 0.02)
            self._fault("kill", 0, True, 0.0, True, at=round(at + v["rtt"], 5))
        else:
            self._fault("cut", 0, r.choice((0.0, 0.5, 1.0)), True, 0.0, at=at + 0.02)

    def _gentle(self) -> None:
        """Draw faults that the producer must get over without a record left in doubt."""
        r, v = self.r, self.values
        v["all_acked"] = True
        v["options"] |= {"request_timeout": 2.0, "delivery_timeout": 120.0, "max_block": 60.0}
        v["topic_configs"] = {}
        if r.random() < 0.5:
            # Twenty batches are in doubt at once.
            self._pipeline()
            v["options"]["max_in_flight_requests_per_connection"] = 20
            v["retain"] = (20,) * v["brokers"]
            v["versions"] = (14,) * v["brokers"]
        if r.random() < 0.15:
            # A request that named the topic by its name could not tell the recreated topic from the
            # old one.
            v["versions"] = (14,) * v["brokers"]
            self._fault("recreate", r.choice(v["topics"])[0], at=round(self.until * 0.3, 5))
        for _ in self._times(1, 5):
            match r.choice(("cut", "drop", "move", "kill", "crash", "retain", "delay", "before")):
                case "cut":
                    self._cut()
                case "drop":
                    self._glitch("drop", r.random() < 0.7, r.random() < 0.5)
                case "move":
                    self._move()
                case "kill":
                    self._kill(clean=True)
                case "crash":
                    self._kill(clean=False)
                case "retain":
                    self._fault("retain", r.choice(v["topics"])[0], r.choice((5, 20)))
                case "delay":
                    self._glitch("delay", self._duration())
                case "before":
                    self._glitch("refuse", r.choice(RETRIABLE_BEFORE), self._only())

    def _storm(self) -> None:
        for _ in self._times(4, 12):
            self.r.choice(
                (
                    *(self._link_trouble, self._broker_trouble, self._code_trouble),
                    *(self._answer_trouble, self._lie),
                )
            )()
        if self.r.random() < 0.2:
            self._fault("recreate", self.r.choice(self.values["topics"])[0])
        if self.r.random() < 0.2:
            self._fault("jump", self.r.choice((-86400.0, 86400.0, 3600.0)))

    def _lie(self) -> None:
        """Add an answer with an error code that a healthy broker would not send."""
        kind = self.r.choice(("spurious", "fence"))
        self._glitch(kind, 45 if kind == "spurious" else self.r.choice((47, 59)), self._only())

    def _range(self) -> None:
        """Draw brokers of KIP-758: they remember one batch, and answer DUPLICATE for older ones."""
        r, v = self.r, self.values
        v["options"]["broker_dedup"] = "range"
        v["options"]["window_discovery"] = "auto"
        v["sequence_range"] = r.choice((10_000_000, 10_000_000, 60))
        v["versions"] = tuple(min(version, 13) for version in v["versions"])
        v["retain"] = (5,) * v["brokers"]
        for _ in self._times(0, 2):
            self._cut()
        for _ in self._times(0, 3):
            r.choice((self._link_trouble, self._broker_trouble))()

    def _resend(self) -> None:
        """Draw a producer with `in_doubt="resend"`, which may write duplicates."""
        self.values["options"]["in_doubt"] = "resend"
        for _ in self._times(1, 5):
            self.r.choice((self._link_trouble, self._broker_trouble, self._code_trouble))()

    def _plain(self) -> None:
        """Draw a producer without idempotence."""
        self.values["options"] |= {"enable_idempotence": False, "acks": self.r.choice((0, 1, -1))}
        self.values["first_sequence"] = self.values["first_epoch"] = 0
        for _ in self._times(1, 5):
            self.r.choice((self._link_trouble, self._broker_trouble, self._code_trouble))()
