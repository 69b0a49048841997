"""The drill of counters: what a producer counts, against lists of all that has happened.

Nothing that the engine decides depends on these numbers, and a run lasts for too short to bring
them into an unusual state. Here batches are sent, answered and retried over minutes, with pauses.
Every number that was noted is kept, with when it counts; what a meter shows is derived from that.
The counts of outcomes are drilled in `settled`, what partitions report in `reported`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from aioidem._engine.batch import Batch
from aioidem._engine.meters import Meters
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordRuns
from aioidem._engine.samples import Distribution, Sensor
from aioidem.errors import KafkaError, KafkaTimeoutError, ProducerClosed, TransactionAborted

from .comparing import differences
from .made_batches import made_batch
from .reported import drill_reported
from .settled import a_block, a_record, drill_settled

__all__ = ["drill_counted"]

_STEPS: Final = 20
_WAITS: Final = (0.0, 0.25, 0.5, 2.0, 2.0, 14.5, 31.0)
_LATER: Final = (0.0, 15.0, 29.0, 45.0, 61.0, 95.0)
"""Seconds between two steps, and from the last step to the look at the last minute."""
_LENGTH_PREFIX: Final = 4
"""The bytes before each answer that say how long it is."""
_SMALL: Final = 16
"""Of batches with more records than these only some are looked at for their largest record."""
_LOOKED_AT: Final = 1000
"""Once so many records were looked at, the large batches of that second are not any more."""
_DIRECT: Final = ("splits", "gate", "closed", "refused", "room", "exhausted")
"""What other parts of the engine record by themselves."""
_OF_ALL: Final = (
    *("batch_size", "queue_time", "compression", "record_size", "retries", "per_request", "work"),
    *("errors", "delivery", "requests", "answers", "latency", "throttle", "pauses", "opened"),
    *("authenticated", "renewed", "not_renewed", *_DIRECT),
)
_OF_TOPICS: Final = ("records", "bytes", "compression", "retries", "errors")
_OF_NODES: Final = ("sent", "received", "latency", "throttle")


def drill_counted(dice: Random) -> Iterator[str]:
    """Yield which number that a producer counts is not the one that follows from what it did."""
    for wrong in _MeterDrill(dice).run():
        yield f"meters: {wrong}"
        return
    yield from drill_settled(dice)
    yield from drill_reported(dice)


@dataclass
class _Partition:
    topic: str


@dataclass
class _Sent:
    """A batch that was sent."""

    topic: str
    batch: Batch
    waited: float
    """Seconds since its first record was queued."""
    largest: int
    """The bytes of its largest record."""
    known: bool
    """Whether the largest record is found without a look at many records."""


class _MeterDrill:
    """`Meters`, and every number that they were told."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._meters = Meters()
        self._timeout = self._meters.delivery_timeout = dice.choice((0.5, 30.0, 120.0))
        self._now = dice.choice((0.0, 1000.0))
        # By sensor: the numbers that it has, with when each counts, and those to be added up.
        self._told: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._noted: defaultdict[str, list[float]] = defaultdict(list)
        self._batches: list[_Sent] = []
        self._turns: list[tuple[float, float]] = []
        self._new_turns = 0
        # The kinds and numbers of failures.
        self._failures: list[tuple[str, int]] = []
        self._topics: set[str] = set()

    def run(self) -> Iterator[str]:
        """Let things happen over minutes, and yield what is counted against them."""
        if self._meters.now or self._meters.due_at:
            yield f"when they are due at first: told {self._meters.due_at}, expected 0"
        actions = [self._send, self._send, self._acknowledge, self._turn, self._talk, self._fail]
        actions += [self._connect, self._record]
        for _ in range(_STEPS):
            self._now += self._dice.choice(_WAITS)
            if self._dice.random() < 0.7:
                self._meters.now = self._now
            self._dice.choice(actions)()
            if self._dice.random() < 0.3:
                self._fold()
                yield from self._sums()
        self._fold()
        yield from self._sums()
        yield from self._last_minute(self._now + self._dice.choice(_LATER))

    # -- what happens

    def _send(self) -> None:
        dice = self._dice
        entries: list[tuple[_Partition, Batch]] = []
        for _ in range(dice.choice((1, 1, 2, 3))):
            topic, waited = dice.choice("tu"), dice.choice((0.0, 0.25, 7.0))
            content, largest, known = self._content()
            batch = made_batch(0)
            batch.records, batch.count = content, len(content)
            batch.data = bytes(dice.choice((70, 90, 1000)))
            batch.deadline = self._now - waited + self._timeout
            batch.compression = dice.choice((0.25, 0.5, 1.0))
            batch.attempts = dice.choice((1, 1, 2, 3))
            entries.append((_Partition(topic), batch))
            self._batches.append(_Sent(topic, batch, waited, largest, known))
        records = sum(batch.count for _, batch in entries)
        self._meters.sent(entries, records, self._now)
        self._note([records], "per_request")

    def _content(self) -> tuple[Sequence[PendingRecord], int, bool]:
        """Return records, the size of the largest one, and whether it is always known."""
        dice = self._dice
        if dice.random() < 0.2:
            single, call = a_record(dice), a_block(dice)
            # Of records of one call the largest one of the call counts, wherever it is.
            sizes = [single.size, *(call.size_of(index) for index in range(call.count))]
            runs = RecordRuns(dice.sample([single, call.part(0, dice.randrange(1, call.count))], 2))
            if dice.random() < 0.5:
                return runs, max(sizes), True
            alone = dice.randrange(len(runs))
            return runs[alone : alone + 1], runs[alone].size, True
        count = dice.choice((1, 1, 2, 3, _SMALL, _SMALL + 1, 300, _LOOKED_AT - 1, _LOOKED_AT))
        records = [a_record(dice)] * (count - 1)
        records.insert(dice.randrange(count), a_record(dice))
        return records, max(each.size for each in records), count <= _SMALL

    def _acknowledge(self) -> None:
        for _ in range(self._dice.randrange(1, 4)):
            waited = self._dice.choice((0.125, 3.0, 40.0))
            self._meters.acked.append(waited - self._timeout)
            self._noted["delivery"].append(waited)

    def _turn(self) -> None:
        for _ in range(self._dice.randrange(1, 4)):
            began = self._now
            self._now += self._dice.choice((0.0, 0.25, 1.5))
            self._turns.append((began, self._now))
            self._new_turns += 1
            self._meters.turns.append(self._turns[-1])
            self._now += self._dice.choice((0.0, 0.5))

    def _talk(self) -> None:
        """Exchange some requests and answers with a broker."""
        number = self._dice.choice((0, 1))
        node, of = self._meters.nodes[number], f"of node {number}"
        kinds = self._dice.choice(("requests", "answers", "produced", "all"))
        if kinds in {"requests", "all"}:
            node.requests += [100, 50]
            self._note([100, 50], f"sent {of}", "requests")
        if kinds in {"answers", "all"}:
            node.answers.append(30)
            self._note([30 + _LENGTH_PREFIX], f"received {of}", "answers")
        if kinds in {"produced", "all"}:
            throttled = self._dice.choice(([], [1.5], [0.25, 2.0]))
            node.latencies += [0.125, 0.5]
            node.throttles += throttled
            self._note([0.125, 0.5], "latency", f"latency {of}")
            self._note([*throttled, 0.0, 0.0][:2], "throttle", f"throttle {of}")
        if kinds == "all" and self._dice.random() < 0.5:
            node.renewals.append(0.5)
            node.refusals.append(1)
            self._note([0.5], "renewed")
            self._note([1], "not_renewed")

    def _fail(self) -> None:
        topic, count = self._dice.choice("tuv"), self._dice.randrange(1, 5)
        kinds: tuple[type[KafkaError], ...]
        kinds = KafkaTimeoutError, ProducerClosed, TransactionAborted
        kind = self._dice.choice(kinds)
        self._meters.failed(topic, count, kind("why"), self._now)
        if kind is not TransactionAborted:  # the caller has asked for that
            self._failures.append((kind.__name__, count))
            self._topics.add(topic)
            self._tell(count, "errors", f"errors of topic {topic}")

    def _connect(self) -> None:
        authenticated = self._dice.random() < 0.5
        self._meters.connected(self._now, authenticated=authenticated)
        self._tell(1, *("opened", "authenticated")[: 1 + authenticated])

    def _record(self) -> None:
        name, number = self._dice.choice(_DIRECT), self._dice.choice((1.0, 2.5))
        sensor: Sensor = getattr(self._meters, name)
        sensor.record(number, self._now)
        self._meters.spend(name, number)
        self._tell(number, name)

    # -- what follows

    def _tell(self, number: float, *names: str) -> None:
        """Note that some sensors have a number now."""
        for name in names:
            self._told[name].append((number, self._now))

    def _note(self, numbers: Sequence[float], *names: str) -> None:
        """Note that some sensors will have numbers when they are added up."""
        for name in names:
            self._noted[name] += numbers

    def _fold(self) -> None:
        """Add up what was noted: it counts as of when an answer was last handled."""
        self._meters.fold(self._now)
        self._note_batches()
        for name, numbers in self._noted.items():
            self._told[name] += [(number, self._meters.now) for number in numbers]
        self._noted.clear()
        if self._new_turns:
            last = self._turns[-1][0]
            for place in range(len(self._turns) - self._new_turns, len(self._turns)):
                began, ended = self._turns[place]
                before = self._turns[place - 1][1] if place else began
                self._told["work"].append((ended - began, last))
                self._told["pauses"].append((began - before, last))
        self._new_turns = 0

    def _note_batches(self) -> None:
        looked_at = 0
        for sent in self._batches:
            topic, batch = f"of topic {sent.topic}", sent.batch
            self._topics.add(sent.topic)
            self._note([batch.count], f"records {topic}")
            self._note([len(batch.data)], "batch_size", f"bytes {topic}")
            self._note([batch.compression], "compression", f"compression {topic}")
            self._note([sent.waited], "queue_time")
            if batch.attempts > 1:
                self._note([batch.count], "retries", f"retries {topic}")
            if sent.known or looked_at < _LOOKED_AT:
                self._note([sent.largest], "record_size")
                looked_at += 0 if sent.known else batch.count
        self._batches.clear()

    def _sensors(self) -> Iterator[tuple[str, Sensor]]:
        meters = self._meters
        groups: list[tuple[str, object, tuple[str, ...]]] = [("", meters, _OF_ALL)]
        groups += [(f" of topic {key}", of, _OF_TOPICS) for key, of in meters.topics.items()]
        groups += [(f" of node {key}", of, _OF_NODES) for key, of in meters.nodes.items()]
        for of_whom, meter, names in groups:
            for name in names:
                yield f"{name}{of_whom}", getattr(meter, name)

    def _sums(self) -> Iterator[str]:
        """Yield which counts and sums of all time are wrong."""
        meters = self._meters
        for name, sensor in self._sensors():
            due = len(self._told[name]), sum(number for number, _ in self._told[name])
            if (sensor.count, sensor.total) != due:
                yield from differences(
                    {f"count and sum of {name}": ((sensor.count, sensor.total), due)}
                )
        kinds: Counter[str] = Counter()
        for kind, count in self._failures:
            kinds[kind] += count
        told = {name: [number for number, _ in self._told[name]] for name in _DIRECT}
        spent = {name: sum(numbers) for name, numbers in told.items() if numbers}
        pairs: dict[str, tuple[object, object]] = {
            "topics": (set(meters.topics), self._topics),
            "kinds of failures": (meters.kinds, kinds),
            "seconds of calls": (meters.spent, spent),
            "left to be added up": (len(meters.acked) + len(meters.turns), 0),
            "when to add up next, in seconds": (meters.due_at, self._now + 1.0),
        }
        yield from differences(pairs)

    def _last_minute(self, now: float) -> Iterator[str]:
        """Yield which number of the last minute is not that of a sensor told the same numbers.

        What a sensor makes of its numbers is derived in the drill "distribution".
        """
        for name, sensor in self._sensors():
            alike = Distribution() if isinstance(sensor, Distribution) else Sensor()
            moments: defaultdict[float, list[float]] = defaultdict(list)
            for number, at in self._told[name]:
                moments[at].append(number)
            for at, numbers in moments.items():
                alike.record_all(numbers, at)
            # As texts, because NaN is not equal to itself.
            told, due = str(_of_last_minute(sensor, now)), str(_of_last_minute(alike, now))
            yield from differences({f"last minute of {name} at {now}": (told, due)})


def _of_last_minute(sensor: Sensor, now: float) -> tuple[float, ...]:
    """Return what a sensor shows of the last minute."""
    numbers = sensor.average(now), sensor.largest(now), sensor.rate(now), sensor.frequency(now)
    if isinstance(sensor, Distribution):
        return (*numbers, sensor.percentile(0.5, now))
    return numbers
