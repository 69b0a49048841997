"""TxnOffsetCommit (v0 to v5): commit a group's offsets with a transaction (KIP-98, KIP-447).

A partition that does not exist is refused without effect on the others. For the others the group's
coordinator makes two checks: the group must be a part of the transaction (from v5 on it is added),
and the consumer must be allowed to commit for the group. If either check fails, all partitions
fail.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group_coordinator import Committed
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity
from aioidem._broker.transaction_support import Support, admit

__all__ = ["handle"]

_API: Final = 28
_FIRST_ABORTABLE: Final = 4
_FIRST_TOLD_OF_LOADING: Final = 2


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Store the offsets as pending; the transaction's marker commits them or removes them."""
    known = {
        (topic.name, part.partition_index): part
        for topic in request.topics
        for part in topic.partitions
        if _exists(cluster, topic.name, part.partition_index)
    }
    code = ErrorCode.none
    if known:
        code = _refused(cluster, broker, request, context.api_version)
    codes = dict.fromkeys(known, code)
    if code is ErrorCode.none:
        producer = Identity(request.producer_id, request.producer_epoch)
        for where, part in known.items():
            offset = _offset(part)
            if offset.too_large:
                codes[where] = ErrorCode.offset_metadata_too_large
            else:
                cluster.groups.commit(request.group_id, where, offset, producer)
    unknown = ErrorCode.unknown_topic_or_partition
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": part.partition_index,
                    "error_code": codes.get((topic.name, part.partition_index), unknown),
                }
                for part in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _exists(cluster: Cluster, name: str, index: int) -> bool:
    topic = cluster.topics.get(name)
    return topic is not None and topic.partition(index) is not None


def _refused(cluster: Cluster, broker: Broker, request: Entity, version: int) -> ErrorCode:
    group_id = request.group_id
    code = cluster.topology.coordinator_error(group_id, broker)
    if code is ErrorCode.coordinator_load_in_progress and version < _FIRST_TOLD_OF_LOADING:
        return ErrorCode.coordinator_not_available
    if code is not ErrorCode.none:
        return code
    identity = Identity(request.producer_id, request.producer_epoch)
    support = Support.of(version, _FIRST_ABORTABLE)
    try:
        if not cluster.groups.in_transaction(group_id, identity):
            admit(cluster, request.transactional_id, identity, group_id, support)
        cluster.groups.admit(
            group_id,
            getattr(request, "generation_id", -1),
            getattr(request, "member_id", ""),
            getattr(request, "group_instance_id", None),
            offset_commit_version=None,
        )
    except RefusedError as refusal:
        # If the transaction coordinator is unavailable or busy, `admit` raises NOT_ENOUGH_REPLICAS,
        # as Kafka answers to Produce. To TxnOffsetCommit it answers COORDINATOR_NOT_AVAILABLE.
        away = refusal.code is ErrorCode.not_enough_replicas
        return ErrorCode.coordinator_not_available if away else refusal.code
    return ErrorCode.none


def _offset(part: Entity) -> Committed:
    epoch = getattr(part, "committed_leader_epoch", -1)
    return Committed(part.committed_offset, epoch, part.committed_metadata)
