"""The batches that a partition's log no longer has: DeleteRecords or the retention removed them.

A record that was acknowledged and then deleted is not lost, so the checks at the end of a run need
the whole log. Brokers keep no removed batch. So the batches of a partition's leader are noted
immediately before some of them are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from aioidem._broker.batch import StoredBatch
from aioidem._broker.partition import Partition, Replica
from aioidem._testing.wire_frames import batch_values
from aioidem.testing import Row, ValueId, parse_value

__all__ = ["RemovedBatches", "whole_log"]


class RemovedBatches:
    """The batches that the leaders' logs had before some of them were removed."""

    def __init__(self) -> None:
        self._noted: dict[Partition, list[StoredBatch]] = {}
        self._since: dict[ValueId, float] = {}
        self.forgotten = False
        """Whether a leader was seen that knows less of a producer than it appended of it.

        A new replica, and a restart, build the state of a producer from what is left of the log.
        """

    def delete(self, partition: Partition, offset: int, now: float) -> None:
        """Remove a partition's committed batches below an offset, and note what was there before.

        Args:
            partition: The partition. It must have a leader.
            offset: The offset.
            now: Seconds.
        """
        leader = partition.replicas[partition.leader]
        noted = self._noted[partition] = self.log_of(partition, leader)
        partition.delete_before(min(offset, partition.high_watermark))
        for batch in noted:
            if batch.last_offset < leader.log.start_offset:
                for record in batch_values(batch.wire()):
                    value = parse_value(record.value)
                    if value is not None:
                        self._since.setdefault(value, now)

    def look(self) -> None:
        """See what leaders know of the producers whose batches were removed, before they judge."""
        for partition in self._noted:
            leader = partition.leader_replica
            if leader is None or self.forgotten:
                continue
            appended: Counter[tuple[int, int]] = Counter(
                (batch.header.producer_id, batch.header.producer_epoch)
                for batch in self.log_of(partition, leader)
            )
            retain = partition.retain_on(leader.broker_id)
            for (producer_id, epoch), batches in appended.items():
                entry = leader.producers.entry(producer_id)
                known = 0 if entry is None else len(entry.batches)
                if producer_id >= 0 and (entry is None or entry.epoch == epoch):
                    self.forgotten |= known < min(batches, retain)

    def before_their_outcome(self, rows: Collection[Row]) -> set[ValueId]:
        """Return the records that were removed when the producer did not know their outcome.

        A leader that has `forgotten` the producer takes a copy of such a record for a new one. No
        client can see that before.
        """
        since = self._since if self.forgotten else {}
        return {
            row.value
            for row in rows
            if row.value in since and (row.settled is None or row.settled >= since[row.value])
        }

    def log_of(self, partition: Partition, replica: Replica) -> list[StoredBatch]:
        """Return the batches of a replica's log, those that were removed from it first."""
        noted = self._noted.get(partition, [])
        batches = replica.log.batches
        begins = batches[0].base_offset if batches else replica.log.start_offset
        return [batch for batch in noted if batch.last_offset < begins] + batches


def whole_log(partition: Partition, removed: RemovedBatches) -> bytes:
    """Return the bytes of all batches that the leader has, or had until they were removed."""
    leader = partition.leader_replica or partition.replicas[partition.isr[0]]
    return b"".join(batch.wire() for batch in removed.log_of(partition, leader))
