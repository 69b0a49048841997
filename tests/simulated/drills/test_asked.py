"""The drill of questions to brokers finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.links import Link
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem._engine.partition import PartitionState
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import MetadataUpdate

from .asked import drill_asked

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_asked(Random(f"asked {seed}"))]


def test_brokers_are_asked_what_they_should_be() -> None:
    assert not wrong()


def asks_a_busy_broker(
    self: BrokerInquiries, link: Link, state: PartitionState, limit: BatchLimit, now: float
) -> None:
    ask(self, link, state, limit, now)
    if not link.admits(now):
        link.note_asked_broker()


def the_last_answer_counts(self: BrokerInquiries, node_id: int, facts: BrokerFacts) -> None:
    on_broker_config(self, node_id, facts)
    if facts.expiration is not None:
        self.expiration = facts.expiration


def awaits_any(self: BrokerInquiries, link: Link) -> bool:
    del self
    return bool(link.outstanding)


def believes_all(self: MetadataRequests, link: Link, cluster_id: str | None) -> bool:
    on_cluster(self, link, cluster_id)
    return True


def asks_early_only(self: MetadataRequests, now: float) -> None:
    if now < 10.0:
        ask_clusters(self, now)


def leaves_topics_out(self: MetadataRequests, update: MetadataUpdate) -> MetadataMerge:
    merge = merge_of(self, update)
    merge.topics.clear()
    return merge


ask = BrokerInquiries.ask
on_broker_config = BrokerInquiries.on_broker_config
on_cluster = MetadataRequests.on_cluster
ask_clusters = MetadataRequests.ask_clusters
merge_of = MetadataRequests.merge_of


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (BrokerInquiries, "ask", asks_a_busy_broker),
        (BrokerInquiries, "on_broker_config", the_last_answer_counts),
        (BrokerInquiries, "awaits_memory", awaits_any),
        (BrokerInquiries, "forget_cluster", lambda _: None),
        (MetadataRequests, "on_cluster", believes_all),
        (MetadataRequests, "ask_clusters", asks_early_only),
        (MetadataRequests, "merge_of", leaves_topics_out),
        (MetadataRequests, "_convict", lambda *_: None),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
