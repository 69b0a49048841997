"""IncrementalAlterConfigs (v0 to v1): change some configs of topics and brokers (KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.api_32_describe_configs import RESOURCE_BROKER, RESOURCE_TOPIC, broker_named
from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigType,
    Definition,
    validate,
)
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 44
_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Change each topic or broker independently of the others: all of its configs or none."""
    responses = []
    for wanted in request.resources:
        code, message = ErrorCode.none, None
        try:
            _alter(cluster, broker, wanted, validate_only=request.validate_only)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
            if code is ErrorCode.unknown_server_error:
                message = None
        responses.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": wanted.resource_type,
                "resource_name": wanted.resource_name,
            }
        )
    values = {"throttle_time": ZERO_MS, "responses": responses}
    return Now(respond(_API, context.api_version, values))


def _alter(cluster: Cluster, asked: Broker, wanted: Entity, *, validate_only: bool) -> None:
    names = [change.name for change in wanted.configs]
    if len(set(names)) != len(names):
        raise RefusedError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    if wanted.resource_type == RESOURCE_TOPIC:
        topic = cluster.topics.get(wanted.resource_name)
        if topic is None:
            cluster.topology.check_topic_name(wanted.resource_name)
            raise RefusedError(ErrorCode.unknown_topic_or_partition, "The topic does not exist.")
        changed = _changed(TOPIC_CONFIGS, topic.overrides, wanted, asked)
        if not validate_only:
            cluster.topology.set_topic_configs(topic, changed)
    elif wanted.resource_type == RESOURCE_BROKER:
        broker = broker_named(asked, wanted.resource_name)
        current = cluster.configs if broker is None else broker.configs
        changed = _changed(BROKER_CONFIGS, current, wanted, asked)
        if not validate_only:
            cluster.topology.set_broker_configs(broker, changed)
    else:
        raise RefusedError(
            ErrorCode.invalid_request, f"Unsupported resource type {wanted.resource_type}"
        )


def _changed(
    table: Mapping[str, Definition], current: Mapping[str, str], wanted: Entity, asked: Broker
) -> dict[str, str]:
    changed = dict(current)
    for change in wanted.configs:
        if change.config_operation == _DELETE:
            changed.pop(change.name, None)
            continue
        value = _new_value(table, changed, change)
        _check(table, change.name, value, asked)
        changed[change.name] = value
    return changed


def _check(table: Mapping[str, Definition], name: str, value: str, asked: Broker) -> None:
    of_broker = table is BROKER_CONFIGS
    try:
        validate(table, [(name, value)], retains=asked.retains, unknown_allowed=of_broker)
    except RefusedError as refusal:
        if not of_broker:
            raise
        # Kafka answers INVALID_REQUEST for a broker where it answers INVALID_CONFIG for a topic.
        raise RefusedError(ErrorCode.invalid_request, refusal.message) from None


def _new_value(table: Mapping[str, Definition], current: Mapping[str, str], change: Entity) -> str:
    value: str | None = change.value
    if change.config_operation not in (_SET, _APPEND, _SUBTRACT):
        # An unknown operation raises an exception in Kafka, which answers UNKNOWN_SERVER_ERROR.
        raise RefusedError(
            ErrorCode.unknown_server_error, f"Unknown operation type {change.config_operation}"
        )
    if value is None:
        raise RefusedError(ErrorCode.invalid_request, f"Null value for {change.name}")
    if change.config_operation == _SET:
        return value
    definition = table.get(change.name)
    if definition is None or definition.type != ConfigType.LIST:
        raise RefusedError(
            ErrorCode.invalid_config, f"Can't append or subtract: {change.name} is not a list"
        )
    items = current.get(change.name, definition.default).split(",")
    for item in value.split(","):
        if change.config_operation == _APPEND and item not in items:
            items.append(item)
        elif change.config_operation == _SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)
