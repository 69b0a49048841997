"""DescribeConfigs for one question: does this broker name KIP-1269's topic config?

A broker that does not know a config leaves it out of the answer, and one that only stores it
(because somebody set it) answers a null value, so "names" means: listed, with a value (KIP-1269,
and design.md on KIP-758's false positive).
"""

from __future__ import annotations

from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem.protocol.describe_configs import TOPIC, describe_configs_request

__all__ = ["RETAIN_CONFIG", "names_retain_config", "topic_config_request"]

RETAIN_CONFIG: Final = "producer.state.batches.to.retain"


def topic_config_request(version: int, topic: str) -> RequestPayload:
    """Ask for the one config of the one topic.

    Raises:
        InternalError: the version is not one that kio has.
    """
    return describe_configs_request(version, TOPIC, topic, (RETAIN_CONFIG,))


def names_retain_config(response: Any) -> bool:
    """Whether the answer lists the config with a value."""
    return any(
        config.name == RETAIN_CONFIG and config.value is not None
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    )
