"""`Connections` without an engine: addresses, which cluster a link leads to, and failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.connections import Connections
from aioidem._engine.discovery import DiscoveryState
from aioidem._engine.links import Leaving, Link, LinkState
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.retention import Disproof
from aioidem._protocol.metadata import BrokerAddress

V13 = 13


class Wires:
    """Connections from `b1:9092` and the other bootstrap addresses, and the time."""

    def __init__(self, *others: str, **options: Any) -> None:
        config = ProducerConfig.build(",".join(["b1:9092", *others]), **options)
        self.draw = 0.0
        self.all = Connections(config, lambda: self.draw)
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

    def home(self, node_id: int, now: float = 0.0) -> Link:
        """Return a connection that leads to the producer's cluster."""
        link = self.ready(node_id, now)
        self.all.identified(link, "home", at_home=True)
        return link

    def any(self, now: float = 0.0, *, identified: bool = True) -> Link | None:
        return self.all.any(now, self.opening, identified=identified)

    def opened_to(self) -> list[str]:
        """Return the hosts that connections were to be opened to since the last call."""
        made, self.opening = self.opening, []
        assert all(isinstance(each, steps.OpenLink) for each in made)
        return [each.host for each in made if isinstance(each, steps.OpenLink)]

    def astray(self) -> bool:
        return self.all.astray

    def failed(self, node_id: int, error: Exception | None, now: float = 0.0) -> None:
        self.all.drop(self.connecting(node_id, now), error, now)


def asked(link: Link, kind: RequestKind, *, version: int = 0, sent_at: float = 0.0) -> None:
    """Give a request to a connection."""
    link.add(Outstanding(len(link.outstanding), kind, sent_at, version=version))


def leaving(found: Sequence[Leaving]) -> list[int]:
    """Return the brokers whose connections are to be closed."""
    return [each.link.node_id for each in found]


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


def test_a_thousand_addresses_are_kept_and_of_more_those_that_are_named_stay_as_they_are() -> None:
    """The bootstrap address is one of them. What is known of an address includes its back-off."""
    wires = Wires()
    wires.learn(*range(999))
    wires.failed(5, OSError("refused"))
    wires.learn(5)
    assert len(wires.all.nodes) == 1000
    wires.learn(999)
    wires.learn(5)
    assert set(wires.all.nodes) == {-1, 5}
    assert wires.all.nodes[5].backoff.failures == 1


def test_when_the_cluster_changes_only_bootstrap_addresses_stay() -> None:
    wires = Wires("b2:9092")
    wires.learn(0, 1)
    wires.all.forget_cluster()
    assert set(wires.all.nodes) == {-1, -2}


# -- choosing


def test_a_request_for_any_broker_waits_for_a_connection_that_has_named_its_cluster() -> None:
    wires = Wires()
    link = wires.ready(-1)
    assert wires.opened_to() == ["b1"]
    assert wires.any() is None
    assert wires.any(identified=False) is link
    wires.all.identified(link, "home", at_home=True)
    assert wires.any() is link
    link.throttle(2000, 1.0)
    assert wires.any(2.9) is None
    assert wires.any(2.9, identified=False) is None
    assert wires.any(3.0) is link
    assert wires.opened_to() == [], "one connection is enough"


def test_a_broker_that_metadata_names_is_preferred_to_a_bootstrap_address() -> None:
    wires = Wires()
    wires.learn(0)
    bootstrap = wires.home(-1)
    assert wires.any() is bootstrap
    broker = wires.home(0)
    asked(broker, RequestKind.METADATA)
    assert wires.any() is broker, "even if it has more to do"


def test_the_broker_with_the_fewest_outstanding_requests_is_preferred() -> None:
    wires = Wires()
    wires.learn(1, 0, 2)
    for node_id, requests in ((1, 2), (0, 1), (2, 3)):
        link = wires.home(node_id)
        for _ in range(requests):
            asked(link, RequestKind.METADATA)
    found = wires.any()
    assert found is not None
    assert found.node_id == 0


def test_a_connection_that_has_named_its_cluster_is_preferred_to_one_that_has_not() -> None:
    wires = Wires()
    wires.learn(0)
    home = wires.home(-1)
    wires.ready(0)
    assert wires.any(identified=False) is home


def test_a_connection_that_is_being_opened_is_waited_for_unless_its_address_failed_before() -> None:
    wires = Wires("b2:9092", "b3:9092")
    wires.connecting(-1)
    assert wires.any() is None
    assert wires.opened_to() == ["b1"]
    wires.failed(-2, OSError("refused"))
    wires.connecting(-2, now=100.0)
    assert wires.any(100.0) is None
    assert wires.opened_to() == ["b2", "b2"], "the first one may come up"
    wires = Wires("b2:9092", "b3:9092")
    wires.failed(-2, OSError("refused"))
    wires.connecting(-2, now=100.0)
    assert wires.any(100.0) is None
    assert wires.opened_to() == ["b2", "b2", "b1"]


def test_all_addresses_that_failed_before_are_tried_at_once() -> None:
    """Hosts that never answer must not keep one that is back waiting for their timeouts."""
    wires = Wires("b2:9092", "b3:9092")
    for each in (-1, -2, -3):
        wires.failed(each, OSError("refused"))
    wires.opened_to()
    assert wires.any(100.0) is None
    assert sorted(wires.opened_to()) == ["b1", "b2", "b3"]
    assert wires.any(100.0) is None
    assert wires.opened_to() == []


def test_an_open_connection_is_waited_for_even_if_its_address_failed_before() -> None:
    """It has not named its cluster yet, but it is about to."""
    wires = Wires("b2:9092")
    wires.failed(-1, OSError("refused"))
    wires.ready(-1, now=100.0)
    wires.opened_to()
    assert wires.any(100.0) is None
    assert wires.opened_to() == []


@pytest.mark.parametrize(("draw", "host"), [(0.0, "b1"), (0.5, "h0"), (0.99, "h1")])
def test_the_address_is_drawn_among_all_that_failed_least_often(draw: float, host: str) -> None:
    wires = Wires("b2:9092")
    wires.learn(0, 1)
    wires.failed(-2, OSError("refused"))
    wires.opened_to()
    wires.draw = draw
    assert wires.any(100.0) is None
    assert wires.opened_to() == [host]


def test_an_address_is_not_used_before_its_back_off_is_over() -> None:
    wires = Wires()
    wires.failed(-1, OSError("refused"), now=10.0)
    wires.opened_to()
    retry_at = wires.all.nodes[-1].retry_at
    before = math.nextafter(retry_at, 0.0)
    assert wires.any(before) is None
    assert wires.all.to(-1, before, wires.opening) is None
    assert wires.opened_to() == []
    assert wires.any(retry_at) is None
    assert wires.opened_to() == ["b1"]
    wires.learn(0)
    wires.failed(0, OSError("refused"), now=10.0)
    wires.opened_to()
    wires.connecting(0, now=wires.all.nodes[0].retry_at)
    assert wires.opened_to() == ["h0"]


def test_a_request_for_one_broker_goes_to_its_connection_once_that_is_up() -> None:
    wires = Wires()
    wires.learn(0)
    wires.ready(-1)
    link = wires.connecting(0)
    assert wires.all.to(0, 1.0, wires.opening) is None
    wires.all.opened(link, V13, 1.0)
    assert wires.all.to(0, 1.0, wires.opening) is link
    assert wires.opened_to() == ["b1", "h0"]


def test_an_address_with_a_connection_is_not_connected_to_again() -> None:
    wires = Wires()
    wires.failed(-1, OSError("refused"))
    wires.connecting(-1, now=100.0)
    wires.opened_to()
    assert wires.any(200.0) is None
    assert wires.all.to(-1, 200.0, wires.opening) is None
    assert wires.all.to(7, 200.0, wires.opening) is None, "there is no broker 7"
    assert wires.opened_to() == []


# -- life


@pytest.mark.parametrize(
    ("offered", "plain", "asks"), [(9, 9, False), (13, 13, False), (14, 13, True)]
)
def test_the_version_below_14_is_used_until_the_broker_was_asked_about_14(
    offered: int, plain: int, asks: bool
) -> None:
    wires = Wires()
    link = wires.connecting(-1)
    wires.all.opened(link, offered, 5.0)
    assert (link.plain_version, link.produce_version, link.last_progress) == (plain, plain, 5.0)
    assert link.discovery.due(5.0) is asks


def test_a_broker_is_down_from_its_first_failure_until_a_connection_opens() -> None:
    wires = Wires()
    node = wires.all.nodes[-1]
    wires.failed(-1, OSError("refused"), now=10.0)
    wires.failed(-1, OSError("no route"), now=20.0)
    assert (node.down_since, str(node.last_error)) == (10.0, "no route")
    assert (wires.all.reach.since, wires.all.reach.attempts) == (10.0, 2)
    wires.ready(-1, now=30.0)
    assert node.down_since is None
    assert wires.all.unreachable(30.0) is None


def test_a_connection_that_is_closed_without_an_error_is_no_failure_if_it_was_up() -> None:
    wires = Wires()
    link = wires.ready(-1, now=10.0)
    assert wires.all.drop(link, None, 20.0) == []
    node = wires.all.nodes[-1]
    assert link.closed
    assert (node.link, node.down_since, node.backoff.failures, node.retry_at) == (
        None,
        None,
        0,
        0.0,
    )
    assert wires.all.unreachable(20.0) is None
    wires.failed(-1, None, now=30.0)
    assert (node.down_since, node.backoff.failures) == (30.0, 1)
    assert node.retry_at > 30.0
    assert wires.all.unreachable(30.0) is not None


def test_a_connection_that_ends_with_an_error_is_a_failure_also_if_it_was_up() -> None:
    wires = Wires()
    link = wires.ready(-1, now=10.0)
    asked(link, RequestKind.METADATA)
    (request,) = wires.all.drop(link, OSError("reset"), 20.0)
    assert request.kind is RequestKind.METADATA
    node = wires.all.nodes[-1]
    assert (node.down_since, node.backoff.failures) == (20.0, 1)
    assert wires.all.unreachable(20.0) is not None


def test_while_another_connection_is_up_a_broker_can_be_reached() -> None:
    """One that is still being opened is not enough."""
    wires = Wires("b2:9092", "b3:9092")
    other = wires.ready(-2)
    wires.connecting(-3)
    wires.failed(-1, OSError("refused"), now=10.0)
    assert wires.all.unreachable(10.0) is None
    wires.all.drop(other, None, 20.0)
    wires.failed(-1, OSError("refused"), now=30.0)
    assert wires.all.reach.since == 30.0


@pytest.mark.parametrize(
    ("kinds", "producers", "limits"),
    [
        ([], True, True),
        ([RequestKind.DESCRIBE_PRODUCERS], False, True),
        ([RequestKind.TOPIC_LIMIT], True, False),
        ([RequestKind.PRODUCE, RequestKind.READ_BACK], True, True),
        ([RequestKind.TOPIC_LIMIT, RequestKind.DESCRIBE_PRODUCERS], False, False),
    ],
)
def test_a_question_that_may_have_ended_a_connection_is_not_asked_on_the_next_one(
    kinds: list[RequestKind], producers: bool, limits: bool
) -> None:
    wires = Wires()
    first = wires.ready(-1)
    assert (first.knows_producers, first.limits.may_ask) == (True, True)
    for kind in kinds:
        asked(first, kind)
    wires.all.drop(first, None, 1.0)
    wires.failed(-1, OSError("refused"), now=2.0)
    second = wires.ready(-1, now=100.0)
    assert (second.knows_producers, second.limits.may_ask) == (producers, limits)
    wires.all.drop(second, None, 101.0)
    third = wires.ready(-1, now=200.0)
    assert (third.knows_producers, third.limits.may_ask) == (True, True)


@pytest.mark.parametrize(
    ("versions", "held_back"),
    [([14], True), ([13, 14, 0], True), ([13], False), ([], False)],
)
def test_a_broker_that_twice_leaves_produce_14_unanswered_gets_13_for_a_while(
    versions: list[int], held_back: bool
) -> None:
    wires = Wires(window_discovery="on")
    discovery = wires.all.nodes[-1].discovery
    for now in (0.0, 100.0):
        link = wires.connecting(-1, now)
        wires.all.opened(link, 14, now)
        discovery.begin()
        assert link.produce_version == 14
        for version in versions:
            asked(link, RequestKind.PRODUCE, version=version)
        wires.all.drop(link, OSError("reset"), now + 1.0)
    assert (discovery.state is DiscoveryState.HELD_BACK) is held_back


def test_what_is_known_of_a_broker_outlives_the_connection() -> None:
    wires = Wires()
    wires.learn(0)
    first, other = wires.ready(0), wires.ready(-1)
    first.memory.disprove(Disproof(said=20, proved=7, refused=8), 0.0)
    wires.all.drop(first, None, 1.0)
    second = wires.ready(0, now=100.0)
    assert [each.memory.believed(20, 100.0) for each in (second, other)] == [7, 20]


def test_a_connection_is_overdue_when_its_oldest_request_has_timed_out() -> None:
    wires = Wires("b2:9092", "b3:9092", request_timeout=20.0)
    late, other, idle = (wires.ready(each) for each in (-1, -2, -3))
    asked(late, RequestKind.PRODUCE, sent_at=10.0)
    asked(other, RequestKind.PRODUCE, sent_at=11.0)
    assert idle.timeout_at(20.0, 120.0) is None
    assert wires.all.overdue(29.9) == ()
    (found,) = wires.all.overdue(30.0)
    assert (found.link, found.reason) == (late, "no answer within request_timeout (20 s)")
    assert type(found.error) is errors.KafkaConnectionError
    assert found.error.args == (found.reason,)
    assert leaving(wires.all.overdue(31.0)) == [-1, -2]


def test_a_connection_without_requests_is_spare_when_it_has_been_idle_for_long() -> None:
    wires = Wires("b2:9092", "b3:9092", connections_max_idle=60.0)
    wires.ready(-1, now=10.0)
    busy = wires.ready(-2, now=10.0)
    asked(busy, RequestKind.METADATA, sent_at=10.0)
    wires.connecting(-3, now=10.0)
    assert wires.all.spare(69.9) == []
    (found,) = wires.all.spare(70.0)
    assert (found.link.node_id, found.reason, found.error) == (-1, "idle", None)
    found.link.throttled_until = 90.0
    assert not wires.all.spare(89.9), "a new connection would evade the quota"
    assert leaving(wires.all.spare(90.0)) == [-1]
    endless = Wires(connections_max_idle=None)
    assert endless.all.spare(1e9) == ()
    endless.ready(-1)
    assert endless.all.spare(1e9) == []


def test_an_idle_connection_is_spare_at_the_very_time_at_which_it_is_due() -> None:
    """Whatever the sums are rounded to: else the driver would wake again and again."""
    for tenths in range(1, 200):
        wires = Wires(connections_max_idle=0.7)
        wires.ready(-1, now=tenths / 10)
        assert leaving(wires.all.spare(wires.all.next_wake(0.0))) == [-1], tenths


def test_bootstrap_connections_are_spare_once_a_broker_has_named_its_cluster() -> None:
    wires = Wires("b2:9092", "b3:9092")
    wires.learn(0)
    wires.home(-1)
    asked(wires.home(-2), RequestKind.METADATA)
    wires.connecting(-3)
    assert wires.all.spare(0.0) == []
    broker = wires.ready(0)
    assert wires.all.spare(0.0) == []
    wires.all.identified(broker, "home", at_home=True)
    assert leaving(wires.all.spare(0.0)) == [-1]


# -- which cluster a connection leads to


def test_at_first_no_connection_leads_astray() -> None:
    wires = Wires()
    wires.home(-1)
    assert not wires.astray()


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
    wires = Wires("b2:9092", "[::1]:9092", "b4:9092")
    wires.learn(0)
    wires.failed(-1, OSError("refused"), now=1.0)
    wires.ready(-2, now=2.0)
    wires.connecting(-3, now=3.0)
    assert wires.all.bootstrap_state(11.0) == (
        "b1:9092: no connection for 10.0 s: refused; "
        "b2:9092: connected, no answer for 9.0 s; "
        "[::1]:9092: no greeting answered for 8.0 s; "
        "b4:9092: no connection"
    )


def test_no_failure_is_told_until_every_bootstrap_address_has_failed() -> None:
    wires = Wires("[::1]:9092")
    wires.learn(0)
    wires.failed(0, OSError("not asked"))
    assert wires.all.bootstrap_failure() is None
    wires.failed(-1, OSError("refused"))
    assert wires.all.bootstrap_failure() is None
    wires.failed(-2, OSError("no route"))
    failure = wires.all.bootstrap_failure()
    assert type(failure) is errors.KafkaConnectionError
    assert failure.args[0] == "Unable to bootstrap from b1:9092, [::1]:9092: refused; no route"
    below = failure.__cause__
    assert isinstance(below, BaseExceptionGroup)
    assert [str(each) for each in below.exceptions] == ["refused", "no route"]


def test_refusals_that_come_after_a_change_of_password_are_those_of_the_new_one() -> None:
    wires = Wires(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password="old",
    )
    refusal = errors.SaslAuthenticationFailed("no")
    wires.learn(*range(6))
    links = [wires.connecting(each) for each in range(5)]
    wires.all.forgive()
    for link in links:  # they had sent the old password
        wires.all.drop(link, refusal, 0.0)
        assert wires.all.shut_out(refusal) is None
    for now in range(100, 104):
        wires.failed(5, refusal, float(now))
        assert wires.all.shut_out(refusal) is None
    wires.failed(5, refusal, 200.0)
    assert wires.all.shut_out(refusal) is refusal


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
    link.throttled_until = 80.0
    assert wires.all.next_wake(75.0) == 80.0
    link.throttled_until = 40.0
    wires.learn(0)
    wires.failed(0, OSError("refused"), now=10.0)
    retry_at = wires.all.nodes[0].retry_at
    assert 10.0 < retry_at < 40.0
    assert wires.all.next_wake(10.0) == retry_at
    assert wires.all.next_wake(retry_at) == 40.0


def test_a_connection_that_is_being_opened_or_may_stay_idle_is_not_due_by_itself() -> None:
    wires = Wires(connections_max_idle=60.0)
    wires.connecting(-1, now=10.0)
    assert wires.all.next_wake(10.0) == math.inf
    wires = Wires(connections_max_idle=None)
    wires.ready(-1, now=10.0)
    assert wires.all.next_wake(10.0) == math.inf


@pytest.mark.parametrize("order", [(-1, -2), (-2, -1)])
def test_the_request_that_times_out_first_is_due_first(order: tuple[int, int]) -> None:
    wires = Wires("b2:9092", request_timeout=20.0, connections_max_idle=60.0)
    links = {each: wires.ready(each, now=10.0) for each in order}
    asked(links[-1], RequestKind.PRODUCE, sent_at=12.0)
    asked(links[-2], RequestKind.PRODUCE, sent_at=15.0)
    assert wires.all.next_wake(15.0) == 32.0
