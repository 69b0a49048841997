"""Read the offsets that a consumer group has committed (OffsetFetch v7, KIP-447).

The producer commits offsets but never reads them, so this module sends the requests itself:
FindCoordinator, then OffsetFetch with `require_stable`.

Invariants:

- While a transaction may still change an offset, the coordinator answers UNSTABLE_OFFSET_COMMIT and
  the request is repeated. Without `require_stable` it would answer the previous offset.
- `timeout` bounds the time for all requests together.

Rejected: using a consumer for this (aiokafka's does not ask for stable offsets).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._admin.asking import Ask, Place, ask, until_known
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._protocol.find_coordinator import (
    CoordinatorKey,
    coordinator_answer,
    coordinator_request,
)
from aioidem._protocol.messages import request_type
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.versions import ApiKey
from aioidem.structs import OffsetAndMetadata, TopicPartition

__all__ = ["committed_offsets"]


async def committed_offsets(
    config: ProducerConfig,
    group: str,
    partitions: Collection[TopicPartition],
    timeout: float,
    asking: Ask = ask,
    found: Callable[[BrokerAddress], None] | None = None,
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Read a group's committed offsets, once no transaction can change them any more.

    Args:
        config: how to connect.
        group: the group's id.
        partitions: the partitions to read.
        timeout: seconds for all requests together.
        asking: sends the requests; by default each on a connection of its own.
        found: called with the group's coordinator, if that has answered.

    Returns:
        The offsets, without those partitions for which none is committed.

    Raises:
        KafkaTimeoutError: there was no stable answer within `timeout`.
        AuthenticationFailedError: a broker refuses the credentials.
        BrokerResponseError: the request was refused, for example with
            `GroupAuthorizationFailedError`.
    """

    async def find(server: Place) -> Mapping[TopicPartition, OffsetAndMetadata]:
        coordinator = await _coordinator(config, server, group, asking)
        place = Place(coordinator.host, coordinator.port)
        offsets = await _fetch(config, place, group, partitions, asking)
        if found is not None:
            found(coordinator)
        return offsets

    return await until_known(config, f"the committed offsets of {group}", timeout, find)


async def _coordinator(
    config: ProducerConfig, server: Place, group: str, asking: Ask
) -> BrokerAddress:
    def make(connection: Connection) -> Any:
        version = connection.versions.choose(ApiKey.FIND_COORDINATOR)
        return coordinator_request(version, group, CoordinatorKey.GROUP)

    answer = coordinator_answer(await asking(config, server, ApiKey.FIND_COORDINATOR, make), group)
    if answer.error_code:
        raise errors.broker_error(answer.error_code, f"the coordinator of {group}")
    return BrokerAddress(answer.node_id, answer.host, answer.port)


async def _fetch(
    config: ProducerConfig,
    coordinator: Place,
    group: str,
    partitions: Collection[TopicPartition],
    asking: Ask,
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    def make(connection: Connection) -> Any:
        version = connection.versions.choose(ApiKey.OFFSET_FETCH)
        schema: Any = request_type(ApiKey.OFFSET_FETCH, version)
        topics = _topics(schema, partitions)
        return schema(group_id=group, topics=topics, require_stable=True)

    answer = await asking(config, coordinator, ApiKey.OFFSET_FETCH, make)
    _check(answer.error_code, group)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            _check(part.error_code, group)
            if part.committed_offset >= 0:
                place = TopicPartition(str(topic.name), int(part.partition_index))
                offset = int(part.committed_offset)
                found[place] = OffsetAndMetadata(offset, part.metadata or "")
    return found


def _check(code: int, group: str) -> None:
    if code == ErrorCode.unstable_offset_commit:
        raise errors.broker_error(int(code), "an open transaction may still change them")
    if code:
        raise errors.broker_error(int(code), f"the committed offsets of {group}")


def _topics(schema: Any, partitions: Collection[TopicPartition]) -> tuple[Any, ...]:
    of_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        of_topic.setdefault(topic, []).append(partition)
    # The class of an entry is in the same module as the class of the request: kio has one module
    # for each version of a message.
    entry = importlib.import_module(schema.__module__).OffsetFetchRequestTopic
    return tuple(entry(name=name, partition_indexes=(*of,)) for name, of in of_topic.items())
