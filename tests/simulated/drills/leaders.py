"""The model of a small cluster: who leads which partition, and whether the leader is reached."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

from aioidem._config import ProducerConfig
from aioidem._engine.cluster import ClusterView, TopicView
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.partition import PartitionState
from aioidem._engine.route import Route
from aioidem._protocol.metadata import BrokerAddress, PartitionUpdate
from aioidem.errors import KafkaConnectionError, KafkaError

from .quiet_effects import QuietEffects

__all__ = ["KEYS", "TOPIC_IDS", "Leaders", "due_obstacle", "parts_of"]

KEYS: Final = (("t", 0), ("t", 1), ("u", 0))
TOPIC_IDS: Final = {"t": UUID(int=1), "u": None}
_NO_LEADER: Final = -1
_UNKNOWN: Final = 9
"""The node id of a broker whose address is not known."""


class Leaders:
    """The brokers of a cluster, and what the producer knows of them and of the leaders."""

    def __init__(self, dice: Random, config: ProducerConfig, told: QuietEffects) -> None:
        self._dice = dice
        self._told = told
        self.view = ClusterView()
        self.connections = Connections(config, lambda: 0.5)
        self.connections.learn(BrokerAddress(number, f"b{number}", 9092) for number in (1, 2))
        self._led: dict[tuple[str, int], int] = {}
        self._links: dict[int, Link] = {}

    def change(self, key: tuple[str, int]) -> None:
        """Let a partition have another leader, or none."""
        topic, index = key
        if topic not in self.view.topics:
            self.view.topics[topic] = TopicView(topic, TOPIC_IDS[topic])
        self._led[key] = self._dice.choice((_NO_LEADER, 1, 1, 2, _UNKNOWN))
        self.view.topics[topic].merge(PartitionUpdate(index, self._led[key], len(self._led)))

    def connect(self, node_id: int, now: float) -> None:
        """Open or lose a connection; on an open one an answer came perhaps, and a throttle time."""
        node, dice = self.connections.nodes[node_id], self._dice
        if node.link is not None and dice.random() < 0.4:
            self.connections.links.pop(node.link.link_id)
            node.link = None
            node.down_since = dice.choice((None, now - 2.5))
            node.last_error = dice.choice((None, KafkaConnectionError("refused")))
            node.backoff.next_delay()
            return
        link = node.link
        if link is None:
            node.retry_at = 0.0
            self.connections.to(node_id, now, [])
            link = node.link
        if link is not None:
            link.throttle(dice.choice((0, 1500)), now)
            link.answered_at = dice.choice((None, now))

    def route(self) -> Route:
        """Return a route to one of the brokers, perhaps over a connection that is closed."""
        node_id = self._dice.choice((1, 2))
        link = self.connections.nodes[node_id].link
        return Route(1000 if link is None else link.link_id, node_id, 0)

    def link_of(self, state: PartitionState) -> Link | None:
        """Return the connection that a partition's batches go over."""
        route = state.leadership.route
        links = [node.link for node in self.connections.nodes.values() if node.link is not None]
        same = [link for link in links if route is not None and link.link_id == route.link_id]
        return same[0] if same else None

    def status(self, state: PartitionState, now: float) -> LeaderStatus:
        """Return what is known of a partition's leader, or of the last one."""
        key, route = (state.topic, state.partition), state.leadership.route
        leader = self._led.get(key, _NO_LEADER)
        named = leader if leader != _NO_LEADER else None if route is None else route.leader_id
        if named is None or named not in self.connections.nodes:
            name = None if named is None else f"broker {named}"
            return LeaderStatus(name, leader != _NO_LEADER, None, 0, None)
        node = self.connections.nodes[named]
        waits = key in self._told.lacking
        return LeaderStatus(
            f"broker {named} (b{named}:9092)",
            leads=leader != _NO_LEADER,
            down_since=node.down_since,
            attempts=node.backoff.failures,
            error=node.last_error,
            throttle=0.0 if node.link is None else node.link.throttle_at(now),
            not_added=f"{key[0]}-{key[1]} waits" if waits else None,
            refusal=self._told.refused if waits else None,
        )


def due_obstacle(
    busy: Sequence[PartitionState], leaders: Leaders, now: float
) -> tuple[object, ...] | None:
    """Return the error that tells what calls wait for, in parts; None if they wait for nothing.

    It tells of the partition whose records have waited longest. What is the matter with one
    partition, and that no broker is reached, are derived in the drills "late" and "linked".
    """
    unreachable = leaders.connections.unreachable(now)
    if unreachable is not None:
        return parts_of(unreachable)
    waiting = [state for state in busy if state.unsettled]
    if not waiting:
        return None
    first = min(waiting, key=lambda state: state.oldest)
    leader = leaders.status(first, now)
    records = "1 record" if first.unsettled == 1 else f"{first.unsettled} records"
    text = (
        f"{first.where}: {records} without an outcome, the oldest queued "
        f"{now - first.oldest:.1f} s ago: {first.deadlines.obstacle(leader, now)}"
    )
    others = ["", "; 1 more partition waits"][: len(waiting)]
    last = first.setbacks.trouble and first.setbacks.trouble.last
    cause = last if isinstance(last, KafkaError) else leader.error
    if len(waiting) > 2:
        others = [f"; {len(waiting) - 1} more partitions wait"]
    return KafkaError, text + others[-1], cause


def parts_of(error: KafkaError | None) -> tuple[object, ...] | None:
    """Return what of an error is compared: its class, its text and its cause."""
    return None if error is None else (type(error), str(error.args[0]), error.__cause__)
