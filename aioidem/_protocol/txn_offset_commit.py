"""TxnOffsetCommit (KIP-98, KIP-447): a group's offsets within a transaction, as plain data.

The version is part of the meaning, as with EndTxn: v5 lets the group take part in the transaction
by itself (KIP-890), so a client of transactions v1 sends v4 at most, after AddOffsetsToTxn. The
consumer's place in its group is told from v3 on; older brokers cannot fence by it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

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
"""The highest version of a client that speaks transactions v1."""
FIRST_V2: Final = 5
"""The lowest version of a client that speaks transactions v2."""
FIRST_WITH_MEMBERS: Final = 3
"""The lowest version that tells the consumer's member id and generation."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer group, and the place in it of the consumer that read (KIP-447).

    The defaults are those of a consumer that is no member: a manual assignment.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class TxnOffset:
    """The next offset to be read; ``leader_epoch`` of the last record read, -1 if not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitAnswer:
    """``error_codes`` by (topic, partition); what the broker left out is not in it."""

    error_codes: Mapping[tuple[str, int], int]
    throttle_ms: int = 0


def txn_offset_commit_request(
    version: int,
    who: TransactionalIdentity,
    group: GroupMember,
    offsets: Mapping[tuple[str, int], TxnOffset],
) -> RequestPayload:
    """Commit the offsets for the group once the transaction of ``who`` commits.

    Raises:
        InternalError: the version is not one that kio has.
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
    """The answer of any version."""
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
