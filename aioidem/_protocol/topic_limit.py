"""DescribeConfigs of a topic, to learn how large one of its record batches may be.

`max.message.bytes` limits a batch as it is on the wire, with header and compression
(MESSAGE_TOO_LARGE). `segment.bytes` limits what fits into one file of the log
(RECORD_LIST_TOO_LARGE). The answer has the values in force, even if they are the broker's defaults.
The request needs the ACL DESCRIBE_CONFIGS on the topic; without it the limits stay unknown.

Both configs also limit a batch as the broker stores it. If a topic's `compression.type` is another
codec than the producer's, the broker compresses every batch again, and the resulting size of a
compressed batch cannot be derived from its size on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from aioidem._protocol.describe_configs import TOPIC, describe_configs_request, positive

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "IF_COMPRESSED",
    "LIMIT_CONFIGS",
    "MESSAGE_BYTES",
    "limit_of",
    "topic_limit",
    "topic_limit_request",
]

MESSAGE_BYTES: Final = "max.message.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"
_COMPRESSION: Final = "compression.type"
LIMIT_CONFIGS: Final = (MESSAGE_BYTES, _SEGMENT_BYTES, _COMPRESSION)
"""The configs of a topic that limit its batches."""
_AS_SENT: Final = "producer"
_NO_CODEC: Final = "uncompressed"
IF_COMPRESSED: Final = 6 / 7
"""The share of a limit that records may have before they are compressed.

A codec can enlarge what it cannot compress: snappy adds up to a sixth.
"""


def topic_limit_request(version: int, topic: str) -> RequestPayload:
    """Make the request for the limits of one topic.

    Raises:
        InternalError: The library kio has no such version.
    """
    return describe_configs_request(version, TOPIC, topic, LIMIT_CONFIGS)


def topic_limit(response: Any, compression: str) -> int | None:
    """Return the most bytes that a batch may have on the wire.

    Args:
        response: The answer to `topic_limit_request`.
        compression: The producer's `compression_type`.

    Returns:
        The limit; None if the answer does not say, or if the broker will decompress the batch and
        compress it with another codec.
    """
    return limit_of(
        {
            config.name: config.value
            for result in response.results
            if int(result.error_code) == ErrorCode.none
            for config in result.configs
        },
        compression,
    )


def limit_of(values: Mapping[str, str | None], compression: str) -> int | None:
    """Return the same as `topic_limit`, from the values of `LIMIT_CONFIGS` by their names."""
    most = positive(values.get(MESSAGE_BYTES))
    segment = positive(values.get(_SEGMENT_BYTES))
    if most is None:
        return None
    limit = most if segment is None else min(most, segment)
    codec = _NO_CODEC if compression == "none" else compression
    if (values.get(_COMPRESSION) or _AS_SENT) in (_AS_SENT, codec):
        return limit
    return int(limit * IF_COMPRESSED) or None if codec == _NO_CODEC else None
