"""Requests that cannot be answered yet, such as a Produce that waits for its followers.

Kafka calls the place purgatory. A parked request is tried again whenever something about one of its
partitions changes, and is answered at its deadline at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioidem._broker.entities import Entity
from aioidem._broker.partition import Partition
from aioidem._broker.requests import Connection, Delayed, Pending
from aioidem._broker.verdicts import note_unanswered

if TYPE_CHECKING:
    from aioidem._broker.state import ClusterState

__all__ = ["Purgatory"]


class Purgatory:
    """Parks requests, and answers them when they can be or must be.

    Args:
        cluster: What requests are tried on.
        answer: Called as ``answer(now, request, response)``.
    """

    __slots__ = ("_answer", "_cluster")

    def __init__(
        self, cluster: ClusterState, answer: Callable[[float, Pending, Entity], None]
    ) -> None:
        self._cluster = cluster
        self._answer = answer

    def park(self, pending: Pending, delayed: Delayed) -> None:
        """Let a request wait until one of its partitions changes, or until its deadline."""
        delayed.pending = pending
        for partition in delayed.partitions:
            partition.waiting.append(delayed)
        self._cluster.schedule.push(delayed.deadline, self._expire, delayed)

    def wake(self, partition: Partition) -> None:
        """Try every request that waits for this partition again, as events of their own."""
        for waiting in partition.waiting:
            self._cluster.schedule.push(self._cluster.now, self._try, waiting)

    def try_now(self, partition: Partition) -> None:
        """Try every request that waits for this partition again, at once."""
        for waiting in list(partition.waiting):
            self._try(self._cluster.now, waiting)

    def forget(self, connection: Connection) -> None:
        """Drop the requests of a connection that its broker has ended."""
        for partition in self._cluster.topology.partitions():
            for delayed in list(partition.waiting):
                if delayed.pending is not None and delayed.pending.connection is connection:
                    note_unanswered(delayed.pending.items)
                    delayed.pending = None
            partition.waiting = [d for d in partition.waiting if d.pending is not None]

    def _try(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            response = delayed.attempt(self._cluster)
            if response is not None:
                self._release(now, delayed, response)

    def _expire(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            self._release(now, delayed, delayed.expire(self._cluster))

    def _release(self, now: float, delayed: Delayed, response: Entity) -> None:
        pending = delayed.pending
        delayed.pending = None
        for partition in delayed.partitions:
            partition.waiting.remove(delayed)
        if pending is not None:
            self._answer(now, pending, response)
