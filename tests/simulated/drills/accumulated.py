"""The drill of the accumulator: where records wait to be sent, and how they may end before that.

A run has few topics, whose partitions are known nearly at once. Here topics are unknown for long,
lack partitions, grow, lose leaders, are recreated, and move to another cluster, while a user's
partitioner fails and flushes begin. `drained` judges which batches are made of the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from random import Random
from typing import Final

from aioidem import errors
from aioidem._engine.record import RecordGroup
from aioidem._engine.record_block import BLOCK
from aioidem.structs import DeliveryStatus

from .accumulator_calls import AccumulatorCalls
from .accumulator_rows import TOPICS
from .comparing import differs, unequal
from .drained import drill_drained
from .placing import NOWHERE, SentRow

__all__ = ["drill_accumulated"]

_STEPS: Final = 33
_UNKNOWN_TOPIC: Final = 3
_UNAUTHORIZED: Final = 29
"""The error codes UNKNOWN_TOPIC_OR_PARTITION and TOPIC_AUTHORIZATION_FAILED."""

_Item = tuple[int, RecordGroup | None]
"""Something that waits for a partition: how many records it has, and their group.

The group is `BLOCK` for a block, that of the caller's batch, or None for a single record.
"""


def drill_accumulated(dice: Random) -> Iterator[str]:
    """Yield what is wrong with an accumulator: with what waits in it, or with what it drains."""
    drill = _Drill(dice)
    for _ in range(_STEPS):
        action = dice.choice(drill.actions)
        wrong = action() or drill.difference()
        if wrong is not None:
            yield f"accumulator: {wrong} after {action.__name__}"
            return
    closing = drill.close()
    if closing is not None:
        yield f"accumulator: {closing} after it was closed"
        return
    for wrong in drill_drained(dice):
        yield f"drained: {wrong}"
        return


class _Drill(AccumulatorCalls):
    """An accumulator, and everything that can happen to it before its records are sent."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self.actions = [
            *([self._send] * 8),
            *([self._tell] * 3),
            *([self._assign] * 3),
            *(self._ask, self._flush, self._expire, self._expire, self._refuse, self._recreate),
            *(self._recreate, self._recreate, self._move, self._abandon, self._toggle),
            *(self._toggle, self._end),
        ]

    # -- metadata

    def _tell(self) -> str | None:
        """Let metadata name the partitions of a topic, or its error."""
        dice, name = self._dice, self._dice.choice(TOPICS)
        topic = self._topics[name]
        if dice.random() < 0.3 and not topic.leaders:
            if topic.used:
                topic.error_code = dice.choice((0, _UNKNOWN_TOPIC))
                self._accumulator.topics[name].describe(topic.error_code, told_by=None)
            return None
        count = max(len(topic.leaders), dice.choice((1, 3, 4)))
        return self._learn(name, [dice.choice((-1, 1, 1, 2)) for _ in range(count)])

    def _learn(self, name: str, leaders: list[int], *, recreated: bool = False) -> str | None:
        """Let metadata name the partitions of a topic, whose records are assigned then."""
        topic = self._topics[name]
        self._bench.describe(name, leaders, recreated=recreated)
        topic.leaders, topic.error_code = leaders, 0
        if topic.used:
            topic.told_by = self._metadata_requests
            self._accumulator.topics[name].describe(0, told_by=self._metadata_requests)
            if recreated:
                self._recreated(name)
        for each in self._topics.values():
            if each.leaders:
                if each.waiting:
                    self._waited += self._now - each.waiting[0].called_at
                each.waiting, each.due = [], each.waiting + each.due
        self._accumulator.assigned_at_once = 0
        self._accumulator.assign_known(self._now)
        return self.difference() or self._assign()

    def _assign(self) -> str | None:
        """Let the first records that are due get a partition, and return what is wrong."""
        it, metadata = self._accumulator, self._bench.metadata
        it.assigned_at_once, metadata.wanted = self._at_once, False
        # What of this is missing afterwards was taken: placed, set to wait again, or ended.
        before = {
            name: [(each.record.count, each.record.group) for each in state.unassigned.due]
            for name, state in it.topics.items()
        }
        ended = False
        try:
            it.assign_due()
        except KeyboardInterrupt:
            ended = True
        taken = {
            name: due[: len(due) - len(it.topics[name].unassigned.due)]
            for name, due in before.items()
        }
        wanted, ends = False, 0
        for name, items in taken.items():
            for count, group in items:
                topic = self._topics[name]
                rows, topic.due = topic.due[:count], topic.due[count:]
                wrong = self._assigned(name, rows, block=group is BLOCK)
                if wrong is not None:
                    return wrong
                wanted = wanted or rows[0] in topic.waiting
                ends += bool(self._refusal(topic, rows[0]) is KeyboardInterrupt)
        # A KeyboardInterrupt of the user's partitioner is raised at once, so there is one at most.
        enough = ended or self._is_enough(before, taken)
        pairs: dict[str, tuple[object, object]] = {
            "metadata is wanted": (metadata.wanted, wanted),
            "KeyboardInterrupt is raised": (ended, ends > 0),
            "no record is assigned after a KeyboardInterrupt": (ends <= 1, True),
            f"as many records as allowed ({self._at_once}) are assigned": (enough, True),
        }
        return unequal(pairs)

    def _assigned(self, name: str, rows: list[SentRow], *, block: bool) -> str | None:
        """Note what becomes of a record, or of a block, that is due."""
        topic, first = self._topics[name], rows[0]
        if topic.lacks(first):
            if topic.told_by > first.asked:
                self._settle((name, NOWHERE), rows, errors.UnknownTopicOrPartitionError)
            else:
                topic.waiting += rows
            return None
        if self._refusal(topic, first) is not None:
            self._settle((name, NOWHERE), rows, errors.RecordError)
            return None
        return self._place(name, rows, block=block)

    def _is_enough(self, before: dict[str, list[_Item]], taken: dict[str, list[_Item]]) -> bool:
        """Return whether no more and no fewer records were taken than `assigned_at_once` allows.

        Blocks and groups are taken as a whole, so the last one may exceed it.
        """
        count = sum(number for number, _ in chain(*taken.values()))
        for name, items in taken.items():
            group = items[-1][1] if items else None
            following = [each for _, each in before[name][len(items) : len(items) + 1]]
            if group not in (None, BLOCK) and following == [group]:
                return False
        everything = count == sum(number for number, _ in chain(*before.values()))
        just = [count - _size_of_last(items) < self._at_once for items in taken.values() if items]
        return (everything or count >= self._at_once) and (any(just) or not just)

    def _ask(self) -> str | None:
        """Send a Metadata request."""
        self._bench.metadata.sent()
        self._metadata_requests += 1
        return None

    def _recreate(self) -> str | None:
        """Let a topic be deleted and recreated, perhaps with fewer partitions."""
        dice, name = self._dice, self._dice.choice(TOPICS)
        if not self._topics[name].leaders:
            return None
        return self._learn(name, [1] * dice.choice((1, 1, 3, 4)), recreated=True)

    def _recreated(self, name: str) -> None:
        """Let the accumulator know that a topic was recreated; its records may all wait again."""
        topic = self._topics[name]
        states = self._bench.partitions.of(name)
        self._accumulator.recreate(name)
        if all(state.partition < len(topic.leaders) for state in states):
            for where in [each for each in self._queues if each[0] == name]:
                self._flushing.discard(where)
                if any(row.generation < self._generation for row in self._queues[where]):
                    self._flushing.add(where)
            return
        for where in [each for each in self._queues if each[0] == name]:
            for row in self._take_queue(where):
                row.until, row.asked = row.deadline, 0
                topic.waiting.append(row)
        topic.waiting = sorted(topic.waiting + topic.due, key=lambda row: row.ordinal)
        topic.due = []

    def _move(self) -> str | None:
        """Move to another cluster perhaps, with all records; none of them was ever sent."""
        if self._dice.random() < 0.5:
            return None
        bench = self._bench
        unwritten = self._accumulator.take_unwritten()
        bench.cluster.forget("another")
        bench.partitions.forget_cluster(errors.ClusterChangedError("moved"))
        self._accumulator.carry(unwritten, self._now)
        for name, topic in self._topics.items():
            topic.leaders, topic.told_by, topic.error_code = [], 0, 0
            queued = [
                row
                for where in list(self._queues)
                if where[0] == name
                for row in self._take_queue(where)
            ]
            for row in queued:
                row.until = row.deadline
            rows = sorted(queued + topic.waiting + topic.due, key=lambda row: row.ordinal)
            for row in rows:
                row.asked = self._metadata_requests
                if row.until < row.deadline:  # it had no partition in any cluster
                    row.until = min(self._now + self._config.max_block, row.deadline)
            topic.waiting, topic.due = rows, []
        return None

    # -- what ends records

    def _flush(self) -> str | None:
        closed = self._accumulator.begin_flush()
        self._generation += 1
        self._flushing = set(self._queues)
        return differs("the last generation that a flush waits for", closed, self._generation - 1)

    def _expire(self) -> str | None:
        self._now += self._dice.choice((0.0, 0.5, 2.0, 4.0, 30.0))
        self._accumulator.expire(self._now)
        for where in list(self._queues):
            late = [row for row in self._queues[where] if row.deadline <= self._now]
            self._settle(where, late, errors.DeliveryTimeoutError)
            self._queues[where] = self._queues[where][len(late) :]
            if not self._queues[where]:
                self._take_queue(where)
        for name, topic in self._topics.items():
            late = [row for row in topic.waiting if row.until <= self._now]
            topic.waiting = [row for row in topic.waiting if row.until > self._now]
            error: type[BaseException] = errors.KafkaTimeoutError
            if topic.leaders:
                error = errors.UnknownTopicOrPartitionError
            elif topic.error_code:
                error = type(errors.broker_error(topic.error_code))
            self._settle((name, NOWHERE), late, error)
        left = {state.name for state in self._accumulator.unplaced}
        return unequal(
            {
                "topics with records without a partition": (
                    left,
                    {name for name, _ in self._unplaced()},
                )
            }
        )

    def _refuse(self) -> str | None:
        """Let the cluster refuse a topic for good."""
        name = self._dice.choice(TOPICS)
        topic = self._topics[name]
        if topic.used and self._dice.random() < 0.5:
            topic.error_code = _UNAUTHORIZED
            self._accumulator.topics[name].describe(_UNAUTHORIZED, told_by=None)
            self._accumulator.refuse_topic(self._accumulator.topics[name])
            self._settle_unplaced(errors.TopicAuthorizationFailedError, name)
        return None

    def _abandon(self) -> str | None:
        """End all records with an error perhaps, as the end of the producer or an abort does."""
        if self._dice.random() < 0.6:
            return None
        error = errors.KafkaConnectionError("gone")
        if self._dice.random() < 0.5:
            self._accumulator.abandon(error)
        else:
            self._accumulator.abort(error, None)
        for where in list(self._queues):
            self._settle(where, self._take_queue(where), errors.KafkaConnectionError)
        self._settle_unplaced(errors.KafkaConnectionError, *self._topics)
        return unequal(
            {"topics with records without a partition": (dict(self._accumulator.unplaced), {})}
        )

    def _toggle(self) -> str | None:
        """Open a transaction, or end it, and make some calls."""
        if self._config.transactional_id is None:
            return None
        self._bench.door.shut = not self._bench.door.shut
        return self._send() or self._send()

    def _end(self) -> str | None:
        """Let an error end the producer, or bring it back."""
        effects = self._bench.effects
        if effects.fatal_error is not None:
            effects.fatal_error = self._ended_by = None
        else:
            error = errors.ProducerFenced("fenced", status=DeliveryStatus.UNKNOWN)
            effects.fatal_error, self._ended_by = error, errors.ProducerFenced
        return None

    def close(self) -> str | None:
        """Close the accumulator for good, and return what is wrong if it still takes records."""
        for name in TOPICS:
            keyless = self._single(None, None)
            keyless.key = None
            wrong = self._append(name, [keyless], keyless, self._accumulator.append)
            if wrong is not None:
                return wrong
        self._accumulator.close()
        if self._ended_by is None:
            self._ended_by = errors.ProducerClosed
        record = self._single(None, None)
        record.key = None
        if any(self._accumulator.appender.append(name, record, self._now) for name in TOPICS):
            return "a record without a key is queued, expected none"
        return self._send() or self._send() or self.difference()


def _size_of_last(items: Sequence[_Item]) -> int:
    """Return how many records the last block or group has; 1 for a single record."""
    count, group = items[-1]
    if group is None or group is BLOCK:
        return count
    return len(list(takewhile(lambda item: item[1] is group, reversed(items))))
