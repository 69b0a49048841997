"""The records that an accumulator has, as plain rows, and what it must tell of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from random import Random
from typing import Final

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.record import PendingRecord
from aioidem.structs import DeliveryStatus

from .accumulator_bench import Bench, flat
from .comparing import differs, unequal
from .placing import NOWHERE, SentRow, TopicRows, users_partitioner

__all__ = ["TIMEOUT", "TOPICS", "AccumulatorRows", "Where", "numbers"]

TIMEOUT: Final = 30.0
"""`delivery_timeout`, in seconds."""
TOPICS: Final = ("a", "b", "c")

Where = tuple[str, int]
"""A topic, and one of its partitions."""


@cache
def _config(linger: float, max_block: float, *, users: bool, transactional: bool) -> ProducerConfig:
    return ProducerConfig.build(
        "b:1",
        batch_size=300,
        linger=linger,
        max_block=max_block,
        delivery_timeout=TIMEOUT,
        request_timeout=10.0,
        partitioner=users_partitioner if users else None,
        transactional_id="x" if transactional else None,
    )


class AccumulatorRows:
    """An accumulator, and the rows of the records that it has."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._user_chooses = dice.random() < 0.4
        self._config = _config(
            dice.choice((0.0, 5.0)),
            dice.choice((0.0, 4.0, 100.0)),
            users=self._user_chooses,
            transactional=dice.random() < 0.3,
        )
        # The option that limits how long a record waits for metadata, as errors must name it.
        self._limit_words = f"delivery_timeout ({TIMEOUT:g} s)"
        if self._config.max_block < TIMEOUT:
            self._limit_words = f"max_block ({self._config.max_block:g} s)"
        self._bench = bench = Bench(self._config, dice)
        self._accumulator = bench.accumulator
        self._at_once = self._accumulator.assigned_at_once = dice.choice((2, 7, 1000))
        self._now = 100.0
        # How many records were numbered, flushes begun, and Metadata requests sent.
        self._ordinal = self._generation = self._metadata_requests = 0
        self._topics = {name: TopicRows(self._config.batch_size) for name in TOPICS}
        # The error that every call raises since the producer has ended; None before.
        self._ended_by: type[BaseException] | None = None
        # The records in the queue of each partition, and the partitions that a flush waits for.
        self._queues: dict[Where, list[SentRow]] = {}
        self._flushing: set[Where] = set()
        # Seconds for which the first record of each topic has waited for metadata.
        self._waited = 0.0
        # What must have ended since the last step: by record, its topic, partition and error.
        self._due_outcomes: dict[int, tuple[str, int, type[BaseException]]] = {}

    def _unplaced(self) -> Iterator[tuple[str, SentRow]]:
        """Yield the records that have no partition, each with its topic."""
        for name, topic in self._topics.items():
            yield from ((name, row) for row in (*topic.waiting, *topic.due))

    def difference(self) -> str | None:
        """Return how the accumulator differs from its rows; None if it does not."""
        it = self._accumulator
        used = {name: topic for name, topic in self._topics.items() if topic.used}
        pairs: dict[str, tuple[object, object]] = {"topics": (it.topics.keys(), used.keys())}
        for name, topic in used.items():
            state = it.topics[name].unassigned
            due = [row.ordinal for row in topic.due]
            pairs[f"records of {name} that get a partition next"] = (
                numbers(each.record for each in state.due),
                due,
            )
            pairs[f"records of {name} without a partition"] = (
                len(state),
                len(topic.waiting) + len(due),
            )
            pairs[f"request and error code of the last metadata of {name}"] = (
                (it.topics[name].described_by, it.topics[name].error_code),
                (topic.told_by, topic.error_code),
            )
            pairs[f"{name} waits for metadata"] = (state.waits, bool(topic.waiting))
            pairs[f"{name} is among the unplaced, if it has such records"] = (
                it.topics[name] in it.unplaced or not len(state),
                True,
            )
        found = {where: list(map(_facts, records)) for where, records in self._bench.queued()}
        pairs["queues"] = (
            found,
            {where: [self._due(row) for row in rows] for where, rows in self._queues.items()},
        )
        live = self._bench.partitions.live
        pairs["partitions that a flush waits for"] = (
            {w for w in live if live[w].queue.flushing},
            self._flushing,
        )
        busy = {(state.topic, state.partition) for state in self._bench.partitions.busy}
        pairs["all partitions with records are busy"] = (self._queues.keys() <= busy, True)
        stale = [each.where for each in self._bench.partitions.busy if each not in live.values()]
        pairs["busy partitions that are gone"] = (stale, [])
        pairs |= self._counts()
        return unequal(pairs) or self._outcomes()

    def _due(self, row: SentRow) -> tuple[object, ...]:
        """Return what a queued record must tell; it lingers since the call."""
        return row.ordinal, row.called_at, row.deadline, row.generation, row.partition

    def _counts(self) -> dict[str, tuple[object, object]]:
        """Return the numbers that the accumulator tells, each with what it must be."""
        it, topics = self._accumulator, self._topics
        unplaced = list(self._unplaced())
        by_topic = {
            name: sum(where == name for where, _ in unplaced)
            + sum(len(rows) for where, rows in self._queues.items() if where[0] == name)
            for name in topics
        }
        oldest = [rows[0].called_at for rows in self._queues.values()]
        oldest += [row.called_at for _, row in unplaced]
        ends = [row.until for topic in topics.values() for row in topic.waiting]
        assigning = any(topic.due for topic in topics.values())
        awaits = self._now if assigning else min(ends, default=None)
        return {
            "unsettled": (it.unsettled, sum(by_topic.values())),
            "unsettled by topic": (
                it.unsettled_by_topic(),
                {k: n for k, n in by_topic.items() if n},
            ),
            "when the oldest record was queued": (
                it.first_queued_at,
                min(oldest, default=math.inf),
            ),
            "assigning": (it.assigning, assigning),
            "when something is due": (it.awaits(self._now), awaits),
            "records that were numbered": (it.appender.ordinal, self._ordinal),
            "flushes that have begun": (it.appender.generation, self._generation),
            "which flushes are over": (
                [self._bench.outcomes.flushed(n) for n in range(self._generation)],
                [n < self._oldest_generation() for n in range(self._generation)],
            ),
            "seconds of waiting for metadata": (
                self._bench.outcomes.meters.spent["metadata-wait"],
                self._waited,
            ),
        }

    def _oldest_generation(self) -> float:
        """Return how many flushes had begun before the oldest call with a record that waits."""
        rows = chain((row for _, row in self._unplaced()), *self._queues.values())
        return min((row.generation for row in rows), default=math.inf)

    def _outcomes(self) -> str | None:
        """Return what is wrong with the outcomes since the last step."""
        told: dict[int, tuple[str, int, type[BaseException]]] = {}
        for settlement in self._bench.outcomes.take_settled():
            outcome = settlement.outcome
            error = outcome.error
            if outcome.status is not DeliveryStatus.NOT_WRITTEN or outcome.attempts:
                found = outcome.status, outcome.attempts
                expected = DeliveryStatus.NOT_WRITTEN, 0
                return differs("status and attempts of an outcome", found, expected)
            if getattr(error, "status", None) is not DeliveryStatus.NOT_WRITTEN:
                status = getattr(error, "status", None)
                return differs(f"status of {error!r}", status, DeliveryStatus.NOT_WRITTEN)
            if type(error) is errors.KafkaTimeoutError and self._limit_words not in str(error):
                return f"an error does not name {self._limit_words}: {error}"
            kind = errors.KafkaError if error is None else type(error)
            for record in settlement.records:
                if record.ordinal in told:
                    return f"record {record.ordinal} has two outcomes, expected one"
                told[record.ordinal] = outcome.topic, outcome.partition, kind
        due, self._due_outcomes = self._due_outcomes, {}
        return unequal({"outcomes": (told, due)})

    def _settle(self, where: Where, rows: Sequence[SentRow], error: type[BaseException]) -> None:
        """Expect that some records end with an error."""
        self._due_outcomes |= {row.ordinal: (*where, error) for row in rows}

    def _settle_unplaced(self, error: type[BaseException], *names: str) -> None:
        """Expect the end of all records of some topics that have no partition."""
        for name in names:
            topic = self._topics[name]
            self._settle((name, NOWHERE), topic.waiting + topic.due, error)
            topic.waiting, topic.due = [], []

    def _take_queue(self, where: Where) -> list[SentRow]:
        """Empty the queue of a partition, and return what was in it."""
        self._flushing.discard(where)
        return self._queues.pop(where, [])


def numbers(items: Iterable[PendingRecord]) -> list[int]:
    """Return the ordinals of the records of some items."""
    return [record.ordinal for record in flat(items)]


def _facts(record: PendingRecord) -> tuple[object, ...]:
    """Return what a queued record tells."""
    return (
        *(record.ordinal, record.queued_at, record.deadline),
        *(record.generation, record.partition),
    )
