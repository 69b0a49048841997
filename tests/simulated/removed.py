"""The batches that a partition's log no longer has: DeleteRecords or the retention removed them.

A record that was acknowledged and then deleted is not lost, so the checks at the end of a run need
the whole log. Brokers keep no removed batch. So the batches of a partition's leader are noted
immediately before some of them are removed.
"""

from __future__ import annotations

from uuid import UUID

from aioidem._broker.batch import StoredBatch
from aioidem._broker.partition import Partition, Replica

__all__ = ["RemovedBatches", "whole_log"]


class RemovedBatches:
    """The batches that the leaders' logs had when they were noted last."""

    def __init__(self) -> None:
        self._noted: dict[tuple[UUID, int], list[StoredBatch]] = {}

    def note(self, partition: Partition) -> None:
        """Note the batches of a partition, some of which are about to be removed."""
        leader = partition.leader_replica
        if leader is not None:
            self._noted[partition.topic.id, partition.index] = self.log_of(partition, leader)

    def log_of(self, partition: Partition, replica: Replica) -> list[StoredBatch]:
        """Return the batches of a replica's log, those that were removed from it first."""
        noted = self._noted.get((partition.topic.id, partition.index), [])
        batches = replica.log.batches
        begins = batches[0].base_offset if batches else replica.log.start_offset
        return [batch for batch in noted if batch.last_offset < begins] + batches


def whole_log(partition: Partition, removed: RemovedBatches) -> bytes:
    """Return the bytes of all batches that the leader has, or had until they were removed."""
    leader = partition.leader_replica or partition.replicas[partition.isr[0]]
    return b"".join(batch.wire() for batch in removed.log_of(partition, leader))
