"""The brokers' check for producers that have not written for ``producer.id.expiration.ms``.

A producer that has expired is forgotten. The check is made every
``producer.id.expiration.check.interval.ms``.

Rejected
    The check as an event in the cluster's `Schedule`, the queue of events with their times: the
    queue would never be empty, so a test could not run a cluster until it is idle.
"""

from __future__ import annotations

from aioidem._broker.schedule import Schedule
from aioidem._broker.topology import Broker, Topology

__all__ = ["ProducerExpiry"]


class ProducerExpiry:
    """Makes every replica forget the producers that have expired.

    Args:
        topology: Brokers and partitions.
        schedule: Has the present time and the wall clock, and calls each check when it is due.
    """

    __slots__ = ("_next_check", "_schedule", "_topology")

    def __init__(self, topology: Topology, schedule: Schedule) -> None:
        self._topology = topology
        self._schedule = schedule
        self._next_check: float | None = None

    def begin(self, now: float) -> None:
        """Plan the first check for one interval after ``now``, unless one is planned already."""
        if self._next_check is None:
            self._next_check = now + self._interval()

    def expiration_ms(self, broker: Broker) -> int:
        """Return after how many ms without a write this broker forgets a producer."""
        return int(self._topology.broker_config(broker, "producer.id.expiration.ms"))

    def check(self, now: float) -> None:
        """Forget the expired producers, if a check for them is due.

        If several checks are overdue, only the last one is made.
        """
        if self._next_check is None or now < self._next_check:
            return
        interval = self._interval()
        missed = int((now - self._next_check) / interval)
        at = self._next_check + missed * interval
        self._next_check = at + interval
        self.forget(at)

    def forget(self, at: float) -> None:
        """Let each broker that runs forget the producers that are expired at this time."""
        at_ms = self._schedule.wall_ms(at)
        for partition in self._topology.partitions():
            for broker_id, replica in partition.replicas.items():
                broker = self._topology.brokers[broker_id]
                if broker.online:
                    replica.producers.expire(broker.wall_ms(at_ms), self.expiration_ms(broker))

    def _interval(self) -> float:
        name = "producer.id.expiration.check.interval.ms"
        return int(self._topology.broker_config(None, name)) / 1000
