"""DescribeConfigs of a topic: does this broker name KIP-1269's topic config?

A broker that does not know a config leaves it out of the answer, and one that only stores it
(because somebody set it) answers a null value, so "names" means: listed, with a value (KIP-1269,
and design.md on KIP-758's false positive).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kio.static.protocol import RequestPayload

from aioidem._protocol.describe_configs import TOPIC, describe_configs_request

__all__ = ["RETAIN_CONFIG", "TopicConfig", "topic_config", "topic_config_request"]

RETAIN_CONFIG: Final = "producer.state.batches.to.retain"


def topic_config_request(version: int, topic: str) -> RequestPayload:
    """Ask for the one config of the one topic.

    Raises:
        InternalError: the version is not one that kio has.
    """
    return describe_configs_request(version, TOPIC, topic, (RETAIN_CONFIG,))


class TopicConfig(NamedTuple):
    """What a broker says of a topic's configs."""

    error_code: int
    """Of the answer; with any but 0 nothing is said."""
    names_window: bool
    """Whether it lists `RETAIN_CONFIG` with a value."""


def topic_config(response: Any) -> TopicConfig:
    """What the answer tells; an answer without a result counts as refused."""
    codes = [int(result.error_code) for result in response.results]
    named = any(
        config.name == RETAIN_CONFIG and config.value is not None
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    )
    return TopicConfig(next((code for code in codes if code), 0 if codes else -1), named)
