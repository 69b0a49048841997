"""DescribeConfigs (v1 to v4): return the configs of topics and brokers.

A broker that does not implement KIP-1269 leaves out that KIP's configs, even if a newer broker has
set them. So a client recognises by the configs in the answer whether a broker implements the KIP.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.configs import (
    BROKER_CONFIGS,
    RANGE_CONFIGS,
    SEQUENCE_RANGE,
    TOPIC_CONFIGS,
    Definition,
    known_to,
)
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Topic
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["RESOURCE_BROKER", "RESOURCE_TOPIC", "broker_named", "handle", "topic_configs"]

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
_API: Final = 32
_FROM_TOPIC: Final = 1
_FROM_BROKER: Final = 2
_FROM_CLUSTER: Final = 3
_FROM_DEFAULT: Final = 5


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Describe each topic or broker; an unknown one is answered with an error of its own."""
    results = []
    for wanted in request.resources:
        code, message, configs = ErrorCode.none, "", []
        try:
            configs = _describe(cluster, broker, wanted)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        for config in configs:
            if not request.include_synonyms:
                config["synonyms"] = []
            if not getattr(request, "include_documentation", False):
                config["documentation"] = None
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": wanted.resource_type,
                "resource_name": wanted.resource_name,
                "configs": configs,
            }
        )
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "results": results}))


def _describe(cluster: Cluster, broker: Broker, wanted: Entity) -> list[dict[str, Any]]:
    # Null or an empty list of keys means all keys.
    keys = wanted.configuration_keys or None
    if wanted.resource_type == RESOURCE_TOPIC:
        topic = cluster.topics.get(wanted.resource_name)
        if topic is None:
            cluster.topology.check_topic_name(wanted.resource_name)
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition, "This server does not host it."
            )
        return topic_configs(cluster, broker, topic, keys)
    if wanted.resource_type == RESOURCE_BROKER:
        target = broker_named(broker, wanted.resource_name)
        return _broker_configs(cluster, broker, target, keys)
    raise RefusedError(
        ErrorCode.invalid_request, f"Unsupported resource type {wanted.resource_type}"
    )


def broker_named(asked: Broker, name: str) -> Broker | None:
    """Return the broker that was asked if ``name`` is its id; None if ``name`` is "".

    The empty name stands for the configs of the whole cluster.

    Raises:
        RefusedError: INVALID_REQUEST, for the name of another broker.
    """
    if name == "":
        return None
    if name != str(asked.id):
        raise RefusedError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {asked.id} or empty string, but received {name}",
        )
    return asked


def topic_configs(
    cluster: Cluster, broker: Broker, topic: Topic, keys: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return a topic's configs as this broker describes them: those in ``keys``, or all (None)."""
    described = []
    for definition in TOPIC_CONFIGS.values():
        if not known_to(definition, retains=broker.retains) or _left_out(definition.name, keys):
            continue
        below = _levels(cluster, broker, definition.broker_name)
        own = topic.overrides.get(definition.name)
        if own is not None:
            below.insert(0, (definition.name, own, _FROM_TOPIC))
        described.append(_config(definition, below))
    return described


def _broker_configs(
    cluster: Cluster, asked: Broker, broker: Broker | None, keys: Collection[str] | None
) -> list[dict[str, Any]]:
    described = []
    for definition in BROKER_CONFIGS.values():
        if not known_to(definition, retains=asked.retains) or _left_out(definition.name, keys):
            continue
        levels = _levels(cluster, broker, definition.name)
        if broker is not None or levels:
            described.append(_config(definition, levels))
    ours = dict(BROKER_CONFIGS)
    if asked.sequence_range is not None:
        ours |= RANGE_CONFIGS
        if not _left_out(SEQUENCE_RANGE, keys):
            level = (SEQUENCE_RANGE, str(asked.sequence_range), _FROM_BROKER)
            described.append(_config(RANGE_CONFIGS[SEQUENCE_RANGE], [level]))
    strangers = dict.fromkeys([*cluster.configs, *(broker.configs if broker else ())])
    return described + [
        _stranger(name, from_broker=name not in cluster.configs)
        for name in strangers
        if name not in ours and not _left_out(name, keys)
    ]


def _left_out(name: str, keys: Collection[str] | None) -> bool:
    return keys is not None and name not in keys


def _levels(
    cluster: Cluster, broker: Broker | None, name: str | None
) -> list[tuple[str, str, int]]:
    if name is None:
        return []
    levels = []
    if broker is not None and name in broker.configs:
        levels.append((name, broker.configs[name], _FROM_BROKER))
    if name in cluster.configs:
        levels.append((name, cluster.configs[name], _FROM_CLUSTER))
    return levels


def _config(definition: Definition, levels: list[tuple[str, str, int]]) -> dict[str, Any]:
    name = definition.default_name
    if name is None:
        name = definition.broker_name or definition.name
    default = (name, definition.default, _FROM_DEFAULT)
    _, value, source = [*levels, default][0]
    synonyms = [*levels, default] if name else levels
    return {
        "name": definition.name,
        "value": value,
        "read_only": definition.read_only,
        "is_default": source == _FROM_DEFAULT,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": n, "value": v, "source": s} for n, v, s in synonyms],
        "config_type": definition.type,
        "documentation": definition.documentation,
    }


def _stranger(name: str, *, from_broker: bool) -> dict[str, Any]:
    """Describe a broker config that Kafka does not know, without its value: it may be a secret."""
    return {
        "name": name,
        "value": None,
        "read_only": False,
        "is_default": False,
        "config_source": _FROM_BROKER if from_broker else _FROM_CLUSTER,
        "is_sensitive": True,
        "synonyms": [],
        "config_type": 0,
        "documentation": None,
    }
