"""A range broker, which deduplicates by a range of sequences (KIP-758), and its producers.

The first tests check what the embedded broker alone remembers and answers, on a virtual clock. In
the others the whole producer writes to such a broker while answers are lost, and every record is
stored once, in order.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, errors
from aioidem._broker.batch import MAX_SEQUENCE
from aioidem._broker.intercept import Action, CloseConnection, Drop, RequestSeen
from aioidem._broker.virtual import VirtualClient, VirtualCluster, idempotent_batch
from aioidem.broker import EmbeddedCluster

from .tools import (
    DESCRIBE_CONFIGS,
    ONE_EACH,
    PRODUCE,
    bounded,
    numbered,
    producer_for,
    stored_values,
)

Transport = Literal["tcp", "memory"]

NAME = "max.in.flight.sequence.number.per.connection"
NONE = ErrorCode.none
DUPLICATE = ErrorCode.duplicate_sequence_number
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
RTT = 0.02


def broker(sequence_range: int | None = 10, **options: Any) -> tuple[VirtualCluster, VirtualClient]:
    cluster = VirtualCluster(sequence_range=sequence_range, **options)
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    return cluster, cluster.client()


def answer(client: VirtualClient, sequence: int, count: int = 1) -> tuple[ErrorCode, int]:
    part = client.produce(idempotent_batch(sequence, count))
    return ErrorCode(part.error_code), int(part.base_offset)


# -- the broker


def test_only_the_next_sequence_is_appended() -> None:
    """A broker with `sequence_range` appends a batch only if it begins at the next sequence."""
    _, client = broker()
    assert answer(client, 0, 3) == (NONE, 0)
    assert answer(client, 4) == (OUT_OF_ORDER, -1)
    assert answer(client, 3) == (NONE, 3)


def test_below_the_newest_the_range_is_duplicate_without_an_offset_and_beyond_is_out_of_order() -> (
    None
):
    """A resend within the newest `sequence_range` sequences is a duplicate, without an offset.

    A resend of an older sequence is answered OUT_OF_ORDER. The next test is about a resend of the
    newest batch, whose answer has the offset.
    """
    _, client = broker(10)
    for sequence in range(20):
        assert answer(client, sequence) == (NONE, sequence)
    assert [answer(client, n) for n in range(10, 19)] == [(DUPLICATE, -1)] * 9
    assert [answer(client, n) for n in range(10)] == [(OUT_OF_ORDER, -1)] * 10
    assert answer(client, 20) == (NONE, 20)


def test_a_duplicate_of_the_newest_batch_gets_its_offset() -> None:
    """A broker with `sequence_range` remembers the offset of the newest batch only."""
    cluster, client = broker()
    for sequence in (0, 3, 6):
        answer(client, sequence, 3)
    assert answer(client, 6, 3) == (NONE, 6)
    assert answer(client, 3, 3) == (DUPLICATE, -1)
    assert answer(client, 7, 2) == (DUPLICATE, -1), (
        "a part of the newest batch is not taken for that batch"
    )
    (replica,) = cluster.state.topics["t"].partitions[0].replicas.values()
    assert [len(entry.batches) for entry in replica.producers.entries()] == [1]
    assert replica.log.end_offset == 9


@given(
    start=st.integers(MAX_SEQUENCE - 40, MAX_SEQUENCE),
    back=st.integers(0, 60),
    sequence_range=st.integers(1, 50),
)
def test_the_range_goes_across_the_wrap(start: int, back: int, sequence_range: int) -> None:
    """A range continues past the largest sequence: after 2147483647 comes 0."""
    _, client = broker(sequence_range)
    wrap = MAX_SEQUENCE + 1
    for number in range(50):
        assert answer(client, (start + number) % wrap)[0] is NONE
    asked = (start + 49 - back) % wrap
    expected = NONE if back == 0 else DUPLICATE if back < sequence_range else OUT_OF_ORDER
    assert answer(client, asked)[0] is expected


def test_a_higher_epoch_begins_at_zero_and_a_lower_one_is_fenced_as_ever() -> None:
    _, client = broker()
    answer(client, 0)
    assert client.produce(idempotent_batch(5, epoch=1)).error_code == OUT_OF_ORDER
    assert client.produce(idempotent_batch(0, epoch=1)).error_code == NONE
    assert client.produce(idempotent_batch(1)).error_code == ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize("sequence_range", [0, -1, 2**30 + 1])
def test_no_range_of_nothing_and_none_past_half_of_all_sequences(sequence_range: int) -> None:
    """A range must have at least one sequence, and at most half of all sequences (2**30)."""
    with pytest.raises(errors.ConfigError):
        EmbeddedCluster(sequence_range=sequence_range)


def described(client: VirtualClient) -> list[tuple[str, str | None]]:
    resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": (NAME,)}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = client.ask(DESCRIBE_CONFIGS, 4, values).results
    return [(config.name, config.value) for config in result.configs]


def test_it_names_its_range_and_another_broker_has_no_value_for_the_name() -> None:
    """DescribeConfigs names the range of a KIP-758 broker, and has no value on another broker."""
    assert described(broker(77)[1]) == [(NAME, "77")]
    assert described(broker(None)[1]) == []
    cluster, client = broker(None)
    cluster.state.topology.set_broker_configs(None, {NAME: "77"})
    assert described(client) == [(NAME, None)]


def test_it_does_not_speak_kip_1269() -> None:
    """A broker that deduplicates by a range of sequences offers no Produce v14.

    With Produce v14 it would announce how many batches it deduplicates (KIP-1269).
    """
    cluster, _ = broker(10, produce_versions=14)
    (one,) = cluster.state.brokers.values()
    assert max(last for key, _, last in cluster.state.announced(one) if key == PRODUCE) == 13


# -- the producer


@pytest.mark.parametrize("sequence_range", [20, 10_000_000])
@pytest.mark.anyio
@bounded(60)
async def test_twenty_in_flight_survive_lost_answers_once_and_in_order(
    transport: Transport, sequence_range: int
) -> None:
    """Every record is stored once and in order although answers are lost after the append."""
    async with EmbeddedCluster(
        sequence_range=sequence_range, rtt=RTT, transport=transport
    ) as cluster:
        cluster.create_topic("t")
        seen = 0

        def cut(request: RequestSeen) -> Action | None:
            nonlocal seen
            if request.api_key != PRODUCE:
                return None
            seen += 1
            return CloseConnection(processed=True) if seen % 40 == 37 else None

        async with producer_for(
            cluster,
            broker_dedup="range",
            max_in_flight_requests_per_connection=20,
            **ONE_EACH,
        ) as producer:
            await producer.send("t", b"0")
            cluster.intercept(cut)
            sent = await producer.send_many("t", numbered(199, 1))
            statistics = producer.statistics()
        assert {delivery.status for delivery in sent} == {DeliveryStatus.ACKED}
        known = [(n, d.metadata.offset) for n, d in enumerate(sent, 1) if d.metadata.has_offset]
        assert all(number == offset for number, offset in known)
        assert stored_values(cluster) == numbered(200)
        assert statistics.epoch_bumps == 0
        assert cluster.max_span("t") == 20


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.anyio
@bounded(60)
async def test_a_transaction_survives_lost_answers_to_many_batches(
    transport: Transport, version: Literal[0, 2]
) -> None:
    """Copies of all batches but the newest are answered DUPLICATE, which acknowledges nothing.

    So the newest one has to be resent before the others, whose outcomes follow from its success.
    """
    async with EmbeddedCluster(
        sequence_range=1000, rtt=RTT, transport=transport, transaction_version=version
    ) as cluster:
        cluster.create_topic("t")
        async with producer_for(
            cluster,
            broker_dedup="range",
            max_in_flight_requests_per_connection=20,
            transactional_id="x",
            request_timeout=2.0,
            **ONE_EACH,
        ) as producer:
            await producer.begin_transaction()
            await producer.send("t", b"0")
            left = 10

            def lose(request: RequestSeen) -> Action | None:
                nonlocal left
                left -= request.api_key == PRODUCE
                return Drop(processed=True) if request.api_key == PRODUCE and left >= 0 else None

            cluster.intercept(lose)
            for value in numbered(10, 1):
                producer.send_nowait("t", value)
            await producer.commit_transaction(30)
        values = [value for value in stored_values(cluster) if value.isdigit()]
        assert values == numbered(11)


@pytest.mark.anyio
@bounded(60)
async def test_the_range_a_broker_names_bounds_what_is_in_flight(transport: Transport) -> None:
    """With `broker_dedup="range"` the producer asks the broker for its range and keeps to it."""
    async with EmbeddedCluster(sequence_range=7, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(
            cluster,
            broker_dedup="range",
            max_in_flight_requests_per_connection=20,
            **ONE_EACH,
        ) as producer:
            await producer.send("t", b"0")
            await producer.send_many("t", numbered(99, 1))
        assert stored_values(cluster) == numbered(100)
        assert cluster.max_span("t") == 7


@pytest.mark.anyio
@bounded(60)
async def test_a_producer_without_the_option_keeps_to_five_and_loses_nothing(
    transport: Transport,
) -> None:
    """Without `broker_dedup="range"` a producer has at most five batches in flight (KIP-758)."""
    async with EmbeddedCluster(sequence_range=1000, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        seen = 0

        def cut(request: RequestSeen) -> Action | None:
            nonlocal seen
            if request.api_key != PRODUCE:
                return None
            seen += 1
            return CloseConnection(processed=True) if seen == 23 else None

        cluster.intercept(cut)
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:
            await producer.send_many("t", numbered(100))
        assert stored_values(cluster) == numbered(100)
        assert cluster.max_span("t") == 5
