"""Delivery times of the embedded cluster's simulated link."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioidem._broker.link import Lane, Link


def test_each_direction_takes_half_of_the_round_trip() -> None:
    """Each direction of a link takes half of the round-trip time."""
    link = Link(rtt=0.5)
    assert link.down.due(link.up.due(10.0, 100), 100) == 10.5


def test_messages_are_pipelined_and_not_spaced_by_the_delay() -> None:
    """Messages sent together over a lane (one direction of a link) arrive together."""
    lane = Lane(0.075, None)
    assert [lane.due(1.0, 16384) for _ in range(5)] == [1.075] * 5


def test_bandwidth_spaces_messages_by_their_bytes() -> None:
    """A lane (one direction of a link) needs bytes / bandwidth seconds to send a message."""
    lane = Lane(1.0, 1000.0)
    assert [lane.due(0.0, 500) for _ in range(3)] == [1.5, 2.0, 2.5]
    assert lane.due(10.0, 500) == 11.5


def test_a_shorter_delay_does_not_overtake_what_is_on_its_way() -> None:
    """A message sent after the delay was lowered does not overtake earlier ones."""
    link = Link(rtt=2.0)
    assert link.up.due(0.0, 1) == 1.0
    link.set_rtt(0.0)
    assert link.up.due(0.5, 1) == 1.0
    assert link.up.due(3.0, 1) == 3.0


def test_bandwidth_can_be_lifted() -> None:
    """A link's bandwidth can be removed."""
    link = Link(bandwidth=1.0)
    assert link.up.due(0.0, 5) == 5.0
    link.set_bandwidth(None)
    assert link.up.due(6.0, 5) == 6.0


@given(
    st.floats(0, 1),
    st.none() | st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**6)), max_size=30),
)
def test_order_is_kept_and_nothing_arrives_before_its_delay(
    delay: float, bandwidth: float | None, messages: list[tuple[float, int]]
) -> None:
    """A lane keeps messages in order, and delivers none before the lane's delay has passed."""
    lane = Lane(delay, bandwidth)
    now = last = 0.0
    for pause, size in messages:
        now += pause
        due = lane.due(now, size)
        assert due >= last
        assert due >= now + delay
        last = due
