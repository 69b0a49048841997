"""`MetadataRequests`: what is asked of brokers about the cluster, and what the answers change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate

from .driver import (
    ACKED,
    NOT_WRITTEN,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Rig,
    T,
    topic_id,
)


def held(rig: Rig) -> tuple[steps.FetchMetadata, MetadataUpdate]:
    """Let a Metadata request wait, and return it with the answer that the cluster would give."""
    rig.hold = (steps.FetchMetadata,)
    rig.refresh()
    (request,) = (step for step in rig.held if isinstance(step, steps.FetchMetadata))
    rig.held.clear()
    rig.hold = ()
    return request, rig.metadata(request.topics)._replace(cluster_id="cluster")


def asked_again(rig: Rig, change: Callable[[MetadataUpdate], MetadataUpdate]) -> bool:
    """Answer with a changed answer, and return whether metadata is still wanted then."""
    request, update = held(rig)
    rig.core.on_answer(request, change(update), rig.now)
    return rig.core.metadata.wanted


def test_a_request_names_all_topics_and_whether_they_may_be_created() -> None:
    for auto in (True, False):
        rig = Rig(allow_auto_create_topics=auto).start()
        for name in ("u", "a"):
            rig.core.accumulator.topic(name)
        request, _ = held(rig)
        assert request.topics == ("a", T, "u")
        assert request.allow_auto_create is auto


def test_a_connection_that_carried_a_metadata_request_is_not_asked_for_its_cluster() -> None:
    rig = Rig(brokers=2)
    rig.leaders[T, 0] = (2, 0)
    rig.start()
    rig.send()
    first = next(step for step in rig.asked if isinstance(step, steps.FetchMetadata))
    questions = [step.link_id for step in rig.asked if isinstance(step, steps.AskCluster)]
    assert first.link_id not in questions
    assert len(questions) == len(set(questions)) > 0


@pytest.mark.parametrize("ms", [0, 2500])
def test_a_throttle_in_the_answer_holds_the_connection(ms: int) -> None:
    """The client waits as long as the answer says (KIP-219)."""
    rig = Rig().start()
    request, update = held(rig)
    rig.core.on_answer(request, update._replace(throttle_ms=ms), rig.now)
    assert rig.core.connections.links[request.link_id].admits(rig.now) is (ms == 0)


def test_only_the_producer_s_own_cluster_says_which_transactions_it_has() -> None:
    """A connection that leads astray for a while names the level of the cluster that is there."""
    rig = Rig(transactional_id="x", transaction_version=0).start()
    request, update = held(rig)
    rig.core.connections.links[request.link_id].transaction_version = 2
    rig.core.on_answer(request, update._replace(cluster_id="another"), rig.now)
    assert rig.core.cluster.transaction_version == 0


def test_the_connection_that_was_opened_last_says_which_transactions_there_are() -> None:
    """What an older one heard when it was opened may be outdated, however often it is asked."""
    rig = Rig(brokers=2, transactional_id="x", transaction_version=1)
    rig.leaders[T, 0] = (2, 0)
    rig.start()
    assert rig.core.cluster.transaction_version == 1
    rig.transaction_version = 2
    rig.begin()
    rig.send()
    rig.ack_all()
    assert rig.core.cluster.transaction_version == 2
    assert {link.transaction_version for link in rig.core.connections.links.values()} == {1, 2}
    for _ in range(4):
        rig.refresh(1.0)
    assert rig.core.cluster.transaction_version == 2


def test_an_answer_that_names_everything_is_enough() -> None:
    rig = Rig().start()
    assert not asked_again(rig, lambda update: update)


def test_an_answer_without_brokers_is_not_enough() -> None:
    rig = Rig().start()
    assert asked_again(rig, lambda update: update._replace(brokers=()))


def test_an_answer_with_a_partition_without_a_leader_is_not_enough() -> None:
    rig = Rig(partitions=2).start()
    rig.leaders[T, 1] = (-1, 5)
    assert asked_again(rig, lambda update: update)


def test_an_answer_without_the_partition_of_a_waiting_record_is_not_enough() -> None:
    rig = Rig(max_block=60.0).start()
    rig.send(topic="u", partition=None)
    assert asked_again(rig, lambda update: update)


def test_an_answer_without_the_topic_that_a_caller_waits_for_is_not_enough() -> None:
    rig = Rig().start()
    state = rig.core.accumulator.topic("u")
    rig.topic_errors["u"] = UNKNOWN_TOPIC_OR_PARTITION
    assert not asked_again(rig, lambda update: update)
    with state.awaited():
        assert asked_again(rig, lambda update: update)
        with rig.core.accumulator.topic(T).awaited():
            del rig.topic_errors["u"]
            rig.leaders["u", 0] = (1, 0)
            assert not asked_again(rig, lambda update: update)


def test_an_answer_of_another_cluster_changes_nothing() -> None:
    rig = Rig().start()
    rig.leaders[T, 0] = (5, 9)
    rig.brokers[5] = BrokerAddress(5, "b5", 9092)
    assert asked_again(rig, lambda update: update._replace(cluster_id="another"))
    assert 5 not in rig.core.connections.nodes


def test_a_broker_that_names_no_cluster_is_believed() -> None:
    rig = Rig().start()
    rig.brokers[5] = BrokerAddress(5, "b5", 9092)
    assert not asked_again(rig, lambda update: update._replace(cluster_id=None))
    assert 5 in rig.core.connections.nodes
    assert rig.core.cluster.cluster_id == "cluster"


def test_the_first_cluster_that_is_named_is_the_producer_s() -> None:
    rig = Rig()
    named: list[str | None] = [None]
    rig.cluster_id = None
    rig.start()
    named.append(rig.core.cluster.cluster_id)
    asked_again(rig, lambda update: update._replace(cluster_id="late"))
    assert named == [None, None]
    assert rig.core.cluster.cluster_id == "late"


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.invalid_replication_factor, False),
        (ErrorCode.kafka_storage_error, False),
        (ErrorCode.throttling_quota_exceeded, False),
        (TOPIC_AUTHORIZATION_FAILED, True),
        (200, True),
    ],
)
def test_a_topic_s_error_is_known_and_ends_its_records_if_it_is_permanent(
    code: int, ends: bool
) -> None:
    rig = Rig(max_block=60.0).start()
    (record,) = rig.send(topic="u", partition=None)
    rig.topic_errors["u"] = code
    rig.refresh(1.0)
    assert rig.core.accumulator.topic("u").error_code == code
    assert record.status is (NOT_WRITTEN if ends else PENDING)
    rig.leaders["u", 0] = (1, 0)
    del rig.topic_errors["u"]
    rig.refresh(3.0)
    assert rig.core.accumulator.topic("u").error_code == 0


def recreated(rig: Rig) -> None:
    rig.ids[T] = topic_id(T, 1)
    rig.refresh(0.5)


def test_the_batch_limit_of_a_topic_is_not_that_of_its_successor() -> None:
    rig = Rig().start()
    rig.send()
    rig.ack_all()
    (link,) = [each for each in rig.core.connections.links.values() if each.node_id == 1]
    link.limits.of(T).tell(5000, rig.now)
    link.limits.of("u").tell(6000, rig.now)
    topic = rig.core.accumulator.topic(T)
    topic.too_large(4000, rig.now)
    (late, *_) = [rig.outstanding()[0] for _ in rig.send()]
    recreated(rig)
    assert (link.limits.of(T).told, link.limits.of("u").told) == (None, 6000)
    assert topic.ceiling(10_000, rig.now) == 10_000
    rig.ack(late)
    assert link.limits.of(T).acknowledged == 0, "the answer is about the deleted topic"


def test_a_recreated_topic_is_told_and_costs_one_epoch() -> None:
    rig = Rig(partitions=2).start()
    for partition in range(2):
        rig.send(partition=partition)
    rig.ack_all()
    before = rig.core.identity.current
    recreated(rig)
    after = rig.core.identity.current
    assert before is not None
    assert after == (before.producer_id, before.epoch + 1)
    (told,) = (event for event in rig.events if "was deleted and recreated" in event)
    assert told.startswith("topic 't' was deleted")
    (record,) = rig.send()
    rig.ack_all()
    assert record.status is ACKED


@pytest.mark.parametrize(
    "options", [{"enable_idempotence": False}, {"transactional_id": "x", "transaction_version": 2}]
)
def test_where_the_producer_raises_no_epoch_a_recreated_topic_raises_none(
    options: dict[str, Any],
) -> None:
    rig = Rig(**options).start()
    before = rig.core.identity.current
    recreated(rig)
    assert rig.core.identity.current == before


def test_topics_that_nobody_asked_for_are_not_kept() -> None:
    rig = Rig().start()
    request, update = held(rig)
    strange = update.topics[0]._replace(name="strange")
    rig.core.on_answer(request, update._replace(topics=(*update.topics, strange)), rig.now)
    assert set(rig.core.cluster.topics) == {T}


def test_a_merge_that_was_made_for_another_view_is_made_again() -> None:
    """The Sender merges a long answer in pieces; the producer may change its cluster meanwhile."""
    rig = Rig().start()
    request, update = held(rig)
    merge = rig.core.merge_of(request, update)
    assert merge is not None
    assert rig.core.merge_of(steps.AskCluster(request.link_id, request.token), update) is None
    rig.core.cluster.forget("cluster")
    assert merge.stale
    rig.core.on_answer(request, update, rig.now, merge)
    assert rig.core.cluster.leader_of(T, 0) is not None


def test_a_lost_request_is_made_again() -> None:
    rig = Rig().start()
    request, _ = held(rig)
    rig.lose(rig.links[request.link_id], poll=False)
    assert rig.core.metadata.wanted
