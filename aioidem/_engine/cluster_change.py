"""Which cluster the producer writes to, and what it means to leave it for another cluster.

A producer id, its sequences, leader epochs, topic ids and offsets have a meaning in one cluster
only: the next cluster gives the same producer ids to other producers. Therefore no request that
carries or requests a producer id goes over a connection before its broker has named the cluster,
and nothing learned from one cluster is used in another.

A connection that leads to another cluster than the known one is misrouted (KIP-1242): its address
now belongs to another cluster's broker. The connection is closed. The producer moves only if a
bootstrap address, which the user configured, leads to another cluster, and only when no connection
to the known cluster is left. So the producer does not alternate between two clusters to which one
bootstrap address leads in turn.

A broker that names no cluster id is assumed to be in the known cluster: there is nothing to
compare.

Rejected: relying on the periodic Metadata answer alone. It comes from one connection, while others
that were just opened, to addresses that moved, may already lead to another cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem import errors
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._protocol.messages import printable

__all__ = ["carried_records", "changed", "id_is_shared", "misrouted"]


def changed(was: str, to: str, address: str, silent_for: float) -> errors.ClusterChangedError:
    """Return the error for the records that cannot be carried to the other cluster.

    Args:
        was: id of the cluster that the producer leaves.
        to: id of the cluster that the producer moves to.
        address: the bootstrap server that leads to the new cluster.
        silent_for: seconds since the last byte from the old cluster.
    """
    return errors.ClusterChangedError(
        f"the cluster changed from {printable(was)} to {printable(to)}: bootstrap server "
        f"{address} leads to {printable(to)} now, and the last bytes from {printable(was)} came "
        f"{silent_for:.1f} s ago"
    )


def misrouted(node: str, address: str, home: str, to: str) -> errors.KafkaConnectionError:
    """Return the error with which a connection to another cluster is closed.

    Args:
        node: which broker or bootstrap server the connection was opened to, for the message.
        address: its host and port.
        home: id of the cluster that the producer writes to.
        to: id of the cluster that the connection leads to.
    """
    return errors.KafkaConnectionError(
        f"the connection to {node} at {address} leads to cluster {printable(to)}; this producer "
        f"writes to {printable(home)}, so nothing is sent there"
    )


def id_is_shared(
    refusal: errors.KafkaError, partition: PartitionState, producer_id: int
) -> errors.KafkaError:
    """Return the error for INVALID_PRODUCER_EPOCH: another client uses the same producer id.

    A producer without a transactional id raises the epoch of its producer id by itself, and brokers
    never do. So a higher epoch at the broker shows that another client writes under this id.
    """
    return type(refusal)(
        f"{partition.topic}-{partition.partition}: another client writes under this producer's "
        f"id, {producer_id}. Such a client may have got the id from another cluster, and have kept "
        "it when its bootstrap servers moved to this one"
    )


def carried_records(states: Iterable[PartitionState]) -> list[PendingRecord]:
    """Take back every record that was never appended, in order within each partition.

    Once the metadata of the new cluster is known, each record is assigned to a partition again.
    `UnassignedRecords.put_in_order` restores the call order across partitions.
    """
    return [
        record for state in states for record in (*state.batches.reclaim(), *state.queue.empty())
    ]
