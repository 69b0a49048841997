"""The option `topic.options`: properties that the producer has for some topics only.

    .option("topic.options", '{"clicks": {"compression.type": "zstd", "linger.ms": "50"}}')

The value is JSON, as that of `assign` or `startingOffsets` of Spark's own Kafka source: a topic's
name as part of an option's name would lose its capitals, because Spark does not tell them apart.

Invariants:

- What is wrong with the option is found on the driver, and raised with the topic's name.
- A topic can have properties of its batches and of their delivery, but none of connections and
  credentials: all topics are in one cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from aioidem._config import validate_topic
from aioidem.errors import ConfigError, RecordError

__all__ = ["NAME", "read_topic_options"]

NAME: Final = "topic.options"

_PROPERTIES: Final = (
    "acks",
    "batch.size",
    "buffer.memory",
    "compression.gzip.level",
    "compression.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delivery.timeout.ms",
    "enable.idempotence",
    "late.sealing",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "request.timeout.ms",
)


def read_topic_options(text: str | None) -> dict[str, dict[str, str]]:
    """Read the option: the properties of each topic that has its own.

    Numbers and booleans become text, as values of Java's properties are. The values themselves are
    not checked.

    Args:
        text: the option; None if it was not given.

    Raises:
        ConfigError: this is not JSON of the expected form, or has an illegal topic or property.
    """
    if text is None:
        return {}
    try:
        told = json.loads(text, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{NAME}: {error}") from error
    if not isinstance(told, dict):
        raise ConfigError(f'{NAME}: not an object such as {{"a topic": {{"linger.ms": 5}}}}')
    return {topic: _properties(topic, given) for topic, given in told.items()}


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _properties(topic: str, given: object) -> dict[str, str]:
    try:
        validate_topic(topic)
    except RecordError as error:
        raise ConfigError(f"{NAME}: {error.args[0]}") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"{NAME}: {topic}: not an object with the topic's properties")
    return {name: _text(topic, name, value) for name, value in given.items()}


def _text(topic: str, name: str, value: object) -> str:
    if name not in _PROPERTIES:
        known = ", ".join(_PROPERTIES)
        raise ConfigError(f"{NAME}: {topic}: {name} is not a property of a topic: {known}")
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        raise ConfigError(f"{NAME}: {topic}: {name} is neither text, a whole number nor a boolean")
    return str(value)
