"""Goodput: the rate that a connection delivers at, measured from its answers."""

from __future__ import annotations

import pytest

from aioidem._engine.goodput import Goodput


def test_goodput_is_unknown_until_something_was_acknowledged() -> None:
    assert Goodput().rate is None


def test_goodput_of_pipelined_requests_counts_what_was_delivered_meanwhile() -> None:
    """Goodput counts all bytes that were delivered while a request was under way.

    Five more requests of 100 bytes are acknowledged between a request's send and its answer, 1 s
    later. With the request's own 100 bytes that makes 600 B/s, and not 100 B/s.
    """
    goodput = Goodput()
    for number in range(20):
        goodput.acknowledge(
            100,
            sent_at=number * 0.2,
            delivered_at_send=max(0, number - 5) * 100,
            now=1.0 + number * 0.2,
        )
    assert goodput.rate == pytest.approx(600)


def test_goodput_forgets_old_samples() -> None:
    goodput = Goodput()
    goodput.acknowledge(1000, sent_at=0.0, delivered_at_send=0, now=1.0)
    for number in range(8):
        goodput.acknowledge(
            10, sent_at=number * 1.0, delivered_at_send=goodput.delivered, now=number + 1.0
        )
    assert goodput.rate == pytest.approx(10)


def test_an_answer_in_the_same_instant_gives_no_sample() -> None:
    goodput = Goodput()
    goodput.acknowledge(1000, sent_at=1.0, delivered_at_send=0, now=1.0)
    assert goodput.rate is None
    assert goodput.delivered == 1000


def test_the_rate_is_the_largest_of_the_last_eight_samples() -> None:
    """Samples taken while there was little to send are too low; each is bytes per second."""
    goodput = Goodput()
    for number, nbytes in enumerate([1000, 10, 20, 30, 40, 50, 60, 70, 5]):
        if number == 8:
            assert goodput.rate == pytest.approx(2000)
        goodput.acknowledge(
            nbytes, sent_at=number * 1.0, delivered_at_send=goodput.delivered, now=number + 0.5
        )
    assert goodput.rate == pytest.approx(140)
