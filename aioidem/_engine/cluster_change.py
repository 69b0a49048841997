"""Which cluster the producer writes to, and what leaving it for another one means.

A producer id, its sequences, leader epochs, topic ids and offsets mean something in one cluster
only: the next cluster hands the same producer ids to other producers. So nothing that bears or
needs the identity goes over a connection before that connection has named its cluster, and nothing
learned from one cluster is used in another.

A connection that leads to another cluster than the known one is closed (KIP-1242 calls it
misrouted: an address was given to somebody else). The producer moves only on the word of a
bootstrap address, which is what the user configured, and only when no connection to the known
cluster is left; so it does not go to and fro between two clusters behind one name.

A broker that names no cluster id is taken to be of the known cluster: there is nothing to compare.

Rejected: to believe the periodic Metadata answer alone. It can come from one connection while
others, opened a moment ago to addresses that moved, lead elsewhere already.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem import errors
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._protocol.messages import printable

__all__ = ["carried_records", "changed", "id_is_shared", "misrouted"]


def changed(was: str, to: str, address: str, silent_for: float) -> errors.ClusterChangedError:
    """Make the error for the records that cannot be carried to the other cluster.

    Args:
        was: id of the cluster that is left.
        to: id of the cluster that the producer moves to.
        address: the bootstrap server that leads there.
        silent_for: seconds since the cluster that is left was last heard of.
    """
    return errors.ClusterChangedError(
        f"the cluster changed from {printable(was)} to {printable(to)}, where bootstrap server "
        f"{address} leads now; {printable(was)} was last heard of {silent_for:.1f} s ago"
    )


def misrouted(node: str, address: str, home: str, to: str) -> errors.KafkaConnectionError:
    """Make the error for closing a connection that leads to another cluster."""
    return errors.KafkaConnectionError(
        f"the connection to {node} at {address} leads to cluster {printable(to)}; this producer "
        f"writes to {printable(home)}, so nothing is sent there"
    )


def id_is_shared(
    refusal: errors.KafkaError, partition: PartitionState, producer_id: int
) -> errors.KafkaError:
    """Make the error for INVALID_PRODUCER_EPOCH: another producer writes under our producer id.

    A producer without a transactional id raises its epochs by itself, so nobody else should.
    """
    return type(refusal)(
        f"{partition.topic}-{partition.partition}: another producer writes under producer id "
        f"{producer_id}; a client that was carried here from another cluster may have kept its id"
    )


def carried_records(states: Iterable[PartitionState]) -> list[PendingRecord]:
    """Take back every record that was never appended, in order within a partition.

    They go to the partitions that there are now; `UnassignedRecords.put_in_order` restores the
    order between partitions.
    """
    return [record for state in states for record in (*state.reclaim(), *state.queue.empty())]
