"""ListOffsets for one partition: where its log begins or ends, or the first offset at a time."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import request_type
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_VERSION",
    "MIN_VERSION",
    "ListedOffset",
    "list_offsets_request",
    "listed_offset",
]

MIN_VERSION: Final = 2
MAX_VERSION: Final = 9
EARLIEST: Final = -2
"""In the place of a timestamp: the first offset of the log."""
LATEST: Final = -1
"""In the place of a timestamp: the end of the log (its committed part)."""

_API_KEY: Final = 2


class ListedOffset(NamedTuple):
    """An offset, or -1 if no record has the timestamp or a later one."""

    error_code: int
    offset: int


def list_offsets_request(
    version: int,
    topic: str,
    partition: int,
    timestamp: int,
    *,
    isolation: int = 0,
    leader_epoch: int = -1,
) -> RequestPayload:
    """Make a ListOffsets request for one partition.

    Args:
        version: from `MIN_VERSION` to `MAX_VERSION`.
        topic: the topic's name.
        partition: the partition's number.
        timestamp: milliseconds since the Unix epoch, `EARLIEST` or `LATEST`.
        isolation: 1 to leave out what is above the last stable offset.
        leader_epoch: the leader epoch that is known, from version 4 on: a broker that knows another
            one refuses the request (KIP-320). -1 asks whoever leads.

    Raises:
        InternalError: The library kio has no such version.
    """
    schema = request_type(_API_KEY, version)
    if schema is None:
        raise InternalError(f"no ListOffsets v{version}")
    module = importlib.import_module(schema.__module__)
    part = _make(
        module.ListOffsetsPartition,
        partition_index=partition,
        timestamp=timestamp,
        current_leader_epoch=leader_epoch,
    )
    wanted = _make(module.ListOffsetsTopic, name=topic, partitions=(part,))
    request: RequestPayload = _make(
        schema, replica_id=-1, isolation_level=isolation, topics=(wanted,)
    )
    return request


def listed_offset(response: Any, partition: int) -> ListedOffset:
    """Read one partition's offset, or UNKNOWN_SERVER_ERROR if the answer lacks the partition."""
    for topic in response.topics:
        for part in topic.partitions:
            if part.partition_index == partition:
                return ListedOffset(int(part.error_code), int(part.offset))
    return ListedOffset(ErrorCode.unknown_server_error, -1)


def _make(schema: Callable[..., Any], **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    return schema(**{name: value for name, value in values.items() if name in known})
