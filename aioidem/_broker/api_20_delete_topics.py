"""DeleteTopics (v1 to v6): delete topics by name or (v6) by id."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Topic
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 20
_FIRST_WITH_IDS: Final = 6


def handle(cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Delete each topic independently of the others.

    A topic that the request names twice, or by name and by id, is answered INVALID_REQUEST.
    """
    wanted: list[tuple[str | None, Any]]
    if context.api_version >= _FIRST_WITH_IDS:
        wanted = [(state.name, state.topic_id) for state in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    found = [_find(cluster, name, topic_id) for name, topic_id in wanted]
    responses: dict[Any, dict[str, Any]] = {}
    for (name, topic_id), topic in zip(wanted, found, strict=True):
        key: Any = topic or (name, topic_id)
        if key in responses or (found.count(topic) > 1 and topic is not None):
            code, message = ErrorCode.invalid_request, "Duplicate topic."
            shown = topic_id if topic is None or name is None else None
        elif topic is not None:
            cluster.delete_topic(topic)
            code, message, shown = ErrorCode.none, None, topic.id
        elif name is not None:
            code, message = ErrorCode.unknown_topic_or_partition, "This server does not host it."
            shown = topic_id
        else:
            code, message, shown = ErrorCode.unknown_topic_id, "No topic has this id.", topic_id
        responses[key] = {
            "name": name if topic is None else topic.name,
            "topic_id": shown,
            "error_code": code,
            "error_message": message,
        }
    values = {"throttle_time": ZERO_MS, "responses": responses.values()}
    return Now(respond(_API, context.api_version, values))


def _find(cluster: Cluster, name: str | None, topic_id: Any) -> Topic | None:
    if name is not None:
        return cluster.topics.get(name)
    return cluster.topology.topics_by_id.get(topic_id)
