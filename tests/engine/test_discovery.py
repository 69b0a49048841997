"""Produce v14 (KIP-1269): when it is used with a broker, and when it is tried again."""

from __future__ import annotations

import pytest

from aioidem._engine import steps
from aioidem._protocol.topic_config import TopicConfig

from .driver import (
    ACKED,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    UNSUPPORTED_VERSION,
    Rig,
    T,
    pipelined,
)

FORTY = {"max_in_flight_requests_per_connection": 40}


@pytest.mark.parametrize(
    ("mode", "offered", "named", "version"),
    [
        ("auto", 14, True, 14),
        ("auto", 14, False, 13),
        ("auto", 13, True, 13),
        ("on", 14, False, 14),
        ("on", 13, True, 13),
        ("off", 14, True, 13),
    ],
)
def test_v14_is_spoken_as_the_option_and_the_broker_allow(
    mode: str, offered: int, named: bool, version: int
) -> None:
    """v14 is used if the broker offers v14 and the option `window_discovery` allows it.

    "auto" allows v14 for brokers that have the topic config of KIP-1269, "on" for all brokers.
    """
    rig = Rig(version=offered, window_discovery=mode)
    rig.names_config = named
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.send()
    assert rig.outstanding()[0].version == version
    asked = [step for step in rig.asked if isinstance(step, steps.DescribeTopicConfig)]
    assert len(asked) == (mode == "auto" and offered == 14)


def test_the_config_is_asked_about_once_per_connection() -> None:
    rig = Rig(version=14, partitions=3).start()
    for partition in (0, 1, 2):
        rig.send(partition=partition)
    rig.ack_all()
    rig.lose()
    rig.tick(1.0)
    rig.send()
    rig.ack_all()
    asked = [step for step in rig.asked if isinstance(step, steps.DescribeTopicConfig)]
    assert len({step.link_id for step in asked}) == len(asked) == 2


def test_the_first_batch_of_a_connection_waits_for_the_answer_about_the_config() -> None:
    """The first batch of a connection waits until the broker says if it has the topic config.

    The batch can then be sent in v14, whose answer names the window (how many batches the broker
    retains).
    """
    rig = Rig(version=14)
    rig.hold = (steps.DescribeTopicConfig,)
    rig.start()
    rig.send()
    assert rig.everything == []
    step = rig.held[0]
    rig.core.on_answer(step, TopicConfig(0, True), rig.now)
    rig.poll()
    assert rig.outstanding()[0].version == 14


def test_a_config_question_that_is_never_answered_holds_nothing_up_for_ever() -> None:
    rig = Rig(version=14, request_timeout=5.0)
    rig.hold = (steps.DescribeTopicConfig,)
    rig.start()
    rig.send()
    rig.tick(6.0)
    assert len(rig.held) == 2, "the next connection asks for the config again"
    step = rig.held[1]
    rig.core.on_answer(step, TopicConfig(0, False), rig.now)
    rig.ack_all()
    assert rig.statuses == [ACKED]


def test_a_v14_request_refused_falls_back_to_v13_for_a_while() -> None:
    """A batch that is refused in v14 with UNSUPPORTED_VERSION is retried in v13.

    The same error in another version fails the batch. v14 is tried again after a second, on any
    connection, and after each further refusal the wait is longer.
    """
    rig = Rig(version=14, window_discovery="on").start()
    rig.send()
    rig.fail(rig.outstanding()[0], UNSUPPORTED_VERSION)
    rig.tick(0.3)
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    assert rig.statuses == [ACKED]
    rig.lose()
    rig.tick(0.3)
    rig.send()
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    waits = []
    for _ in range(6):
        before = rig.now
        rig.send()
        while rig.outstanding()[0].version == 13:
            rig.ack(rig.outstanding()[0])
            rig.tick(0.1)
            rig.send()
        waits.append(rig.now - before)
        rig.fail(rig.outstanding()[0], UNSUPPORTED_VERSION)
        rig.tick(0.3)
        rig.ack_all()
    assert waits == sorted(waits)
    assert 10.0 < waits[-1] < 20.0, 'with window_discovery="on" the wait does not grow further'
    assert sum("UNSUPPORTED_VERSION" in event for event in rig.events) == 1, (
        "the warning comes once"
    )


def test_a_v14_answer_that_cannot_be_decoded_falls_back_to_v13_for_a_while() -> None:
    rig = Rig(version=14, window_discovery="on").start()
    rig.send()
    request = rig.outstanding()[0]
    rig.finish(request)
    request.link.closed = True
    rig.core.on_undecodable(request.link.link_id, 14, ValueError("odd"), rig.now)
    rig.tick(0.5)
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    assert rig.statuses == [ACKED]
    link = rig.core.connections.links[rig.produce_link().link_id]
    assert "gets Produce v13 in place of v14" in link.discovery.reason
    rig.tick(1.0)
    rig.send()
    assert rig.outstanding()[0].version == 14
    assert "has not answered in Produce v14 yet" in link.discovery.reason


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_broker_that_hangs_up_on_v14_is_spoken_to_in_v13(mode: str) -> None:
    """A broker that has closed two connections upon v14 is sent v13 instead."""
    rig = Rig(version=14, window_discovery=mode).start()
    rig.hold = (steps.DescribeTopicConfig,)
    rig.send(20)
    refused = 0
    until = rig.now + 100.0
    while PENDING in rig.statuses and rig.now < until:
        for request in rig.outstanding():
            if request.done:
                continue
            if request.version == 14:
                refused += 1
                rig.lose(request.link)
            else:
                rig.ack(request)
        while rig.held:
            step = rig.held.pop()
            rig.core.on_answer(step, TopicConfig(0, True), rig.now)
        rig.tick(0.1)
    assert rig.statuses == [ACKED] * 20
    assert refused <= 2


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_broker_that_has_answered_v14_collects_no_strikes(mode: str) -> None:
    """A broker that has answered in v14 is sent v14 however many connections end.

    Here five connections end while a request is unanswered.
    """
    rig, _ = pipelined(20, version=14, window_discovery=mode, **FORTY)
    rig.ack_all()
    for _ in range(5):
        rig.send()
        assert rig.outstanding()[0].version == 14
        rig.lose()
        rig.tick(5.0)
    assert rig.outstanding()[0].version == 14
    rig.ack_all()
    assert {request.version for request in rig.everything} == {14}
    assert not [event for event in rig.events if "in place of v14" in event]


def test_a_known_broker_whose_config_questions_are_lost_is_not_asked_a_third_time() -> None:
    """A broker known to speak v14 gets no DescribeConfigs after two unanswered ones in a row.

    Batches wait for the answer, so each unanswered request holds them up for a request timeout.
    """
    rig = Rig(version=14, request_timeout=5.0).start()
    rig.send()
    rig.ack_all()
    rig.hold = (steps.DescribeTopicConfig,)
    rig.lose()
    rig.send()
    rig.tick(12.0)
    assert len(rig.held) == 2
    assert rig.outstanding()[0].version == 14
    rig.ack_all()
    assert rig.statuses == [ACKED] * 2


def test_a_config_that_may_not_be_read_is_asked_about_again_while_batches_go_on() -> None:
    """A config that may not be read is asked for again on the same connection, ever less often.

    Meanwhile batches are sent in v13; only the first one waited for an answer about the config.
    """
    rig = Rig(version=14)
    rig.config_error = TOPIC_AUTHORIZATION_FAILED
    rig.start()
    asked = []
    for _ in range(300):
        rig.send()
        rig.ack(rig.outstanding()[0])
        rig.tick(0.1)
        asked.append(sum(isinstance(step, steps.DescribeTopicConfig) for step in rig.asked))
    assert [asked.index(count) // 10 for count in (2, 3, 4)] == pytest.approx([1, 3, 7], abs=1.5)
    assert asked[-1] in (5, 6)
    [told] = [event for event in rig.events if "DESCRIBE_CONFIGS" in event]
    assert "topic 't'" in told
    rig.hold = (steps.DescribeTopicConfig,)
    rig.tick(40.0)
    rig.send()
    [step] = rig.held
    assert rig.outstanding()[0].version == 13, "no batch waits for a second answer about the config"
    rig.core.on_answer(step, TopicConfig(0, True), rig.now)
    rig.ack_all()
    rig.send()
    assert rig.outstanding()[0].version == 14


def test_a_connection_that_ends_while_the_config_is_asked_for_again_begins_anew() -> None:
    """The next connection asks for the config, and its first batch waits for the answer."""
    rig = Rig(version=14)
    rig.config_error = TOPIC_AUTHORIZATION_FAILED
    rig.start()
    rig.send()
    rig.ack_all()
    rig.hold = (steps.DescribeTopicConfig,)
    rig.tick(2.0)
    rig.send()
    rig.ack_all()
    [again] = rig.held
    rig.lose()
    rig.tick(2.0)
    rig.send()
    assert not rig.outstanding()
    [anew] = rig.held[1:]
    assert anew.link_id != again.link_id
    rig.core.on_answer(anew, TopicConfig(0, True), rig.now)
    rig.poll()
    assert rig.outstanding()[0].version == 14


def test_a_topic_without_an_id_is_written_by_name() -> None:
    """A topic without an id is written in v12, by name, never with a zero id (franz-go #1312)."""
    rig = Rig(version=14, window_discovery="on")
    rig.ids[T] = None
    rig.start()
    rig.send()
    request = rig.outstanding()[0]
    assert request.version == 12
    assert request.step.topics[0].topic_id is None
    rig.ack(request)
    assert rig.statuses == [ACKED]
