"""DescribeProducers (v0, KIP-664): the producers that one replica remembers.

Any replica answers from its own log, the leader or a follower. So the answer proves neither that
the broker leads the partition nor that a batch is committed. The request has no topic id and no
leader epoch, so the broker cannot notice that the client means a deleted topic of the same name, or
knows only an older leader.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Replica, Topic
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 61


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the producers that this broker's replica of each partition remembers.

    The answer for a partition without a replica on this broker is NOT_LEADER_OR_FOLLOWER.
    """
    topics = []
    for wanted in request.topics:
        topic = cluster.topics.get(wanted.name)
        parts = [_describe(topic, index, broker) for index in wanted.partition_indexes]
        topics.append({"name": wanted.name, "partitions": parts})
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _describe(topic: Topic | None, index: int, broker: Broker) -> dict[str, Any]:
    values: dict[str, Any] = {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [],
    }
    if topic is None:
        return values | {
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": "This server does not host this topic-partition.",
        }
    partition = topic.partition(index)
    if partition is None:
        return values | {"error_code": ErrorCode.unknown_topic_or_partition}
    replica = partition.replicas.get(broker.id)
    if replica is None:
        return values | {"error_code": ErrorCode.not_leader_or_follower}
    return values | {
        "active_producers": [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": _start(replica, entry.producer_id),
            }
            for entry in replica.producers.entries()
        ]
    }


def _start(replica: Replica, producer_id: int) -> int:
    first = replica.producers.transactions.first_offset(producer_id)
    return -1 if first is None else first
