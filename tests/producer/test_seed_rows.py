"""Every row of the KIP-1269 feature table, S0-1 to S0-21, and the test that shows it.

`ROWS` is the table; a test checks that it is complete and that what it names exists. Rows that the
KIP's own test plan covers point to `test_kip_1269`; the others are tested here.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.intercept import Action, AfterAppend, CloseConnection, RequestSeen, Rewrite
from aioidem._config import ProducerConfig
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED, PartitionWindow
from aioidem._protocol.produce import encode_produce_request
from aioidem._records import ReadRecord, build_batch
from aioidem.broker import EmbeddedCluster

from .tools import (
    EVERY_WORLD,
    INIT_PRODUCER_ID,
    METADATA,
    ONE_EACH,
    PRODUCE,
    RETAIN,
    Tap,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
)

Transport = Literal["tcp", "memory"]

RTT = 0.02

ROWS: dict[str, tuple[str, ...]] = {
    "S0-1": (
        "test_idempotent_producer_no_longer_throws_config_exception_above_5",
        "test_transactional_producer_no_longer_throws_config_exception_above_5",
    ),
    "S0-2": ("test_the_option_caps_all_requests_of_a_connection_idempotent_or_not",),
    "S0-3": (
        "test_max_in_flight_20_and_retain_5_sends_at_most_5_bounded_by_the_partition_check",
        "test_the_window_bounds_the_span_and_not_the_requests_outstanding",
    ),
    "S0-4": ("test_both_checks_must_pass",),
    "S0-5": ("test_the_limit_is_5_again_on_a_new_connection_until_its_first_answer",),
    "S0-6": ("test_a_v14_request_is_a_v13_request",),
    "S0-7": ("test_the_window_is_read_from_the_partition_or_the_topic_struct",),
    "S0-8": ("test_producer_aligns_with_the_partition_leader",),
    "S0-9": ("test_an_absent_field_means_5_also_after_20_was_seen",),
    "S0-10": ("test_producer_resets_the_limit_to_5_upon_leader_change_and_rediscovers_it",),
    "S0-11": ("test_old_broker_with_retain_20_on_the_topic_falls_back_to_5",),
    "S0-12": ("test_two_topics_with_5_and_20_on_the_same_broker_are_each_limited_independently",),
    "S0-13": (
        "test_max_in_flight_1_and_retain_20_sends_at_most_1_bounded_by_the_connection_check",
    ),
    "S0-14": ("test_max_in_flight_20_and_retain_5_sends_at_most_5_bounded_by_the_partition_check",),
    "S0-15": ("test_leader_change_from_a_new_to_an_old_broker_does_not_exceed_5",),
    "S0-16": (
        "test_validate_new_configuration_default_value",
        "test_validate_new_configuration_minimal_value",
    ),
    "S0-17": ("test_batches_are_retained_per_producer_id_and_partition",),
    "S0-18": ("test_the_defaults_stay_5_and_5",),
    # Measured: the formula here, other clients and figures in benchmarks/long_link.py.
    "S0-19": (
        "test_one_partition_moves_window_times_batch_per_round_trip",
        "test_one_partition_moves_window_times_batch_per_round_trip_over_tcp_in_real_time",
    ),
    "S0-20": ("test_no_window_is_read_from_init_producer_id",),
    "S0-21": ("test_unknown_tagged_fields_are_skipped_everywhere",),
}


def test_every_row_has_its_test() -> None:
    assert list(ROWS) == [f"S0-{number}" for number in range(1, 22)]
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", "\n".join(sources), re.MULTILINE))
    assert {name for names in ROWS.values() for name in names} <= defined


# --- the two checks -------------------------------------------------------------------------------


@EVERY_WORLD
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.anyio
@bounded(20)
async def test_the_option_caps_all_requests_of_a_connection_idempotent_or_not(
    transport: Transport, idempotent: bool
) -> None:
    """S0-2: reached and not passed, with more partitions and window than it allows."""
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


@pytest.mark.anyio
@bounded(20)
async def test_both_checks_must_pass(transport: Transport) -> None:
    """S0-4: a connection with room does not widen a partition, nor the other way round."""
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        for in_flight, retain, reached in [(8, 5, 5), (8, 6, 6), (5, 8, 5), (3, 20, 3)]:
            topic = f"t-{in_flight}-{retain}"
            cluster.create_topic(topic, configs={RETAIN: str(retain)})
            async with producer_for(
                cluster, max_in_flight_requests_per_connection=in_flight, **ONE_EACH
            ) as producer:
                await producer.send_many(topic, numbered(60))
            assert cluster.max_span(topic) == reached


@pytest.mark.anyio
@bounded(60)
async def test_the_window_bounds_the_span_and_not_the_requests_outstanding(
    transport: Transport,
) -> None:
    """S0-3: while the oldest batch has no definite answer, four more may be sent and no fifth,
    whatever is outstanding.
    """
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


# --- discovery ------------------------------------------------------------------------------------


@EVERY_WORLD
@pytest.mark.anyio
@bounded(20)
async def test_the_limit_is_5_again_on_a_new_connection_until_its_first_answer(
    transport: Transport,
) -> None:
    """S0-5: the broker behind an address may be another one after a reconnect."""
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


def test_a_v14_request_is_a_v13_request() -> None:
    """S0-6: the same bytes but for the version in the header."""
    arguments: dict[str, Any] = {
        "correlation_id": 7,
        "client_id": "c",
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topics": [("t", UUID(int=5), [(0, build_batch([ReadRecord(0, 1, None, b"v", ())]).data)])],
    }
    old, new = encode_produce_request(13, **arguments), encode_produce_request(14, **arguments)
    # Length (4), API key (2), version (2).
    assert (old[6:8], new[6:8]) == (b"\x00\x0d", b"\x00\x0e")
    assert old[:6] + old[8:] == new[:6] + new[8:]


@pytest.mark.parametrize("struct", ["partition", "topic"])
@pytest.mark.anyio
@bounded(20)
async def test_the_window_is_read_from_the_partition_or_the_topic_struct(
    transport: Transport, struct: str
) -> None:
    """S0-7: the KIP's prose and its listing disagree about where the tagged field is."""

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
@pytest.mark.anyio
@bounded(20)
async def test_an_absent_field_means_5_also_after_20_was_seen(transport: Transport) -> None:
    """S0-9: a field equal to its default is not on the wire, so 20 -> 5 arrives as absence.

    What is outstanding then stays; nothing new is sent until the span fits.
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


@pytest.mark.anyio
@bounded(20)
async def test_a_window_lowered_below_what_is_outstanding_sends_nothing_new_until_the_span_fits(
    transport: Transport,
) -> None:
    """S0-9, in the middle of a full window."""
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


@pytest.mark.anyio
@bounded(20)
async def test_batches_are_retained_per_producer_id_and_partition(transport: Transport) -> None:
    """S0-17: each of two producers has 20 places in each of two partitions, as long as both."""
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
    """S0-18: the connection's, the partition's, and the broker's."""
    assert ProducerConfig.build("h:1").max_in_flight_requests_per_connection == 5
    assert PartitionWindow().limit == DEFAULT_BATCHES_RETAINED == 5
    cluster = EmbeddedCluster()
    cluster.create_topic("t")
    assert cluster.state.topics["t"].partitions[0].retain_on(0) == 5


# --- what is not to be looked at ------------------------------------------------------------------

_TWENTY = b"\x01\x01\x04\x00\x00\x00\x14"
"""A tagged field section: one field, tag 1, 4 bytes, 20."""
_UNKNOWN = b"\x01\x63\x03xyz"
"""One field, tag 99, 3 bytes that mean nothing."""


def tagged(payload: bytes, fields: bytes) -> bytes:
    """A flexible answer with these tagged fields in its header and at its end, where none were."""
    assert payload[4] == 0
    assert payload[-1] == 0
    return payload[:4] + fields + payload[5:-1] + fields


@pytest.mark.anyio
@bounded(20)
async def test_no_window_is_read_from_init_producer_id(transport: Transport) -> None:
    """S0-20: that place was rejected, because leaders differ."""

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


@pytest.mark.anyio
@bounded(20)
async def test_unknown_tagged_fields_are_skipped_everywhere(transport: Transport) -> None:
    """S0-21: in every flexible answer a producer gets, header and body."""
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
