"""DescribeConfigs for some configs of one topic or broker, in any version that kio has."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, Final

from aioidem._protocol.messages import request_type
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["BROKER", "TOPIC", "describe_configs_request", "positive"]

API_KEY: Final = 32
TOPIC: Final = 2
BROKER: Final = 4


def describe_configs_request(
    version: int, resource_type: int, name: str, keys: tuple[str, ...]
) -> RequestPayload:
    """Make the request for the configs `keys` of one topic or broker.

    Raises:
        InternalError: The library kio has no such version.
    """
    schema = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no DescribeConfigs version {version}")
    module = importlib.import_module(schema.__module__)
    resource = module.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    values: dict[str, Any] = {"resources": (resource,)}
    known = {field.name for field in dataclasses.fields(schema)}
    for flag in ("include_synonyms", "include_documentation"):
        if flag in known:
            values[flag] = False
    return schema(**values)


def positive(text: str | None) -> int | None:
    """Parse a config's value as a positive integer of at most 18 digits; None if it is not one."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text) or None
