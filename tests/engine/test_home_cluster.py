"""`HomeCluster` alone: which connections it closes, and when the producer moves.

In these tests the producer's cluster is "home", and the other one is "away".
"""

from __future__ import annotations

from typing import Any

import pytest

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.core import ProducerCore
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.links import Link
from aioidem._engine.partitions import Partitions
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._log import LogLine
from aioidem._protocol.metadata import BrokerAddress

ACCUSED = Accusation("t", 0, Route(1, 1, 1), Disproof(20, 8, 11), 0.0)


class Home:
    """A `HomeCluster` with the real parts that it uses, and connections to four addresses.

    The first two, -1 and -2, are bootstrap servers; 0 and 1 are brokers that metadata named.
    """

    def __init__(self, **options: Any) -> None:
        config = ProducerConfig.build("s1:9092,[::1]:9092", **options)
        core = ProducerCore(config, random=lambda: 0.5)
        self.core = core
        self.links = core.connections
        self.accusations = Accusations()
        self.effects = Effects(
            core.outcomes, core.metadata, core.identity, core.transactions, self.accusations
        )
        requests = RequestLedger(core.connections, core.budget)
        partitions = Partitions(config, lambda: 0.5, core.cluster, core.connections, self.effects)
        inquiries = BrokerInquiries(config, partitions, requests, core.outcomes)
        backoff = Backoff(0.1, 1.0, lambda: 0.5)
        self.of = HomeCluster(
            config,
            core.cluster,
            core.connections,
            partitions,
            core.accumulator,
            core.identity,
            IdentityRequest(config, core.identity, core.metadata, requests, backoff),
            inquiries,
            DoubtResolution(
                config,
                core.cluster,
                core.connections,
                inquiries,
                requests,
                core.outcomes,
                self.effects,
            ),
            self.accusations,
            core.outcomes,
            self.effects,
        )
        core.cluster.learn_id("home")
        core.connections.learn([BrokerAddress(each, f"h{each}", 9092) for each in (0, 1)])
        core.metadata.sent()
        core.metadata.answered(0.0, enough=True)

    def connecting(self, node_id: int, now: float = 0.0) -> Link:
        made: list[steps.Step] = []
        assert self.links.to(node_id, now, made) is None
        link = self.links.nodes[node_id].link
        assert link is not None
        return link

    def bare(self, node_id: int, now: float = 0.0) -> Link:
        """Return a connection that is up, but whose broker has not named its cluster."""
        link = self.connecting(node_id, now)
        self.links.opened(link, 13, now)
        return link

    def to(self, cluster_id: str | None, node_id: int, now: float = 0.0) -> Link:
        """Return a connection to an address that leads to a cluster."""
        link = self.bare(node_id, now)
        self.links.identified(link, cluster_id, at_home=cluster_id in (None, "home"))
        return link

    def lose(self, link: Link, now: float) -> None:
        self.of.lost(link)
        self.links.drop(link, errors.KafkaConnectionError("lost"), now)

    def leave(self, now: float = 9.0) -> list[tuple[int, str]]:
        """Close the connections that are to be closed, and return their addresses and reasons."""
        gone = []
        for leaving in self.of.leave_strangers(now):
            self.lose(leaving.link, now)
            gone.append((leaving.link.node_id, leaving.reason))
        return gone

    def lines(self) -> list[tuple[LogLine, str]]:
        return [(event.line, event.text) for event in self.core.outcomes.take_events()]

    def moved(self) -> bool:
        return self.core.cluster.cluster_id == "away"


def asked(link: Link) -> None:
    link.add(Outstanding(1, RequestKind.METADATA, 0.0))


# -- connections that lead elsewhere


@pytest.mark.parametrize(
    ("node_id", "name"),
    [
        (-1, "a bootstrap server at s1:9092"),
        (-2, "a bootstrap server at [::1]:9092"),
        (0, "broker 0 at h0:9092"),
        (1, "broker 1 at h1:9092"),
    ],
)
def test_a_connection_that_leads_elsewhere_is_closed_and_its_address_told_once(
    node_id: int, name: str
) -> None:
    home = Home()
    home.to("home", 1 if node_id != 1 else 0)
    home.to("away", node_id)
    ((closed, reason),) = home.leave()
    assert closed == node_id
    assert f"the connection to {name} leads to cluster away; this producer writes to home" in reason
    assert home.lines() == [(LogLine.OTHER_CLUSTER, reason)]
    assert home.core.metadata.wanted, "other addresses are asked for"
    assert not home.moved()
    home.to("away", node_id, now=100.0)
    assert home.leave(100.0) == [(node_id, reason)]
    assert home.lines() == [], "the operator knows"


@pytest.mark.parametrize("node_id", [0, 1])
def test_a_broker_that_leads_elsewhere_is_no_reason_to_move(node_id: int) -> None:
    """Only an address that the user configured can lead to the producer's next cluster."""
    home = Home()
    home.to("away", node_id)
    assert [node for node, _ in home.leave()] == [node_id]
    assert not home.moved()


def test_bootstrap_connections_are_closed_with_a_broker_that_leads_elsewhere() -> None:
    """They are opened again, perhaps to another cluster: their names are resolved again."""
    home = Home()
    home.to("home", -1)
    home.bare(-2)
    home.to("away", 0)
    gone = home.leave()
    assert [node for node, _ in gone] == [0, -1, -2]
    again = (
        "a broker that the cluster names is at another cluster now, so the bootstrap servers' "
        "names are resolved again"
    )
    assert [reason for _, reason in gone[1:]] == [again, again]
    home = Home()
    home.to("home", -1)
    home.to("home", 1)
    home.to("away", 0)
    assert [node for node, _ in home.leave()] == [0], "broker 1 is still at home"


def test_two_connections_that_lead_elsewhere_are_closed_once_each() -> None:
    home = Home()
    home.to("away", 0)
    home.to("away", -1)
    assert [node for node, _ in home.leave()] == [0, -1]
    assert not home.moved(), "the names are resolved first"


def test_nobody_is_a_stranger_before_a_cluster_is_known_or_after_the_end() -> None:
    home = Home()
    home.core.cluster.forget(None)
    home.to("away", -1)
    assert home.leave() == []
    assert not home.moved()
    home = Home()
    home.to("away", -1)
    home.effects.fatal(errors.KafkaError("over"))
    assert home.leave() == []


def test_a_broker_that_names_no_cluster_is_at_home() -> None:
    home = Home()
    home.to(None, 1)
    home.to("away", -1)
    assert [node for node, _ in home.leave()] == [-1]
    assert not home.moved()


# -- the move


def test_the_producer_moves_once_nothing_leads_home_any_more() -> None:
    home = Home()
    home.accusations.add(ACCUSED)
    old = home.core.identity.current
    home.lose(home.to("home", 0, now=2.0), now=5.0)
    new = home.to("away", -1, now=8.0)
    home.bare(1, now=8.0)
    home.bare(-2, now=8.0)
    gone = home.leave(9.0)
    assert [node for node, _ in gone] == [1, -2]
    assert {reason for _, reason in gone} == {"the producer leaves this cluster for away"}
    assert home.moved()
    assert not new.closed
    ((line, text),) = home.lines()
    assert line is LogLine.CLUSTER_CHANGED
    assert "bootstrap server s1:9092 leads to away now" in text
    assert "the last bytes from home came 7.0 s ago" in text
    assert home.accusations.take_due(9.0) == []
    assert home.core.metadata.wanted
    assert set(home.links.nodes) == {-1, -2}
    assert home.core.identity.current == old
    assert home.leave(10.0) == []


def test_the_producer_stays_while_the_other_cluster_owes_an_answer() -> None:
    home = Home()
    asked(home.to("away", -1))
    assert [node for node, _ in home.leave()] == [-1]
    assert not home.moved()


def test_a_move_leaves_the_other_connections_to_the_next_cluster_alone() -> None:
    """After the move the clusters are compared anew: one that leads there is no stranger."""
    home = Home()
    home.to("away", -1)
    home.to("third", -2)
    assert [node for node, _ in home.leave()] == [-2]
    assert home.moved()
    assert [line for line, _ in home.lines()] == [LogLine.CLUSTER_CHANGED]


@pytest.mark.parametrize(
    ("heard", "seconds"), [([2.0, 4.0], 96.0), ([4.0, 2.0], 96.0), ([], 100.0)]
)
def test_the_last_bytes_are_those_of_the_last_connection_that_had_named_its_cluster(
    heard: list[float], seconds: float
) -> None:
    home = Home()
    kept = [home.to("home", node_id) for node_id, _ in enumerate(heard)]
    for link, at in zip(kept, heard, strict=True):
        link.progress(at)
    for link in kept:
        home.lose(link, 50.0)
    nameless = home.bare(-2)
    nameless.progress(60.0)
    home.lose(nameless, 60.0)
    home.to("away", -1, now=70.0)
    home.leave(100.0)
    ((_, text),) = home.lines()
    assert f"came {seconds} s ago" in text


@pytest.mark.parametrize("options", [{"on_cluster_change": "fail"}, {"transactional_id": "x"}])
def test_a_producer_that_may_not_move_ends(options: dict[str, str]) -> None:
    home = Home(**options)
    home.accusations.add(ACCUSED)
    home.to("away", -1)
    home.bare(0)
    assert [node for node, _ in home.leave()] == [0]
    ((line, text),) = home.lines()
    assert line is LogLine.CLUSTER_CHANGED
    assert "This producer ends: on_cluster_change is 'fail', or it has a transactional_id" in text
    assert isinstance(home.effects.fatal_error, errors.ClusterChangedError)
    assert home.core.cluster.cluster_id == "home"
    assert home.accusations.take_due(9.0) == [ACCUSED], "nothing is forgotten"
