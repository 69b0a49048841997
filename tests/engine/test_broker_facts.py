"""`BrokerInquiries` without an engine: what brokers say of themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.partition import SEQUENCE_CAP
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._log import LogLine
from aioidem._protocol.broker_config import BrokerFacts


class Answers:
    """Inquiries whose answers come from the test, and what the rest of the engine is told."""

    def __init__(self, **options: Any) -> None:
        self.spans: list[int | None] = []
        self.events: list[LogLine] = []
        partitions: Any = SimpleNamespace(
            limit_span=self.spans.append,
            assume_sequence_range=lambda: self.spans.append(None),
        )
        outcomes: Any = SimpleNamespace(event=lambda line, _: self.events.append(line))
        requests: Any = SimpleNamespace()
        config = ProducerConfig.build("b1:9092", delivery_timeout=120.0, **options)
        self.inquiries = BrokerInquiries(config, partitions, requests, outcomes)

    def tell(self, node_id: int, expiration: float | None = None, cap: int | None = None) -> float:
        self.inquiries.on_broker_config(node_id, BrokerFacts(expiration, cap))
        return self.inquiries.expiration


def test_of_what_brokers_say_the_shortest_memory_counts() -> None:
    answers = Answers()
    assert answers.inquiries.expiration == DEFAULT_EXPIRATION
    assert answers.tell(0, 5000.0) == 5000.0
    assert answers.tell(1, 3000.0) == 3000.0
    assert answers.tell(2, None) == 3000.0
    assert answers.tell(1, 9000.0) == 5000.0, "broker 1 has another value now"


def test_a_memory_that_is_too_short_for_the_delivery_timeout_is_told_when_it_is_news() -> None:
    """It is at the first answer, and when the shortest time falls: 240 s for a timeout of 120 s."""
    answers = Answers()
    answers.tell(0, 240.5)
    assert answers.events == []
    answers.tell(1, 240.0)
    assert answers.events == [LogLine.SHORT_EXPIRATION]
    answers.tell(2, 500.0)
    answers.tell(1, 240.0)
    assert len(answers.events) == 1
    answers.tell(2, 100.0)
    assert len(answers.events) == 2
    first = Answers()
    first.tell(0, 200.0)
    assert first.events == [LogLine.SHORT_EXPIRATION]
    first.tell(0, 200.0)
    first.tell(0, 220.0)
    assert len(first.events) == 1, "the only broker names no shorter time than before"
    first.inquiries.forget_cluster()
    first.tell(0, 220.0)
    assert len(first.events) == 2, "the brokers of another cluster say so for the first time"
    longer = Answers()
    longer.tell(0, 1e9)
    assert longer.events == [], "a longer memory than the default is no news"


def test_the_first_answer_is_news_even_if_it_is_the_default() -> None:
    answers = Answers(max_block=1.0)
    answers.inquiries.expiration = 100.0
    answers.tell(0, 100.0)
    assert answers.events == [LogLine.SHORT_EXPIRATION]


def test_without_idempotence_the_memory_of_brokers_does_not_matter() -> None:
    answers = Answers(enable_idempotence=False)
    answers.tell(0, 100.0)
    assert answers.events == []
    assert Answers(enable_idempotence=False, producer_id_expiration=100.0).events == []


def test_a_time_in_the_configuration_counts_whatever_brokers_say() -> None:
    answers = Answers(producer_id_expiration=200.0)
    assert answers.events == [LogLine.SHORT_EXPIRATION]
    assert answers.tell(0, 50.0) == 200.0
    answers.inquiries.forget_cluster()
    assert answers.inquiries.expiration == 200.0
    assert len(answers.events) == 1


@pytest.mark.parametrize(
    ("told", "spans"),
    [([(0, 7)], [7]), ([(0, 7), (1, 9), (0, 20)], [7, 7, 9]), ([(0, 2**31)], [SEQUENCE_CAP])],
)
def test_the_smallest_range_of_sequences_that_brokers_name_counts(
    told: list[tuple[int, int]], spans: list[int]
) -> None:
    answers = Answers(broker_dedup="range")
    answers.tell(5)  # names none
    for node_id, cap in told:
        answers.tell(node_id, cap=cap)
    assert answers.spans == spans
    usual = Answers()
    usual.tell(0, cap=7)
    assert usual.spans == []


def test_what_was_told_does_not_count_in_another_cluster() -> None:
    answers = Answers(broker_dedup="range")
    answers.tell(0, 300.0, 7)
    answers.tell(1, 5000.0, 8)
    answers.inquiries.forget_cluster()
    assert answers.inquiries.expiration == DEFAULT_EXPIRATION
    assert answers.spans == [7, 7, None]
    assert answers.tell(1, 4000.0, 9) == 4000.0
    assert answers.spans[-1] == 9
