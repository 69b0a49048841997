"""A partition's window over the wire: how the producer learns, resets and obeys the window.

The window is the number of batches that the leader remembers per producer (KIP-1269). The first
tests are those of the KIP's test plan, named with the KIP's words. tests/engine/test_windows.py
tests the engine alone, and on_kafka/test_windows.py tests real brokers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._broker.intercept import Action, AfterAppend, CloseConnection, RequestSeen, Rewrite
from aioidem._config import ProducerConfig
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED, PartitionWindow
from aioidem.broker import EmbeddedCluster
from aioidem.errors import InvalidConfigurationError

from .tools import (
    CLUSTER_RETAIN,
    DESCRIBE_CONFIGS,
    EVERY_WORLD,
    INIT_PRODUCER_ID,
    METADATA,
    ONE_EACH,
    PRODUCE,
    RETAIN,
    Tap,
    ask,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
)

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]

RTT = 0.02
TOPIC, BROKER = 2, 4


async def config_of(
    cluster: EmbeddedCluster, kind: int, name: str, config: str, broker: int = 0
) -> Any:
    """Return the value of one config in a broker's DescribeConfigs answer, or None if absent."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": (config,)}
    answer = await ask(cluster, DESCRIBE_CONFIGS, 4, broker=broker, resources=[resource])
    [result] = answer.results
    return next((each.value for each in result.configs if each.name == config), None)


async def alter(cluster: EmbeddedCluster, kind: int, name: str, config: str, value: str) -> int:
    """Set one config by IncrementalAlterConfigs, and return the error code of the answer."""
    change = {"name": config, "config_operation": 0, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
    answer = await ask(cluster, 44, 1, resources=[resource], validate_only=False)
    return int(answer.responses[0].error_code)


# --- unit test ------------------------------------------------------------------------------------


@bounded(10)
async def test_validate_new_configuration_default_value(transport: Transport) -> None:
    """The configs of the window, of a topic and of the cluster, default to five batches."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        assert await config_of(cluster, TOPIC, "t", RETAIN) == "5"
        assert await config_of(cluster, BROKER, "0", CLUSTER_RETAIN) == "5"


@pytest.mark.parametrize("refused", ["4", "1", "0", "-1", "2147483648", "five", ""])
@bounded(10)
async def test_validate_new_configuration_minimal_value(transport: Transport, refused: str) -> None:
    """A window below 5 or not a 32-bit integer is refused wherever a config can be set."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", configs={RETAIN: "5"})
        with pytest.raises(InvalidConfigurationError):
            cluster.create_topic("u", configs={RETAIN: refused})
        with pytest.raises(InvalidConfigurationError):
            cluster.set_config("t", RETAIN, refused)
        assert await alter(cluster, TOPIC, "t", RETAIN, refused) == ErrorCode.invalid_config
        assert (
            await alter(cluster, BROKER, "", CLUSTER_RETAIN, refused) == ErrorCode.invalid_request
        )
        assert await config_of(cluster, TOPIC, "t", RETAIN) == "5"
        assert await config_of(cluster, BROKER, "0", CLUSTER_RETAIN) == "5"
        assert await alter(cluster, TOPIC, "t", RETAIN, "6") == 0
        assert await config_of(cluster, TOPIC, "t", RETAIN) == "6"


@bounded(10)
async def test_validate_new_configuration_topic_overrides_cluster_and_old_broker_knows_neither(
    transport: Transport,
) -> None:
    """A topic's window overrides the cluster's; a broker without Produce v14 has no such config."""
    async with EmbeddedCluster(
        brokers=2, retain=8, produce_versions={0: 14, 1: 13}, transport=transport
    ) as cluster:
        cluster.create_topic("plain")
        cluster.create_topic("own", configs={RETAIN: "20"})
        assert await config_of(cluster, TOPIC, "plain", RETAIN) == "8"
        assert await config_of(cluster, TOPIC, "own", RETAIN) == "20"
        assert await config_of(cluster, TOPIC, "own", RETAIN, broker=1) is None


@pytest.mark.parametrize("discovery", ["on", "auto"])
@bounded(20)
async def test_producer_can_learn_producer_state_batches_to_retain_from_produce_response(
    transport: Transport, discovery: str
) -> None:
    """The window is 5 until the first Produce answer names 20; then 20 batches are in flight."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        tap = Tap(cluster.connector)
        windows: list[int] = []
        async with producer_for(
            cluster,
            connector=tap,
            max_in_flight_requests_per_connection=50,
            window_discovery=discovery,
            **ONE_EACH,
        ) as producer:

            def look(seen: RequestSeen) -> Action | None:
                if seen.api_key == PRODUCE:
                    windows.append(partition_of(producer).window)
                return None

            cluster.intercept(look)
            await producer.send("t", b"first")
            assert windows == [5]
            assert tap.versions(PRODUCE) == [14]
            assert partition_of(producer).window == 20
            await producer.send_many("t", numbered(100))
            assert partition_of(producer).max_span == 20
        assert cluster.max_span("t") == 20


@bounded(20)
async def test_producer_aligns_with_the_partition_leader(transport: Transport) -> None:
    """Each partition has the window that its own leader announced, whatever the others did."""
    async with EmbeddedCluster(
        brokers=3, retain={0: 5, 1: 9, 2: 20}, rtt=RTT, transport=transport
    ) as cluster:
        cluster.create_topic("t", partitions=3)
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            deliveries = [
                producer.send_nowait("t", value, partition=partition)
                for value in numbered(100)
                for partition in range(3)
            ]
            for delivery in deliveries:
                await delivery
            assert [partition_of(producer, "t", p).window for p in range(3)] == [5, 9, 20]
        assert [cluster.max_span("t", p) for p in range(3)] == [5, 9, 20]


@pytest.mark.parametrize("under_load", [False, True], ids=["idle", "under load"])
@bounded(30)
async def test_producer_resets_the_limit_to_5_upon_leader_change_and_rediscovers_it(
    transport: Transport, under_load: bool
) -> None:
    """After a leader change the window is 5 until the new leader's first answer names its own."""
    async with EmbeddedCluster(
        brokers=2, retain={0: 20, 1: 12}, rtt=RTT, transport=transport
    ) as cluster:
        cluster.create_topic("t", replication=2)
        at_new_leader: list[int] = []
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:

            def look(seen: RequestSeen) -> Action | None:
                if seen.api_key == PRODUCE and seen.broker_id == 1 and not at_new_leader:
                    at_new_leader.append(partition_of(producer).window)
                return None

            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 20
            cluster.intercept(look)
            await across_a_move(producer, cluster, under_load=under_load)
            assert at_new_leader == [5]
            assert partition_of(producer).window == 12
            await producer.send_many("t", numbered(100, 160))
            assert partition_of(producer).window == 12
        assert stored_values(cluster) == numbered(260)


async def across_a_move(producer: Producer, cluster: EmbeddedCluster, *, under_load: bool) -> None:
    """Move the leader to broker 1, and send records 60 to 159.

    The leader moves before the first of these records, or `under_load` after 31 of them.
    """
    if not under_load:
        cluster.move_leader("t", 0, 1)
        await producer.send_many("t", numbered(100, 60))
        return
    deliveries = [producer.send_nowait("t", value) for value in numbered(100, 60)]
    await deliveries[30]
    cluster.move_leader("t", 0, 1)
    for delivery in deliveries:
        await delivery


@pytest.mark.parametrize("in_flight", [6, 20, 1000])
def test_idempotent_producer_no_longer_throws_config_exception_above_5(in_flight: int) -> None:
    """More than five requests in flight are valid with idempotence."""
    config = ProducerConfig.build(
        "h:1", enable_idempotence=True, max_in_flight_requests_per_connection=in_flight
    )
    assert config.max_in_flight_requests_per_connection == in_flight
    assert config.enable_idempotence
    properties = {
        "bootstrap.servers": "h:1",
        "enable.idempotence": "true",
        "max.in.flight.requests.per.connection": str(in_flight),
    }
    assert ProducerConfig.from_properties(properties).enable_idempotence


@pytest.mark.parametrize("in_flight", [6, 20, 1000])
def test_transactional_producer_no_longer_throws_config_exception_above_5(in_flight: int) -> None:
    """More than five requests in flight are valid with a transactional id."""
    config = ProducerConfig.build(
        "h:1", transactional_id="tx", max_in_flight_requests_per_connection=in_flight
    )
    assert config.max_in_flight_requests_per_connection == in_flight
    assert config.enable_idempotence


# --- integration test -----------------------------------------------------------------------------


@EVERY_WORLD
@bounded(30)
async def test_max_in_flight_1_and_retain_20_sends_at_most_1_bounded_by_the_connection_check(
    transport: Transport,
) -> None:
    """One request in flight per connection allows one batch, whatever the window."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", configs={RETAIN: "20"})
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, max_in_flight_requests_per_connection=1, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(30))
            assert partition_of(producer).window == 20
        assert cluster.max_span("t") == 1
        assert max(wire.max_outstanding for wire in tap.wires) == 1


@EVERY_WORLD
@bounded(30)
async def test_max_in_flight_20_and_retain_5_sends_at_most_5_bounded_by_the_partition_check(
    transport: Transport,
) -> None:
    """Each of four partitions has a window of five, and together they fill the connection's 20."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", partitions=4, configs={RETAIN: "5"})
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster,
            connector=tap,
            max_in_flight_requests_per_connection=20,
            # A request has room for one batch, so that no request carries all four partitions.
            batch_size=60,
            max_request_size=100,
            late_sealing=False,
        ) as producer:
            deliveries = [
                producer.send_nowait("t", value, partition=partition)
                for value in numbered(40)
                for partition in range(4)
            ]
            for delivery in deliveries:
                await delivery
        assert [cluster.max_span("t", partition) for partition in range(4)] == [5] * 4
        assert max(wire.max_outstanding for wire in tap.wires) == 20


@EVERY_WORLD
@bounded(30)
async def test_two_topics_with_5_and_20_on_the_same_broker_are_each_limited_independently(
    transport: Transport,
) -> None:
    """Two topics on one connection have a window each."""
    # The round trip is long, so that even a busy machine sends 20 requests before an answer.
    async with EmbeddedCluster(rtt=5 * RTT, transport=transport) as cluster:
        cluster.create_topic("five", configs={RETAIN: "5"})
        cluster.create_topic("twenty", configs={RETAIN: "20"})
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:
            deliveries = [
                producer.send_nowait(topic, value)
                for value in numbered(60)
                for topic in ("five", "twenty")
            ]
            for delivery in deliveries:
                await delivery
            assert partition_of(producer, "five").window == 5
            assert partition_of(producer, "twenty").window == 20
        assert (cluster.max_span("five"), cluster.max_span("twenty")) == (5, 20)


@pytest.mark.parametrize("version", [13, 12, 9, 7, 3])
@bounded(30)
async def test_old_broker_with_retain_20_on_the_topic_falls_back_to_5(
    transport: Transport, version: int
) -> None:
    """Without Produce v14 five batches are in flight at most, whatever the topic's config says."""
    async with EmbeddedCluster(rtt=RTT, produce_versions=version, transport=transport) as cluster:
        cluster.create_topic("t", configs={RETAIN: "20"})
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 5
        assert cluster.max_span("t") == 5
        assert set(tap.versions(PRODUCE)) == {version}
        assert stored_values(cluster) == numbered(60)


@pytest.mark.parametrize("under_load", [False, True], ids=["idle", "under load"])
@bounded(30)
async def test_leader_change_from_a_new_to_an_old_broker_does_not_exceed_5(
    transport: Transport, under_load: bool
) -> None:
    """At a leader without Produce v14 the span reaches 5 and never exceeds 5, even on a resend."""
    async with EmbeddedCluster(
        brokers=2, rtt=RTT, produce_versions={0: 14, 1: 13}, transport=transport
    ) as cluster:
        cluster.create_topic("t", replication=2, configs={RETAIN: "20"})
        new, old = (s.rsplit(":", 1) for s in cluster.bootstrap_servers.split(","))
        names = [int(at[1]) if transport == "tcp" else at[0] for at in (new, old)]
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 20
            await across_a_move(producer, cluster, under_load=under_load)
            assert partition_of(producer).window == 5
        assert [tap.max_span(name) for name in names] == [20, 5]
        assert stored_values(cluster) == numbered(160)


@EVERY_WORLD
@bounded(30)
async def test_leader_change_from_an_old_to_a_new_broker_widens_the_window(
    transport: Transport,
) -> None:
    """A move to a leader that speaks Produce v14 widens the window of a running producer."""
    async with EmbeddedCluster(
        brokers=2, rtt=RTT, produce_versions={0: 13, 1: 14}, transport=transport
    ) as cluster:
        cluster.create_topic("t", replication=2, configs={RETAIN: "20"})
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(60))
            assert cluster.max_span("t") == 5
            await across_a_move(producer, cluster, under_load=True)
            await producer.send_many("t", numbered(100, 160))
            assert partition_of(producer).window == 20
        assert cluster.max_span("t") == 20
        assert stored_values(cluster) == numbered(260)


@EVERY_WORLD
@pytest.mark.parametrize("idempotent", [True, False])
@bounded(20)
async def test_the_option_caps_all_requests_of_a_connection_idempotent_or_not(
    transport: Transport, idempotent: bool
) -> None:
    """A connection reaches its configured number of requests in flight and never exceeds it."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", partitions=4)
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster,
            connector=tap,
            enable_idempotence=idempotent,
            max_in_flight_requests_per_connection=7,
            batch_size=60,
            max_request_size=100,
        ) as producer:
            deliveries = [
                producer.send_nowait("t", value, partition=partition)
                for value in numbered(20)
                for partition in range(4)
            ]
            for delivery in deliveries:
                await delivery
        assert max(wire.max_outstanding for wire in tap.wires) == 7


@bounded(20)
async def test_both_checks_must_pass(transport: Transport) -> None:
    """Both the window and the limit of requests in flight must permit a batch to be sent."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        for in_flight, retain, reached in [(8, 5, 5), (8, 6, 6), (5, 8, 5), (3, 20, 3)]:
            topic = f"t-{in_flight}-{retain}"
            cluster.create_topic(topic, configs={RETAIN: str(retain)})
            async with producer_for(
                cluster, max_in_flight_requests_per_connection=in_flight, **ONE_EACH
            ) as producer:
                await producer.send_many(topic, numbered(60))
            assert cluster.max_span(topic) == reached


@bounded(60)
async def test_the_window_bounds_the_span_and_not_the_requests_outstanding(
    transport: Transport,
) -> None:
    """With a window of 5, only four batches are sent after a batch that is not resolved yet."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        refusals = 0

        def unsure_of_the_tenth(seen: RequestSeen) -> Action | None:
            nonlocal refusals
            if any(batch.base_sequence == 10 for batch in seen.batches) and refusals < 3:
                refusals += 1
                return AfterAppend(ErrorCode.request_timed_out)
            return None

        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            await producer.send("t", b"0")
            cluster.intercept(unsure_of_the_tenth)
            await producer.send_many("t", numbered(99, 1))
            assert refusals >= 1
        assert cluster.max_unproven_span("t") == 5
        assert stored_values(cluster) == numbered(100)


@EVERY_WORLD
@bounded(20)
async def test_the_limit_is_5_again_on_a_new_connection_until_its_first_answer(
    transport: Transport,
) -> None:
    """A new connection resets the window, because another broker may be behind the address."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        windows: list[int] = []
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:

            def look(seen: RequestSeen) -> Action | None:
                if seen.api_key == PRODUCE:
                    windows.append(partition_of(producer).window)
                    return CloseConnection() if len(windows) == 1 else None
                return None

            await producer.send_many("t", numbered(30))
            cluster.intercept(look)
            await producer.send_many("t", numbered(60, 30))
            assert (windows[0], windows[1], partition_of(producer).window) == (20, 5, 20)
        assert stored_values(cluster) == numbered(90)


@pytest.mark.parametrize("struct", ["partition", "topic"])
@bounded(20)
async def test_the_window_is_read_from_the_partition_or_the_topic_struct(
    transport: Transport, struct: str
) -> None:
    """The window is read from the answer's partition or from its topic, whichever has the field.

    KIP-1269's prose puts the field in one of the two, and its schema listing in the other.
    """

    def put(response: Any) -> Any:
        value = {"producer_state_batches_to_retain": 9}
        none = {"producer_state_batches_to_retain": None}
        [topic] = response.responses
        [part] = topic.partition_responses
        in_topic, in_part = (value, none) if struct == "topic" else (none, value)
        part = dataclasses.replace(part, **in_part)
        topic = dataclasses.replace(topic, partition_responses=(part,), **in_topic)
        return dataclasses.replace(response, responses=(topic,))

    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(lambda seen: Rewrite(put) if seen.api_key == PRODUCE else None)
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(50))
            assert partition_of(producer).window == 9
        assert cluster.max_span("t") == 9


@EVERY_WORLD
@bounded(20)
async def test_an_absent_field_means_5_also_after_20_was_seen(transport: Transport) -> None:
    """A Produce answer without the tagged field of the window (KIP-1269) makes the window 5 again.

    A tagged field that equals its default (5) is not sent. So after the config was changed from 20
    to 5, answers have no such field.
    """
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", configs={RETAIN: "20"})
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 20
            cluster.set_config("t", RETAIN, 5)
            await producer.send("t", b"60")
            assert partition_of(producer).window == 5
            spans: list[int] = []

            def look(seen: RequestSeen) -> Action | None:
                if seen.api_key == PRODUCE:
                    spans.append(cluster.span("t"))
                return None

            cluster.intercept(look)
            await producer.send_many("t", numbered(60, 61))
            assert max(spans) == 5
            cluster.set_config("t", RETAIN, 20)
            await producer.send("t", b"121")
            assert partition_of(producer).window == 20
        assert stored_values(cluster) == numbered(122)


@bounded(20)
async def test_a_window_lowered_below_what_is_outstanding_sends_nothing_new_until_the_span_fits(
    transport: Transport,
) -> None:
    """If a full window shrinks, no new batch is sent until the unresolved batches fit into it."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", configs={RETAIN: "20"})
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(60))
            deliveries = [producer.send_nowait("t", value) for value in numbered(100, 60)]
            outstanding: list[tuple[int, int]] = []

            def look(_: object) -> None:
                here = partition_of(producer)
                outstanding.append((here.window, here.span))

            for delivery in deliveries:
                delivery.add_done_callback(look)
            await deliveries[20]
            cluster.set_config("t", RETAIN, 5)
            for delivery in deliveries:
                await delivery
            narrow = [span for window, span in outstanding if window == 5]
            falling = narrow[: narrow.index(4)]
            assert falling == sorted(falling, reverse=True)
            assert falling[0] > 5
            assert max(narrow[narrow.index(4) :]) <= 5
        assert stored_values(cluster) == numbered(160)


@bounded(20)
async def test_batches_are_retained_per_producer_id_and_partition(transport: Transport) -> None:
    """A broker keeps 20 batches of each producer in each partition."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t", partitions=2)
        identities = []
        for _ in range(2):
            async with producer_for(cluster, **ONE_EACH) as producer:
                for partition in range(2):
                    await producer.send_many("t", numbered(30), partition=partition)
                identities.append(producer.statistics().producer_id)
        for led in cluster.state.topics["t"].partitions:
            leader = led.leader_replica
            assert leader is not None
            kept = {entry.producer_id: len(entry.batches) for entry in leader.producers.entries()}
            assert kept == dict.fromkeys(identities, 20)


def test_the_defaults_stay_5_and_5() -> None:
    """Requests in flight, the window, and the batches that a broker remembers are 5 by default."""
    assert ProducerConfig.build("h:1").max_in_flight_requests_per_connection == 5
    assert PartitionWindow().limit == DEFAULT_BATCHES_RETAINED == 5
    cluster = EmbeddedCluster()
    cluster.create_topic("t")
    assert cluster.state.topics["t"].partitions[0].retain_on(0) == 5


_TWENTY = b"\x01\x01\x04\x00\x00\x00\x14"
"""A section of tagged fields: one field, with tag 1 and the number 20 in four bytes."""


_UNKNOWN = b"\x01\x63\x03xyz"
"""A section of tagged fields: one field, with the unknown tag 99 and three bytes."""


def tagged(payload: bytes, fields: bytes) -> bytes:
    """Add tagged fields to the header and to the end of a flexible answer that has none."""
    assert payload[4] == 0
    assert payload[-1] == 0
    return payload[:4] + fields + payload[5:-1] + fields


@bounded(20)
async def test_no_window_is_read_from_init_producer_id(transport: Transport) -> None:
    """A window in an InitProducerId answer is ignored.

    KIP-1269 rejected that place, because the leaders of partitions have different windows.
    """

    def rewrite(api_key: int, _version: int, payload: bytes) -> bytes:
        return tagged(payload, _TWENTY) if api_key == INIT_PRODUCER_ID else payload

    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        tap = Tap(cluster.connector, rewrite)
        async with producer_for(
            cluster, connector=tap, max_in_flight_requests_per_connection=50, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(50))
            assert partition_of(producer).window == 5
        assert tap.versions(INIT_PRODUCER_ID)
        assert cluster.max_span("t") == 5


@bounded(20)
async def test_unknown_tagged_fields_are_skipped_everywhere(transport: Transport) -> None:
    """Unknown tagged fields in the header or the body of an answer are skipped."""
    rewritten: set[int] = set()

    def rewrite(api_key: int, version: int, payload: bytes) -> bytes:
        flexible_from = {PRODUCE: 9, METADATA: 9, INIT_PRODUCER_ID: 2, 32: 4}.get(api_key, 99)
        if version < flexible_from:
            return payload
        rewritten.add(api_key)
        return tagged(payload, _UNKNOWN)

    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(
            cluster,
            connector=Tap(cluster.connector, rewrite),
            max_in_flight_requests_per_connection=50,
            **ONE_EACH,
        ) as producer:
            await producer.send_many("t", numbered(50))
            assert partition_of(producer).window == 20
        assert rewritten == {PRODUCE, METADATA, INIT_PRODUCER_ID, 32}
        assert cluster.max_span("t") == 20
