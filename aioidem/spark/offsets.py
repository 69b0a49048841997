"""A group's committed offset, asked of its coordinator: what a task knows of the attempt before.

The producer commits offsets and never reads them, so this asks by itself: the coordinator, then
OffsetFetch with `require_stable`.

Invariants:

* While a transaction may still change the offset there is no answer (UNSTABLE_OFFSET_COMMIT), and
  it is asked again: an answer given without `require_stable` would be the offset of before.
* Bounded by `timeout`.

Rejected: a consumer for this (aiokafka's does not ask for stable offsets).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aioidem import errors
from aioidem.config import ProducerConfig
from aioidem.network.connection import Connection
from aioidem.protocol.find_coordinator import (
    CoordinatorKey,
    coordinator_answer,
    coordinator_request,
)
from aioidem.protocol.messages import request_type
from aioidem.spark.asking import Place, ask, until_known
from aioidem.structs import OffsetAndMetadata, TopicPartition

__all__ = ["committed_offset"]

_FIND_COORDINATOR: Final = 10
_OFFSET_FETCH: Final = 9
_VERSION: Final = 7  # the first with require_stable, the last for one group; Kafka 2.5 to 4.x


async def committed_offset(
    config: ProducerConfig, group: str, where: TopicPartition, timeout: float
) -> OffsetAndMetadata | None:
    """What the group committed for a partition; None if nothing.

    Raises:
        KafkaTimeoutError: no stable answer within `timeout` seconds.
        AuthenticationFailedError, BrokerResponseError: refused, for example
        `GroupAuthorizationFailedError`.
    """

    async def find(server: Place) -> OffsetAndMetadata | None:
        return await _fetch(config, await _coordinator(config, server, group), group, where)

    return await until_known(config, f"the committed offset of {group}", timeout, find)


async def _coordinator(config: ProducerConfig, server: Place, group: str) -> Place:
    def make(connection: Connection) -> Any:
        version = connection.versions.choose(_FIND_COORDINATOR)
        return coordinator_request(version, group, CoordinatorKey.GROUP)

    answer = coordinator_answer(await ask(config, server, _FIND_COORDINATOR, make), group)
    if answer.error_code:
        raise errors.broker_error(answer.error_code, f"the coordinator of {group}")
    return Place(answer.host, answer.port)


async def _fetch(
    config: ProducerConfig, coordinator: Place, group: str, where: TopicPartition
) -> OffsetAndMetadata | None:
    def make(connection: Connection) -> Any:
        lowest, highest = connection.versions.offered.get(_OFFSET_FETCH, (0, -1))
        schema: Any = request_type(_OFFSET_FETCH, _VERSION)
        if schema is None or not lowest <= _VERSION <= highest:
            raise errors.IncompatibleBrokerVersion(f"no OffsetFetch version {_VERSION}")
        topic = _topic_type(schema)(name=where.topic, partition_indexes=(where.partition,))
        return schema(group_id=group, topics=(topic,), require_stable=True)

    answer = await ask(config, coordinator, _OFFSET_FETCH, make)
    for code, offset, metadata in _answers(answer):
        if code:
            raise errors.broker_error(code, f"the committed offset of {group}")
        if offset >= 0:
            return OffsetAndMetadata(offset, metadata)
    return None


def _topic_type(schema: Any) -> Any:
    import importlib

    return importlib.import_module(schema.__module__).OffsetFetchRequestTopic


def _answers(answer: Any) -> Iterator[tuple[int, int, str]]:
    yield int(answer.error_code), -1, ""
    for topic in answer.topics:
        for part in topic.partitions:
            yield int(part.error_code), int(part.committed_offset), part.metadata or ""
