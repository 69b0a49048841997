"""Fetch, used only to find out which of our batches are in a partition's committed log.

v13 names the topic by id, so a topic that was deleted and created again cannot be taken for its
predecessor. Older brokers are asked by name.
"""

from __future__ import annotations

import dataclasses
import importlib
from datetime import timedelta
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "MAX_VERSION",
    "WITH_TOPIC_IDS",
    "ReadBackAnswer",
    "read_back_answer",
    "read_back_request",
]

API_KEY = 1
MAX_VERSION: Final = 13
"""The highest version of Fetch that is used; later ones add nothing that reading back needs."""

WITH_TOPIC_IDS: Final = 13
"""The first version of Fetch that names topics by their ids."""
# The bytes to ask for in one Fetch (a page). If all batches are of the smallest size, a page has a
# few thousand of them, which take about 15 ms to decode.
_PAGE_BYTES: Final = 1 << 18
_INT32: Final = Struct(">i")


class ReadBackAnswer(NamedTuple):
    """One page of the log; `high_watermark` is the end of its committed part."""

    error_code: int
    high_watermark: int
    records: bytes
    throttle_ms: int = 0


def read_back_request(
    version: int,
    topic: str,
    topic_id: UUID | None,
    partition: int,
    offset: int,
    *,
    leader_epoch: int = -1,
    page_bytes: int = _PAGE_BYTES,
) -> RequestPayload:
    """Make a Fetch request for one page from `offset` on; the broker does not wait for new records.

    Args:
        version: the version of Fetch.
        topic: the topic's name.
        topic_id: the topic's id, by which it is named from version 13 on.
        partition: the partition's number.
        offset: the first offset of the page.
        leader_epoch: the leader epoch that is known, from version 9 on: a broker that knows another
            one refuses the request (KIP-320). -1 asks whoever leads.
        page_bytes: the size of the page.

    Raises:
        InternalError: The library kio has no such version, or the version names topics by id and
            the id is unknown.
    """
    schema = request_type(API_KEY, version)
    if schema is None or (version >= WITH_TOPIC_IDS and topic_id is None):
        raise InternalError(f"no Fetch v{version} for {topic!r}")
    module = importlib.import_module(schema.__module__)
    part = _make(
        module.FetchPartition,
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=leader_epoch,
        partition_max_bytes=page_bytes,
    )
    wanted = _make(module.FetchTopic, topic=topic, topic_id=topic_id, partitions=(part,))
    request: RequestPayload = _make(
        schema,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=page_bytes,
        isolation_level=0,
        topics=(wanted,),
        forgotten_topics_data=(),
    )
    return request


def _make(schema: Any, **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})


def read_back_answer(
    response: Any, partition: int, *, page_bytes: int = _PAGE_BYTES
) -> ReadBackAnswer:
    """Read one partition's records in a Fetch answer, or UNKNOWN_SERVER_ERROR if it is missing.

    Args:
        response: the answer.
        partition: the partition's number.
        page_bytes: the size of the page that was requested.
    """
    throttle = throttle_ms(getattr(response, "throttle_time", 0))
    top = int(getattr(response, "error_code", 0))
    parts = [part for topic in response.responses for part in topic.partitions]
    part = next((part for part in parts if part.partition_index == partition), None)
    if top or part is None:
        return ReadBackAnswer(top or ErrorCode.unknown_server_error, -1, b"", throttle)
    return ReadBackAnswer(
        int(part.error_code),
        int(part.high_watermark),
        _page(bytes(part.records or b""), page_bytes),
        throttle,
    )


def _page(records: bytes, page_bytes: int) -> bytes:
    """Cut the records of a Fetch answer to the requested size, but never inside the first batch.

    The page is what remains. A broker sends more than the requested size only if the first batch
    is larger than that; the whole first batch is then kept.
    """
    first = 12 + _INT32.unpack_from(records, 8)[0] if len(records) >= page_bytes else 0
    return records[: max(first, page_bytes)]
