"""`BrokerInquiries` alone: which questions a leader is sent, when, and what is told of answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link
from aioidem._engine.memory import ByteBudget
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import (
    DescribeBrokerConfig,
    DescribeTopicConfig,
    DescribeTopicLimit,
    Request,
    Step,
)
from aioidem._log import LogLine
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.topic_config import TopicConfig

from .driver import TOPIC_AUTHORIZATION_FAILED

EVERYTHING = [DescribeTopicConfig, DescribeBrokerConfig, DescribeTopicLimit]


class Questions:
    """The questions to one broker, whose partition's batches may outgrow `batch_size`."""

    def __init__(self, node_id: int = 0, version: int = 14, **options: Any) -> None:
        self.config = ProducerConfig.build("b1:9092", **options)
        self.all = Connections(self.config, lambda: 0.5)
        self.requests = RequestLedger(self.all, ByteBudget(1000, 1000))
        self.told: list[tuple[LogLine, str]] = []
        outcomes: Any = SimpleNamespace(event=lambda line, text: self.told.append((line, text)))
        self.of = BrokerInquiries(self.config, SimpleNamespace(), self.requests, outcomes)  # type: ignore[arg-type]
        self.all.learn([BrokerAddress(0, "h", 9092)])
        self.link = self.opened(node_id, version)
        self.outgrows = True
        self.state: Any = SimpleNamespace(topic="t", may_outgrow=self.may_outgrow)
        self.limit = BatchLimit("t")

    def opened(self, node_id: int, version: int) -> Link:
        made: list[Step] = []
        self.all.to(node_id, 0.0, made)
        link = self.all.nodes[node_id].link
        assert link is not None
        self.all.opened(link, version, 0.0)
        return link

    def may_outgrow(self, nbytes: int) -> bool:
        assert nbytes == self.config.batch_size
        return self.outgrows

    def ask(self, now: float = 0.0) -> Sequence[Step]:
        made = self.requests.begin_poll()
        self.of.ask(self.link, self.state, self.limit, now)
        return made

    def kinds(self, now: float = 0.0) -> list[type[Step]]:
        return [type(step) for step in self.ask(now)]

    def answered(self, step: Step) -> None:
        assert isinstance(step, Request)
        assert self.link.take(step.token, 0.0) is not None


def test_a_leader_is_asked_everything_once() -> None:
    questions = Questions()
    topic, broker, limit = questions.ask()
    kept = questions.link.outstanding
    assert topic == DescribeTopicConfig(questions.link.link_id, 1, "t")
    assert broker == DescribeBrokerConfig(questions.link.link_id, 2, 0)
    assert limit == DescribeTopicLimit(questions.link.link_id, 3, "t")
    assert [kept[token].kind for token in (1, 2, 3)] == [
        RequestKind.DESCRIBE_CONFIGS,
        RequestKind.BROKER_CONFIG,
        RequestKind.TOPIC_LIMIT,
    ]
    assert kept[3].topic_limit is questions.limit
    assert questions.ask() == []
    assert questions.told == []


def test_no_question_is_sent_before_the_connection_admits_it() -> None:
    questions = Questions()
    questions.link.throttle(1_000, 0.0)
    assert questions.ask(0.9) == []
    assert not questions.link.asked_broker
    assert questions.kinds(1.0) == EVERYTHING


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, True),
        ({"enable_idempotence": False}, False),
        ({"producer_id_expiration": 1000.0}, False),
        ({"producer_id_expiration": 1000.0, "broker_dedup": "range"}, True),
    ],
)
def test_a_broker_is_asked_about_itself_if_that_says_anything(
    options: dict[str, Any], *, asked: bool
) -> None:
    questions = Questions(version=13, **options)
    questions.outgrows = False
    assert questions.kinds() == [DescribeBrokerConfig] * asked
    assert questions.of.awaits_memory(questions.link) is asked


def test_a_bootstrap_server_is_not_asked_about_itself() -> None:
    """Which broker it is, is not known, so its answer could not be assigned."""
    questions = Questions(node_id=-1, version=13)
    assert questions.kinds() == [DescribeTopicLimit]


def test_the_memory_of_a_broker_is_awaited_until_it_answers_once() -> None:
    questions = Questions()
    assert not questions.of.awaits_memory(questions.link)
    _, step, _ = questions.ask()
    assert questions.of.awaits_memory(questions.link)
    questions.answered(step)
    assert not questions.of.awaits_memory(questions.link), "it names no time"
    questions = Questions()
    questions.ask()
    questions.of.on_broker_config(0, BrokerFacts(expiration=1000.0))
    assert not questions.of.awaits_memory(questions.link), "an earlier connection has told it"


# -- how large batches may be


@pytest.mark.parametrize(("late", "outgrows"), [(False, True), (True, False)])
def test_a_limit_is_asked_only_for_larger_batches_or_refused_ones(
    *, late: bool, outgrows: bool
) -> None:
    questions = Questions(version=13, late_sealing=late)
    questions.outgrows = outgrows
    assert questions.kinds() == [DescribeBrokerConfig]
    questions.limit.refuse(5_000)
    assert questions.kinds() == [DescribeTopicLimit]


def test_a_limit_is_not_asked_where_that_may_have_ended_the_last_connection() -> None:
    questions = Questions(version=13)
    questions.link.limits.may_ask = False
    assert questions.kinds() == [DescribeBrokerConfig]


def test_a_limit_is_asked_again_after_metadata_max_age() -> None:
    questions = Questions(version=13, metadata_max_age=60.0, request_timeout=30.0)
    _, step = questions.ask()
    questions.answered(step)
    questions.of.on_topic_limit(questions.link, questions.limit, 9_000, 10.0)
    assert questions.limit.told == 9_000
    assert questions.ask(69.9) == []
    assert questions.kinds(70.0) == [DescribeTopicLimit]


def test_a_limit_counts_as_used_once_the_connection_has_had_room() -> None:
    questions = Questions(version=13)
    questions.ask()
    questions.of.on_topic_limit(questions.link, questions.limit, 9_000, 1.0)
    questions.link.throttle(1_000, 1.0)
    unused = []
    for now in (1.5, 2.0, 2.5):
        questions.ask(now)
        unused.append(questions.limit.unused)
    assert unused == [True, False, False]


def test_that_a_broker_names_no_limit_is_told_once_if_it_matters() -> None:
    questions = Questions(late_sealing=False)
    questions.of.on_topic_limit(questions.link, questions.limit, None, 1.0)
    assert questions.told == [], "batches stay within batch_size anyway"
    questions = Questions(batch_size=16_384)
    questions.of.on_topic_limit(questions.link, questions.limit, 5_000, 1.0)
    assert questions.told == []
    for topic in ("t", "u"):
        questions.of.on_topic_limit(questions.link, BatchLimit(topic), None, 1.0)
    ((line, text),) = questions.told
    assert line is LogLine.LIMIT_UNKNOWN
    assert text.startswith(
        "topic 't': its batches stay within batch_size (16384 bytes), because broker 0 does not say"
    )


# -- the window (KIP-1269)


@pytest.mark.parametrize(
    ("answer", "line", "text"),
    [
        (TopicConfig(0, names_window=False), LogLine.WINDOW_SOURCE, "does not name the topic"),
        (
            TopicConfig(TOPIC_AUTHORIZATION_FAILED, names_window=False),
            LogLine.WINDOW_WITHHELD,
            "DESCRIBE_CONFIGS on topic 'x' is not granted",
        ),
    ],
)
def test_why_the_window_stays_at_five_is_told(
    answer: TopicConfig, line: LogLine, text: str
) -> None:
    questions = Questions()
    questions.ask()
    questions.of.on_topic_config(questions.link, "x", answer, 1.0)
    assert questions.told == []
    questions.ask()
    ((told, words),) = questions.told
    assert told is line
    assert text in words
    questions.ask()
    assert len(questions.told) == 1


def test_a_broker_that_is_known_to_have_v14_is_not_asked_for_its_config() -> None:
    questions = Questions(window_discovery="on")
    assert DescribeTopicConfig not in questions.kinds()
    assert questions.link.discovery.speaks
