"""`Link` alone: what a connection may do, and its times."""

from __future__ import annotations

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.links import MAX_THROTTLE, Link, LinkEvent, LinkState, Node
from aioidem._engine.requests import Outstanding, RequestKind

from .driver import made_link


def ready(now: float = 0.0) -> Link:
    link = made_link()
    link.opened(13, now)
    return link


def request(token: int, sent_at: float, nbytes: int = 10) -> Outstanding:
    return Outstanding(token, RequestKind.PRODUCE, sent_at, nbytes=nbytes)


# -- life


def test_what_a_connection_may_do_in_each_state() -> None:
    link = made_link()
    assert (link.state, link.closed, link.admits(0.0)) == (LinkState.CONNECTING, False, False)
    assert (link.produce_version, link.throttled_until) == (0, 0.0), "`statistics()` shows these"
    link.opened(12, 7.0)
    assert (link.closed, link.plain_version, link.last_progress) == (False, 12, 7.0)
    assert link.admits(0.0)
    link.move(LinkEvent.LOST)
    assert link.closed
    assert not link.admits(0.0)


def test_questions_are_asked_once_per_connection() -> None:
    link = made_link()
    assert (link.asked_broker, link.asked_cluster, link.identified) == (False, False, False)
    assert link.cluster_id is None
    link.note_asked_cluster()
    link.note_asked_broker()
    assert (link.asked_broker, link.asked_cluster, link.identified) == (True, True, False)
    other = made_link()
    other.identify("c")
    assert (other.asked_cluster, other.identified, other.cluster_id) == (True, True, "c")


def test_what_the_broker_does_not_know_or_refuses_is_not_asked_on_this_connection_again() -> None:
    link, other = ready(), ready()
    assert (link.knows_producers, link.may_read) == (True, True)
    link.note_producers(worth_asking=False)
    assert (link.knows_producers, link.may_read) == (False, True)
    link.note_producers(worth_asking=True)
    link.refuse_reading()
    assert (link.knows_producers, link.may_read) == (True, False)
    assert (other.knows_producers, other.may_read) == (True, True)


def test_produce_14_is_used_as_soon_as_the_broker_is_known_to_name_its_window() -> None:
    link = made_link()
    link.opened(11, 0.0)
    link.discovery.opened(14)
    assert link.produce_version == 11
    assert link.discovery.begin(), "the broker is asked"
    assert link.produce_version == 11
    link.discovery.described(0, named=True, topic="t", now=0.0)
    assert link.produce_version == 14


def test_no_more_requests_are_outstanding_than_the_connection_may_have() -> None:
    link = ready()
    for token in range(5):
        assert link.admits(0.0)
        link.add(request(token, 0.0))
    assert not link.admits(0.0)
    link.take(3, 1.0)
    assert link.admits(1.0)


# -- times


def test_the_first_round_trip_counts_in_full_and_later_ones_an_eighth() -> None:
    link = ready()
    for number, (sent_at, now, rtt) in enumerate(
        [(0.0, 8.0, 8.0), (8.0, 24.0, 9.0), (24.0, 25.0, 8.0), (25.0, 25.5, 4.0)]
    ):
        link.add(request(number, sent_at))
        link.take(number, now)
        assert link.rtt == pytest.approx(rtt)


@pytest.mark.parametrize(("elapsed", "rtt"), [(0.8125, 6.5), (0.9375, 7.1171875)])
def test_the_estimate_is_at_most_eight_times_the_last_round_trip(
    elapsed: float, rtt: float
) -> None:
    """An eighth of the way from 8 s to the new time is 7.1 s: that is more, or less, than that."""
    link = ready()
    link.add(request(0, 0.0))
    link.take(0, 8.0)
    link.add(request(1, 8.0))
    link.take(1, 8.0 + elapsed)
    assert link.rtt == rtt


def test_an_answer_is_counted_and_is_progress() -> None:
    link = ready()
    assert (link.rtt, link.answered_at, link.latencies) == (None, None, [])
    link.add(request(1, 1.0, 30))
    link.add(request(2, 2.0, 5))
    assert (link.bytes_in_flight, link.window.outstanding) == (35, 2)
    assert link.take(3, 4.0) is None
    taken = link.take(1, 4.0)
    assert taken is not None
    assert (link.latencies, link.answered_at, link.last_progress) == ([3.0], 4.0, 4.0)
    assert (link.bytes_in_flight, link.window.outstanding) == (5, 1)
    other = Outstanding(5, RequestKind.METADATA, 5.0)
    link.add(other)
    assert link.take(5, 6.0) is other
    assert (link.latencies, link.answered_at) == ([3.0], 4.0)
    assert link.withdraw(2) is not None
    assert link.withdraw(2) is None
    assert (link.bytes_in_flight, link.window.outstanding, link.last_progress) == (0, 0, 6.0)


def test_a_request_knows_what_had_been_acknowledged_when_it_was_sent() -> None:
    link = ready()
    link.add(request(1, 1.0, 30))
    link.take(1, 2.0)
    later = request(2, 2.0)
    link.add(later)
    assert later.delivered_at_send == link.goodput.delivered == 30


def test_the_timeout_counts_from_the_last_byte_but_not_without_end() -> None:
    link = ready()
    assert link.timeout_at(10.0, 100.0) is None
    link.add(request(1, 5.0))
    assert link.last_progress == 5.0, "silence before the request does not count"
    assert link.timeout_at(10.0, 100.0) == 15.0
    link.add(request(2, 12.0))
    assert link.timeout_at(10.0, 100.0) == 15.0, "the oldest request counts"
    link.progress(14.0)
    assert link.timeout_at(10.0, 100.0) == 24.0
    assert link.timeout_at(10.0, 15.0) == 20.0


def test_a_request_that_is_sent_late_does_not_put_progress_back() -> None:
    link = ready()
    link.progress(9.0)
    link.add(request(1, 5.0))
    assert link.last_progress == 9.0


def test_a_throttle_holds_requests_and_puts_the_timeout_off() -> None:
    link = ready()
    link.add(request(1, 5.0))
    link.throttle(3000, 6.0)
    assert link.throttled_until == 9.0
    assert (link.admits(8.9), link.admits(9.0)) == (False, True)
    assert link.timeout_at(10.0, 100.0) == 19.0
    link.throttle(1000, 6.5)
    assert link.throttled_until == 9.0, "a shorter one does not end it sooner"
    assert link.throttle_at(8.0) == 1.0
    link.throttle(0, 7.0)
    assert (link.throttled_until, link.throttle_at(8.0)) == (9.0, 0.0)
    link.throttle(1, 7.0)
    assert link.throttle_at(7.0) == pytest.approx(0.001)
    link.throttle(10**9, 7.0)
    assert link.throttled_until == 7.0 + MAX_THROTTLE


def test_a_throttle_is_told_for_a_while_after_it_has_ended() -> None:
    link = ready()
    link.throttle(3000, 6.0)
    told = [link.throttle_at(9.0 + after) for after in (0.0, 0.5, 1.0, 3600.0)]
    assert told == [3.0, 3.0, 0.0, 0.0]
    assert ready().throttle_at(0.5) == 0.0


def test_an_answer_without_a_throttle_time_puts_no_timeout_off() -> None:
    link = ready()
    link.add(request(1, 5.0))
    link.throttle(0, 9.0)
    assert link.timeout_at(10.0, 100.0) == 15.0


def test_an_address_in_messages_has_brackets_around_ipv6() -> None:
    config = ProducerConfig.build("b1:9092")
    assert Node(1, "::1", 9092, config, lambda: 0.5).address == "[::1]:9092"
    assert Node(1, "b1", 9092, config, lambda: 0.5).address == "b1:9092"


def test_another_cluster_behind_an_address_is_news_once() -> None:
    node = Node(1, "b1", 9092, ProducerConfig.build("b1:9092"), lambda: 0.5)
    news = [node.misrouted(each) for each in ("other", "other", "third", "other")]
    assert news == [True, False, True, True]
    assert node.misrouted_to == "other"
