"""AddPartitionsToTxn (v0 to v3): add partitions to a transaction.

Either all of them are added or none: if one does not exist, the others are answered
OPERATION_NOT_ATTEMPTED.
Versions 4 and up are not served, because only brokers send them, to other brokers.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Partition
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity, Target
from aioidem._broker.transaction_support import as_known_to

__all__ = ["handle"]

_API: Final = 24


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Add the partitions if all exist; the answer has an error code for each.

    All partitions that exist get the same code.
    """
    wanted = {
        (topic.name, index): _find(cluster, topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    }
    found: set[Target] = {p for p in wanted.values() if p is not None}
    if None in wanted.values():
        code = ErrorCode.operation_not_attempted
    else:
        code = _add(cluster, broker, request, found)
    code = as_known_to(_API, context.api_version, code)
    unknown = ErrorCode.unknown_topic_or_partition
    topics = [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": unknown if wanted[topic.name, index] is None else code,
                }
                for index in topic.partitions
            ],
        }
        for topic in request.v3_and_below_topics
    ]
    values = {"throttle_time": ZERO_MS, "results_by_topic_v3_and_below": topics}
    return Now(respond(_API, context.api_version, values))


def _find(cluster: Cluster, name: str, index: int) -> Partition | None:
    topic = cluster.topics.get(name)
    return None if topic is None else topic.partition(index)


def _add(cluster: Cluster, broker: Broker, request: Entity, targets: set[Target]) -> ErrorCode:
    name = request.v3_and_below_transactional_id
    if not name:
        return ErrorCode.invalid_request
    identity = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    code = cluster.topology.coordinator_error(name, broker)
    if code is not ErrorCode.none:
        return code
    try:
        cluster.transactions.add(name, identity, targets)
    except RefusedError as refusal:
        return refusal.code
    return ErrorCode.none
