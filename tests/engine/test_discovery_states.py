"""`Discovery` without an engine: what one broker is asked, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.discovery import Discovery, DiscoveryState

from .driver import TOPIC_AUTHORIZATION_FAILED

V13, V14 = 13, 14
AGAIN = "then after waits that double up to about"


def discovery(**options: Any) -> Discovery:
    return Discovery("broker 1", ProducerConfig.build("b1:9092", **options), lambda: 0.5)


def asking() -> Discovery:
    found = discovery()
    found.opened(V14)
    assert found.due(0.0)
    assert found.begin()
    return found


def speaking() -> Discovery:
    found = asking()
    found.described(0, named=True, topic="t", now=0.0)
    assert found.speaks
    return found


def told(found: Discovery, now: float = 0.0) -> str:
    finding = found.take_finding(now)
    assert found.take_finding(now) is None
    if finding is None:
        return ""
    assert finding.warning is ("tried again" in finding.text or "asked again" in finding.text)
    return finding.text


def test_batches_wait_only_for_the_answer_about_the_brokers_config() -> None:
    found = discovery()
    assert not found.holds_up()
    found.opened(V14)
    assert not found.holds_up()
    found.begin()
    assert found.holds_up()
    found.described(0, named=True, topic="t", now=0.0)
    assert not found.holds_up()
    assert found.reason == "broker 1 has not answered in Produce v14 yet"
    found.answered()
    assert found.reason == "broker 1 answers in Produce v14"
    assert told(found) == ("broker 1 answers in Produce v14, which names its window (KIP-1269)")


def test_what_is_told_of_a_broker_without_v14() -> None:
    off = discovery(window_discovery="off")
    off.opened(V14)
    assert (off.state, off.reason) == (DiscoveryState.ABSENT, "window_discovery is off")
    assert told(off) == ""
    assert not off.due(0.0)
    old = discovery()
    old.opened(V13)
    assert old.state is DiscoveryState.ABSENT
    assert told(old) == "window 5: broker 1 does not offer Produce v14 (KIP-1269)"
    nameless = asking()
    nameless.described(0, named=False, topic="t", now=0.0)
    assert told(nameless).startswith("window 5: broker 1 does not name the topic config ")
    silent = asking()
    silent.unsupported()
    assert told(silent) == "window 5: broker 1 does not offer DescribeConfigs (KIP-1269)"
    assert silent.again_at() is None
    silent.unsupported()
    silent.described(0, named=True, topic="t", now=0.0)
    assert told(silent) == ""
    assert not silent.speaks


@pytest.mark.parametrize(
    ("code", "why", "cure"),
    [
        (
            TOPIC_AUTHORIZATION_FAILED,
            "DESCRIBE_CONFIGS on topic 't' is not granted",
            "Grant that permission",
        ),
        (-1, "DescribeConfigs of topic 't' ended with error -1", "Check the broker's log"),
    ],
)
def test_a_refused_question_is_asked_again_and_told_once(code: int, why: str, cure: str) -> None:
    found = asking()
    found.described(code, named=False, topic="t", now=100.0)
    at = found.again_at()
    assert at is not None
    text = told(found, 100.25)
    assert why in found.reason
    assert found.reason in text
    assert f"asked again in {at - 100.25:.1f} s, {AGAIN}" in text, "counted from when it is told"
    assert f". {cure}, or set window_discovery='on'" in text
    assert not found.due(at - 0.1)
    assert found.due(at)
    assert found.begin(), "the question is asked again, and not v14 tried"
    found.described(code, named=False, topic="t", now=at)
    assert told(found) == "", "only the wait is another one"
    longer = found.again_at()
    assert longer is not None
    assert longer - at > at - 100.0


def test_a_refusal_of_v14_holds_it_back_and_is_a_warning() -> None:
    found = speaking()
    found.refused("it said no", 100.0)
    at = found.again_at()
    assert at is not None
    finding = found.take_finding(100.25)
    assert finding is not None
    assert finding.warning
    assert finding.text.startswith(
        "window 5: broker 1 gets Produce v13 in place of v14 for a while: it said no."
        f" v14 is tried again in {at - 100.25:.1f} s, {AGAIN} "
    )
    found.refused("again", 101.0)
    assert found.again_at() == at, "v14 is not in use"
    assert found.due(at)
    assert found.begin()
    assert not found.holds_up(), "batches go on in v13 while the broker is asked again"


def test_connections_that_end_before_their_first_answer_in_v14_hold_it_back() -> None:
    found = discovery(window_discovery="on")
    ended = 0
    while found.again_at() is None:
        found.opened(V14)
        found.begin()
        assert found.speaks
        found.lost(v14_unanswered=True, now=100.0)
        ended += 1
        assert ended < 10
    assert ended > 1
    assert f"{ended} connections in a row ended before their first answer in v14" in told(found)


def test_a_connection_that_owed_nothing_in_v14_is_no_sign() -> None:
    found = discovery(window_discovery="on")
    for _ in range(20):
        found.opened(V14)
        found.begin()
        found.lost(v14_unanswered=False, now=100.0)
    assert found.again_at() is None
    found.lost(v14_unanswered=True, now=100.0)
    assert found.again_at() is None, "there was no connection"


def test_a_broker_that_has_answered_in_v14_is_not_held_back_by_lost_connections() -> None:
    found = speaking()
    found.answered()
    for _ in range(20):
        found.lost(v14_unanswered=True, now=100.0)
        found.opened(V14)
        if found.begin():
            found.described(0, named=True, topic="t", now=0.0)
    assert found.again_at() is None
    assert found.speaks


def test_a_broker_that_answered_before_is_not_asked_after_two_connections_without_an_answer() -> (
    None
):
    """Its config may be what ends the connections; after an answer in v14 it is asked again."""
    found = speaking()
    found.answered()
    asked = []
    for _ in range(3):
        found.lost(v14_unanswered=True, now=100.0)
        found.opened(V14)
        assert found.due(100.0)
        asked.append(found.begin())
    assert asked == [True, True, False]
    assert found.speaks
    found.answered()
    found.lost(v14_unanswered=True, now=100.0)
    found.opened(V14)
    assert found.begin()


def test_an_answer_in_v14_makes_the_next_waits_short_again() -> None:
    found, waits = speaking(), []
    for turn in range(4):
        found.refused("no", 0.0)
        at = found.again_at()
        assert at is not None
        waits.append(at)
        found.begin()
        found.described(0, named=True, topic="t", now=0.0)
        if turn == 2:
            found.answered()
    assert waits[3] == waits[0] < waits[1] < waits[2]


def test_a_new_broker_is_not_connected_and_has_not_answered() -> None:
    found = discovery()
    assert (found.state, found.speaks) == (DiscoveryState.APART, False)
    assert found.reason == "broker 1 has not answered in Produce v14 yet"
    assert found.again_at() is None
    assert not found.due(10**9)


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_without_idempotence_there_is_no_window_to_discover(mode: str) -> None:
    found = discovery(window_discovery=mode, enable_idempotence=False)
    found.opened(V14)
    assert (found.state, found.reason) == (DiscoveryState.ABSENT, "window_discovery is off")


@pytest.mark.parametrize(("mode", "longest"), [("auto", 300), ("on", 15)])
def test_the_longest_wait_is_told(mode: str, longest: int) -> None:
    found = discovery(window_discovery=mode)
    found.opened(V14)
    if found.begin():
        found.described(0, named=True, topic="t", now=0.0)
    found.refused("no", 0.0)
    assert f"{AGAIN} {longest} s" in told(found)


def test_a_new_connection_is_asked_at_once_even_if_the_last_one_was_to_be_asked_later() -> None:
    found = asking()
    found.described(TOPIC_AUTHORIZATION_FAILED, named=False, topic="t", now=100.0)
    found.lost(v14_unanswered=False, now=100.0)
    found.opened(V14)
    assert found.due(100.0)
    assert found.begin()
    assert found.state is DiscoveryState.ASKING


def test_an_answer_in_v14_makes_the_wait_after_a_refused_question_short_again() -> None:
    found, waits = asking(), []
    for turn in range(3):
        found.described(TOPIC_AUTHORIZATION_FAILED, named=False, topic="t", now=100.0)
        at = found.again_at()
        assert at is not None
        waits.append(at)
        found.begin()
        if turn == 1:
            found.described(0, named=True, topic="t", now=100.0)
            found.answered()
            found.lost(v14_unanswered=False, now=100.0)
            found.opened(V14)
            found.begin()
    assert waits[0] == waits[2] < waits[1]


def test_different_findings_about_a_broker_are_all_told() -> None:
    found = discovery()
    found.opened(V13)
    assert "does not offer Produce v14" in told(found)
    found.lost(v14_unanswered=False, now=0.0)
    found.opened(V14)
    found.begin()
    found.unsupported()
    assert "does not offer DescribeConfigs" in told(found)
    found.lost(v14_unanswered=False, now=0.0)
    found.opened(V13)
    assert "does not offer Produce v14" in told(found)
