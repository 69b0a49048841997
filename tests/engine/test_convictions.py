"""Accusations that meet metadata: when a broker's window is limited, and who is told."""

from __future__ import annotations

import pytest

from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._log import LogLine

from .driver import Rig, T

DISPROOF = Disproof(20, 8, 11)


class Court:
    """A `MetadataRequests` with accusations of its own, over the cluster of a producer."""

    def __init__(self) -> None:
        self.rig = Rig(brokers=2).start()
        self.rig.leaders[T, 0] = (1, 7)
        core = self.rig.core
        self.accusations = Accusations()
        self.of = MetadataRequests(
            core.config,
            core.cluster,
            core.connections,
            core.metadata,
            self.accusations,
            core.accumulator,
            RequestLedger(core.connections, core.budget),
            core.identity,
            core.outcomes,
            core.transactions,
        )
        (self.link,) = (each for each in core.connections.links.values() if each.identified)

    def accuse(
        self, leader_id: int, leader_epoch: int, partition: int = 0, at: float = 5.0
    ) -> None:
        route = Route(1, leader_id, leader_epoch)
        self.accusations.add(Accusation(T, partition, route, DISPROOF, at))

    def answer(self, asked_at: float = 5.0) -> None:
        update = self.rig.metadata((T,))._replace(cluster_id="cluster")
        request = Outstanding(1, RequestKind.METADATA, asked_at)
        self.of.on_metadata(self.link, request, update, self.rig.now)

    def limits(self) -> list[int | None]:
        """Return the limit of each of the two brokers."""
        nodes = self.rig.core.connections.nodes
        return [nodes[node_id].memory.limit for node_id in (1, 2)]

    def lines(self) -> list[tuple[LogLine, str]]:
        return [(event.line, event.text) for event in self.rig.core.outcomes.take_events()]


def test_a_leader_that_still_leads_in_the_same_epoch_is_limited_and_told_once() -> None:
    court = Court()
    before = court.limits()[1]
    court.accuse(1, 7)
    court.answer()
    assert court.limits() == [8, before]
    ((line, text),) = court.lines()
    assert line is LogLine.FEWER_RETAINED
    assert "broker 1 says that it retains 20 batches" in text
    assert "at most 8 batches" in text
    court.accuse(1, 7)
    court.answer()
    assert court.lines() == [], "nothing is new"


@pytest.mark.parametrize(
    ("leader_id", "leader_epoch", "partition"), [(2, 7, 0), (1, 6, 0), (1, 8, 0), (1, 7, 5)]
)
def test_a_change_of_the_leader_explains_what_was_seen(
    leader_id: int, leader_epoch: int, partition: int
) -> None:
    court = Court()
    before = court.limits()
    court.accuse(leader_id, leader_epoch, partition)
    court.answer()
    assert court.limits() == before
    assert court.lines() == []
    assert court.accusations.take_due(9.0) == [], "the verdict is dropped"


def test_metadata_that_was_requested_before_the_verdict_says_nothing() -> None:
    court = Court()
    court.accuse(1, 7, at=5.0)
    court.answer(asked_at=4.9)
    assert court.lines() == []
    court.answer(asked_at=5.1)
    assert [line for line, _ in court.lines()] == [LogLine.FEWER_RETAINED]


def test_a_leader_whose_address_is_not_known_is_not_limited() -> None:
    court = Court()
    court.rig.leaders[T, 0] = (9, 7)
    court.accuse(9, 7)
    court.answer()
    assert court.lines() == []
