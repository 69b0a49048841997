"""AddPartitionsToTxn (KIP-98): add partitions to a transaction.

The request is needed in transactions v1 only: in v2 the first Produce request to a partition adds
the partition (KIP-890). The coordinator adds all partitions of a request, or none.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["AddPartitionsAnswer", "add_partitions_answer", "add_partitions_request"]

API_KEY: Final = 24
_LAST_FOR_CLIENTS: Final = 3


class AddPartitionsAnswer(NamedTuple):
    """The coordinator's answer: an error code for each (topic, partition) in the answer."""

    error_codes: Mapping[tuple[str, int], int]
    throttle_ms: int = 0


def add_partitions_request(
    version: int, who: TransactionalIdentity, partitions: Iterable[tuple[str, int]]
) -> RequestPayload:
    """Make the request that adds (topic, partition) pairs to the transaction of ``who``.

    Raises:
        InternalError: Clients have no such version; v4 and up are for requests between brokers.
    """
    schema: Any = request_type(API_KEY, version)
    if schema is None or version > _LAST_FOR_CLIENTS:
        raise InternalError(f"no AddPartitionsToTxn version {version}")
    topic_type = importlib.import_module(schema.__module__).AddPartitionsToTxnTopic
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    request: RequestPayload = schema(
        v3_and_below_transactional_id=who.transactional_id,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.producer_epoch,
        v3_and_below_topics=tuple(
            topic_type(name=name, partitions=tuple(indexes)) for name, indexes in by_topic.items()
        ),
    )
    return request


def add_partitions_answer(response: Any) -> AddPartitionsAnswer:
    """Convert a decoded answer, of any version up to v3, to plain data."""
    return AddPartitionsAnswer(
        {
            (str(topic.name), int(part.partition_index)): int(part.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        },
        throttle_ms(response.throttle_time),
    )
