"""The windows of KIP-1269: how the producer learns them, what resets them, and what they limit.

A partition's window limits how many batches the broker must remember, and a connection's window how
many requests are in flight. The first tests are of the two classes of windows.py, the others of the
engine. The same rules over the wire are in tests/producer/test_windows.py.
"""

from __future__ import annotations

import pytest

from aioidem._engine.windows import (
    DEFAULT_BATCHES_RETAINED,
    MAX_BATCHES_RETAINED,
    ConnectionWindow,
    PartitionWindow,
)

from .driver import (
    ACKED,
    NONE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    PENDING,
    Rig,
    pipelined,
)


def test_the_window_is_five_until_a_broker_says_otherwise() -> None:
    window = PartitionWindow()
    assert window.limit == window.said == DEFAULT_BATCHES_RETAINED == 5
    assert not window.heard
    assert window.max_span == 0
    assert window.admits(5)
    assert not window.admits(6)


def test_another_number_than_the_last_one_is_news() -> None:
    """A reset forgets what applies, and not what was said last, so that is no news again."""
    window = PartitionWindow()
    assert not window.learn(None)
    assert window.heard
    assert window.learn(20)
    assert not window.learn(20)
    window.reset()
    assert (window.limit, window.heard, window.said) == (5, False, 20)
    assert not window.learn(20)
    assert (window.limit, window.heard, window.said) == (20, True, 20)
    assert window.learn(None)


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        (None, 5),
        (20, 20),
        (1, 1),
        (0, 1),
        (-1, 1),
        (-(2**31), 1),
        (1000, 1000),
        (2**31 - 1, MAX_BATCHES_RETAINED),
    ],
)
def test_what_a_broker_says_is_clamped(told: int | None, limit: int) -> None:
    """No broker narrows the window below 1 or widens it beyond the maximum."""
    window = PartitionWindow()
    window.learn(told)
    assert window.limit == limit


def test_an_absent_field_means_five_also_after_twenty() -> None:
    """An answer without the window field means a window of 5, even after 20.

    A tagged field that is equal to its default is not on the wire.
    """
    window = PartitionWindow()
    window.learn(20)
    window.learn(None)
    assert window.limit == 5


def test_reset_forgets_what_was_learned() -> None:
    """A reset, as after a leader change, makes the window 5 again."""
    window = PartitionWindow()
    window.learn(20)
    window.reset()
    assert window.limit == 5


def test_the_widest_span_is_kept() -> None:
    window = PartitionWindow()
    for span in (1, 4, 2):
        window.observe(span)
    assert window.max_span == 4


def test_a_connection_window_counts_requests() -> None:
    window = ConnectionWindow(2)
    assert window.admits()
    window.outstanding = 2
    assert not window.admits()


def test_an_unanswered_batch_holds_the_window_although_later_ones_are_acknowledged() -> None:
    """An unanswered batch holds the window although later ones are acknowledged (KAFKA-9199).

    The window limits the span, from the oldest unanswered batch to the newest sent one. Here b1 is
    unanswered and b2 to b5 are acknowledged. Appending b6 would push b1 out of the broker's cache
    of five batches (see also KAFKA-18905, fluss #2826).
    """
    rig, requests = pipelined(5)
    rig.send(2)
    for request in requests[1:]:
        rig.ack(request)
    assert [o.status for o in rig.outcomes[1:7]] == [PENDING, *[ACKED] * 4, PENDING]
    assert rig.state().batches.span == 5
    assert rig.sequences == [1]
    rig.ack(requests[0])
    assert rig.sequences == [6, 7]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_connection_window_binds_too(limit: int) -> None:
    """The limit of requests in flight binds even where the partition's window is 20 (KIP-1269)."""
    rig = Rig(version=14, max_in_flight_requests_per_connection=limit).start()
    rig.send()
    rig.ack(rig.outstanding()[0], retained=20)
    rig.send(10)
    assert len(rig.outstanding()) == limit
    assert rig.state().window.limit == 20


def test_one_full_connection_starves_no_partition() -> None:
    """Each of twenty partitions gets its turn on a connection of two requests in flight."""
    rig = Rig(partitions=20, max_in_flight_requests_per_connection=2, max_request_size=2000).start()
    for _ in range(5):
        for partition in range(20):
            rig.send(partition=partition, poll=False)
    rig.poll()
    for _ in range(6):
        rig.ack(rig.outstanding()[0])
    firsts = {o.settlement.partition for o in rig.outcomes if o.settlement is not None}
    assert firsts == set(range(20))
    rig.ack_all()
    rig.assert_drained()


def test_two_partitions_have_their_own_windows() -> None:
    """Each partition keeps to its own window, 5 or 20, although both share one connection."""
    rig = Rig(partitions=2, version=14, max_in_flight_requests_per_connection=100).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    request = rig.outstanding()[0]
    while rig.outstanding():
        request = rig.outstanding()[0]
        rig.answer(
            request,
            [
                rig.entry(request, part, NONE, 0, retained=20 if part.partition else None)
                for part in request.parts
            ],
        )
    rig.send(30, partition=0)
    rig.send(30, partition=1)
    sent = [part.partition for request in rig.outstanding() for part in request.parts]
    assert (sent.count(0), sent.count(1)) == (5, 20)


def discovered(retained: int | None, **options: object) -> Rig:
    rig = Rig(version=14, max_in_flight_requests_per_connection=3000, **options).start()  # type: ignore[arg-type]
    rig.send()
    rig.ack(rig.outstanding()[0], retained=retained)
    return rig


@pytest.mark.parametrize(
    ("told", "limit"),
    [(None, 5), (5, 5), (20, 20), (0, 1), (-7, 1), (2**31 - 1, 1000), (-(2**31), 1)],
)
def test_the_window_is_what_the_success_says_within_bounds(told: int | None, limit: int) -> None:
    """The window in an answer is clamped to 1 and 1000; without the field the window is 5."""
    assert discovered(told).state().window.limit == limit


def test_twenty_in_flight_once_the_broker_says_twenty() -> None:
    rig = discovered(20)
    rig.send(30)
    assert rig.sequences == list(range(1, 21))
    assert rig.state().window.max_span == 20
    assert rig.max_span == 20


def test_an_absent_field_after_twenty_means_five() -> None:
    """An answer without KIP-1269's field makes a window of 20 batches 5 again.

    Nothing is sent until no more than five batches are unresolved.
    """
    rig = discovered(20)
    rig.send(40)
    for _ in range(16):
        rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 5
    rig.ack_all()
    assert rig.statuses == [ACKED] * 41


def test_a_window_lowered_below_what_is_outstanding_lets_nothing_new_out() -> None:
    """When the window shrinks, the next batch waits until the outstanding ones fit it."""
    rig = discovered(20)
    rig.send(40)
    rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 19
    for _ in range(12):
        rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 7
    rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 7


def test_the_answer_to_a_batch_that_has_ended_names_the_window_too() -> None:
    """A probe's success proves the batches below it; a window that their answers name counts.

    A leader that lowers what it remembers while batches are probed says so in these answers first.
    """
    rig = discovered(20)
    rig.send(3)
    rig.lose()
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    third, second, first = rig.outstanding()
    assert [probe.sequence for probe in (third, second, first)] == [3, 2, 1]
    rig.ack(third, retained=20)
    assert rig.statuses == [ACKED] * 4
    assert rig.state().window.limit == 20
    rig.ack(second, retained=7)
    assert rig.state().window.limit == 7
    rig.ack(first)
    rig.send(8)
    assert len(rig.outstanding()) == 5


def test_an_error_never_teaches_a_window() -> None:
    """The window field beside an error code is ignored."""
    rig = discovered(None)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS, retained=20)
    assert rig.state().window.limit == 5


def test_a_leader_change_resets_the_window() -> None:
    """A new leader epoch makes the window 5 until that leader's first success."""
    rig = discovered(20)
    rig.move_leader(1, 1)
    rig.send(20)
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0], retained=20)
    assert len(rig.outstanding()) == 19


def test_a_reconnect_resets_the_window() -> None:
    """A new connection resets the window to 5 until the first success on that connection."""
    rig = discovered(20)
    rig.lose()
    rig.tick(1.0)
    rig.send(20)
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0], retained=20)
    assert len(rig.outstanding()) == 19


def test_a_stale_leaders_late_answer_does_not_restore_twenty() -> None:
    """The window in an answer is ignored if the leader has changed since the request was sent."""
    rig = discovered(None, brokers=2)
    rig.send(2)
    assert len(rig.outstanding()) == 2
    rig.move_leader(2, 1, seconds=1.0)
    for request in rig.outstanding():
        rig.ack(request, retained=20)
    assert rig.state().window.limit == 5
    rig.send(9)
    assert rig.outstanding()[0].link.host == "b2"
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 5


@pytest.mark.parametrize(("before", "told", "room"), [(20, 7, 7), (5, 20, 20)])
def test_a_leader_that_metadata_hides_for_a_while_still_names_its_window(
    before: int, told: int, room: int
) -> None:
    """The window in an answer counts even if metadata names no leader meanwhile.

    Metadata says LEADER_NOT_AVAILABLE under the same leader epoch, so no other leader was elected.
    The partition goes on over the same connection, with the window that the leader has named.
    """
    rig = discovered(before)
    rig.send()
    rig.move_leader(-1, 0, seconds=1.0)
    rig.ack(rig.outstanding()[0], retained=told)
    assert rig.state().window.limit == told
    rig.send(40)
    assert rig.outstanding() == []
    rig.move_leader(1, 0)
    assert len(rig.outstanding()) == room
