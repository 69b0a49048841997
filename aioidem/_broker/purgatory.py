"""Requests that cannot be answered yet, such as a Produce that waits for the followers.

Kafka calls this purgatory. A parked request is tried again whenever one of its partitions changes,
and is answered at its deadline at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from aioidem._broker.entities import Entity
from aioidem._broker.partition import Partition
from aioidem._broker.requests import Connection, Delayed, Pending
from aioidem._broker.schedule import Schedule
from aioidem._broker.verdicts import note_unanswered

__all__ = ["Purgatory"]

_Answer: TypeAlias = Callable[[float, Pending, Entity], None]


class Purgatory:
    """Keeps requests until they can be answered, or until their deadline.

    To try a request means to ask its `Delayed` for the answer, and to send it if there is one.

    Args:
        schedule: The cluster's schedule, for the deadlines.
    """

    __slots__ = ("_schedule", "_waiting")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._waiting: dict[Partition, list[Delayed]] = {}

    def __repr__(self) -> str:
        return f"<Purgatory partitions={len(self._waiting)}>"

    def park(self, pending: Pending, delayed: Delayed, answer: _Answer) -> None:
        """Keep a request, and try it whenever one of its partitions changes.

        Args:
            pending: The request.
            delayed: The object that makes the request's answer.
            answer: Called as ``answer(now, pending, response)``, ``now`` in seconds.
        """
        delayed.pending, delayed.answer = pending, answer
        for partition in delayed.partitions:
            self._waiting.setdefault(partition, []).append(delayed)
        self._schedule.push(delayed.deadline, self._expire, delayed)

    def wake(self, partition: Partition) -> None:
        """Schedule a try, due now, of every request that waits for this partition."""
        for delayed in self._waiting.get(partition, ()):
            self._schedule.push(self._schedule.now, self._try, delayed)

    def try_now(self, partition: Partition) -> None:
        """Try every request that waits for this partition, before returning."""
        for delayed in list(self._waiting.get(partition, ())):
            self._try(self._schedule.now, delayed)

    def forget(self, connection: Connection) -> None:
        """Drop the requests of a connection that its broker has ended."""
        for delayed in {id(each): each for row in self._waiting.values() for each in row}.values():
            pending = delayed.pending
            if pending is not None and pending.connection is connection:
                note_unanswered(pending.items)
                self._unpark(delayed)

    def _try(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            response = delayed.attempt()
            if response is not None:
                self._release(now, delayed, response)

    def _expire(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            self._release(now, delayed, delayed.expire())

    def _release(self, now: float, delayed: Delayed, response: Entity) -> None:
        pending, answer = delayed.pending, delayed.answer
        self._unpark(delayed)
        if pending is not None and answer is not None:
            answer(now, pending, response)

    def _unpark(self, delayed: Delayed) -> None:
        delayed.pending = delayed.answer = None
        for partition in delayed.partitions:
            waiting = self._waiting[partition]
            waiting.remove(delayed)
            if not waiting:
                del self._waiting[partition]
