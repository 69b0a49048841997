"""`metrics()`: its shape, and that each metric moves where something happens that it counts.

A scenario lets something happen, and names the metrics that have to move: that have another value
afterwards than in a producer to which nothing has happened, and are no NaN. Together the scenarios
move every metric of the table.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer, errors
from aioidem._broker.intercept import Action, CloseConnection, Drop, Refuse, RequestSeen
from aioidem._producer.metric_table import GROUPS, MetricKind
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.structs import TopicPartition

from .tools import ONE_EACH, PRODUCE, bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

Metrics = dict[str, dict[str, float]]
Scenario = Callable[[], Awaitable[tuple[Metrics, Producer]]]
SCENARIOS: dict[str, tuple[Scenario, frozenset[str]]] = {}

SASL_AUTHENTICATE = 36

BY_ENGINE = {
    "aioidem-metrics": (
        "doubt-probed-total",
        "doubt-asked-total",
        "doubt-read-back-total",
        "data-loss-total",
    ),
}
"""Metrics that tests/engine/test_meters.py moves."""

NEVER = {"producer-metrics": ("txn-prepare-time-ns-total",)}
"""aioidem has no two-phase commit (KIP-939)."""


def named(group: str, names: str) -> set[str]:
    return {f"{group}:{name}" for name in names.split()}


def moves(**groups: str) -> Callable[[Scenario], Scenario]:
    """Register a scenario; `groups` are the names that it moves, with underscores in the groups."""

    def register(scenario: Scenario) -> Scenario:
        names = [named(group.replace("_", "-"), text) for group, text in groups.items()]
        SCENARIOS[scenario.__name__] = scenario, frozenset().union(*names)
        return scenario

    return register


def of(metrics: Metrics) -> dict[str, list[float]]:
    """Return the values of all things by group and name."""
    found: dict[str, list[float]] = {}
    for group, values in metrics.items():
        for name, value in values.items():
            found.setdefault(f"{group.partition('.')[0]}:{name}", []).append(value)
    return found


def refusing(cluster: EmbeddedCluster, *actions: Action, api_key: int = PRODUCE) -> None:
    left = list(actions)

    def hook(seen: RequestSeen) -> Action | None:
        return left.pop(0) if seen.api_key == api_key and left else None

    cluster.intercept(hook)


@moves(
    producer_metrics="""batch-size-avg batch-size-max compression-rate-avg connection-count
    connection-creation-rate connection-creation-total flush-time-ns-total incoming-byte-rate
    incoming-byte-total io-wait-ratio io-wait-time-ns-avg io-wait-time-ns-total metadata-age
    metadata-wait-time-ns-total network-io-rate network-io-total outgoing-byte-rate
    outgoing-byte-total record-queue-time-avg record-queue-time-max record-send-rate
    record-send-total record-size-avg record-size-max records-per-request-avg request-latency-avg
    request-latency-max request-rate request-size-avg request-size-max request-total response-rate
    response-total select-rate select-total connection-close-rate connection-close-total""",
    producer_node_metrics="""incoming-byte-rate incoming-byte-total outgoing-byte-rate
    outgoing-byte-total request-latency-avg request-latency-max request-rate request-size-avg
    request-size-max request-total response-rate response-total""",
    producer_topic_metrics="""byte-rate byte-total compression-rate record-send-rate
    record-send-total""",
    aioidem_metrics="""batch-send-total byte-acked-total delivery-latency-avg delivery-latency-max
    delivery-latency-p50 delivery-latency-p95 delivery-latency-p99 delivery-latency-p999
    first-ack-gate-time-avg first-ack-gate-time-max first-ack-gate-time-ns-total record-acked-total
    request-latency-p50 request-latency-p95 request-latency-p99 request-latency-p999""",
    aioidem_node_metrics="rtt",
    aioidem_partition_metrics="window-span-max",
)
async def records_are_sent_and_acknowledged() -> tuple[Metrics, Producer]:
    async with (
        EmbeddedCluster(transport="memory", rtt=0.1) as cluster,
        producer_for(cluster, linger=0.02, compression_type="gzip") as producer,
    ):
        for _ in range(3):
            producer.send_nowait("t", bytes(100))
            producer.send_nowait("t", bytes(200))
            await producer.flush()
        metrics = producer.metrics()
        sent = metrics["producer-metrics"]
        assert sent["record-send-total"] == sent["records-per-request-avg"] * 3 == 6
        assert sent["record-size-max"] == 61 + 21 + 200 + 4  # Java's bound, with the batch's header
        assert sent["record-queue-time-avg"] >= 20
        assert 100 <= sent["request-latency-avg"] < 200
        assert sent["compression-rate-avg"] < 0.5
        topic = metrics["producer-topic-metrics.t"]
        assert topic["byte-total"] == sent["batch-size-avg"] * 3
        assert metrics["aioidem-metrics"]["delivery-latency-p50"] >= 99
        return metrics, producer


@moves(
    producer_metrics="requests-in-flight buffer-available-bytes waiting-threads "
    "bufferpool-wait-ratio bufferpool-wait-time-ns-total buffer-exhausted-rate "
    "buffer-exhausted-total buffer-total-bytes record-error-rate record-error-total",
    producer_topic_metrics="record-error-rate record-error-total",
    aioidem_metrics="buffer-used-bytes records-queued",
    aioidem_partition_metrics="batches-in-flight records-queued window-span",
    aioidem_error_metrics="record-error-total",
)
async def the_buffer_is_full() -> tuple[Metrics, Producer]:
    async with (
        EmbeddedCluster(transport="memory", rtt=0.05) as cluster,
        producer_for(cluster, buffer_memory=20_000, max_block=0.5, **ONE_EACH) as producer,
        anyio.create_task_group() as tasks,
    ):
        await producer.send("t", b"")
        cluster.set_rtt(2.0)
        with suppress(errors.BufferFullError):
            while True:
                producer.send_nowait("t", bytes(500))
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 1
        with pytest.raises(errors.KafkaTimeoutError):
            await producer.send("t", bytes(500))
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 2

        async def wait() -> None:
            with suppress(errors.KafkaTimeoutError):
                await producer.send("t", bytes(500))

        tasks.start_soon(wait)
        await virtual_time(0.1)
        metrics = producer.metrics()
    return metrics, producer


@moves(
    producer_metrics="record-retry-rate record-retry-total",
    producer_topic_metrics="record-retry-rate record-retry-total",
    aioidem_metrics="batch-retry-total doubt-resent-total",
)
async def batches_are_sent_again() -> tuple[Metrics, Producer]:
    async with EmbeddedCluster(transport="memory") as cluster, producer_for(cluster) as producer:
        refusing(
            cluster,
            Refuse(ErrorCode.not_enough_replicas),
            CloseConnection(processed=True),
        )
        await producer.send_many("t", [b"1", b"2"])
        metrics = producer.metrics()
        assert metrics["producer-metrics"]["record-retry-total"] == 4
        return metrics, producer


@moves(
    aioidem_metrics="batches-in-doubt doubt-unknown-total record-unknown-total "
    "record-not-written-total epoch-bump-total",
    aioidem_partition_metrics="batches-in-doubt",
)
async def nothing_is_answered() -> tuple[Metrics, Producer]:
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, delivery_timeout=4.0, request_timeout=2.0, **ONE_EACH) as producer,
    ):
        await producer.send("t", b"1")
        refusing(cluster, Refuse(ErrorCode.invalid_record), *[Drop()] * 50)
        with pytest.raises(errors.KafkaError):
            await producer.send("t", b"2")
        first = producer.send_nowait("t", b"3")
        with pytest.raises(errors.KafkaError):
            await first
        second = producer.send_nowait("t", b"4")
        while producer.metrics()["aioidem-metrics"]["batches-in-doubt"] == 0:
            await virtual_time(0.1)
        metrics = producer.metrics()
        with pytest.raises(errors.KafkaError):
            await second
        assert metrics["aioidem-error-metrics.DeliveryTimeoutError"]["record-error-total"] == 1
        return metrics, producer


@moves(
    producer_metrics="batch-split-rate batch-split-total",
    aioidem_partition_metrics="window-limit",
)
async def batches_are_split() -> tuple[Metrics, Producer]:
    async with (
        EmbeddedCluster(transport="memory", rtt=0.1, retain=20) as cluster,
        producer_for(
            cluster,
            batch_size=1000,
            late_sealing=False,
            max_in_flight_requests_per_connection=20,
        ) as producer,
    ):
        await producer.send("t", bytes(100))
        deliveries = [producer.send_nowait("t", bytes(100)) for _ in range(300)]
        await deliveries[100]
        cluster.set_config("t", "max.message.bytes", 400)
        await producer.flush()
        return producer.metrics(), producer


@moves(
    producer_metrics="produce-throttle-time-avg produce-throttle-time-max",
    aioidem_node_metrics="throttle-time-avg throttle-time-max throttle-time-ns-total throttled",
)
async def a_broker_throttles() -> tuple[Metrics, Producer]:
    async with EmbeddedCluster(transport="memory") as cluster, producer_for(cluster) as producer:
        cluster.set_throttle(0, 3.0)
        await producer.send("t", b"")
        metrics = producer.metrics()
        assert metrics["producer-metrics"]["produce-throttle-time-max"] == 3000
        return metrics, producer


@moves(
    producer_metrics="txn-abort-time-ns-total txn-begin-time-ns-total txn-commit-time-ns-total "
    "txn-init-time-ns-total txn-send-offsets-time-ns-total",
)
async def transactions_end() -> tuple[Metrics, Producer]:
    async with (
        EmbeddedCluster(transport="memory", rtt=0.1) as cluster,
        producer_for(cluster, transactional_id="x") as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"")
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "group")
        await producer.begin_transaction()
        await producer.send("t", b"")  # a transaction without records needs no request to end
        delivery = producer.send_nowait("t", b"")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.abort_transaction)
            await virtual_time(0.01)
            await producer.begin_transaction()  # waits for the end of the abort
        assert delivery.done()
        metrics = producer.metrics()
        assert metrics["producer-metrics"]["txn-commit-time-ns-total"] >= 100e6
        assert metrics["producer-metrics"]["record-error-total"] == 0, "an abort is no error"
        return metrics, producer


@moves(
    producer_metrics="successful-authentication-rate successful-authentication-total "
    "successful-authentication-no-reauth-total successful-reauthentication-rate "
    "successful-reauthentication-total reauthentication-latency-avg reauthentication-latency-max "
    "failed-reauthentication-rate failed-reauthentication-total failed-authentication-rate "
    "failed-authentication-total",
)
async def credentials_are_refused_at_a_renewal() -> tuple[Metrics, Producer]:
    users = {"alice": "secret"}
    security = BrokerSecurity(mechanisms=("PLAIN",), users=users, max_session=5.0)
    async with (
        EmbeddedCluster(transport="memory", rtt=0.1, security=security) as cluster,
        producer_for(
            cluster,
            connections_max_idle=None,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="secret",
            sasl_allow_plaintext=True,
        ) as producer,
    ):
        await producer.send("t", b"1")
        await virtual_time(10)
        await producer.send("t", b"2")
        users["alice"] = "changed"
        await virtual_time(10)
        with pytest.raises(errors.SaslAuthenticationFailed):
            await producer.send("t", b"3")
        await virtual_time(10)
        return producer.metrics(), producer


@bounded(300)
async def test_each_connection_whose_password_is_refused_counts_once() -> None:
    security = BrokerSecurity(mechanisms=("PLAIN",), users={"alice": "secret"})
    async with EmbeddedCluster(transport="memory", rtt=0.1, security=security) as cluster:
        asked = 0

        def count(seen: RequestSeen) -> Action | None:
            nonlocal asked
            asked += seen.api_key == SASL_AUTHENTICATE
            return None

        cluster.intercept(count)
        producer = producer_for(
            cluster,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="wrong",
            sasl_allow_plaintext=True,
        )
        with pytest.raises(errors.SaslAuthenticationFailed):
            await producer.start()
        assert asked > 0
        assert producer.metrics()["producer-metrics"]["failed-authentication-total"] == asked


@bounded(300)
async def unmoved() -> dict[str, float]:
    """Return the values in a producer to which nothing has happened, by group and name."""
    metrics = of(Producer("nowhere:1").metrics())
    return {name: values[0] for name, values in metrics.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
@bounded(600)
async def test_each_metric_moves(scenario: str) -> None:
    """What a scenario lets happen, each of the metrics that it names shows."""
    before = await unmoved()
    run, names = SCENARIOS[scenario]
    after = of((await run())[0])
    still = {
        name
        for name in names
        if all(
            math.isnan(each) or each == before.get(name, 0.0)
            for each in after.get(name, [math.nan])
        )
    }
    assert not still


def test_the_scenarios_move_every_metric() -> None:
    """No metric is without a scenario, except for those that the engine's tests move."""
    moved = frozenset().union(*(names for _, names in SCENARIOS.values()))
    elsewhere = {
        f"{group}:{name}"
        for groups in (BY_ENGINE, NEVER)
        for group, names in groups.items()
        for name in names
    }
    known = {f"{group.name}:{each.name}" for group in GROUPS for each in group.metrics}
    # These move in real time only: in virtual time a turn of the task takes none.
    real = named("producer-metrics", "io-ratio io-time-ns-avg io-time-ns-total")
    assert moved | elsewhere | real == known
    assert not moved & elsewhere


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
@bounded(30)
async def test_the_time_that_the_task_works_is_measured_on_real_loops() -> None:
    """`io-time-ns-total` and what is computed from it: how long the producer's task works."""
    async with EmbeddedCluster() as cluster, producer_for(cluster) as producer:
        metrics = producer.metrics()["producer-metrics"]
        while not metrics["io-time-ns-total"]:  # uvloop's clock ticks once in a millisecond
            await producer.send("t", b"")
            metrics = producer.metrics()["producer-metrics"]
    assert metrics["io-time-ns-avg"] > 0
    assert metrics["io-ratio"] > 0


@bounded(60)
async def test_the_shape_is_kafka_pythons() -> None:
    """Groups are Java's, with the name of the broker, topic or partition; all values are floats."""
    async with (
        EmbeddedCluster(transport="memory", brokers=2) as cluster,
        producer_for(cluster) as producer,
    ):
        cluster.create_topic("orders", partitions=2)
        await producer.send("orders", b"", partition=1)
        metrics = producer.metrics()
    assert {
        "kafka-metrics-count",
        "producer-metrics",
        "producer-topic-metrics.orders",
        "aioidem-metrics",
        "aioidem-partition-metrics.orders-1",
    } <= set(metrics)
    assert {f"producer-node-metrics.node-{each}" for each in (-2, -1, 0, 1)} & set(metrics)
    values = [value for group in metrics.values() for value in group.values()]
    assert {type(value) for value in values} == {float}
    assert metrics["kafka-metrics-count"]["count"] == len(values)


@bounded(300)
async def test_counters_never_fall_and_rates_end_after_a_minute() -> None:
    """After a minute without an event rates are 0, averages NaN, and counters as they were."""
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, metadata_max_age=3600.0, connections_max_idle=None) as producer,
    ):
        await producer.send("t", b"")
        before = producer.metrics()
        await virtual_time(61)
        after = producer.metrics()
        closed = producer
    # The producer's task may have had a turn meanwhile.
    other = {"compression-rate", "io-wait-ratio", "select-rate"}
    for group in GROUPS:
        for each in group.metrics:
            name = f"{group.name}:{each.name}"
            for was, now in zip(of(before).get(name, []), of(after).get(name, []), strict=True):
                if each.kind is MetricKind.COUNTER:
                    assert now >= was, name
                elif each.name.endswith(("-rate", "wait-ratio")) and each.name not in other:
                    assert now == 0, name
    assert math.isnan(after["producer-metrics"]["batch-size-avg"])
    assert after["producer-metrics"]["record-send-total"] == 1
    last = closed.metrics()["producer-metrics"]
    assert last["connection-count"] == 0
    assert last["connection-close-total"] == last["connection-creation-total"]


@bounded(300)
async def test_a_refusal_after_a_quiet_time_counts_now() -> None:
    """The engine of an idle producer has not looked at the clock for long."""
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, metadata_max_age=3600.0, connections_max_idle=None) as producer,
    ):
        await producer.send("t", b"")
        await virtual_time(200)
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send_nowait("t", b"v" * 2_000_000)
        metrics = producer.metrics()
    assert metrics["producer-metrics"]["record-error-total"] == 1
    assert metrics["producer-metrics"]["successful-authentication-total"] == 0, "without SASL"
    assert metrics["producer-metrics"]["record-error-rate"] > 0


@bounded(120)
async def test_statistics_have_rates_and_percentiles_in_seconds() -> None:
    """`statistics()` has the same rates and latencies in seconds, and None where nothing was."""
    async with (
        EmbeddedCluster(transport="memory", rtt=0.1) as cluster,
        producer_for(cluster, **ONE_EACH) as producer,
    ):
        empty = producer.statistics()
        for _ in range(9):
            await producer.send("t", b"")
        cluster.set_rtt(1.0)
        await producer.send("t", b"")
        found, metrics = producer.statistics(), producer.metrics()["producer-metrics"]
    assert empty.delivery_latency.p99 is None
    assert empty.request_latency.average is None
    assert empty.records_sent_per_second == empty.errors_per_second == 0
    assert found.records_sent_per_second == metrics["record-send-rate"] > 0
    assert found.bytes_sent_per_second == metrics["outgoing-byte-rate"] > 0
    assert found.request_latency.p50 == pytest.approx(0.1, rel=0.02)
    assert found.request_latency.p99 == pytest.approx(1.0, rel=0.02)
    assert found.request_latency.largest == pytest.approx(metrics["request-latency-max"] / 1e3)
    assert found.delivery_latency.p50 == pytest.approx(0.1, rel=0.02)


def test_metrics_work_before_the_start() -> None:
    """A producer that was never started has the groups of the whole producer."""
    metrics = Producer("nowhere:1").metrics()
    assert set(metrics) == {"producer-metrics", "aioidem-metrics", "kafka-metrics-count"}
    assert math.isnan(metrics["producer-metrics"]["metadata-age"])
