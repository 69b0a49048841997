"""Batches that a broker refuses as too large are split, unless they are in doubt.

Every batch holds several records, whose values begin with the record's number. In most tests the
topic's limit is lowered while the window is full.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Delivery, DeliveryStatus, errors
from aioidem._broker.intercept import Action, AfterAppend, CloseConnection, RequestSeen
from aioidem.broker import EmbeddedCluster

from .tools import PRODUCE, bounded, partition_of, producer_for, stored_values, virtual_time

pytestmark = pytest.mark.anyio

RTT = 0.1
LIMIT = "max.message.bytes"


def value(number: int) -> bytes:
    return (b"%06d" % number).ljust(100, b".")


def check(deliveries: Sequence[Delivery], stored: Sequence[bytes]) -> None:
    """Assert that every outcome is true of the log, which has no record twice or out of order."""
    places = {content: place for place, content in enumerate(stored)}
    assert len(places) == len(stored)
    assert list(stored) == sorted(stored)
    for number, delivery in enumerate(deliveries):
        place = places.get(value(number))
        if delivery.status is DeliveryStatus.ACKED:
            assert place is not None
            assert delivery.metadata.offset in (place, -1)
        elif delivery.status is DeliveryStatus.NOT_WRITTEN:
            assert place is None


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("limit", [900, 400, 200])
@bounded(120)
async def test_a_limit_lowered_under_a_full_window_splits_and_splits_again_in_order(
    limit: int, codec: str
) -> None:
    """Refused batches of eight records are split, and each record is stored once and in order."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(
            cluster,
            max_in_flight_requests_per_connection=20,
            batch_size=1000,
            late_sealing=False,
            compression_type=codec,
        ) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(600)]
            await deliveries[100]
            assert partition_of(producer).window == 20
            cluster.set_config("t", LIMIT, limit)
            await producer.flush()
            statistics = producer.statistics()
            assert (statistics.epoch_bumps, statistics.data_loss_events) == (0, 0)
        stored = stored_values(cluster)
        assert stored == [value(n) for n in range(600)]
        assert [delivery.metadata.offset for delivery in deliveries] == list(range(600))
        if codec == "none":
            assert statistics.batches_split > 0
            assert min(batch.count for batch in cluster.batches("t")) < 8
        assert cluster.max_span("t") <= 20


@bounded(60)
async def test_a_record_that_is_too_large_by_itself_fails_alone_among_those_of_its_batch() -> None:
    """A record that is too large fails alone, wherever it is in its batch; the others arrive."""
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "600"})
        async with producer_for(cluster, batch_size=10_000) as producer:
            await producer.send("t", b"")
            huge = {3, 8, 17}
            deliveries = [
                producer.send_nowait("t", value(n) * (8 if n in huge else 1)) for n in range(20)
            ]
            await producer.flush()
            for number, delivery in enumerate(deliveries):
                if number in huge:
                    assert isinstance(delivery.exception(), errors.MessageSizeTooLargeError)
                    assert delivery.status is DeliveryStatus.NOT_WRITTEN
                else:
                    assert delivery.status is DeliveryStatus.ACKED
        assert stored_values(cluster) == [b"", *(value(n) for n in range(20) if n not in huge)]


@pytest.mark.parametrize("doubt", ["answer lost", "timed out"])
@bounded(120)
async def test_a_limit_lowered_over_what_is_in_doubt_splits_none_of_it(doubt: str) -> None:
    """A batch in doubt is not split, because its first copy may be stored."""
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t")
        fired = False

        def hook(seen: RequestSeen) -> Action | None:
            nonlocal fired
            if seen.api_key != PRODUCE or fired or cluster.log_end_offset("t") < 100:
                return None
            fired = True
            cluster.set_config("t", LIMIT, 400)
            if doubt == "timed out":
                return AfterAppend(ErrorCode.request_timed_out)
            return CloseConnection(processed=True)

        cluster.intercept(hook)
        async with producer_for(
            cluster, batch_size=1000, late_sealing=False, delivery_timeout=20.0, request_timeout=5.0
        ) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(300)]
            await producer.flush()
            check(deliveries, stored_values(cluster))
            await virtual_time(1.0)
            await producer.send("t", value(999_999))
        assert stored_values(cluster)[-1] == value(999_999)
        assert fired
