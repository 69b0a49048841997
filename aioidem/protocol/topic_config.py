"""DescribeConfigs for one question: does this broker name KIP-1269's topic config?

A broker that does not know a config leaves it out of the answer, and one that only stores it
(because somebody set it) answers a null value, so "names" means: listed, with a value (KIP-1269,
and design.md on KIP-758's false positive).
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem.errors import InternalError
from aioidem.protocol.messages import request_type

__all__ = ["RETAIN_CONFIG", "names_retain_config", "topic_config_request"]

API_KEY = 32
RETAIN_CONFIG: Final = "producer.state.batches.to.retain"
_TOPIC = 2


def topic_config_request(version: int, topic: str) -> RequestPayload:
    """Ask for the one config of the one topic.

    Raises:
        InternalError: the version is not one that kio has.
    """
    schema = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no DescribeConfigs version {version}")
    module = importlib.import_module(schema.__module__)
    resource = module.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=(RETAIN_CONFIG,)
    )
    values: dict[str, Any] = {"resources": (resource,)}
    known = {field.name for field in dataclasses.fields(schema)}
    for flag in ("include_synonyms", "include_documentation"):
        if flag in known:
            values[flag] = False
    return schema(**values)


def names_retain_config(response: Any) -> bool:
    """Whether the answer lists the config with a value."""
    return any(
        config.name == RETAIN_CONFIG and config.value is not None
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    )
