"""The window on real brokers: stock ones remember five batches, patched ones twenty (KIP-1269).

A test of an integration scenario of KIP-1269 has the scenario's name. The broker's proxy counts the
span (the number of batches that the broker has to remember at once). Tests assert that the span
reaches the window and does not exceed it, and check the log with Kafka's dump tool.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem.structs import DeliveryStatus
from aioidem.testing import Cut, Drop, KafkaCluster
from tests.kafka.tools import (
    DESCRIBE_CONFIGS,
    ONE_EACH,
    STOCK,
    History,
    SpanCount,
    bounded,
    check,
    outcomes,
    partition_of,
)
from tests.kafka.transactional import committed, send, values

pytestmark = pytest.mark.anyio

RTT = 0.04
TOPIC = 2
RETAIN = "producer.state.batches.to.retain"


@pytest.fixture(scope="module")
async def patched(
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    async with KafkaCluster(retain=20, rtt=RTT) as running:
        yield running


def producer_of(cluster: KafkaCluster, **options: Any) -> Producer:
    return Producer(
        cluster.bootstrap_servers, **{"max_in_flight_requests_per_connection": 20, **options}
    )


async def commit_and_count(
    cluster: KafkaCluster, topic: str, window: int, *, gated: bool
) -> SpanCount:
    """Send 60 records in each of three transactions, abort the second, and count the spans.

    Assert that the span of each transaction reaches the window: in transactions v2 before the first
    answer, from the second one on; in v1 (`gated`), and where the partition is new, one batch is
    sent first, and the others after its answer.
    """
    spans = SpanCount(cluster.proxy)
    # The number of requests before the transaction began, and the numbers when each answer came.
    before, asked = 0, [0]
    spans.answer = lambda: asked.append(spans.requests)
    async with producer_of(cluster, **ONE_EACH, transactional_id=topic) as producer:
        for name, commit in (("one", True), ("two", False), ("three", True)):
            spans.forget()
            asked.clear()
            before = spans.requests
            spans.await_bursts(*([1, window] if gated or not before else [window]))
            await producer.begin_transaction()
            assert set(await outcomes(send(producer, topic, name, 60))) == {DeliveryStatus.ACKED}
            await (producer.commit_transaction() if commit else producer.abort_transaction())
            assert spans.max_span() == partition_of(producer, topic).window == window
        assert asked[0] - before == (1 if gated else window)
    assert await committed(cluster, topic) == values(topic, "one", 60) + values(topic, "three", 60)
    return spans


async def send_and_count(
    cluster: KafkaCluster, topic: str, fill: int, records: int = 120, **options: Any
) -> tuple[SpanCount, int]:
    """Send batches of one record, and return the counter of spans and the window at the end.

    The broker gets the batches after the first one when `fill` of them are on the way.
    """
    spans = SpanCount(cluster.proxy)
    spans.await_bursts(1, fill)
    async with producer_of(cluster, **ONE_EACH, **options) as producer:
        history = History(producer, topic)
        await outcomes(history.send(records))
        window = partition_of(producer, topic).window
    assert history.offsets() == list(range(records))
    assert await check(cluster, [history], topic) == list(range(records))
    return spans, window


# --- stock brokers --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", STOCK)
@bounded(60)
async def test_a_stock_broker_gets_five_batches_and_never_more(version: str) -> None:
    async with KafkaCluster(version, rtt=RTT) as cluster:
        for discovery in ("auto", "on"):
            await cluster.create_topic(discovery)
            spans, window = await send_and_count(cluster, discovery, 5, window_discovery=discovery)
            assert (spans.max_span(), window) == (5, 5)
            assert 14 not in spans.versions
        await cluster.create_topic("transactional")
        await commit_and_count(cluster, "transactional", 5, gated=version < "4")


@bounded(60)
async def test_producer_connected_to_an_old_broker_with_20_on_the_topic_falls_back_to_5() -> None:
    """Produce v11 cannot carry the window, so five batches are sent to an old broker (KIP-1269).

    The broker would remember 20 batches and its proxy would name 20, but only in Produce v14, which
    Kafka 3.9.1 does not have.
    """
    async with KafkaCluster("3.9.1", retain=20, rtt=RTT) as cluster:
        await cluster.create_topic("t")
        spans, window = await send_and_count(cluster, "t", 5, window_discovery="on")
        assert (spans.max_span(), window) == (5, 5)
        assert max(spans.versions) < 13


# --- KIP-1269 on a real broker --------------------------------------------------------------------


@pytest.mark.parametrize("discovery", ["auto", "on"])
@bounded(60)
async def test_twenty_is_discovered_and_reached(
    patched: KafkaCluster, discovery: Literal["auto", "on"]
) -> None:
    topic = f"discovered-{discovery}"
    await patched.create_topic(topic)
    spans, window = await send_and_count(patched, topic, 20, window_discovery=discovery)
    assert (spans.max_span(), window) == (20, 20)
    assert 14 in spans.versions
    assert set(spans.codes) == {ErrorCode.none}


@bounded(60)
async def test_twenty_are_discovered_and_reached_inside_transactions(patched: KafkaCluster) -> None:
    await patched.create_topic("transactional")
    spans = await commit_and_count(patched, "transactional", 20, gated=False)
    assert 14 in spans.versions
    assert set(spans.codes) == {ErrorCode.none}


@bounded(60)
async def test_max_in_flight_1_and_retain_20_sends_at_most_1(patched: KafkaCluster) -> None:
    """With 1 request allowed in flight, at most 1 is in flight at a window of 20 (KIP-1269)."""
    await patched.create_topic("one-in-flight")
    spans, window = await send_and_count(
        patched, "one-in-flight", 1, records=30, max_in_flight_requests_per_connection=1
    )
    assert (spans.max_span(), window) == (1, 20)
    assert 14 in spans.versions


@bounded(60)
async def test_max_in_flight_20_and_retain_5_sends_at_most_5(patched: KafkaCluster) -> None:
    """With 20 requests allowed in flight but a window of 5, at most 5 are in flight (KIP-1269)."""
    await patched.create_topic("retains-5")
    patched.retention().set("retains-5", 5)
    spans, window = await send_and_count(patched, "retains-5", 5)
    assert (spans.max_span(), window) == (5, 5)
    assert 14 in spans.versions


@pytest.mark.parametrize("in_flight", [20, 40])
@bounded(60)
async def test_two_topics_with_5_and_20_on_one_broker_do_not_affect_each_other(
    patched: KafkaCluster, in_flight: int
) -> None:
    """Each of two topics that share a connection has its own window (KIP-1269).

    The windows are 5 and 20 batches. 20 requests in flight are too few to fill both; with 40, each
    topic fills its window. The test counts batches in flight by partition number, without the
    topic, so one topic uses partition 0 and the other partition 1.
    """
    few, many = f"narrow-{in_flight}", f"wide-{in_flight}"
    await patched.create_topic(few, partitions=1)
    await patched.create_topic(many, partitions=2)
    patched.retention().set(few, 5)
    spans = SpanCount(patched.proxy)
    async with producer_of(
        patched, **ONE_EACH, max_in_flight_requests_per_connection=in_flight
    ) as producer:
        narrow, wide = History(producer, few), History(producer, many, 1)
        sent = [each for _ in range(120) for h in (narrow, wide) for each in h.send(1)]
        assert set(await outcomes(sent)) == {DeliveryStatus.ACKED}
        learned = partition_of(producer, few).window, partition_of(producer, many, 1).window
    assert learned == (5, 20)
    assert spans.max_span(0) == 5
    assert 5 < spans.max_span(1) <= 20
    if in_flight >= 5 + 20:
        assert spans.max_span(1) == 20
    assert await check(patched, [narrow], few) == list(range(120))
    assert await check(patched, [wide], many, 1) == list(range(120))


@bounded(90)
async def test_leader_change_from_a_new_to_an_old_broker_does_not_exceed_5() -> None:
    """The window is 5 while an old broker leads, and 20 while a broker with KIP-1269 leads.

    Broker 0 has KIP-1269, and broker 1 is the old one.
    """
    async with KafkaCluster(brokers=2, retain={0: 20}, rtt=RTT) as cluster:
        await cluster.create_topic("t", replication=2)
        await cluster.move_leader("t", 0, 0)
        new, old = SpanCount(cluster.proxies[0]), SpanCount(cluster.proxies[1])
        async with producer_of(cluster, **ONE_EACH, metadata_max_age=1.0) as producer:
            history = History(producer, "t")
            assert set(await outcomes(history.send(100))) == {DeliveryStatus.ACKED}
            assert partition_of(producer, "t").window == 20
            assert (new.max_span(), old.max_span()) == (20, 0)
            during = history.send(100)
            await cluster.move_leader("t", 0, 1)
            assert set(await outcomes([*during, *history.send(100)])) == {DeliveryStatus.ACKED}
            assert partition_of(producer, "t").window == 5
            assert (new.max_span(), old.max_span()) == (20, 5)
            # The old broker answered the batches that `new` left unanswered, but `new` goes on
            # counting their span.
            new.forget()
            during = history.send(60)
            await cluster.move_leader("t", 0, 0)
            assert set(await outcomes([*during, *history.send(100)])) == {DeliveryStatus.ACKED}
            assert partition_of(producer, "t").window == 20
        assert (new.max_span(), old.max_span()) == (20, 5)
        assert await check(cluster, [history], "t") == list(range(460))


@bounded(60)
async def test_describe_configs_names_the_topic_config_beside_the_brokers_own(
    patched: KafkaCluster,
) -> None:
    """The proxy adds KIP-1269's topic config to the broker's own in answers to DescribeConfigs."""
    await patched.create_topic("described")
    patched.retention().set("described", 7)
    spans = SpanCount(patched.proxy)
    async with producer_of(patched) as producer:
        await producer.send("described", b"v")
    seen = [each for each, _ in patched.proxy.trace if each.api_key == DESCRIBE_CONFIGS]
    assert {each.answer for each in seen} == {True, False}
    assert spans.versions <= {13, 14}
    # Asked directly, not through its proxy, the broker does not know the config.
    resource = {"resource_type": TOPIC, "resource_name": "described", "configuration_keys": None}
    answer = await patched.ask(DESCRIBE_CONFIGS, 4, resources=[resource])
    names = {config.name for config in answer.results[0].configs}
    assert "max.message.bytes" in names
    assert RETAIN not in names


# --- twenty in flight, and the connection cut -----------------------------------------------------


async def cut_with(
    cluster: KafkaCluster, producer: Producer, history: History, spans: SpanCount, batches: int
) -> None:
    """Let `batches` batches be appended, lose their answers, and cut the connection."""
    await outcomes(history.send(60))  # the window is known and open
    before = len(history.deliveries)
    spans.forget()
    start = spans.answers
    spans.answer = lambda: Drop(silent=False)
    history.send(batches)
    await cluster.proxy.until(lambda: spans.answers - start == batches)
    assert partition_of(producer, history.rows[0].topic).in_flight == batches
    spans.answer = lambda: None
    cluster.proxy.disconnect(reset=True)
    assert not any(each.done() for each in history.deliveries[before:])
    await outcomes(history.deliveries)


@bounded(60)
async def test_twenty_in_flight_and_cut_come_back_with_their_original_offsets(
    patched: KafkaCluster,
) -> None:
    await patched.create_topic("cut")
    spans = SpanCount(patched.proxy)
    async with producer_of(patched, **ONE_EACH) as producer:
        history = History(producer, "cut")
        await cut_with(patched, producer, history, spans, 20)
        await outcomes(history.send(20))
        assert producer.statistics().epoch_bumps == 0
    assert set(spans.codes) == {ErrorCode.none}
    assert history.offsets() == list(range(100))
    assert await check(patched, [history], "cut") == list(range(100))


@bounded(60)
async def test_twenty_one_where_twenty_are_retained_lose_an_offset_and_nothing_else(
    patched: KafkaCluster,
) -> None:
    """A window that is one too wide costs the offset of one batch, and nothing else.

    The resend of the first batch is answered OUT_OF_ORDER, so its offset is lost. The success of
    the next batch proves that the first one is stored.
    """
    await patched.create_topic("twenty-one")
    patched.retention().set("twenty-one", 21)
    spans = SpanCount(patched.proxy)
    async with producer_of(
        patched, **ONE_EACH, max_in_flight_requests_per_connection=21
    ) as producer:
        history = History(producer, "twenty-one")
        await cut_with(patched, producer, history, spans, 21)
        await outcomes(history.send(20))
    assert ErrorCode.out_of_order_sequence_number in spans.codes
    unknown = [call for call, offset in enumerate(history.offsets()) if offset < 0]
    assert 60 in unknown
    assert set(unknown) <= set(range(60, 81))
    assert await check(patched, [history], "twenty-one") == list(range(101))


# --- discovery that is lost, and a broker that lies -----------------------------------------------


@pytest.mark.parametrize("discovery", ["auto", "on"])
@bounded(60)
async def test_two_connections_cut_before_the_first_answer_in_v14_and_the_window_is_learned_again(
    patched: KafkaCluster, discovery: Literal["auto", "on"]
) -> None:
    topic = f"unheard-{discovery}"
    await patched.create_topic(topic)
    spans = SpanCount(patched.proxy)
    cuts = [Cut(reset=True), Cut(reset=True)]
    spans.request = lambda: cuts.pop() if cuts else None
    async with producer_of(patched, **ONE_EACH, window_discovery=discovery) as producer:
        history = History(producer, topic)
        await outcomes(history.send(1))
        assert partition_of(producer, topic).window == 5
        assert 13 in spans.versions
        while partition_of(producer, topic).window < 20:
            await outcomes(history.send(1))
        spans.forget()
        await outcomes(history.send(100))
        assert spans.max_span() == 20
    records = len(history.deliveries)
    assert await check(patched, [history], topic) == list(range(records))


@bounded(90)
async def test_a_broker_that_says_20_and_keeps_5_is_noticed_and_sent_5(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with KafkaCluster(retain=5, rtt=RTT) as cluster:
        await cluster.create_topic("t")
        cluster.retention().set("t", 20)
        spans = SpanCount(cluster.proxy)
        async with producer_of(cluster, **ONE_EACH) as producer:
            history = History(producer, "t")
            await cut_with(cluster, producer, history, spans, 20)
            assert ErrorCode.out_of_order_sequence_number in spans.codes
            await outcomes(history.send(20))
            spans.forget()
            await outcomes(history.send(60))
            assert (partition_of(producer, "t").window, spans.max_span()) == (5, 5)
            assert producer.statistics().data_loss_events == 0
            assert producer.statistics().epoch_bumps == 0
        assert await check(cluster, [history], "t") == list(range(160))
    [told] = [r.getMessage() for r in caplog.records if "deduplicate" in r.getMessage()]
    assert "says that it retains 20 batches" in told
