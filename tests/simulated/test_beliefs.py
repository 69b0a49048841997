"""Tests of the judges of beliefs and of questions about sizes: each notices its faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._engine import steps
from aioidem._engine.batch_limits import BatchLimits
from aioidem._engine.cluster import ClusterView
from aioidem._engine.topic_view import TopicView
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import PartitionUpdate
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._records import build_batch

from .beliefs import Beliefs
from .size_questions import SizeQuestions
from .test_conduct import VALUES, config, produce

# -- sizes -----------------------------------------------------------------------------------------


class _Link:
    def __init__(self) -> None:
        self.node_id = 1
        self.limits = BatchLimits()


def sizes(**options: Any) -> tuple[SizeQuestions, Any, list[str]]:
    told: list[str] = []
    judge = SizeQuestions(config(metadata_max_age=10.0, **options), told.append)
    link: Any = _Link()
    judge.opened(link, None)
    return judge, link, told


def test_a_limit_is_asked_for_once_and_again_when_it_is_old() -> None:
    judge, link, told = sizes()
    judge.asks(link, None, "t", 1, 0.0)
    judge.answered(link, 1, 1000, 1.0)
    judge.asks(link, None, "t", 2, 11.0)
    assert not told
    judge.asks(link, None, "t", 3, 11.0)
    assert "already" in told.pop()
    judge.answered(link, 3, 1000, 12.0)
    judge.asks(link, None, "t", 4, 20.0)
    assert "8.000 s after its answer" in told.pop()


def test_a_limit_is_asked_for_if_it_is_needed() -> None:
    judge, link, told = sizes(late_sealing=False)
    judge.asks(link, None, "t", 1, 0.0)
    assert "nothing depends" in told.pop()


@pytest.mark.parametrize(("nbytes", "asks"), [(999, True), (1001, False)])
def test_a_refusal_within_the_limit_is_a_reason_to_ask_at_once(nbytes: int, asks: bool) -> None:
    judge, link, told = sizes()
    judge.asks(link, None, "t", 1, 0.0)
    judge.answered(link, 1, 1000, 1.0)
    judge.refused(link, "t", nbytes)
    judge.sends(link, None, "t", ())
    assert len(told) == asks
    told.clear()
    judge.asks(link, None, "t", 2, 2.0)
    assert len(told) == (not asks)
    judge.sends(link, None, "t", ())
    assert len(told) == (not asks)


def test_a_broker_that_may_have_hung_up_upon_the_question_is_not_asked_at_once() -> None:
    judge, link, told = sizes()
    judge.asks(link, None, "t", 1, 0.0)
    following: Any = _Link()
    judge.opened(following, None)
    judge.refused(following, "t", 500)
    judge.sends(following, None, "t", ())
    assert not told
    judge.asks(following, None, "t", 1, 1.0)
    assert "closed the connection" in told.pop()


@pytest.mark.parametrize(
    ("late", "codec", "batch_size", "accepted", "limit", "right"),
    [
        (False, "none", 0, None, None, True),
        (False, "none", -1, None, None, False),
        (False, "none", -1, 0, 0, False),
        (False, "none", 0, None, -1, False),
        (False, "gzip", -1, 0, 0, True),
        (False, "gzip", -1, None, None, False),
        (True, "none", -1, None, None, False),
        (True, "none", -1, -1, None, False),
        (True, "none", -1, 0, None, True),
        (True, "none", -1, None, 0, True),
        (True, "none", -1, 0, -1, False),
    ],
)
def test_a_batch_of_several_records_keeps_to_the_limit_that_is_known(
    late: bool, codec: str, batch_size: int, accepted: int | None, limit: int | None, right: bool
) -> None:
    """All sizes are given as the difference to that of the batch."""
    [(_, data)] = produce(*VALUES[:2]).topics[0].partitions
    size = len(data)
    grows: dict[str, Any] = {"late_sealing": late, "compression_type": codec}
    judge, link, told = sizes(batch_size=size + batch_size, **grows)
    if accepted is not None:
        judge.accepted(link, "t", size + accepted)
    if limit is not None:
        judge.asks(link, None, "t", 1, 0.0)
        judge.answered(link, 1, size + limit, 1.0)
    told.clear()
    judge.sends(link, None, "t", [data])
    assert (not told) is right
    told.clear()
    judge.sends(link, None, "t", [data])
    assert not told, "it is sent again as it was"


# -- beliefs ---------------------------------------------------------------------------------------


class _Engine:
    """What the judge looks at of an engine."""

    def __init__(self) -> None:
        self.cluster = ClusterView()
        self.config = config()
        batches = SimpleNamespace(unresolved=[])
        self.partitions = {("t", 0): SimpleNamespace(log=SimpleNamespace(), batches=batches)}
        self._inquiries = SimpleNamespace(expiration=86_400.0)


def beliefs() -> tuple[Beliefs, Any, list[str]]:
    told: list[str] = []
    engine: Any = _Engine()
    return Beliefs(engine, told.append), engine, told


def test_a_leader_epoch_does_not_go_back() -> None:
    judge, engine, told = beliefs()
    view = engine.cluster.topics["t"] = TopicView("t", None)
    for epoch in (3, 5, 4):
        view.merge(PartitionUpdate(0, 1, epoch))
        judge.heard_of(["t", "other"])
    assert not told
    view.lead(0, 1, 4)
    judge.heard_of(["t"])
    assert "leader epoch 4 after 5" in told.pop()
    engine.cluster.topics["t"] = TopicView("t", None)
    engine.cluster.topics["t"].merge(PartitionUpdate(0, 1, 0))
    judge.heard_of(["t"])
    assert not told


def test_brokers_forget_producers_after_the_shortest_time_that_was_told() -> None:
    judge, engine, told = beliefs()
    judge.configured(1, BrokerFacts())
    assert not told
    judge.configured(1, BrokerFacts(60.0))
    assert "after 60.0 s, and 86400.0 s counts" in told.pop()
    engine._inquiries.expiration = 60.0
    judge.configured(2, BrokerFacts(70.0))
    assert not told
    judge.other_cluster()
    engine._inquiries.expiration = 90.0
    judge.configured(2, BrokerFacts(90.0))
    assert not told


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        (-1, 11, True),
        (-1, -1, False),
        (20, 20, True),
        (20, 11, True),
        (20, 10, False),
        (5, 5, False),
    ],
)
def test_a_log_ends_with_a_batch_that_was_acknowledged(
    before: int, after: int, right: bool
) -> None:
    judge, engine, told = beliefs()
    records = [SimpleNamespace(key=None, headers=(), timestamp_ms=5, value=b"v")] * 2
    data = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0).data
    step = steps.SendProduce(1, 1, 9, -1, 1000, None, [steps.TopicData("t", None, [(0, data)])])
    answer = ProduceAnswer((PartitionAnswer("t", None, 0, 0, 10),), 0)
    state = engine.partitions["t", 0]
    for held in ([], [SimpleNamespace(data=data)]):
        state.log.offset, state.batches.unresolved = before, held
        ends = judge.ends(step)
        state.log.offset = after
        judge.acknowledged(step, answer, ends)
        assert (not told) is (right or not held)
