"""The reason for a partition's window in words, which `statistics()` shows.

Over the wire the reasons are in tests/producer/test_discovery.py.
"""

from __future__ import annotations

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.links import Link
from aioidem._engine.retention import Disproof
from aioidem._engine.window_reason import window_reason

from .driver import made_link
from .partition_bench import Bench


def reason(bench: Bench, link: Link | None, **options: object) -> str:
    config = ProducerConfig.build("b1:9092", **options)  # type: ignore[arg-type]
    return window_reason(bench.state, link, config)


def heard_link() -> Link:
    """Return a connection on which the broker has answered in Produce v14."""
    link = made_link()
    link.discovery.opened(14)
    link.discovery.begin()
    link.discovery.described(0, named=True, topic="t", now=0.0)
    link.discovery.answered()
    return link


def heard(retained: int) -> Bench:
    """Return a partition whose leader has named this window."""
    bench = Bench()
    bench.ack(bench.send(), 0, retained=retained)
    return bench


def test_options_come_before_the_broker() -> None:
    bench, link = heard(20), heard_link()
    assert reason(bench, link, enable_idempotence=False) == ("no window: enable_idempotence is off")
    assert reason(bench, link, broker_dedup="range") == (
        "no window: broker_dedup is 'range' (KIP-758)"
    )
    assert reason(bench, None) == "the partition's leader is not connected"


def test_a_broker_that_does_not_answer_in_v14_names_no_window() -> None:
    """The reason is then that of the discovery."""
    link = made_link()
    link.discovery.opened(13)
    assert reason(Bench(), link) == link.discovery.reason == "broker 1 does not offer Produce v14"


def test_a_broker_that_answers_names_the_window_with_the_first_success() -> None:
    link = heard_link()
    assert reason(Bench(), link) == ("broker 1 has not acknowledged a batch of this partition yet")
    assert reason(heard(7), link, max_in_flight_requests_per_connection=100) == (
        "broker 1 retains 7 batches"
    )


@pytest.mark.parametrize(("in_flight", "limits"), [(19, True), (20, False), (21, False)])
def test_the_connection_s_limit_is_named_if_it_is_lower(in_flight: int, limits: bool) -> None:
    told = "broker 1 retains 20 batches"
    if limits:
        told = f"limited by max_in_flight_requests_per_connection ({in_flight}); {told}"
    options = {"max_in_flight_requests_per_connection": in_flight}
    assert reason(heard(20), heard_link(), **options) == told


@pytest.mark.parametrize(("window", "cut"), [(11, False), (12, True), (13, True)])
def test_a_window_that_is_cut_to_what_the_broker_was_seen_to_retain_says_so(
    window: int, cut: bool
) -> None:
    """A broker that names less than that is believed."""
    link = heard_link()
    link.memory.disprove(Disproof(20, 12, 13), 0.0)
    told = reason(heard(window), link, max_in_flight_requests_per_connection=100)
    if cut:
        assert told == (
            "broker 1 says that it retains more batches than 12, but was seen to refuse a retry "
            "within that number; the limit ends after some minutes or longer"
        )
    else:
        assert told == "broker 1 retains 11 batches"
