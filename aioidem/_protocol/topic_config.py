"""DescribeConfigs of a topic, to learn whether the broker knows KIP-1269's config `RETAIN_CONFIG`.

`RETAIN_CONFIG` sets how many batches per producer id a broker remembers for each partition of a
topic. A broker that does not know this config leaves it out of the answer, or, if an administrator
has set it nevertheless, answers its name with a null value. So a broker knows the config only if
the answer has a value for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.describe_configs import TOPIC, describe_configs_request

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["RETAIN_CONFIG", "TopicConfig", "topic_config", "topic_config_request"]

RETAIN_CONFIG: Final = "producer.state.batches.to.retain"


def topic_config_request(version: int, topic: str) -> RequestPayload:
    """Make the request for the config `RETAIN_CONFIG` of one topic.

    Raises:
        InternalError: The library kio has no such version.
    """
    return describe_configs_request(version, TOPIC, topic, (RETAIN_CONFIG,))


class TopicConfig(NamedTuple):
    """What an answer says about the config `RETAIN_CONFIG` of a topic."""

    error_code: int
    """The answer's error code; `names_window` is meaningful only with NONE."""
    names_window: bool
    """Whether the answer has `RETAIN_CONFIG` with a value."""


def topic_config(response: Any) -> TopicConfig:
    """Read the answer; an answer without results counts as UNKNOWN_SERVER_ERROR."""
    codes = [int(result.error_code) for result in response.results]
    named = any(
        config.name == RETAIN_CONFIG and config.value is not None
        for result in response.results
        if int(result.error_code) == ErrorCode.none
        for config in result.configs
    )
    refused = next((code for code in codes if code != ErrorCode.none), None)
    if refused is None:
        refused = int(ErrorCode.none if codes else ErrorCode.unknown_server_error)
    return TopicConfig(refused, named)
