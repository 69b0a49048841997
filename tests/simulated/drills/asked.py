"""The drill of questions to brokers: what is asked, when, and what the answers change.

The questions are about a broker's own config, about the size limit of a topic, and whether the
broker's topics name a window. A run asks each broker a few times. Here connections end, requests
stay unanswered and brokers answer other things than before, again and again. Each request and each
answer is kept as a row, and from the rows follows what is asked next, how long brokers remember the
producer, and what an operator is told. `cluster_asked` does the same for the questions about the
cluster.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.links import Link
from aioidem._engine.record import PendingRecord
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import (
    DescribeBrokerConfig,
    DescribeTopicConfig,
    DescribeTopicLimit,
    Request,
)
from aioidem._log import LogLine
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.topic_config import TopicConfig

from .cluster_asked import drill_cluster_asked
from .comparing import differs, typed
from .engine_parts import act
from .inquiry_bench import BATCH, DELIVERY, MAX_AGE, PATIENCE, InquiryBench, Row, Wire

__all__ = ["drill_asked"]

_STEPS: Final = 80
_TOPICS: Final = ("t", "u")
_KINDS: Final[dict[type[Request], RequestKind]] = {
    DescribeTopicConfig: RequestKind.DESCRIBE_CONFIGS,
    DescribeBrokerConfig: RequestKind.BROKER_CONFIG,
    DescribeTopicLimit: RequestKind.TOPIC_LIMIT,
}


def drill_asked(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the questions to brokers, and with what follows from answers."""
    yield from _InquiryDrill(dice).run()
    yield from drill_cluster_asked(dice)


class _InquiryDrill(InquiryBench):
    """Questions to brokers about themselves and their topics, and answers, at random."""

    def run(self) -> Iterator[str]:
        """Ask, answer and lose connections at random, and yield what is wrong."""
        self._connect()
        checked = [self._ask] * 7 + [self._answer] * 7
        events = [self._connect] * 3 + [self._lose] * 2 + [self._use] * 2
        events += [self._throttle, self._refuse, self._forget]
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.0, 0.5, 8.0, 16.0))
            wrong = act(self._dice, checked, events) or self._difference()
            if wrong is not None:
                yield f"asked: {wrong}"
                return

    # -- asking ------------------------------------------------------------------------------------

    def _ask(self) -> str | None:
        """Let the engine ask what it may, and return what is wrong with the requests."""
        if not self._wires or not self._states:
            return None
        wire = self._dice.choice(list(self._wires.values()))
        topic = self._dice.choice(list(self._states))
        due = self._due(wire, topic)
        made = self._parts.poll()
        limit = wire.link.limits.of(topic)
        self._inquiries.ask(wire.link, self._states[topic], limit, self._now)
        wrong = differs("requests", typed(made), typed(due))
        if wrong is not None:
            return wrong
        for step in due:
            token = step.token
            request = wire.link.outstanding[token]
            about = limit if type(step) is DescribeTopicLimit else None
            told = request.kind, request.sent_at, request.topic_limit
            kept = _KINDS[type(step)], self._now, about
            if told != kept:
                return differs("kind, time and limit of an outstanding request", told, kept)
            wire.owed.append(Row(token, type(step), topic))
        return None

    def _due(self, wire: Wire, topic: str) -> list[Request]:
        """Return the questions that are due, and note that they are asked.

        When v14 is to be asked for, and when a limit, is told by copies of the engine's own parts.
        The drills 'discovered' and 'sizes' derive that.
        """
        due: list[Request] = []
        config, number = self._config, wire.link.link_id
        discovery = copy.copy(wire.link.discovery)
        if discovery.due(self._now) and self._free(wire, 0) and discovery.begin():
            due.append(DescribeTopicConfig(number, self._token(), topic))
        found = discovery.take_finding(self._now)
        if found is not None:
            line = LogLine.WINDOW_WITHHELD if found.warning else LogLine.WINDOW_SOURCE
            self._lines.append((line, found.text))
        proper = config.enable_idempotence and wire.link.node_id >= 0
        if proper and not wire.asked_itself and self._free(wire, len(due)):
            wire.asked_itself = True
            if config.producer_id_expiration is None or config.broker_dedup == "range":
                due.append(DescribeBrokerConfig(number, self._token(), wire.link.node_id))
        limit, free = self._limit(wire, topic), self._free(wire, len(due))
        wanted = limit.wants(self._now, MAX_AGE, PATIENCE, growth=self._outgrows(topic))
        if wanted and wire.may_ask_limits and free:
            limit.ask()
            due.append(DescribeTopicLimit(number, self._token(), topic))
        elif limit.unused and free:
            limit.find_room(self._now, PATIENCE)
        return due

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> str | None:
        """Answer a request that is outstanding, at random."""
        owing = [wire for wire in self._wires.values() if wire.owed]
        if not owing:
            return None
        wire = self._dice.choice(owing)
        row = wire.owed.pop(self._dice.randrange(len(wire.owed)))
        answered = self._parts.requests.answered(wire.link.link_id, row.token, self._now)
        if answered is None:
            return f"request {row.token} was forgotten, expected outstanding"
        request = answered[1]
        if row.kind is DescribeTopicLimit and request.topic_limit is not None:
            told = self._dice.choice((None, None, BATCH // 2, 5 * BATCH))
            self._inquiries.on_topic_limit(wire.link, request.topic_limit, told, self._now)
            self._limit(wire, row.topic).tell(told, self._now)
            if told is None and self._config.late_sealing and not self._warned_untold:
                self._warned_untold = True
                self._lines.append((LogLine.LIMIT_UNKNOWN, f"topic {row.topic!r}: its batches"))
        elif row.kind is DescribeBrokerConfig:
            self._learn_facts(wire.link.node_id)
        elif row.kind is DescribeTopicConfig:
            return self._learn_config(wire.link, row.topic)
        return None

    def _learn_config(self, link: Link, topic: str) -> str | None:
        said = self._dice.choice((TopicConfig(0, True), TopicConfig(0, False)))
        said = self._dice.choice((said, TopicConfig(29, False)))
        before = link.discovery.state.name
        self._inquiries.on_topic_config(link, topic, said, self._now)
        state = "SPEAKING" if said.names_window else "NOT_GRANTED" if said.error_code else "ABSENT"
        return differs(
            f"discovery after {said} in state {before}", link.discovery.state.name, state
        )

    def _learn_facts(self, node_id: int) -> None:
        expiration = self._dice.choice((None, 100.0, 2 * DELIVERY, 2 * DELIVERY, 2 * DELIVERY + 1))
        facts = BrokerFacts(expiration, self._dice.choice((None, 7, 9, 2**31)))
        before = self._expiration()
        untold = all(each.expiration is None for _, each in self._facts)
        self._facts.append((node_id, facts))
        self._inquiries.on_broker_config(node_id, facts)
        configured = self._config.producer_id_expiration is not None
        news = untold or self._expiration() < before
        if expiration is not None and news and not configured:
            self._short_memory()
        if facts.sequence_cap is not None and self._config.broker_dedup == "range":
            self._caps = dict.fromkeys(self._caps, self._cap())

    # -- what happens besides ----------------------------------------------------------------------

    def _connect(self) -> None:
        node_id = self._dice.choice((-1, 0, 0, 1, 1))
        parts, version = self._parts, self._dice.choice((13, 14, 14))
        lost = parts.connections.nodes[node_id].limit_lost
        link = parts.connect(node_id, version, self._now)
        if link is not None:
            self._wires[link.link_id] = wire = Wire(link, not lost)
            if self._dice.random() < 0.3:
                self._pause(wire)

    def _lose(self) -> None:
        if self._wires:
            wire = self._wires.pop(self._dice.choice(list(self._wires)))
            self._parts.lose(wire.link, self._now)

    def _throttle(self) -> None:
        if self._wires:
            self._pause(self._dice.choice(list(self._wires.values())))

    def _pause(self, wire: Wire) -> None:
        wire.link.throttle(500, self._now)
        wire.paused_until = self._now + 0.5

    def _use(self) -> None:
        """Begin to use a partition, or let records wait in it."""
        topic = self._dice.choice(_TOPICS)
        if topic not in self._states:
            self._states[topic] = self._parts.partitions.state(topic, 0)
            self._caps[topic] = self._cap()
        queue = self._states[topic].queue
        queue.blocked = self._dice.random() < 0.2
        for _ in range(self._dice.choice((0, 1))):
            size = self._dice.choice((BATCH, 4 * BATCH, 5 * BATCH))
            queue.append(PendingRecord(None, b"", (), 0, None, size), self._now)

    def _refuse(self) -> None:
        """Let a batch of 3 * BATCH bytes be refused for its size."""
        if self._wires:
            wire, topic = self._dice.choice(list(self._wires.values())), self._dice.choice(_TOPICS)
            for limit in (wire.link.limits.of(topic), self._limit(wire, topic)):
                limit.refuse(3 * BATCH)

    def _forget(self) -> None:
        if self._dice.random() < 0.6:
            self._inquiries.forget_cluster()
            self._facts.clear()
