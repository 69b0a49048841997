"""Meters: the numbers of a producer that metrics are made of.

While batches are sent and answered, their facts are only appended to lists. `fold` adds a list up
at once, about once a second and before metrics are read: C code does most of that, so a batch costs
a tuple and a few appends, and a record nothing.

Nothing that the engine decides depends on what is here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from aioidem._engine.batch import Batch
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordRuns
from aioidem._engine.samples import Distribution, Sensor
from aioidem.errors import TransactionAborted

__all__ = ["Meters", "NodeMeter", "TopicMeter"]

_FOLD_SECONDS = 1.0
_LENGTH_BYTES = 4
_SMALL = 16
_MEASURED = 1000
"""How many records of larger batches than `_SMALL` are measured per second (see `_largest`)."""

_size_of = attrgetter("size")
_T = TypeVar("_T")

_Fact = tuple[str, int, float, float, int, int, int]
"""Of a batch that was sent: topic, bytes, seconds since its deadline (negative), compressed bytes
per uncompressed one, the largest record's bytes (0 if not measured), records, how often it was
sent."""


class _Placed(Protocol):
    """The state of a partition."""

    topic: str


class TopicMeter:
    """The numbers of one topic."""

    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self) -> None:
        self.records, self.bytes, self.compression = Sensor(), Sensor(), Sensor()
        self.retries, self.errors = Sensor(), Sensor()


class NodeMeter:
    """The numbers of one broker address.

    Its connections append the size of each frame to `requests` (in bytes, with the length prefix)
    and `answers` (without it), to `renewals` how many seconds each renewal of a SASL session took,
    and to `refusals` a 1 for each renewal that was refused. The engine appends to `latencies` how
    many seconds each Produce request took, and to `throttles` each throttle time above 0.
    """

    __slots__ = (
        "answers",
        "latencies",
        "latency",
        "received",
        "refusals",
        "renewals",
        "requests",
        "sent",
        "throttle",
        "throttles",
    )

    def __init__(self) -> None:
        self.requests: list[float] = []
        self.answers: list[float] = []
        self.renewals: list[float] = []
        self.refusals: list[float] = []
        self.latencies: list[float] = []
        self.throttles: list[float] = []
        self.sent, self.received = Sensor(), Sensor()
        self.latency, self.throttle = Sensor(), Sensor()


class Meters:
    """The numbers of one producer. Times are in seconds, sizes in bytes.

    Attributes:
        now: when an answer or a timeout was last handled.
        due_at: when `fold` is due.
        acked: for each batch since the last `fold` that was acknowledged, the seconds since its
            deadline (negative), which is `delivery_timeout` after its first record was queued.
        turns: when each turn of the producer's task since the last `fold` began and ended.
        doubts: how many batches in doubt were resolved, by how: "resend" (in order, or one by one),
            "probe" (newest first), "asked" (a probe of the batch that the leader named as its
            newest), "read back"; and how many ended UNKNOWN: "unknown".
        kinds: how many records failed, by the name of the error's class.
        spent: the seconds that calls took, by the name that Java gives them.
    """

    def __init__(self) -> None:
        self.delivery_timeout = 0.0
        self.now = 0.0
        self.due_at = 0.0
        self._sent: list[_Fact] = []
        self._records: list[float] = []
        self._to_measure = _MEASURED
        self.acked: list[float] = []
        self.turns: list[tuple[float, float]] = []
        self.doubts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.topics: defaultdict[str, TopicMeter] = defaultdict(TopicMeter)
        self.nodes: defaultdict[int, NodeMeter] = defaultdict(NodeMeter)
        # Of batches that were sent.
        self.batch_size, self.queue_time, self.compression = Sensor(), Sensor(), Sensor()
        self.record_size, self.retries, self.splits = Sensor(), Sensor(), Sensor()
        self.per_request = Sensor()
        # Of records and batches with an outcome. A record that was refused when it was to be queued
        # counts as failed.
        self.errors, self.delivery = Sensor(), Distribution()
        self.gate = Sensor()
        # Of requests. `latency` is that of Produce requests.
        self.requests, self.answers = Sensor(), Sensor()
        self.latency, self.throttle = Distribution(), Sensor()
        # Of connections.
        self.opened, self.closed = Sensor(), Sensor()
        self.authenticated, self.refused = Sensor(), Sensor()
        self.renewed, self.not_renewed = Sensor(), Sensor()
        # Of the producer's task: how long it waits between two turns, and how long a turn takes.
        self.pauses, self.work = Sensor(), Sensor()
        self._turn_ended: float | None = None
        # Of calls that waited for room: for how long, and how many were given up.
        self.room, self.exhausted = Sensor(), Sensor()

    # -- what happens

    def sent(self, entries: Sequence[tuple[_Placed, Batch]], records: int, now: float) -> None:
        """Note the batches of a Produce request that is being sent.

        Args:
            entries: the batches.
            records: how many records they have together.
            now: seconds.
        """
        self._records.append(records)
        for state, batch in entries:
            count = batch.count
            self._sent.append(
                (
                    state.topic,
                    len(batch.data),
                    now - batch.deadline,
                    batch.compression,
                    batch.records[0].size if count == 1 else self._largest(batch.records, count),
                    count,
                    batch.attempts,
                )
            )

    def _largest(self, records: Sequence[PendingRecord], count: int) -> int:
        """Return the size of a batch's largest record in bytes; 0 if it is not looked for.

        To look at each record takes 0.1 us, which is too much if the batch is large and sent as
        fast as possible. So of large batches only the first of each second are looked at.
        """
        if type(records) is RecordRuns:
            return records.largest
        if count > _SMALL:
            if self._to_measure <= 0:
                return 0
            self._to_measure -= count
        largest: int = max(map(_size_of, records))
        return largest

    def failed(self, topic: str, count: int, error: BaseException, now: float) -> None:
        """Note that records failed, or were refused when they were to be queued."""
        if isinstance(error, TransactionAborted):
            return  # the caller that aborts a transaction knows that its records fail
        self.errors.record(count, now)
        self.topics[topic].errors.record(count, now)
        self.kinds[type(error).__name__] += count

    def spend(self, call: str, seconds: float) -> None:
        """Note how long a call took, by the name of its kind in Java's metrics."""
        self.spent[call] += seconds

    def connected(self, now: float, *, authenticated: bool) -> None:
        """Note that a connection was opened, and whether with SASL."""
        self.opened.record(1, now)
        if authenticated:
            self.authenticated.record(1, now)

    # -- adding up

    def fold(self, now: float) -> None:
        """Add up what was noted since the last call; `due_at` says when the next one is due."""
        self.due_at = now + _FOLD_SECONDS
        self._to_measure = _MEASURED
        if self._sent:
            facts, self._sent = self._sent, []
            self._fold_batches(facts, self.now)
            self.per_request.record_all(_taken(self._records), self.now)
        if self.acked:
            added = self.delivery_timeout
            self.delivery.record_all([each + added for each in _taken(self.acked)], self.now)
        if self.turns:
            self._fold_turns(_taken(self.turns))
        for node in self.nodes.values():
            if node.requests or node.answers or node.latencies:
                self._fold_node(node)

    def _fold_batches(self, facts: list[_Fact], now: float) -> None:
        by_topic: dict[str, list[_Fact]] = {}
        for fact in facts:
            by_topic.setdefault(fact[0], []).append(fact)
        for topic, its in by_topic.items():
            meter = self.topics[topic]
            _, sizes, waited, ratios, largest, counts, attempts = zip(*its, strict=True)
            meter.records.record_all(counts, now)
            meter.bytes.record_all(sizes, now)
            meter.compression.record_all(ratios, now)
            self.batch_size.record_all(sizes, now)
            added = self.delivery_timeout
            self.queue_time.record_all([each + added for each in waited], now)
            self.compression.record_all(ratios, now)
            self.record_size.record_all([each for each in largest if each], now)
            if max(attempts) > 1:
                retried = [fact[5] for fact in its if fact[6] > 1]
                self.retries.record_all(retried, now)
                meter.retries.record_all(retried, now)

    def _fold_turns(self, turns: list[tuple[float, float]]) -> None:
        began, ended = zip(*turns, strict=True)
        before = began[0] if self._turn_ended is None else self._turn_ended
        self._turn_ended = ended[-1]
        work = [end - begin for begin, end in turns]
        pauses = [begin - end for begin, end in zip(began, (before, *ended), strict=False)]
        self.work.record_all(work, began[-1])
        self.pauses.record_all(pauses, began[-1])

    def _fold_node(self, node: NodeMeter) -> None:
        now = self.now
        latencies, throttles = _taken(node.latencies), _taken(node.throttles)
        # Only throttle times above 0 were noted.
        throttles += [0.0] * (len(latencies) - len(throttles))
        taken: tuple[tuple[Sequence[float], tuple[Sensor, ...]], ...] = (
            (_taken(node.requests), (node.sent, self.requests)),
            (
                [size + _LENGTH_BYTES for size in _taken(node.answers)],
                (node.received, self.answers),
            ),
            (latencies, (node.latency, self.latency)),
            (throttles, (node.throttle, self.throttle)),
            (_taken(node.renewals), (self.renewed,)),
            (_taken(node.refusals), (self.not_renewed,)),
        )
        for numbers, sensors in taken:
            for sensor in sensors:
                sensor.record_all(numbers, now)


def _taken(numbers: list[_T]) -> list[_T]:
    """Empty a list and return what it had. Others hold the list, so it is not replaced."""
    taken = numbers.copy()
    numbers.clear()
    return taken
