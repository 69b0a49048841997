"""The drill of the accumulator: where records wait until they are sent, and how they end before.

A run has few topics, whose partitions are known nearly at once. Here topics are unknown for long,
lack partitions, grow, lose leaders, are recreated, and move to another cluster, while a user's
partitioner fails and flushes begin. What is drained from the partitions is judged by `drained`.
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
from .drained import drill_drained
from .placing import NOWHERE, SentRow
from .queue_rows import unequal

__all__ = ["drill_accumulated"]

_STEPS: Final = 33
_NOT_FOUND: Final = 3
_FORBIDDEN: Final = 29

_Item = tuple[int, RecordGroup | None]
"""How many records an item that waits has, and whether they belong to a block or a group."""


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
    """An accumulator, to which all happens that happens to one before records are sent."""

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
                topic.error_code = dice.choice((0, _NOT_FOUND))
                self._it.topics[name].describe(topic.error_code, told_by=None)
            return None
        count = max(len(topic.leaders), dice.choice((1, 3, 4)))
        return self._learn(name, [dice.choice((-1, 1, 1, 2)) for _ in range(count)])

    def _learn(self, name: str, leaders: list[int], *, recreated: bool = False) -> str | None:
        """Let metadata name the partitions of a topic, whose records are assigned then."""
        topic = self._topics[name]
        self._bench.describe(name, leaders, recreated=recreated)
        topic.leaders, topic.error_code = leaders, 0
        if topic.used:
            topic.told_by = self._asked
            self._it.topics[name].describe(0, told_by=self._asked)
            if recreated:
                self._recreated(name)
        for each in self._topics.values():
            if each.leaders:
                if each.waiting:
                    self._waited += self._now - each.waiting[0].called_at
                each.waiting, each.due = [], each.waiting + each.due
        self._it.assigned_at_once = 0
        self._it.assign_known(self._now)
        return self.difference() or self._assign()

    def _assign(self) -> str | None:
        """Let the first records that are due get a partition, and return what is wrong."""
        it, metadata = self._it, self._bench.metadata
        it.assigned_at_once, metadata.wanted = self._most, False
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
        pairs: dict[str, tuple[object, object]] = {
            "metadata is wanted": (metadata.wanted, wanted),
            "the program ends": (ended, ends > 0),
            "ends": (ends <= 1, True),
            "enough": (ended or self._is_enough(before, taken), True),
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
        """Return whether as many records were taken as may be: blocks and groups as a whole."""
        count = sum(number for number, _ in chain(*taken.values()))
        for name, items in taken.items():
            group = items[-1][1] if items else None
            following = [each for _, each in before[name][len(items) : len(items) + 1]]
            if group not in (None, BLOCK) and following == [group]:
                return False
        everything = count == sum(number for number, _ in chain(*before.values()))
        just = [count - _last(items) < self._most for items in taken.values() if items]
        return (everything or count >= self._most) and (any(just) or not just)

    def _ask(self) -> str | None:
        self._bench.metadata.sent()
        self._asked += 1
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
        self._it.recreate(name)
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
        """Move to another cluster, with all records; none of them was ever sent."""
        if self._dice.random() < 0.5:
            return None
        bench = self._bench
        unwritten = self._it.take_unwritten()
        bench.cluster.forget("another")
        bench.partitions.forget_cluster(errors.ClusterChangedError("moved"))
        self._it.carry(unwritten, self._now)
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
                row.asked = self._asked
                if row.until < row.deadline:  # it had no partition in any cluster
                    row.until = min(self._now + self._config.max_block, row.deadline)
            topic.waiting, topic.due = rows, []
        return None

    # -- what ends records

    def _flush(self) -> str | None:
        closed = self._it.begin_flush()
        self._generation += 1
        self._flushing = set(self._queues)
        return None if closed == self._generation - 1 else f"a flush waits for generation {closed}"

    def _expire(self) -> str | None:
        self._now += self._dice.choice((0.0, 0.5, 2.0, 4.0, 30.0))
        self._it.expire(self._now)
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
        left = {state.name for state in self._it.unplaced}
        return unequal({"unplaced": (left, {name for name, _ in self._unplaced()})})

    def _refuse(self) -> str | None:
        """Let the cluster refuse a topic for good."""
        name = self._dice.choice(TOPICS)
        topic = self._topics[name]
        if topic.used and self._dice.random() < 0.5:
            topic.error_code = _FORBIDDEN
            self._it.topics[name].describe(_FORBIDDEN, told_by=None)
            self._it.refuse_topic(self._it.topics[name])
            self._settle_unplaced(errors.TopicAuthorizationFailedError, name)
        return None

    def _abandon(self) -> str | None:
        if self._dice.random() < 0.6:
            return None
        error = errors.KafkaConnectionError("gone")
        if self._dice.random() < 0.5:
            self._it.abandon(error)
        else:
            self._it.abort(error, None)
        for where in list(self._queues):
            self._settle(where, self._take_queue(where), errors.KafkaConnectionError)
        self._settle_unplaced(errors.KafkaConnectionError, *self._topics)
        return unequal({"unplaced": (dict(self._it.unplaced), {})})

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
            effects.fatal_error = self._over = None
        else:
            error = errors.ProducerFenced("fenced", status=DeliveryStatus.UNKNOWN)
            effects.fatal_error, self._over = error, errors.ProducerFenced
        return None

    def close(self) -> str | None:
        """Close the accumulator for good, and return what is wrong if it takes records yet."""
        for name in TOPICS:
            keyless = self._single(None, None)
            keyless.key = None
            wrong = self._append(name, (keyless,), self._it.append)
            if wrong is not None:
                return wrong
        self._it.close()
        if self._over is None:
            self._over = errors.ProducerClosed
        record = self._single(None, None)
        record.key = None
        if any(self._it.appender.append(name, record, self._now) for name in TOPICS):
            return "a record is queued"
        return self._send() or self._send() or self.difference()


def _last(items: Sequence[_Item]) -> int:
    """Return the number of records of the last block or group, or 1."""
    count, group = items[-1]
    if group is None or group is BLOCK:
        return count
    return len(list(takewhile(lambda item: item[1] is group, reversed(items))))
