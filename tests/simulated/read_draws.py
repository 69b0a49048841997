"""What the swarm draws about reading logs: brokers that may have forgotten, and faults of Fetch.

A producer reads a leader's log only if a batch is in doubt and its records are old. Few seeds of
the swarm have both. So one seed in eight is drawn for reading alone: several partitions that read
at one time, replicas to which the lead can move, answers that get lost, and faults of Fetch. In
half of the other seeds with old records, such faults are added to what the seed draws anyhow. A
separate random generator draws all that, so that the other seeds stay what they were.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from kio.schema.errors import ErrorCode

from .broker_changes import INTERVAL
from .schedule import Call, Drawer, Glitch

__all__ = ["READING", "READ_CODES", "READ_FAULTS", "ReadDraws", "is_reading"]

READING = "reading"
"""The feature of the seeds that are drawn for reading alone."""
READ_FAULTS = frozenset(
    {"code", "short", "empty", "absent", "drop", "late", "garbage", "reset", "held", "lost"}
    | {"parting", "behind"}
)
"""The kinds of faults of Fetch."""
# Those that need the model's own network.
_MODEL_ONLY = frozenset({"reset", "held", "lost", "parting"})
_SHARE = 0.125
# So that no seed of a test of a defect, and few of the corpus, are drawn anew.
_SALT = 204
_MOST_READS = 24
# In which share of the schedules that read leaders are drawn that were just elected, and do not
# know yet what is committed.
_BEHIND = 0.3
READ_CODES = tuple(
    int(code)
    for code in (
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
        ErrorCode.topic_authorization_failed,
    )
)
"""What a broker may answer to Fetch; those more often that come with a move or a bad disk."""


def is_reading(seed: int) -> bool:
    """Return whether a seed of the swarm is drawn for reading alone."""
    return random.Random(f"reading {_SALT} {seed}").random() < _SHARE


class ReadDraws(Drawer):
    """The part of a drawer that draws faults of Fetch, and the seeds for reading alone."""

    backend: str
    expiration: float

    def _reading_cluster(self) -> None:
        """Draw several brokers with replicas, several partitions, and Fetch that is mostly granted.

        The clocks of brokers and records are compared by the records' own timestamps, so no topic
        has LogAppendTime.
        """
        r, v = self.r, self.values
        v["brokers"] = brokers = r.choice((1, 2, 2, 3))
        v["replication"] = brokers
        v["topics"] = r.choice(
            ((("t", 1),), (("t", 2),), (("t", 2),), (("t", 3),), (("t", 2), ("u", 1)))
        )
        v["retain"] = (r.choice((5, 20, 20)),) * brokers
        v["versions"] = (r.choice((13, 14, 14, 14)),) * brokers
        v["rtt"] = r.choice((0.02, 0.02, 0.1))
        v["grants_read"] = r.random() < 0.95
        v["grants_describe"] = r.random() < 0.9

    def _reading_options(self) -> None:
        r, v = self.r, self.values
        request = r.choice((0.5, 1.0, 2.0, 5.0))
        v["options"] = {
            "request_timeout": request,
            "delivery_timeout": request + r.choice((1.0, 5.0, 20.0)),
            "linger": 0.0,
            "batch_size": r.choice((150, 150, 300)),
            "late_sealing": r.random() < 0.3,
            "max_in_flight_requests_per_connection": r.choice((2, 5, 20)),
            "window_discovery": r.choice(("on", "on", "auto")),
            "max_block": 10.0,
            "retry_backoff": r.choice((0.005, 0.01, 0.1)),
            "reconnect_backoff": r.choice((0.01, 0.05)),
        }
        if r.random() < 0.7:  # the producer hears soon of a leader that moves while it reads
            v["options"]["metadata_max_age"] = r.choice((0.1, 0.1, 0.3, 1.0))

    def _reading_load(self) -> None:
        r, v = self.r, self.values
        spacing = r.choice((0.003, 0.01, 0.03))
        places = [(topic, p) for topic, count in v["topics"] for p in range(count)]
        v["calls"] = tuple(
            Call(round(0.01 + i * spacing * len(places), 6), topic, partition, None, 60)
            for i in range(r.choice((20, 40)))
            for topic, partition in places
        )
        self.until = v["calls"][-1].at + 0.3 + 4 * v["rtt"]
        self.requests = len(v["calls"])

    def _expiring(self) -> None:
        """Draw brokers that soon forget producers, and look for expired ones at times of their own.

        Between two requests that arrive at the same instant they look only if a glitch lets them.
        """
        r, v = self.r, self.values
        self.expiration = r.choice((40.0, 200.0, 1000.0))
        v["broker_configs"] = {
            "producer.id.expiration.ms": str(int(self.expiration * 1000)),
            INTERVAL: str(r.choice((5, 10, 30, 100, 10_000))),
        }
        if not v["grants_describe"]:
            v["options"]["producer_id_expiration"] = self.expiration
        for _ in self._times(0, 6):
            self._glitch("forget")

    def _mix_ages(self) -> None:
        """Draw each record's age: in runs, by partition, by turns, or old from some record on."""
        r, v = self.r, self.values
        how = r.choice(("runs", "partitions", "turns", "turns", "later"))
        places = sorted({(call.topic, call.partition) for call in v["calls"]})
        ages = {place: self._some_age() for place in places}
        fresh = {place: r.random() < 0.5 for place in places}
        first, chance = r.randrange(len(v["calls"])), r.choice((0.06, 0.2))
        calls = []
        for n, call in enumerate(v["calls"]):
            place = call.topic, call.partition
            age = ages[place]
            match how:
                case "runs" if r.random() < chance:
                    age = ages[place] = self._some_age()
                case "turns":
                    age = r.choice((0.0, age, age))
                case "later" if n < first:
                    age = 0.0
                case "partitions" if fresh[place]:
                    age = 0.0
            calls.append(dataclasses.replace(call, age=age))
        v["calls"] = tuple(calls)

    def _some_age(self) -> float:
        """Draw an age: fresh, too young for brokers to forget, old for the producer, or expired."""
        return float(self.expiration * self.r.choice((0.0, 0.4, 0.6, 0.6, 0.97, 1.5, 1.5, 3.0)))

    def _short_deadlines(self) -> None:
        """Draw delivery timeouts that end while batches are in flight, or just after.

        Of two batches that are sent one after the other, one is then in doubt, and has a grace
        time, and the other one is still unanswered when its time is over. In half of these seeds
        the other one is often so old that the broker forgets the producer by it.
        """
        r, options = self.r, self.values["options"]
        options["delivery_timeout"] = options["request_timeout"] + r.choice((0.01, 0.01, 0.1, 0.3))
        for _ in self._times(1, 4):
            request = int(r.random() * self.requests)
            late = request + r.randint(1, 3)
            self.glitches[:] = [g for g in self.glitches if g.request not in (request, late)]
            code = int(ErrorCode.not_enough_replicas_after_append)
            self.glitches.append(Glitch(request, "after", (code, None)))
            seconds = options["request_timeout"] * r.choice((0.8, 0.99, 1.1, 2.0))
            unanswered = Glitch(late, "delay", (round(seconds, 5),))
            if r.random() < 0.6:  # it is appended at once, and its answer is lost
                unanswered = Glitch(late, "drop", (True, True))
            self.glitches.append(unanswered)
        if r.random() < 0.5:
            self._outlived()

    def _outlived(self) -> None:
        """Draw records of which some are so old that brokers forget the producer by them.

        Many batches are in flight, and nothing else happens. So a batch in doubt may outlive a
        later one that made the brokers forget.
        """
        r, v = self.r, self.values
        self.faults.clear()
        self.glitches[:] = [g for g in self.glitches if g.kind != "forget"][-2 * r.randint(1, 2) :]
        v["rtt"], v["options"]["max_in_flight_requests_per_connection"] = 0.1, 20
        v["broker_configs"][INTERVAL] = r.choice(("5", "30"))
        ages, spacing = (0.0, 0.0, 0.0, 1.5 * self.expiration), r.choice((0.005, 0.01))
        v["calls"] = tuple(
            dataclasses.replace(c, at=round(0.6 + i * spacing, 6), age=r.choice(ages))
            for i, c in enumerate(v["calls"])
        )
        # The leader shows first that it knows the producer, so that many may be in flight.
        v["calls"] = (
            *(dataclasses.replace(c, at=0.0, age=0.0) for c in v["calls"][:6]),
            *v["calls"],
        )

    def _doubts(self) -> None:
        """Add what leaves batches in doubt, and what moves the lead."""
        r = self.r
        for _ in self._times(3, 9):
            match r.choice(("after", "after", "after", "drop", "cut", "zombie")):
                case "after":
                    code = r.choice((ErrorCode.request_timed_out, 20))
                    self._glitch("after", int(code), self._only())
                case "drop":
                    self._glitch("drop", r.random() < 0.8, r.random() < 0.5)
                case "cut":
                    self._cut()
                case "zombie":
                    self._glitch("zombie", r.choice((1.0, 6.0)))
        for _ in self._times(0, 4):
            match r.choice(("move", "move", "hold", "kill", "refuse")):
                case "move":
                    self._move()
                case "hold":
                    self._fault("hold", *self._some_partition(), 0, self._duration())
                case "kill":
                    self._kill()
                case "refuse":
                    self._glitch("refuse", 19, self._only())

    def draw_reading(self) -> dict[str, Any]:
        """Draw a schedule for reading alone, and return its faults of Fetch.

        Half of the kinds are left out, as in all of the swarm.
        """
        self.r = r = random.Random(f"reading alone {self.seed}")
        self._reading_cluster()
        self._reading_options()
        self._reading_load()
        self._expiring()
        self._mix_ages()
        self._doubts()
        if r.random() < 0.4:
            self._short_deadlines()
        return {"reads": self.reads(0.5)}

    def reads(self, share: float) -> tuple[Glitch, ...]:
        """Return faults of Fetch, for a part of the first requests.

        Args:
            share: Which share of the kinds may occur.
        """
        r = self.r
        kinds = sorted(READ_FAULTS - {"behind"} - (_MODEL_ONLY if self.backend else set()))
        kinds = [kind for kind in kinds if r.random() < share] or [r.choice(kinds)]
        rate = r.choice((0.15, 0.4, 0.8))
        drawn = tuple(
            self._read_fault(n, r.choice(kinds)) for n in range(_MOST_READS) if r.random() < rate
        )
        return self._elected_lately(drawn)

    def _elected_lately(self, reads: tuple[Glitch, ...]) -> tuple[Glitch, ...]:
        """Let leaders of some schedules not know at first what is committed.

        A generator of its own draws that, so that the other schedules stay what they were.
        """
        r = random.Random(f"elected lately {self.seed}")
        if r.random() >= _BEHIND:
            return reads
        behind, offsets = r.choice((0.3, 0.6, 1.0)), r.choice((1, 1, 2, 5))
        chosen = {n for n in range(_MOST_READS) if r.random() < behind}
        others = (glitch for glitch in reads if glitch.request not in chosen)
        return (*others, *(Glitch(n, "behind", (offsets,)) for n in sorted(chosen)))

    def _read_fault(self, request: int, kind: str) -> Glitch:
        r = self.r
        args: tuple[Any, ...] = ()
        match kind:
            case "code":
                args = (r.choice(READ_CODES),)
            case "short":
                args = (r.choice((1, 1, 2, 3)), r.choice((0, 0, 30)))
            case "drop":
                args = (r.random() < 0.5,)
            case "late":
                args = (round(self._duration(), 5),)
            case "garbage":
                args = (r.choice((0, 5, 9, 30, 90)),)
            case "held":
                code = 0 if r.random() < 0.7 else r.choice(READ_CODES)
                args = (round(self._wait(), 5), r.random() < 0.8, code)
            case "lost" | "parting":
                args = (round(self._wait(), 5), r.random() < 0.8)
        return Glitch(request, kind, args)

    def _wait(self) -> float:
        """Draw for how long an answer is under way: most of a request timeout at most."""
        longest = self.values["options"]["request_timeout"]
        return float(min(self._duration() + 2 * self.values["rtt"], 0.9 * longest))

    def added_reads(self) -> tuple[Glitch, ...]:
        """Return faults of Fetch for half of the schedules that have old records anyhow."""
        self.r, before = random.Random(f"reads {self.seed}"), self.r
        added = self.reads(0.5) if self.r.random() < 0.5 else ()
        self.r = before
        return added
