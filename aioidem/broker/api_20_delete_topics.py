"""DeleteTopics (v1 to v6), by name or (v6) by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from aioidem.broker.entities import ZERO_MS, Entity, respond
from aioidem.broker.requests import Context, Now, Reply

if TYPE_CHECKING:
    from aioidem.broker.state import ClusterState
    from aioidem.broker.topology import Broker

__all__ = ["handle"]

_API: Final = 20
_FIRST_WITH_IDS: Final = 6


def handle(cluster: ClusterState, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Each topic succeeds or fails by itself."""
    wanted: list[tuple[str | None, Any]]
    if context.api_version >= _FIRST_WITH_IDS:
        wanted = [(state.name, state.topic_id) for state in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    responses = []
    for name, topic_id in wanted:
        topic = cluster.topics.get(name) if name is not None else None
        if topic is None and topic_id is not None:
            topic = cluster.topics_by_id.get(topic_id)
        answer: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_message": None}
        if topic is not None:
            cluster.delete_topic(topic)
            answer |= {"name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none}
        elif name is not None:
            answer["error_code"] = ErrorCode.unknown_topic_or_partition
        else:
            answer["error_code"] = ErrorCode.unknown_topic_id
        responses.append(answer)
    values = {"throttle_time": ZERO_MS, "responses": responses}
    return Now(respond(_API, context.api_version, values))
