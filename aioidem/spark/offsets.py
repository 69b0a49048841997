"""A group's committed offset, asked of its coordinator: what a task knows of the attempt before.

The producer commits offsets and never reads them, so this asks by itself: the coordinator, then
OffsetFetch with `require_stable`.

Invariants:

* While a transaction may still change the offset there is no answer (UNSTABLE_OFFSET_COMMIT), and
  it is asked again: an answer given without `require_stable` would be the offset of before.
* Bounded by `timeout`; the last reason is in the error.

Rejected: a consumer for this (aiokafka's does not ask for stable offsets).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

import anyio

from aioidem import errors
from aioidem.config import ProducerConfig
from aioidem.network.connection import Connection
from aioidem.protocol.find_coordinator import (
    CoordinatorKey,
    coordinator_answer,
    coordinator_request,
)
from aioidem.protocol.messages import request_type
from aioidem.spark.asking import Place, ask
from aioidem.structs import OffsetAndMetadata, TopicPartition

__all__ = ["committed_offset"]

_FIND_COORDINATOR: Final = 10
_OFFSET_FETCH: Final = 9
_VERSION: Final = 7  # the first with require_stable, the last for one group; Kafka 2.5 to 4.x
_PAUSE: Final = 0.1
# Timed out, loading, no coordinator, another coordinator, a transaction that is not over.
_AGAIN: Final = frozenset({7, 13, 14, 15, 16, 88})


async def committed_offset(
    config: ProducerConfig, group: str, where: TopicPartition, timeout: float
) -> OffsetAndMetadata | None:
    """What the group committed for a partition; None if nothing.

    Raises:
        KafkaTimeoutError: no stable answer within `timeout` seconds.
        AuthenticationFailedError, BrokerResponseError: refused, for example
        `GroupAuthorizationFailedError`.
    """
    servers = cycle(Place(host, port) for host, port in config.bootstrap_servers)
    reason: errors.KafkaError | None = None
    with anyio.move_on_after(timeout):
        while True:
            try:
                coordinator = await _coordinator(config, next(servers), group)
                return await _fetch(config, coordinator, group, where)
            except errors.AuthenticationFailedError:
                raise
            except errors.BrokerResponseError as error:
                if error.errno not in _AGAIN:
                    raise
                reason = error
            except (errors.KafkaConnectionError, errors.KafkaTimeoutError) as error:
                reason = error
            await anyio.sleep(_PAUSE)
    raise errors.KafkaTimeoutError(
        f"the committed offset of {group} is not known within {timeout:g} s: {reason}"
    )


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
