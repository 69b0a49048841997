"""A partition: its replicas, its leader, and what is committed.

Invariants
    Followers copy each batch at once, unless they are offline or paused.
    The high watermark is the smallest log end among the in-sync replicas, or what
    `hold_high_watermark` allows if that is less. While fewer replicas than `min.insync.replicas`
    are in sync it stands still. It moves back only when the new leader lacks the end of the log.
    Retention removes nothing above it.
    After an election every other replica truncates its log to what it has in common with the new
    leader's. It rebuilds its producer state from the log only if something was truncated.

Rejected
    One log per partition, with the followers' positions as numbers: what a follower remembers of a
    producer depends on its broker (an old one retains 5 batches), and a clean election of a
    follower that lags loses the end of the log. A client must be tested in both situations.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from aioidem._broker.batch import BatchHeader, StoredBatch
from aioidem._broker.configs import TopicSettings
from aioidem._broker.log import Log
from aioidem._broker.producer_state import ProducerStates
from aioidem._broker.spans import PartitionSpans

__all__ = ["NO_LEADER", "Partition", "Replica", "Topic"]

NO_LEADER = -1


class Replica:
    """A partition's copy on one broker."""

    __slots__ = ("broker_id", "log", "online", "paused", "producers")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log = Log()
        self.producers = ProducerStates()
        self.online = True
        self.paused = False

    def pass_through_snapshot(self) -> None:
        """Keep only the last batch of each producer's state, as a restart from a snapshot does.

        If the log is empty, no producer is left.
        """
        self.producers.through_snapshot(of_empty_log=self.log.start_offset == self.log.end_offset)

    def __repr__(self) -> str:
        return f"<Replica broker={self.broker_id} {self.log!r} producers={len(self.producers)}>"


class Topic:
    """A topic: its id, its partitions, and its configs."""

    __slots__ = ("id", "name", "overrides", "partitions", "settings")

    def __init__(self, name: str, topic_id: UUID, settings: TopicSettings) -> None:
        self.name = name
        self.id = topic_id
        self.overrides: dict[str, str] = {}
        self.settings = settings
        self.partitions: list[Partition] = []

    def partition(self, index: int) -> Partition | None:
        """Return the partition of that index; None if there is none."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class Partition:
    """One partition of a topic: its replicas, which of them leads, and what is committed.

    Args:
        topic: Topic of the partition.
        index: Index of the partition.
        brokers: Ids of the brokers with a replica, the leader first.
        retain_on: Called as ``retain_on(broker_id, topic)``; returns how many batches per producer
            that broker remembers of a partition of the topic.
    """

    __slots__ = (
        "_hold",
        "_retain_on",
        "deleted",
        "high_watermark",
        "index",
        "isr",
        "leader",
        "leader_epoch",
        "replicas",
        "spans",
        "topic",
    )

    def __init__(
        self, topic: Topic, index: int, brokers: list[int], retain_on: Callable[[int, Topic], int]
    ) -> None:
        self.topic = topic
        self.index = index
        self.replicas = {broker_id: Replica(broker_id) for broker_id in brokers}
        self.isr = list(brokers)
        self.leader = brokers[0]
        self.leader_epoch = 0
        self.high_watermark = 0
        self.deleted = False
        self.spans = PartitionSpans()
        self._hold: int | None = None
        self._retain_on = retain_on

    def __repr__(self) -> str:
        return (
            f"<Partition {self.topic.name}-{self.index} leader={self.leader} "
            f"epoch={self.leader_epoch} isr={self.isr} hw={self.high_watermark}>"
        )

    @property
    def leader_replica(self) -> Replica | None:
        """Return the leader's copy; None while there is no leader."""
        return self.replicas.get(self.leader)

    def led_by(self, broker_id: int) -> Replica | None:
        """Return the replica on this broker if it is the leader, else None."""
        return self.replicas[broker_id] if broker_id == self.leader else None

    @property
    def least_in_sync(self) -> int:
        """Return how many in-sync replicas acks=all requires.

        It is ``min.insync.replicas``, but never more than there are replicas.
        """
        return min(self.topic.settings.min_insync_replicas, len(self.replicas))

    @property
    def last_stable_offset(self) -> int:
        """Return the offset up to which every transaction has ended (KIP-98).

        It is at most the high watermark.
        """
        leader = self.leader_replica
        if leader is None:
            return self.high_watermark
        return leader.producers.transactions.last_stable_offset(self.high_watermark)

    def retain_on(self, broker_id: int) -> int:
        """Return how many batches per producer a broker remembers of this partition."""
        return self._retain_on(broker_id, self.topic)

    def append(self, data: bytes | memoryview, header: BatchHeader, now_ms: int) -> StoredBatch:
        """Append a batch to the log of the leader, which must exist, and replicate it."""
        leader = self.replicas[self.leader]
        settings = self.topic.settings
        batch = StoredBatch(
            data,
            header,
            leader.log.end_offset,
            self.leader_epoch,
            now_ms,
            settings.log_append_time,
        )
        self._store(leader, batch)
        if len(self.replicas) > 1:
            self._replicate(leader)
        self._advance()
        if leader.log.size > settings.retention_bytes:
            for replica in self.replicas.values():
                replica.log.enforce_retention(settings.retention_bytes, self.high_watermark)
        return batch

    def delete_before(self, offset: int) -> None:
        """Raise the log start to ``offset`` on the leader and its followers."""
        for replica in (self.replicas[self.leader], *self._followers()):
            replica.log.delete_before(min(offset, replica.log.end_offset))

    def hold_high_watermark(self, at: int | None = None) -> None:
        """Keep the high watermark from rising above ``at`` (None: above its present offset)."""
        self._hold = self.high_watermark if at is None else at
        self._advance()

    def release_high_watermark(self) -> None:
        """End `hold_high_watermark`: the high watermark rises as far as the replicas allow."""
        self._hold = None
        self._advance()

    def pause(self, broker_id: int) -> None:
        """Stop a follower from copying batches; the follower stays among the in-sync replicas."""
        self.replicas[broker_id].paused = True

    def resume(self, broker_id: int) -> None:
        """End `pause`: the follower copies what it lacks."""
        self.replicas[broker_id].paused = False
        self.catch_up()

    def shrink_isr(self, broker_id: int) -> None:
        """Remove a follower from the in-sync replicas, unless it is the only one of them."""
        # The last in-sync replica stays even while its broker is down: only it can be elected
        # cleanly.
        if broker_id in self.isr and broker_id != self.leader and len(self.isr) > 1:
            self.isr.remove(broker_id)
            self._advance()

    def catch_up(self) -> None:
        """Let every follower that is online and not paused copy what it lacks, and be in sync."""
        leader = self.leader_replica
        if leader is None:
            return
        for replica in self._followers():
            self._align(replica, leader)
        self._replicate(leader)
        for replica in self._followers():
            if replica.broker_id not in self.isr:
                self.isr.append(replica.broker_id)
        self._advance()

    def elect(self, broker_id: int) -> None:
        """Make a replica the leader, even if it is not in sync (an unclean election)."""
        self.leader = broker_id
        self.leader_epoch += 1
        leader = self.replicas[broker_id]
        leader.paused = False
        if broker_id not in self.isr:
            self.isr = [broker_id]
        self.high_watermark = min(self.high_watermark, leader.log.end_offset)
        self.catch_up()

    def reassign(self, broker_id: int) -> None:
        """Move the leader's replica to a broker that has no replica, and elect that broker."""
        old = self.replicas.get(self.leader)
        fresh = Replica(broker_id)
        if old is not None:
            fresh.log.copy_from(old.log)
            fresh.producers.rebuild(fresh.log.batches, self.retain_on(broker_id))
            del self.replicas[old.broker_id]
            self.isr.remove(old.broker_id)
        self.replicas = {broker_id: fresh, **self.replicas}
        self.isr.insert(0, broker_id)
        self.elect(broker_id)

    def broker_stopped(self, broker_id: int) -> None:
        """Remove a stopped broker from the in-sync replicas; elect another leader if possible."""
        replica = self.replicas.get(broker_id)
        if replica is None:
            return
        replica.online = False
        if broker_id in self.isr and len(self.isr) > 1:
            self.isr.remove(broker_id)
        if self.leader != broker_id:
            self._advance()
            return
        online = [b for b in self.isr if self.replicas[b].online]
        if online:
            self.elect(online[0])
        else:
            self.leader = NO_LEADER
            self.leader_epoch += 1

    def broker_started(self, broker_id: int) -> None:
        """Let a started broker copy the batches that its replica lacks.

        If the partition has no leader, and this replica is in sync, it becomes the leader instead.
        """
        replica = self.replicas.get(broker_id)
        if replica is None:
            return
        replica.online = True
        if self.leader == NO_LEADER and broker_id in self.isr:
            self.elect(broker_id)
        else:
            self.catch_up()

    def _followers(self) -> list[Replica]:
        return [
            r
            for r in self.replicas.values()
            if r.broker_id != self.leader and r.online and not r.paused
        ]

    def _align(self, replica: Replica, leader: Replica) -> None:
        if replica.log.end_offset < leader.log.start_offset:
            replica.log.copy_from(leader.log)
            replica.producers.rebuild(replica.log.batches, self.retain_on(replica.broker_id))
        elif replica.log.truncate(replica.log.common_end(leader.log)):
            replica.producers.rebuild(replica.log.batches, self.retain_on(replica.broker_id))

    def _replicate(self, leader: Replica) -> None:
        for replica in self._followers():
            end = replica.log.end_offset
            if end < leader.log.end_offset:
                for batch in leader.log.since(end):
                    self._store(replica, batch)

    def _store(self, replica: Replica, batch: StoredBatch) -> None:
        replica.log.append(batch)
        if batch.header.producer_id >= 0:
            replica.producers.appended(batch, self._retain_on(replica.broker_id, self.topic))

    def _advance(self) -> None:
        # Since Kafka 3.7 it stands still while too few replicas are in sync (KAFKA-15583).
        if self.leader == NO_LEADER or len(self.isr) < self.least_in_sync:
            return
        reached = min(self.replicas[b].log.end_offset for b in self.isr)
        if self._hold is not None and reached > self._hold:
            reached = self._hold
        if reached > self.high_watermark:
            self.high_watermark = reached
