"""What the Sender and a broker say to each other: requests of each kind, and answers in bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import UUID

from aioidem._engine import steps
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.metadata import MetadataUpdate
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem._protocol.versions import ApiKey

__all__ = ["ANSWERED", "a_produce", "a_question", "answer_to", "gist_of", "span_of"]

_ANY: Final = 99
"""A version that is higher than all."""
_ID: Final = UUID(int=5)
_WHO: Final = TransactionalIdentity("x", 7, 1)
_QUESTIONS: Final[tuple[tuple[ApiKey, int, int, Callable[..., Any]], ...]] = (
    # the API, the lowest and the highest version in which the request can be made, the request
    (ApiKey.METADATA, 0, _ANY, lambda link, token: steps.FetchMetadata(link, token, ("t",), False)),
    (ApiKey.METADATA, 0, _ANY, steps.AskCluster),
    (ApiKey.INIT_PRODUCER_ID, 0, _ANY, steps.InitProducerId),
    (
        ApiKey.DESCRIBE_CONFIGS,
        0,
        _ANY,
        lambda link, token: steps.DescribeTopicConfig(link, token, "t"),
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        0,
        _ANY,
        lambda link, token: steps.DescribeTopicLimit(link, token, "t"),
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        0,
        _ANY,
        lambda link, token: steps.DescribeBrokerConfig(link, token, 5),
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        _ANY,
        lambda link, token: steps.AskProducers(link, token, "t", 3),
    ),
    # From v13 on Fetch names topics by their ids.
    (ApiKey.FETCH, 0, 13, lambda link, token: steps.ReadBack(link, token, "t", _ID, 3, 40)),
    (ApiKey.FETCH, 0, 12, lambda link, token: steps.ReadBack(link, token, "t", None, 3, 40)),
    (
        ApiKey.FIND_COORDINATOR,
        1,  # only a group's coordinator could be asked for before
        _ANY,
        lambda link, token: steps.FindCoordinator(link, token, CoordinatorKey.TRANSACTION, "x"),
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        0,
        _ANY,
        lambda link, token: steps.InitTransactions(link, token, "x", 9, None),
    ),
    # KIP-360: v3 is the first that names the present epoch.
    (
        ApiKey.INIT_PRODUCER_ID,
        3,
        _ANY,
        lambda link, token: steps.InitTransactions(link, token, "x", 9, _WHO),
    ),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        0,
        _ANY,
        lambda link, token: steps.AddPartitions(link, token, _WHO, (("t", 3),)),
    ),
    (
        ApiKey.ADD_OFFSETS_TO_TXN,
        0,
        _ANY,
        lambda link, token: steps.AddOffsets(link, token, _WHO, "g"),
    ),
    # KIP-890: v5 of both belongs to transactions v2.
    (ApiKey.TXN_OFFSET_COMMIT, 0, 4, lambda link, token: _commit(link, token, v2=False)),
    (ApiKey.TXN_OFFSET_COMMIT, 5, _ANY, lambda link, token: _commit(link, token, v2=True)),
    (
        ApiKey.END_TXN,
        0,
        4,
        lambda link, token: steps.EndTransaction(link, token, _WHO, True, False),
    ),
    (
        ApiKey.END_TXN,
        5,
        _ANY,
        lambda link, token: steps.EndTransaction(link, token, _WHO, True, True),
    ),
)
ANSWERED: Final = (steps.SendProduce, steps.FetchMetadata, steps.AskCluster, steps.InitProducerId)
"""The requests to which `answer_to` can make an answer."""


def _commit(link_id: int, token: int, *, v2: bool) -> steps.CommitOffsets:
    offsets = {("t", 3): TxnOffset(40)}
    return steps.CommitOffsets(link_id, token, _WHO, GroupMember("g"), offsets, v2)


def a_question(dice: Random, link_id: int, token: int) -> Any:
    """Return a request of any kind but Produce, most often one that `answer_to` can answer."""
    known = dice.random() < 0.5
    return dice.choice(_QUESTIONS[:3] if known else _QUESTIONS)[3](link_id, token)


def a_produce(dice: Random, link_id: int, token: int, *, old: bool, acks: int) -> steps.SendProduce:
    """Return a Produce request with some batches."""
    topics = [
        steps.TopicData(name, _ID, [(at, b"batch") for at in range(dice.randrange(1, 4))])
        for name in dice.choice((("t",), ("t", "u")))
    ]
    version = 9 if old else dice.choice((9, 13))
    tid = dice.choice((None, "x"))
    records = dice.randrange(1, 9)
    return steps.SendProduce(link_id, token, version, acks, 900, tid, topics, records)


def span_of(step: Any) -> tuple[ApiKey, int, int]:
    """Return a request's API, and the lowest and the highest version in which it can be made."""
    if type(step) is steps.SendProduce:
        return ApiKey.PRODUCE, step.version, step.version
    for api, lowest, highest, make in _QUESTIONS:
        like = make(step.link_id, step.token)
        if type(like) is type(step) and like == step:
            return api, lowest, highest
    raise LookupError(step)


def answer_to(step: Any, version: int, number: int, size: int | None = None) -> tuple[bytes, Any]:
    """Return the answer to a request in bytes, and what of it `gist_of` finds.

    Args:
        step: the request.
        version: its version.
        number: its correlation id.
        size: the size of an answer to a Metadata request, in bytes; None takes the shortest.
    """
    start = struct.pack(">i", number)
    if type(step) is steps.SendProduce:
        topic = _ID.bytes if version >= 13 else b"\x02t"
        told = struct.pack(">ihqqq", 3, 0, 40, -1, 0) + b"\x01\0\0"
        return start + b"\0\x02" + topic + b"\x02" + told + b"\0" + bytes(5), 40
    if type(step) is steps.InitProducerId:
        tags = b"\0" if version >= 2 else b""
        return start + tags + struct.pack(">ihqh", 0, 0, 77, 1) + tags, (77, 1)
    end = struct.pack(">i", -1) + b"\x01"
    end += {9: bytes(4), 13: bytes(2)}[version] + b"\0"
    begin = start + b"\0" + bytes(4) + b"\x01"
    left = 5 if size is None else size - len(begin) - len(end) - 3
    cluster = "c" * left
    count = left + 1
    length = bytes((count & 127 | 128, count >> 7 & 127 | 128, count >> 14))
    return begin + length + cluster.encode() + end, cluster


def gist_of(answer: Any) -> Any:
    """Return what tells one answer from another: an offset, a producer id, or a cluster's id."""
    match answer:
        case ProduceAnswer(partitions=(PartitionAnswer(base_offset=offset),)):
            return offset
        case ProducerIdAnswer(producer_id=producer_id, producer_epoch=epoch):
            return producer_id, epoch
        case MetadataUpdate(cluster_id=cluster):
            return cluster
        case _:
            return answer
