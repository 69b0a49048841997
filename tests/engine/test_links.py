"""`Link` and `LogPosition` alone: a connection's times, and the end of a partition's log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import MAX_THROTTLE, Link, LinkEvent, LinkState, Node
from aioidem._engine.log_position import LogPosition
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
    link.opened(12, 7.0)
    assert (link.closed, link.plain_version, link.last_progress) == (False, 12, 7.0)
    assert link.admits(0.0)
    link.move(LinkEvent.LOST)
    assert link.closed
    assert not link.admits(0.0)


def test_questions_are_asked_once_per_connection() -> None:
    link = made_link()
    assert (link.asked_broker, link.asked_cluster, link.identified) == (False, False, False)
    link.note_asked_cluster()
    link.note_asked_broker()
    assert (link.asked_broker, link.asked_cluster, link.identified) == (True, True, False)
    other = made_link()
    other.identify("c")
    assert (other.asked_cluster, other.identified, other.cluster_id) == (True, True, "c")


# -- times


def test_the_first_round_trip_counts_in_full_and_later_ones_an_eighth() -> None:
    link = ready()
    for number, (sent_at, now, rtt) in enumerate(
        [(0.0, 8.0, 8.0), (8.0, 24.0, 9.0), (24.0, 25.0, 8.0), (25.0, 25.5, 4.0)]
    ):
        link.add(request(number, sent_at))
        link.take(number, now)
        assert link.rtt == pytest.approx(rtt)


def test_an_answer_is_counted_and_is_progress() -> None:
    link = ready()
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
    told = [link.throttle_at(9.0 + after) for after in (0.0, 0.5, 3600.0)]
    assert told == [3.0, 3.0, 0.0]


def test_an_address_in_messages_has_brackets_around_ipv6() -> None:
    config = ProducerConfig.build("b1:9092")
    assert Node(1, "::1", 9092, config, lambda: 0.5).address == "[::1]:9092"
    assert Node(1, "b1", 9092, config, lambda: 0.5).address == "b1:9092"


# -- the end of a log


def batch(ordinal: int, count: int = 2, last: int = 11) -> Batch:
    found: Any = SimpleNamespace(
        ordinal=ordinal, count=count, identity=ProducerIdentity(7, 0), wire_last=last
    )
    return cast("Batch", found)


def reached() -> LogPosition:
    """Return the position behind batch 3, whose two records have the offsets 20 and 21."""
    log = LogPosition()
    log.reach(batch(3), 20)
    return log


def test_the_newest_batch_and_the_last_offset_are_kept() -> None:
    log = LogPosition()
    assert (log.offset, log.ordinal, log.end) == (-1, -1, None)
    log.reach(batch(0), -1)
    assert (log.offset, log.ordinal, log.end) == (-1, 0, None)
    log.reach(batch(3), 20)
    assert (log.offset, log.ordinal) == (21, 3)
    assert log.end == (21, ProducerIdentity(7, 0), 11)
    log.reach(batch(2, last=9), 10)
    assert (log.offset, log.ordinal, log.end) == (21, 3, (21, ProducerIdentity(7, 0), 11))
    log.reach(batch(4, last=13), -1)
    assert (log.offset, log.ordinal) == (21, 4)
    first = LogPosition()
    first.reach(batch(0, count=1), 0)
    assert first.offset == 0


@pytest.mark.parametrize(
    ("ordinal", "offset", "wrong"),
    [(4, 22, False), (4, 21, True), (4, 0, True), (4, -1, False), (3, 21, False), (2, 5, False)],
)
def test_a_newer_batch_at_an_older_offset_shows_a_loss(
    ordinal: int, offset: int, wrong: bool
) -> None:
    assert reached().contradicts(batch(ordinal), offset) is wrong


@pytest.mark.parametrize(
    ("ordinal", "offset", "room"),
    [
        (6, -1, True),
        (6, 25, False),
        (6, 26, True),
        (2, 0, True),
        (3, 21, False),
        (3, 0, False),
    ],
)
def test_an_offset_leaves_room_for_batches_between(ordinal: int, offset: int, room: bool) -> None:
    """Of batches 3, 4 and 5 before it, 4 and 5 are newer than the known end, with two records."""
    between = [batch(3), batch(4), batch(5)]
    assert reached().leaves_room(batch(ordinal), offset, between) is room


def test_a_loss_is_reported_once() -> None:
    log = reached()
    assert not log.is_explained(batch(0))
    log.accept_loss(batch(5, last=15), 10)
    assert (log.offset, log.ordinal) == (11, 3)
    assert log.end == (11, ProducerIdentity(7, 0), 15)
    told = [log.is_explained(batch(each)) for each in (4, 5, 6)]
    assert told == [True, True, False]
    log.note_loss(batch(2))
    assert log.is_explained(batch(5)), "an older loss takes nothing away"
    log.renumber()
    assert (log.offset, log.ordinal) == (11, -1)
    assert not log.is_explained(batch(0))
