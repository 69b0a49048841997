"""`Connections` without an engine: addresses, which cluster a link leads to, and failures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link, LinkState
from aioidem._protocol.metadata import BrokerAddress

V13 = 13


class Wires:
    """Connections from `b1:9092` and the other bootstrap addresses, and the time."""

    def __init__(self, *others: str, **options: Any) -> None:
        config = ProducerConfig.build(",".join(["b1:9092", *others]), **options)
        self.all = Connections(config, lambda: 0.0)
        self.opening: list[steps.Step] = []

    def learn(self, *node_ids: int, host: str = "h") -> None:
        self.all.learn([BrokerAddress(each, f"{host}{each}", 9092) for each in node_ids])

    def connecting(self, node_id: int, now: float = 0.0) -> Link:
        assert self.all.to(node_id, now, self.opening) is None
        link = self.all.nodes[node_id].link
        assert link is not None
        return link

    def ready(self, node_id: int, now: float = 0.0) -> Link:
        link = self.connecting(node_id, now)
        self.all.opened(link, V13, now)
        return link

    def astray(self) -> bool:
        return self.all.astray

    def failed(self, node_id: int, error: Exception, now: float = 0.0) -> None:
        self.all.drop(self.connecting(node_id, now), error, now)


# -- addresses


def test_a_broker_that_moved_is_connected_to_at_once_at_its_new_address() -> None:
    wires = Wires()
    wires.learn(0)
    wires.failed(0, OSError("refused"), now=1.0)
    node = wires.all.nodes[0]
    assert node.retry_at > 1.0
    wires.learn(0)
    assert node.retry_at > 1.0, "it has not moved"
    wires.learn(0, host="new")
    assert (node.host, node.port) == ("new0", 9092)
    assert node.retry_at == 0.0
    assert wires.connecting(0, now=1.0).state is LinkState.CONNECTING
    assert wires.opening[-1] == steps.OpenLink(2, "new0", 9092)


def test_of_many_addresses_only_those_that_metadata_names_are_kept() -> None:
    """A cluster whose brokers get new ids for years does not fill the memory."""
    connections = Connections(ProducerConfig.build("b1:9092"), lambda: 0.0)
    for first in range(0, 5_000, 10):
        connections.learn([BrokerAddress(n, f"b{n}", 9092) for n in range(first, first + 10)])
    known = [node_id for node_id in connections.nodes if node_id >= 0]
    assert len(known) < 1_100
    assert set(range(4_990, 5_000)) <= set(known)
    assert len(connections.nodes) > len(known), "the bootstrap server is kept"


def test_of_too_many_addresses_those_named_those_connected_and_the_bootstrap_ones_stay() -> None:
    wires = Wires()
    wires.learn(*range(1100))
    wires.connecting(7)
    wires.learn(5)
    assert set(wires.all.nodes) == {-1, 5, 7}


def test_when_the_cluster_changes_only_bootstrap_addresses_stay() -> None:
    wires = Wires("b2:9092")
    wires.learn(0, 1)
    wires.all.forget_cluster()
    assert set(wires.all.nodes) == {-1, -2}


# -- which cluster a connection leads to


def test_a_connection_is_a_stranger_if_its_broker_named_another_cluster() -> None:
    wires = Wires()
    wires.learn(0, 1, 2)
    home, foreign, nameless, unasked = map(wires.ready, (-1, 0, 1, 2))
    for link, cluster_id in ((home, "home"), (foreign, "other"), (nameless, None)):
        wires.all.identified(link, cluster_id, at_home=link is home)
    assert wires.astray()
    assert wires.all.strangers("home") == [foreign]
    assert wires.astray()
    wires.all.drop(foreign, None, 1.0)
    assert wires.all.strangers("home") == []
    assert not wires.astray()
    unasked.cluster_id = "other"
    assert wires.all.strangers("home") == [], "it has not been identified"


@pytest.mark.parametrize(
    ("cluster_id", "identified", "at_home"),
    [("home", True, True), (None, True, True), ("other", True, False), (None, False, False)],
)
def test_the_producer_is_at_home_with_a_broker_that_names_its_cluster_or_none(
    cluster_id: str | None, identified: bool, at_home: bool
) -> None:
    wires = Wires()
    assert not wires.all.at_home("home")
    link = wires.ready(-1)
    if identified:
        wires.all.identified(link, cluster_id, at_home=at_home)
    assert wires.all.at_home("home") is at_home


def test_only_the_producers_cluster_resets_the_back_off_of_an_address() -> None:
    wires = Wires()
    wires.failed(-1, OSError("refused"))
    node = wires.all.nodes[-1]
    node.misrouted_to = "other"
    link = wires.ready(-1, now=100.0)

    def known() -> tuple[object, ...]:
        return node.backoff.failures, node.misrouted_to, str(node.last_error)

    wires.all.identified(link, "other", at_home=False)
    assert known() == (1, "other", "refused")
    wires.all.identified(link, "home", at_home=True)
    assert known() == (0, None, "None")


def test_whether_all_ready_connections_lead_to_bootstrap_addresses() -> None:
    wires = Wires("b2:9092")
    wires.learn(0)
    first = wires.ready(-1)
    wires.connecting(-2)
    wires.connecting(0)
    assert wires.all.bootstrap_only() == [first]
    node = wires.all.nodes[0].link
    assert node is not None
    wires.all.opened(node, V13, 0.0)
    assert wires.all.bootstrap_only() == []


# -- what is told of addresses that do not answer


def test_the_state_of_each_bootstrap_address_is_told() -> None:
    wires = Wires("b2:9092", "b3:9092", "b4:9092")
    wires.learn(0)
    wires.failed(-1, OSError("refused"), now=1.0)
    wires.ready(-2, now=2.0)
    wires.connecting(-3, now=3.0)
    assert wires.all.bootstrap_state(11.0) == (
        "b1:9092: no connection for 10.0 s: refused; "
        "b2:9092: connected, no answer for 9.0 s; "
        "b3:9092: no greeting answered for 8.0 s; "
        "b4:9092: no connection"
    )


def test_no_failure_is_told_until_every_bootstrap_address_has_failed() -> None:
    wires = Wires("b2:9092")
    wires.learn(0)
    wires.failed(0, OSError("not asked"))
    assert wires.all.bootstrap_failure() is None
    wires.failed(-1, OSError("refused"))
    assert wires.all.bootstrap_failure() is None
    wires.failed(-2, OSError("no route"))
    failure = wires.all.bootstrap_failure()
    assert type(failure) is errors.KafkaConnectionError
    assert failure.args[0] == "Unable to bootstrap from b1:9092, b2:9092: refused; no route"
    below = failure.__cause__
    assert isinstance(below, BaseExceptionGroup)
    assert [str(each) for each in below.exceptions] == ["refused", "no route"]


def test_the_failure_of_the_only_address_has_the_error_below_it_as_its_cause() -> None:
    below = OSError("refused")
    named = errors.NotKafkaError("speaks HTTP")
    named.__cause__ = below
    wires = Wires()
    wires.failed(-1, named)
    failure = wires.all.bootstrap_failure()
    assert type(failure) is errors.NotKafkaError
    assert failure.__cause__ is below


def test_an_address_that_does_not_speak_kafka_names_the_failure_of_all() -> None:
    wires = Wires("b2:9092")
    wires.failed(-1, errors.KafkaTimeoutError("slow"))
    wires.failed(-2, errors.NotKafkaError("speaks HTTP"))
    assert type(wires.all.bootstrap_failure()) is errors.NotKafkaError
    wires = Wires("b2:9092")
    wires.failed(-1, errors.KafkaTimeoutError("slow"))
    wires.failed(-2, OSError("refused"))
    assert type(wires.all.bootstrap_failure()) is errors.KafkaTimeoutError


@pytest.mark.parametrize("kind", [errors.AuthenticationFailedError, errors.ConfigError])
def test_a_refused_password_is_told_at_once(kind: type[errors.KafkaError]) -> None:
    """The result is a copy, so that the caller's traceback is not kept with the address."""
    refused = kind("wrong")
    refused.__cause__ = OSError("below")
    wires = Wires("b2:9092")
    wires.failed(-1, refused)
    failure = wires.all.bootstrap_failure()
    assert type(failure) is kind
    assert failure is not refused
    assert failure.args == refused.args
    assert failure.__cause__ is refused.__cause__


def test_why_no_broker_can_be_reached_is_told_of_all_addresses() -> None:
    wires = Wires()
    wires.learn(0)
    assert wires.all.unreachable(5.0) is None
    wires.failed(-1, OSError("refused"), now=1.0)
    wires.failed(0, OSError("no route"), now=2.0)
    failure = wires.all.unreachable(5.0)
    assert failure is not None
    assert "for 4.0 s and 2 attempts: refused; no route" in str(failure)


# -- when something is due


def test_the_next_time_is_the_earliest_of_back_offs_throttles_and_idle_connections() -> None:
    wires = Wires(connections_max_idle=60.0)
    assert wires.all.next_wake(0.0) == math.inf
    link = wires.ready(-1, now=10.0)
    assert wires.all.next_wake(10.0) == 70.0
    link.throttled_until = 40.0
    assert wires.all.next_wake(10.0) == 40.0
    assert wires.all.next_wake(40.0) == 70.0
    wires.learn(0)
    wires.failed(0, OSError("refused"), now=10.0)
    retry_at = wires.all.nodes[0].retry_at
    assert 10.0 < retry_at < 40.0
    assert wires.all.next_wake(10.0) == retry_at
    assert wires.all.next_wake(retry_at) == 40.0
