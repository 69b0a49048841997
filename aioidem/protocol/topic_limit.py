"""DescribeConfigs for one question: how large may a record batch of this topic be?

`max.message.bytes` bounds a batch as it is on the wire, header and compression included
(MESSAGE_TOO_LARGE), `segment.bytes` what fits into a file of the log (RECORD_LIST_TOO_LARGE). The
answer names the value in force, the broker's own default included. It needs DESCRIBE_CONFIGS on the
topic; without it nothing is told.
"""

from __future__ import annotations

from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem.protocol.describe_configs import TOPIC, describe_configs_request, positive

__all__ = ["MESSAGE_BYTES", "topic_limit", "topic_limit_request"]

MESSAGE_BYTES: Final = "max.message.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"


def topic_limit_request(version: int, topic: str) -> RequestPayload:
    """Ask for the limits of one topic.

    Raises:
        InternalError: the version is not one that kio has.
    """
    return describe_configs_request(version, TOPIC, topic, (MESSAGE_BYTES, _SEGMENT_BYTES))


def topic_limit(response: Any) -> int | None:
    """Bytes that a batch may have at most; None when the answer does not say."""
    values = {
        config.name: positive(config.value)
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    }
    most = values.get(MESSAGE_BYTES)
    segment = values.get(_SEGMENT_BYTES)
    return most if most is None or segment is None else min(most, segment)
