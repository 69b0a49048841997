"""What one seed draws by swarm testing: a random subset of all faults, with random rates.

A profile of `schedule` combines the faults that its author expected to matter together. Here each
seed leaves out most kinds of fault, chosen at random (Groce et al., "Swarm Testing", 2012): a fault
that hides another one is then absent from most of the seeds, and every pair of faults occurs in
some of them. A "feature" is one kind of fault, or one property of the cluster or the load.

The draw of a seed is a function of the seed and of the list `FEATURES`. A new feature therefore
changes what all seeds of the swarm draw. So a defect that such a seed finds is kept in
`test_regressions` as a shrunk schedule, never as a number.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from .broker_changes import INTERVAL
from .idle_time import with_idle_time
from .read_draws import READING, ReadDraws, is_reading
from .schedule import (
    AFTER,
    ANY_CODE,
    PERMANENT,
    RETRIABLE_BEFORE,
    Schedule,
)
from .variations import with_variations

__all__ = ["FEATURES", "ONLY_HERE", "Feature", "draw_odd", "draw_swarm", "draw_varied", "kind_of"]

ONLY_HERE = frozenset(
    {"upgrade", "skew", "expire", "retention", "purge", "boast", "partial", "split", "trickle"}
    | {"unnamed", "forget", "address", "credentials", "denied"}
)
"""The kinds of fault that no profile draws."""

# How many faults one schedule has at most: with more of them, hardly a record is acknowledged.
_MOST_FAULTS = 24
# In which share of the schedules metadata is old after a part of a second.
_AGED = 0.3
# Under these features a producer that is patient must deliver every record.
_HEALS = frozenset(
    {"pipeline", "cut", "drop", "delay", "move", "flap", "kill", "retain", "refuse", "reset"}
    | {"block", "round trips", "hold", "pause", "in-sync replicas", "stall", "flush"}
)


def kind_of(seed: int) -> str:
    """Return how a seed is run: "engine", "trio" or "asyncio"."""
    if seed % 3 == 1:
        return "asyncio" if seed % 15 == 1 else "trio"
    return "engine"


class Feature(NamedTuple):
    """A kind of fault, or a property of the cluster or the load.

    Attributes:
        add: Adds it to a schedule, once.
        once: Whether it is a property, which a schedule has or has not, and not a fault.
        without: The features with which this one is never combined.
        only: "engine" or "whole" if only such schedules can have it.
        share: In which share of the schedules it is; 0: in the share that the seed draws.
    """

    add: Callable[[SwarmDrawer], None]
    once: bool = False
    without: tuple[str, ...] = ()
    only: str = ""
    share: float = 0.0


class SwarmDrawer(ReadDraws):
    """The drawer of one schedule of the swarm."""

    def __init__(self, seed: int, backend: str) -> None:
        super().__init__(seed, None)
        self.r = random.Random(f"swarm {seed}")
        self.profile = "swarm"
        self.backend = backend
        self.features: list[str] = []

    def draw(self) -> Schedule:
        if is_reading(self.seed):
            return self._reading()
        self.features = self._chosen()
        self._cluster()
        self._options()
        self._limit_age()
        self._load()
        self._promise()
        for name in self.features:
            feature = FEATURES[name]
            for _ in range(1 if feature.once else self.rate):
                if len(self.faults) + len(self.glitches) < _MOST_FAULTS:
                    feature.add(self)
        self._end()
        if self.backend:
            self.values["calls"] = self.values["calls"][:60]
            self.values["first_epoch"] = 0
        if "old records" in self.features:
            self.values["reads"] = self.added_reads()
        return self._schedule()

    def _reading(self) -> Schedule:
        """Return a schedule that is drawn for reading alone."""
        self.features = ["old records", READING]
        self.values |= self.draw_reading()
        return self._schedule()

    def _schedule(self) -> Schedule:
        return Schedule(
            self.seed,
            self.profile,
            backend=self.backend,
            features=tuple(self.features),
            faults=tuple(sorted(self.faults, key=lambda fault: fault.at)),
            glitches=tuple(sorted(self.glitches, key=lambda glitch: glitch.request)),
            blocks=self.r.random() < 0.5,
            **self.values,
        )

    def _chosen(self) -> list[str]:
        """Return the features of this schedule, in the order of the table."""
        r = self.r
        share = r.choice((0.04, 0.08, 0.15, 0.3))
        self.rate = r.choice((1, 2, 4)) if share < 0.1 else r.choice((1, 1, 2))
        kind = "whole" if self.backend else "engine"
        names = [name for name, each in FEATURES.items() if each.only in ("", kind)]
        wanted = [name for name in names if r.random() < (FEATURES[name].share or share)]
        if not any(not FEATURES[name].once for name in wanted):
            wanted.append(r.choice([name for name in names if not FEATURES[name].once]))
        # Of two features that exclude each other, chance decides which one stays.
        r.shuffle(wanted)
        kept: list[str] = []
        for name in wanted:
            apart = {other for other in kept if name in FEATURES[other].without}
            if not apart and not set(FEATURES[name].without) & set(kept):
                kept.append(name)
        return [name for name in FEATURES if name in kept]

    def _cluster(self) -> None:
        # Data is lost only where a follower can lag behind.
        self.profile = "unclean" if "unclean election" in self.features else "swarm"
        super()._cluster()
        self.profile = "swarm"

    def _limit_age(self) -> None:
        """Draw a short `metadata_max_age` in some schedules."""
        r = random.Random(f"age {self.seed}")  # so that the others stay what they were
        if r.random() < _AGED:
            self.values["options"]["metadata_max_age"] = r.choice((0.1, 0.3, 1.0))

    def _promise(self) -> None:
        """Promise that every record is acknowledged, if the features permit it, in most seeds."""
        if self.r.random() < 0.7 and set(self.features) <= _HEALS:
            v = self.values
            v["all_acked"] = True
            v["topic_configs"] = {}
            v["options"] |= {
                "request_timeout": 2.0,
                "delivery_timeout": 120.0,
                "max_block": 60.0,
            }

    def fault(self, kind: str, *args: Any) -> None:
        """Add a fault at a random time."""
        self._fault(kind, *args)

    def some_topic(self) -> str:
        """Return the name of a topic."""
        return str(self.r.choice(self.values["topics"])[0])

    # -- properties -------------------------------------------------------------------------------

    def pipeline(self) -> None:
        """Draw many small batches on a long link."""
        self._pipeline()

    def old_records(self) -> None:
        """Draw a short producer id expiration, and records of all ages (KIP-854)."""
        self._old_records()

    def small_limit(self) -> None:
        """Draw a small max.message.bytes."""
        self._small_limit()

    def records_without_keys(self) -> None:
        """Draw compacted topics, and some records without a key."""
        self._records_without_keys()

    def missing_partitions(self) -> None:
        """Draw records for partitions that do not exist, or not yet."""
        self._name_missing_partitions()

    def range_brokers(self) -> None:
        """Draw brokers of KIP-758, which remember one batch."""
        self._range()
        self.faults.clear()
        self.glitches.clear()

    def resend(self) -> None:
        """Draw a producer with `in_doubt="resend"`."""
        self.values["options"]["in_doubt"] = "resend"

    def plain(self) -> None:
        """Draw a producer without idempotence."""
        acks = self.r.choice((0, 1, -1))
        self.values["options"] |= {"enable_idempotence": False, "acks": acks}
        self.values["first_sequence"] = self.values["first_epoch"] = 0

    def overstated_windows(self) -> None:
        """Draw brokers that retain fewer batches than they say."""
        self._speak_of_more()

    def append_time(self) -> None:
        """Draw topics with LogAppendTime."""
        configs = self.values.get("topic_configs", {})
        self.values["topic_configs"] = {**configs, "message.timestamp.type": "LogAppendTime"}

    def impatient_callers(self) -> None:
        """Draw a small buffer, and callers that are cancelled between grant and claim."""
        v = self.values
        v["impatient"] = True
        v["options"]["buffer_memory"] = self.r.choice((4000, 10_000))

    # -- faults -----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Cut the connections to a broker."""
        self._cut()

    def kill(self) -> None:
        """Stop a broker, cleanly or not, and start it again."""
        self._kill()

    def move(self) -> None:
        """Move a partition to another leader."""
        self._move()

    def flap(self) -> None:
        """Move a partition from leader to leader several times."""
        self._flap()

    def other_cluster(self) -> None:
        """Let every name lead to another cluster."""
        self._other_cluster()

    def drop(self) -> None:
        """Lose a request or its answer."""
        self._glitch("drop", self.r.random() < 0.7, self.r.random() < 0.5)

    def delay(self) -> None:
        """Serve a request late."""
        self._glitch("delay", self._duration())

    def zombie(self) -> None:
        """Serve a request long after its connection was closed."""
        self._glitch("zombie", self.r.choice((1.0, 6.0, 40.0, 90.0)))

    def reset(self) -> None:
        """Reset a connection after some more bytes."""
        self.fault("reset", self._broker(), self.r.randint(0, 900), self.r.choice(("up", "down")))

    def narrow(self) -> None:
        """Lower the bandwidth for a while."""
        self.fault("narrow", self.r.choice((2_000.0, 10_000.0, 50_000.0)), self._duration())

    def block(self) -> None:
        """Let the client's sockets take no bytes for a while."""
        self.fault("block", self._broker(), self._duration())

    def round_trips(self) -> None:
        """Change the round-trip time."""
        self.fault("rtt", self.r.choice((0.001, 0.05, 0.4)))

    def stall(self) -> None:
        """Stop the client's process for a while."""
        self.fault("stall", self._duration(), self.r.random() < 0.5)

    def retain(self) -> None:
        """Change how many batches per producer brokers retain."""
        self.fault("retain", self.some_topic(), self.r.choice((5, 6, 20, 50)))

    def throttle(self) -> None:
        """Throttle a broker for a while."""
        self.fault("throttle", self._broker(), self.r.choice((0.05, 0.5, 8.0)), self._duration())

    def replicas(self, kind: str) -> None:
        """Let a follower lag for a while, or the high watermark stand still."""
        self.fault(kind, *self._some_partition(), self._broker(), self._duration())

    def unclean_election(self) -> None:
        """Let a follower that lags behind become the leader."""
        topic, partition = self._some_partition()
        at = self._when()
        self._fault("lag", topic, partition, at=at)
        later = round(at + self.r.random() * self.until / 3, 5)
        self._fault("unclean", topic, partition, at=later)

    def refuse(self) -> None:
        """Refuse a request with a code that precedes the append."""
        self._glitch("refuse", self.r.choice(RETRIABLE_BEFORE), self._only())

    def after(self) -> None:
        """Append the batches of a request, and answer with an error code."""
        self._glitch("after", self.r.choice(AFTER), self._only())

    def permanent(self) -> None:
        """Refuse a request for good."""
        self._glitch("refuse", self.r.choice(PERMANENT), self._only())

    def any_code(self) -> None:
        """Refuse a request with any of Kafka's error codes that is no success."""
        code = self.r.choice(ANY_CODE)
        # The names of these faults tell the judge what the producer may conclude.
        kind = {45: "spurious", 47: "fence", 59: "fence"}.get(code, "refuse")
        self._glitch(kind, code, self._only())

    def refused_next(self) -> None:
        """Refuse the next batch of a partition with a code that is ambiguous or permanent."""
        self.fault("refuse_next", self.r.choice((-1, 56, 87, *PERMANENT)), *self._some_partition())

    def limit(self) -> None:
        """Lower a topic's max.message.bytes for a while."""
        self.fault("limit", self.some_topic(), self.r.choice((120, 200, 330)), self._duration())

    def stamps(self) -> None:
        """Accept no record of a topic that is older than 1 ms, for a while."""
        self.fault("stamps", self.some_topic(), self._duration())

    def no_identity(self) -> None:
        """Answer InitProducerId with an error for a while."""
        code = self.r.choice((7, 14, 15, 16, 51, -1))
        at = 0.0 if self.r.random() < 0.5 else None
        self._fault("pid", code, self._duration(), at=at)

    def odd_answer(self) -> None:
        """Leave a partition out of an answer, repeat one, or invent one."""
        self._glitch(self.r.choice(("missing", "missing", "doubled", "invented")))

    def absurd_window(self) -> None:
        """Name a window in one answer that the broker does not have."""
        self._glitch("absurd", self.r.choice((0, -1, 1, 2, 2**31 - 1, 40)))

    def garbage(self) -> None:
        """Cut an answer short."""
        self._glitch("garbage", self.r.choice((0, 5, 9, 30)))

    def stale_metadata(self) -> None:
        """Let brokers repeat an old Metadata answer for a while, in which a leader often moves."""
        seconds = self._duration()
        self.fault("stale", seconds)
        r = random.Random(f"stale {self.seed}")  # so that the others stay what they were
        topic, partitions = r.choice(self.values["topics"])
        brokers = self.values["brokers"]
        at = self.faults[-1].at + r.random() * seconds
        for _ in range(r.randrange(3)):
            place = topic, r.randrange(partitions)
            self._fault("move", *place, r.randrange(brokers), at=round(at, 5))

    def hidden_topic(self) -> None:
        """Let Metadata lack a topic for a while."""
        self.fault("gone", self.some_topic(), self._duration())

    def leaderless(self) -> None:
        """Let Metadata name no leaders for a while."""
        self.fault("leaderless", self._duration())

    def spurious(self) -> None:
        """Answer with OUT_OF_ORDER or a fencing code that no healthy broker would send."""
        self._lie()

    def recreate(self) -> None:
        """Delete a topic, and create it again."""
        self.fault("recreate", self.some_topic())

    def clock_jump(self) -> None:
        """Set the client's clock."""
        self.fault("jump", self.r.choice((-86400.0, 86400.0, 3600.0)))

    def hang_ups(self) -> None:
        """Close connections at their first Produce v14 request."""
        self.fault("unheard", self._broker(), self.r.choice((1, 2, 3, 4)), self.r.random() < 0.5)

    def no_configs(self) -> None:
        """Refuse DescribeConfigs for a while."""
        self._fault("secret", 10 * self.r.random(), at=0.0)

    def rolling_upgrade(self) -> None:
        """Restart all brokers, one after the other, with Produce v13 or v14; often go back."""
        r = self.r
        at, apart, version = self._when(), self._duration(), r.choice((13, 14))
        for turn in range(r.choice((1, 2))):
            for broker in range(self.values["brokers"]):
                highest = version if turn == 0 else 27 - version
                self._fault("upgrade", broker, highest, apart * r.random(), at=round(at, 5))
                at += apart

    def clock_skew(self) -> None:
        """Set a broker's clock ahead or behind for a while."""
        self._check_often()
        ahead = self.r.choice((-86400.0, -60.0, 30.0, 300.0, 100_000.0))
        self.fault("skew", self._broker(), ahead, self._duration())

    def lowered_expiration(self) -> None:
        """Lower the producer id expiration of all brokers for a while."""
        self._check_often()
        self.fault("expire", self.r.choice((1, 50, 1000)), self._duration())

    def _check_often(self) -> None:
        configs = self.values.setdefault("broker_configs", {})
        configs.setdefault(INTERVAL, str(self.r.choice((10, 50))))

    def lowered_retention(self) -> None:
        """Lower a topic's retention.bytes for a while."""
        self.fault("retention", self.some_topic(), self.r.choice((0, 500, 3000)), self._duration())

    def delete_records(self) -> None:
        """Delete the oldest records of a partition."""
        self.fault("purge", *self._some_partition(), self.r.choice((0.3, 0.9, 1.0, 1.0)))

    def boast(self) -> None:
        """Let a broker say for a while that it retains another number of batches than it does."""
        self.fault("boast", self._broker(), self.r.choice((1, 7, 20, 50)), self._duration())

    def partial_write(self) -> None:
        """Let sockets take a part of a frame and then block, perhaps until the records expire."""
        r = self.r
        seconds = r.choice(
            (self._duration(), 1.1 * min(self.values["options"]["delivery_timeout"], 30.0))
        )
        at = self._when()
        self._fault("partial", self._broker(), r.randint(0, 600), seconds, at=at)
        if r.random() < 0.4:  # an epoch bump
            at = round(at + r.random() * 4 * self.values["rtt"], 5)
            self._fault("refuse_next", 87, *self._some_partition(), at=at)

    def byte_by_byte(self) -> None:
        """Let answers arrive byte by byte."""
        r = self.r
        self.fault("trickle", self._broker(), r.randint(1, 300), r.choice((0.0, 0.001, 0.02)))

    def two_clusters(self) -> None:
        """Let every name lead to two clusters for a while."""
        r = self.r
        self.fault(
            "split", r.choice((0.0, 0.5, 1.0)), r.random() < 0.7, self._duration(), r.random() < 0.5
        )

    def unnamed_config(self) -> None:
        """Let topics lack the config of KIP-1269 for a while, from the beginning or later."""
        at = 0.0 if self.r.random() < 0.5 else None
        self._fault("unnamed", self._duration(), at=at)

    def flush(self) -> None:
        """Flush."""
        self.fault("flush")


def _replicas(kind: str) -> Callable[[SwarmDrawer], None]:
    return lambda drawer: drawer.replicas(kind)


_D = SwarmDrawer
# The properties come first: they change the topics and the load, which the faults refer to.
FEATURES: dict[str, Feature] = {
    # Without many batches in flight there is little to resolve.
    "pipeline": Feature(_D.pipeline, once=True, share=0.5),
    "append time": Feature(_D.append_time, once=True),
    "range": Feature(_D.range_brokers, once=True, without=("plain", "overstated windows")),
    "resend": Feature(_D.resend, once=True, without=("plain",)),
    "plain": Feature(_D.plain, once=True),
    "overstated windows": Feature(_D.overstated_windows, once=True),
    "old records": Feature(_D.old_records, once=True),
    "small limit": Feature(_D.small_limit, once=True),
    "records without keys": Feature(_D.records_without_keys, once=True),
    "missing partitions": Feature(_D.missing_partitions, once=True, without=("other cluster",)),
    "impatient callers": Feature(_D.impatient_callers, once=True),
    "cut": Feature(_D.cut),
    "drop": Feature(_D.drop),
    "delay": Feature(_D.delay),
    "zombie": Feature(_D.zombie),
    "reset": Feature(_D.reset),
    "narrow": Feature(_D.narrow),
    "block": Feature(_D.block),
    "round trips": Feature(_D.round_trips),
    "stall": Feature(_D.stall),
    "kill": Feature(_D.kill),
    "move": Feature(_D.move),
    "flap": Feature(_D.flap),
    "retain": Feature(_D.retain),
    "throttle": Feature(_D.throttle),
    "hold": Feature(_replicas("hold")),
    "pause": Feature(_replicas("pause")),
    "in-sync replicas": Feature(_replicas("isr")),
    "unclean election": Feature(_D.unclean_election),
    "refuse": Feature(_D.refuse),
    "after": Feature(_D.after),
    "permanent": Feature(_D.permanent),
    "any code": Feature(_D.any_code),
    "refused next": Feature(_D.refused_next),
    "limit": Feature(_D.limit),
    "stamps": Feature(_D.stamps),
    "no identity": Feature(_D.no_identity),
    "odd answer": Feature(_D.odd_answer),
    "absurd window": Feature(_D.absurd_window),
    "garbage": Feature(_D.garbage),
    "stale metadata": Feature(_D.stale_metadata),
    "hidden topic": Feature(_D.hidden_topic),
    "leaderless": Feature(_D.leaderless),
    "spurious": Feature(_D.spurious),
    "recreate": Feature(_D.recreate),
    "other cluster": Feature(_D.other_cluster, only="engine"),
    "two clusters": Feature(_D.two_clusters, only="engine", without=("missing partitions",)),
    "clock jump": Feature(_D.clock_jump),
    "rolling upgrade": Feature(_D.rolling_upgrade, without=("range",)),
    "clock skew": Feature(_D.clock_skew),
    "lowered expiration": Feature(_D.lowered_expiration),
    "lowered retention": Feature(_D.lowered_retention, without=("unclean election",)),
    "DeleteRecords": Feature(_D.delete_records, without=("unclean election",)),
    "boast": Feature(_D.boast),
    "partial write": Feature(_D.partial_write),
    "byte by byte": Feature(_D.byte_by_byte, only="whole"),
    "hang-ups": Feature(_D.hang_ups),
    "no configs": Feature(_D.no_configs),
    "unnamed config": Feature(_D.unnamed_config),
    "flush": Feature(_D.flush),
}


def draw_swarm(seed: int, backend: str | None = None) -> Schedule:
    """Return the schedule that the swarm draws for a seed.

    Args:
        seed: the seed.
        backend: "trio" or "asyncio" for the whole producer, "" for the engine; None: as `kind_of`
            says.
    """
    if backend is None:
        kind = kind_of(seed)
        backend = "" if kind == "engine" else kind
    return SwarmDrawer(seed, backend).draw()


def draw_varied(seed: int) -> Schedule:
    """Return the swarm's schedule for a seed, with calls of every kind, on the engine alone.

    What the calls carry is drawn by itself, so that the seeds of the swarm keep their meaning. Some
    schedules have an idle time at their end, and one record behind it (`with_idle_time`).
    """
    return with_idle_time(_varied(seed))


def draw_odd(seed: int) -> Schedule:
    """Return a schedule with what few clusters and callers have (`variations`), on the engine."""
    return with_variations(_varied(seed))


def _varied(seed: int) -> Schedule:
    return dataclasses.replace(draw_swarm(seed, ""), blocks=True, varied=True)
