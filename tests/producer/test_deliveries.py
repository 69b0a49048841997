"""What a delivery holds: one object per record, and nothing of the batch once it is settled."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem import DeliveryStatus, Producer, errors
from aioidem._producer.native import internals
from aioidem._producer.queued import QueuedDelivery
from aioidem._records import record_size_bound
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio


async def test_a_delivery_is_the_record_that_the_engine_queues() -> None:
    """`send_nowait` makes one object, which is both the engine's record and the delivery."""
    async with (
        EmbeddedCluster(brokers=1, transport="memory") as cluster,
        Producer(cluster.bootstrap_servers, connector=cluster.connector, linger=60.0) as producer,
    ):
        await producer.send("t", b"first", partition=0)
        delivery = producer.send_nowait("t", b"value", partition=0)
        core = producer._core  # noqa: SLF001 - what the engine holds is the point
        queued: list[object] = [*core.partitions["t", 0].queue.records]
        assert queued == [delivery]
        await producer.flush()


async def test_a_settled_delivery_lets_go_of_its_payload() -> None:
    """A caller who keeps deliveries does not keep the payloads of their records."""
    async with (
        EmbeddedCluster(brokers=1, transport="memory") as cluster,
        Producer(cluster.bootstrap_servers, connector=cluster.connector) as producer,
    ):
        value, key, header = b"v" * 1000, b"k" * 1000, b"h" * 1000
        before = [sys.getrefcount(each) for each in (value, key, header)]
        delivery = producer.send_nowait("t", value, key=key, headers=[("name", header)])
        await delivery
        await producer.flush()
        gc.collect()
        assert [sys.getrefcount(each) for each in (value, key, header)] == before
        assert delivery.metadata.topic == "t"


async def test_a_settled_delivery_keeps_no_other_record_of_its_batch() -> None:
    """A caller who keeps one delivery does not keep the others of its batch alive.

    They are freed at once, without the garbage collector, because they are in no reference cycle.
    """
    async with (
        EmbeddedCluster(brokers=1, transport="memory") as cluster,
        Producer(cluster.bootstrap_servers, connector=cluster.connector) as producer,
    ):
        await producer.send("t", b"first", partition=0)
        gc.collect()
        gc.disable()
        try:
            kept = [producer.send_nowait("t", b"%d" % n, partition=0) for n in range(100)][50]
            await producer.flush()
            left = [each for each in gc.get_objects() if isinstance(each, QueuedDelivery)]
            assert left == [kept]
        finally:
            gc.enable()
        assert kept.metadata.offset == 51


async def test_metadata_is_made_once() -> None:
    """Reading the metadata again gives the same object, with the record's own timestamp."""
    async with (
        EmbeddedCluster(brokers=1, transport="memory") as cluster,
        Producer(cluster.bootstrap_servers, connector=cluster.connector) as producer,
    ):
        deliveries = [producer.send_nowait("t", b"v", partition=0, timestamp=n) for n in (1, 2)]
        await producer.flush()
        first, second = [each.metadata for each in deliveries]
        assert deliveries[0].metadata is first
        assert (first.offset, second.offset) == (0, 1)
        assert (first.timestamp, second.timestamp) == (1000, 2000)
        assert first.topic_partition == second.topic_partition == ("t", 0)


async def test_each_delivery_has_its_own_copy_of_the_error() -> None:
    """Two records of one batch fail with two exceptions, and a delivery always returns its own."""
    async with EmbeddedCluster(brokers=1, transport="memory") as cluster:
        producer = Producer(cluster.bootstrap_servers, connector=cluster.connector, linger=60.0)
        await producer.start()
        deliveries = [producer.send_nowait("t", b"v", partition=0) for _ in range(2)]
        await producer.close(timeout=0)
    first, second = [each.exception() for each in deliveries]
    assert isinstance(first, errors.ProducerClosed)
    assert isinstance(second, errors.ProducerClosed)
    assert first is not second
    assert deliveries[0].exception() is first
    with pytest.raises(errors.ProducerClosed) as caught:
        await deliveries[0]
    assert caught.value is first
    assert first.status is deliveries[0].status is DeliveryStatus.NOT_WRITTEN


_LENGTHS = st.sampled_from([0, 1, 63, 64, 65, 8191, 8192, 8193, 100_000]).map(bytes)


@given(
    value=st.none() | _LENGTHS,
    key=st.none() | _LENGTHS,
    headers=st.sampled_from([(), [], None, [("h", b"v")], [("é", None)]]),
)
def test_the_size_of_a_record_is_the_encoder_s_bound(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """The size that a producer computes for a record is what `record_size_bound` returns."""
    producer = Producer("localhost:1")
    record = internals(producer).intake.record("t", value, key, headers, None, None)
    assert record.size == record_size_bound(key, value, headers)


def test_a_record_has_the_most_bytes_that_are_allowed_and_not_one_more() -> None:
    """Both limits of a record's size are exact, and the error names the option with the limit."""
    for options, limit, named in (
        ({"max_request_size": 1000}, 1000 - 61 - 25, "max_request_size"),
        ({"buffer_memory": 1000, "batch_size": 500}, 1000 - 25, "buffer_memory"),
    ):
        intake = internals(Producer("localhost:1", **options)).intake  # type: ignore[arg-type]
        assert intake.record("t", bytes(limit), None, (), None, None).size == limit + 25
        with pytest.raises(errors.MessageSizeTooLargeError, match=named):
            intake.record("t", bytes(limit + 1), None, (), None, None)
