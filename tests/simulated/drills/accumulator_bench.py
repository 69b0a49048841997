"""A `RecordAccumulator` with the parts that it uses, and without the rest of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.cluster import ClusterView, TopicView
from aioidem._engine.connections import Connections
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.memory import ByteBudget
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.no_transactions import NoTransactions
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partitions import Partitions
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.record_block import RecordRuns
from aioidem._protocol.metadata import PartitionUpdate

__all__ = ["Bench", "Door", "flat"]


class Door(NoTransactions):
    """Transactions that are open, and may send, when the drill says so.

    Attributes:
        shut: Whether no transaction is open, so that calls are refused.
        holds: Whether no batch may be sent.
        kept: The partitions that are not in the transaction yet, so that their batches wait.
    """

    def __init__(self, identity: IdentityLedger, backoff: Backoff) -> None:
        super().__init__(identity, backoff)
        self.shut = self.holds = False
        self.kept: set[tuple[str, int]] = set()

    @property
    def may_send(self) -> bool:
        """Whether batches may be sent."""
        return not self.holds

    def need_open(self) -> None:
        """Refuse a record while no transaction is open."""
        if self.shut:
            raise errors.IllegalOperation("no transaction is open")

    def admits(self, topic: str, partition: int) -> bool:
        """Return whether a partition is in the transaction."""
        return (topic, partition) not in self.kept


class Bench:
    """An accumulator, its parts, and a cluster that says what the drill wants it to say."""

    def __init__(self, config: ProducerConfig, dice: Random) -> None:
        def backoff() -> Backoff:
            return Backoff(1.0, 4.0, dice.random)

        self.config = config
        self.cluster = ClusterView()
        self.metadata = MetadataRefresher(300.0, backoff())
        self.identity = IdentityLedger()
        self.door = Door(self.identity, backoff())
        self.outcomes = Outcomes(ByteBudget(1 << 40), self.door)
        self.effects = Effects(
            self.outcomes, self.metadata, self.identity, self.door, Accusations()
        )
        connections = Connections(config, dice.random)
        self.partitions = Partitions(config, dice.random, self.cluster, connections, self.effects)
        self.accumulator = RecordAccumulator(
            config,
            dice.random,
            self.cluster,
            self.metadata,
            self.partitions,
            self.outcomes,
            self.effects,
            self.door,
        )

    def describe(self, name: str, leaders: Iterable[int], *, recreated: bool = False) -> None:
        """Let the cluster name a topic's partitions, each by its leader, which is -1 for none."""
        view = self.cluster.topics.get(name)
        if view is None or recreated:
            view = self.cluster.topics[name] = TopicView(name, None)
        for index, leader in enumerate(leaders):
            view.merge(PartitionUpdate(index, leader, -1))

    def queued(self) -> Iterator[tuple[tuple[str, int], list[PendingRecord]]]:
        """Yield each partition that has records in its queue, with these."""
        for where, state in self.partitions.live.items():
            if state.queue.records:
                yield where, flat(state.queue.records)


def flat(items: Iterable[PendingRecord]) -> list[PendingRecord]:
    """Return the records of some items, those of blocks one by one."""
    return list(RecordRuns(list(items)))
