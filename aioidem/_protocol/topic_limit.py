"""DescribeConfigs for one question: how large may a record batch of this topic be?

`max.message.bytes` bounds a batch as it is on the wire, header and compression included
(MESSAGE_TOO_LARGE), `segment.bytes` what fits into a file of the log (RECORD_LIST_TOO_LARGE). The
answer names the value in force, the broker's own default included. It needs DESCRIBE_CONFIGS on the
topic; without it nothing is told.

Both bound a batch again as the broker stores it. A topic whose `compression.type` is another codec
than the producer's has every batch compressed anew, and how large that makes a compressed batch
cannot be known from its size on the wire.
"""

from __future__ import annotations

from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.describe_configs import TOPIC, describe_configs_request, positive

__all__ = ["MESSAGE_BYTES", "topic_limit", "topic_limit_request"]

MESSAGE_BYTES: Final = "max.message.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"
_COMPRESSION: Final = "compression.type"
_AS_SENT: Final = "producer"
_NO_CODEC: Final = "uncompressed"
# What is left for a codec that makes records larger which do not compress: snappy by up to a sixth.
_IF_COMPRESSED: Final = 6 / 7


def topic_limit_request(version: int, topic: str) -> RequestPayload:
    """Ask for the limits of one topic.

    Raises:
        InternalError: the version is not one that kio has.
    """
    keys = (MESSAGE_BYTES, _SEGMENT_BYTES, _COMPRESSION)
    return describe_configs_request(version, TOPIC, topic, keys)


def topic_limit(response: Any, compression: str) -> int | None:
    """Return the most bytes that a batch may have on the wire.

    Args:
        response: the answer to `topic_limit_request`.
        compression: the producer's `compression_type`.

    Returns:
        The limit; None when the answer does not say, or when the broker decompresses what the
        producer compressed, to store it in another way.
    """
    values = {
        config.name: config.value
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    }
    most = positive(values.get(MESSAGE_BYTES))
    segment = positive(values.get(_SEGMENT_BYTES))
    if most is None:
        return None
    limit = most if segment is None else min(most, segment)
    codec = _NO_CODEC if compression == "none" else compression
    if (values.get(_COMPRESSION) or _AS_SENT) in (_AS_SENT, codec):
        return limit
    return int(limit * _IF_COMPRESSED) or None if codec == _NO_CODEC else None
