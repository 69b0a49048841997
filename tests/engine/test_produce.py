"""`ProduceRequests`: what a Produce request carries, and what its answer changes."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.produce import LeaderNode, PartitionAnswer

from .driver import (
    ACKED,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    PENDING,
    Rig,
    T,
    pipelined,
    topic_id,
)


def sent(rig: Rig) -> list[Any]:
    return [step for step in rig.asked if isinstance(step, steps.SendProduce)]


# -- requests


@pytest.mark.parametrize(
    ("options", "acks", "timeout_ms"),
    [
        ({}, -1, 30_000),
        ({"request_timeout": 4.5, "delivery_timeout": 9.0}, -1, 4500),
        ({"request_timeout": 0.25, "delivery_timeout": 9.0}, -1, 250),
        ({"enable_idempotence": False, "acks": 1}, 1, 30_000),
    ],
)
def test_a_request_says_how_many_copies_are_wanted_and_how_long_it_may_take(
    options: dict[str, Any], acks: int, timeout_ms: int
) -> None:
    rig = Rig(**options).start()
    rig.send()
    (request,) = sent(rig)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (acks, timeout_ms, None)


def test_a_request_names_the_transaction() -> None:
    rig = Rig(transactional_id="x", transaction_version=2).start().begin()
    rig.send()
    assert sent(rig)[-1].transactional_id == "x"


def test_a_request_counts_the_records_of_its_batches() -> None:
    rig = Rig(partitions=2, batch_size=2000).start()
    rig.send(3, partition=0, size=50, poll=False)
    rig.send(2, partition=1, size=50, poll=False)
    rig.poll()
    (request,) = sent(rig)
    assert request.records == 5
    (topic,) = request.topics
    assert sorted(index for index, _ in topic.partitions) == [0, 1]


def test_batches_and_their_retries_are_counted() -> None:
    rig = Rig(partitions=2).start()
    counters = rig.core.counters
    for partition in range(2):
        rig.send(partition=partition, poll=False)
    rig.poll()
    assert (counters.batches_sent, counters.batches_retried) == (2, 0)
    for request in list(rig.outstanding()):
        rig.fail(request, NOT_ENOUGH_REPLICAS)
    rig.tick(2.0)
    assert (counters.batches_sent, counters.batches_retried) == (4, 2)
    rig.ack_all()
    assert rig.statuses == [ACKED, ACKED]


def test_what_is_sent_is_measured() -> None:
    rig = Rig(batch_size=2000).start()
    rig.send(3, size=50, poll=False)
    rig.poll()
    rig.core.meters.fold(rig.now)
    assert rig.core.meters.per_request.total == 3


def test_an_observer_gets_each_batch_once() -> None:
    rig = Rig().start()
    produce = rig.core.produce
    rig.send()
    assert produce.take_dispatched() == []
    kept = produce.observe()
    assert kept == []
    rig.ack_all()
    rig.send(2)
    dispatched = produce.take_dispatched()
    assert [state.where for state, _ in dispatched] == ["t-0"] * len(dispatched)
    assert sum(batch.count for _, batch in dispatched) == len(rig.outstanding())
    assert produce.take_dispatched() == []


def test_partitions_take_turns_where_a_connection_admits_only_some_batches() -> None:
    rig = Rig(partitions=3, max_in_flight_requests_per_connection=1, max_request_size=400).start()
    for partition in range(3):
        rig.send(6, partition=partition, poll=False)
    rig.poll()
    order = []
    for _ in range(9):
        (request,) = rig.outstanding()
        order += [part.partition for part in request.parts]
        rig.ack(request)
    assert order == order[:3] * 3
    assert set(order) == {0, 1, 2}


@pytest.mark.parametrize("in_flight", [1, 5])
def test_every_partition_is_served_before_one_is_served_twice(in_flight: int) -> None:
    """A request has room for nine batches here, so that twelve requests serve 100 partitions."""
    rig = Rig(
        partitions=100,
        max_in_flight_requests_per_connection=in_flight,
        max_request_size=2000,
        buffer_memory=1 << 24,
    ).start()
    for partition in range(100):
        rig.send(4, partition=partition, poll=False)
    rig.poll()
    order: list[int] = []
    while len(order) < 100:
        request = rig.outstanding()[0]
        order += [part.partition for part in request.parts]
        rig.ack(request)
    assert len(set(order[:100])) == 100


def test_a_batch_that_did_not_fit_is_first_in_the_next_request() -> None:
    """Smaller ones, which fit into what is left of a request, do not pass it by for ever."""
    rig = Rig(
        partitions=3, batch_size=200, max_request_size=1000, max_in_flight_requests_per_connection=1
    ).start()
    rig.send(size=500, partition=0, poll=False)
    rig.send(size=700, partition=1, poll=False)
    rig.send(9, size=100, partition=2, poll=False)
    rig.poll()
    orders = []
    for _ in range(2):
        (request,) = rig.outstanding()
        orders.append([part.partition for part in request.parts])
        rig.ack(request)
    assert orders == [[0, 2], [1, 2]]


# -- answers


@pytest.mark.parametrize("seconds", [0.0, 2.5])
def test_a_throttle_holds_the_connection_and_is_measured(seconds: float) -> None:
    """The client waits as long as the answer says (KIP-219)."""
    rig, (first, *_) = pipelined(2)
    link = rig.core.connections.links[first.link.link_id]
    entries = [rig.entry(first, first.only, NONE, 1)]
    rig.answer(first, entries, throttle=seconds, poll=False)
    assert link.admits(rig.now) is (seconds == 0.0)
    assert link.throttled_until == (rig.now + seconds if seconds else 0.0)
    throttles = rig.core.meters.nodes[1].throttles
    assert throttles == ([seconds] if seconds else [])


def test_a_partition_that_the_answer_leaves_out_is_in_doubt() -> None:
    rig = Rig(partitions=2).start()
    for partition in range(2):
        rig.send(partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    first, second = request.parts
    wanted = rig.core.metadata.wanted
    rig.answer(request, [rig.entry(request, first, NONE, 0)], poll=False)
    assert rig.statuses[first.partition] is ACKED
    assert rig.statuses[second.partition] is PENDING
    assert rig.state(partition=second.partition).batches.in_doubt
    assert (wanted, rig.core.metadata.wanted) == (False, True)


@pytest.mark.parametrize("version", [1, 2])
def test_a_write_without_an_answer_may_have_begun_the_transaction(version: int) -> None:
    for left_out in (False, True):
        rig = Rig(transactional_id="x", transaction_version=version).start().begin()
        rig.send()
        (request,) = rig.outstanding()
        if left_out:
            rig.answer(request, [], poll=False)
        else:
            rig.lose(poll=False)
        rig.hold = (steps.EndTransaction,)
        rig.abort()
        rig.tick(3.0)
        assert rig.called(steps.EndTransaction).commit is False


@pytest.mark.parametrize("odd", [1, 2])
@pytest.mark.parametrize("twice", [False, True])
def test_an_answer_about_a_partition_that_was_not_sent_ends_the_connection(
    odd: int, twice: bool
) -> None:
    rig = Rig().start()
    rig.send()
    (request,) = rig.outstanding()
    known = rig.entry(request, request.only, NONE, 0)
    strange = [known] * odd if twice else [known._replace(partition=7 + n) for n in range(odd)]
    error = rig.answer(request, [known, *strange], poll=False)
    assert isinstance(error, errors.ProtocolError)
    assert f"names {odd} partition(s) that its request did not carry" in str(error)
    assert rig.statuses == [ACKED]


def test_an_answer_about_a_topic_that_was_not_sent_ends_the_connection() -> None:
    rig = Rig().start()
    rig.send()
    (request,) = rig.outstanding()
    strange = PartitionAnswer(None, topic_id("another"), 0, NONE, 5)
    assert isinstance(rig.answer(request, [strange], poll=False), errors.ProtocolError)
    assert rig.state().batches.in_doubt


def test_a_new_leader_is_followed_to_the_address_that_the_answer_names() -> None:
    """Brokers and leaders in the answer save a Metadata request (KIP-951)."""
    rig = Rig().start()
    rig.send()
    (request,) = rig.outstanding()
    rig.leaders[T, 0] = (5, 9)
    rig.brokers[5] = BrokerAddress(5, "b5", 9092)
    entry = rig.entry(request, request.only, NOT_LEADER, leader_id=5, leader_epoch=9)
    strangers = (LeaderNode(5, "b5", 9092), LeaderNode(6, "b6", 9092))
    rig.hold = (steps.FetchMetadata,)
    rig.answer(request, [entry], leaders=strangers)
    rig.tick(1.0)
    (again,) = rig.outstanding()
    assert again.link.host == "b5"
    assert 6 not in rig.core.connections.nodes, "it leads nothing"
    rig.ack(again)
    assert rig.statuses == [ACKED]


def test_the_largest_batch_that_was_acknowledged_is_remembered() -> None:
    rig = Rig().start()
    rig.send()
    (request,) = rig.outstanding()
    link = rig.core.connections.links[request.link.link_id]
    rig.ack(request)
    assert link.limits.of(T).acknowledged == len(request.only.data)


def test_the_end_of_a_request_without_an_answer_is_measured_at_its_time() -> None:
    """With acks=0 no answer comes; the records end UNKNOWN when they are written."""
    rig = Rig(enable_idempotence=False, acks=0).start()
    rig.send()
    (request,) = rig.outstanding()
    rig.core.produce.on_written_unanswered(request.link.link_id, request.step.token, 77.0)
    assert rig.core.meters.now == 77.0
    rig.core.produce.on_written_unanswered(request.link.link_id, 999, 78.0)
    assert rig.core.meters.now == 78.0
