"""TxnOffsetCommit (KIP-98, KIP-447): commit a group's offsets within a transaction.

The version of the request selects the protocol, as with EndTxn: v5, for transactions v2, also adds
the group to the transaction (KIP-890). A client of transactions v1 sends at most v4, after
AddOffsetsToTxn. From v3 on the request has the consumer's member id and generation; brokers without
v3 cannot refuse the offsets of a consumer that has lost its partitions.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "FIRST_V2",
    "FIRST_WITH_MEMBERS",
    "LAST_V1",
    "GroupMember",
    "TxnOffset",
    "TxnOffsetCommitAnswer",
    "txn_offset_commit_answer",
    "txn_offset_commit_request",
]

API_KEY: Final = 28
LAST_V1: Final = 4
"""The highest TxnOffsetCommit version that a client of transactions v1 may send."""
FIRST_V2: Final = 5
"""The lowest TxnOffsetCommit version that a client of transactions v2 may send."""
FIRST_WITH_MEMBERS: Final = 3
"""The lowest version with the consumer's member id and generation."""


class GroupMember(NamedTuple):
    """A consumer group, and the member of it that read the records (KIP-447).

    The defaults are for a consumer that is not a member of a group, because the application assigns
    its partitions.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class TxnOffset(NamedTuple):
    """An offset to commit: the next one to read.

    ``leader_epoch`` is that of the last record read, -1 if unknown.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


class TxnOffsetCommitAnswer(NamedTuple):
    """The coordinator's answer: an error code for each (topic, partition) in the answer."""

    error_codes: Mapping[tuple[str, int], int]
    throttle_ms: int = 0


def txn_offset_commit_request(
    version: int,
    who: TransactionalIdentity,
    group: GroupMember,
    offsets: Mapping[tuple[str, int], TxnOffset],
) -> RequestPayload:
    """Make the request that commits offsets for the group once the transaction of ``who`` commits.

    Raises:
        InternalError: The library kio has no such version.
    """
    schema: Any = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no TxnOffsetCommit version {version}")
    module = importlib.import_module(schema.__module__)
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), each in offsets.items():
        part = _make(
            module.TxnOffsetCommitRequestPartition,
            partition_index=partition,
            committed_offset=each.offset,
            committed_leader_epoch=each.leader_epoch,
            committed_metadata=each.metadata,
        )
        by_topic.setdefault(topic, []).append(part)
    request: RequestPayload = _make(
        schema,
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        group_id=group.group_id,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=tuple(
            module.TxnOffsetCommitRequestTopic(name=name, partitions=tuple(parts))
            for name, parts in by_topic.items()
        ),
    )
    return request


def txn_offset_commit_answer(response: Any) -> TxnOffsetCommitAnswer:
    """Convert a decoded answer, of any version, to plain data."""
    return TxnOffsetCommitAnswer(
        {
            (str(topic.name), int(part.partition_index)): int(part.error_code)
            for topic in response.topics
            for part in topic.partitions
        },
        throttle_ms(response.throttle_time),
    )


def _make(schema: Any, **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})
