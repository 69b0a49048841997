"""Large batches are compressed in threads, and the event loop goes on meanwhile.

A stand-in for the library of zstd blocks until the event loop releases it. If the compression ran
on the event loop, nothing could release it, and these tests would fail.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import anyio
import pytest
import zstandard

from aioidem import DeliveryStatus, errors
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import ASYNCIO, REAL_LOOPS, bounded, producer_for, stored_values

pytestmark = pytest.mark.anyio

ZSTD: dict[str, Any] = {"compression_type": "zstd", "batch_size": 1_000_000, "linger": 0.0}
LARGE = 300_000
_LONGEST = 20.0


class Held:
    """A library of zstd that compresses large data only when it is released.

    Attributes:
        begun: how many compressions of large data have begun.
        error: what these compressions raise; None if they succeed.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.error: Exception | None = None
        self._release = threading.Event()

    def release(self) -> None:
        """Let every compression go on."""
        self._release.set()

    def module(self) -> ModuleType:
        """Return the module that takes the place of `zstandard`."""
        module = ModuleType("zstandard")
        module.__dict__.update(zstandard.__dict__)
        module.__dict__["ZstdCompressor"] = self._compressor
        return module

    def _compressor(self, **options: Any) -> Any:
        compressor = zstandard.ZstdCompressor(**options)
        held, release = self, self._release

        class Compressor:
            def compress(self, data: bytes) -> bytes:
                if len(data) >= LARGE:
                    held.begun += 1
                    assert release.wait(_LONGEST), "nothing released the compression"
                    if held.error is not None:
                        raise held.error
                return compressor.compress(data)

        return Compressor()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Return the stand-in for the library of zstd, which is in place during the test."""
    library = Held()
    monkeypatch.setitem(sys.modules, "zstandard", library.module())
    yield library
    library.release()


def under_way(held: Held) -> Callable[[], bool]:
    """Return a condition that is true once a compression of large data has begun."""
    return lambda: held.begun > 0


@REAL_LOOPS
@bounded(2 * _LONGEST)
async def test_the_loop_runs_while_a_batch_is_compressed(held: Held) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **ZSTD) as producer:
            delivery = producer.send_nowait("t", bytes(LARGE))
            await until(under_way(held), pause=0.001)
            assert delivery.status is DeliveryStatus.PENDING
            held.release()
            assert (await delivery).offset == 0


@REAL_LOOPS
@bounded(2 * _LONGEST)
async def test_other_partitions_go_on_and_the_same_partition_waits(held: Held) -> None:
    """While a batch is compressed, other partitions send small batches, and its own sends none."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster, **ZSTD) as producer:
            large = producer.send_nowait("t", bytes(LARGE), partition=0)
            await until(under_way(held), pause=0.001)
            behind = producer.send_nowait("t", b"behind", partition=0)
            assert (await producer.send("t", b"other", partition=1)).offset == 0
            assert [large.done(), behind.done()] == [False, False]
            held.release()
            assert [(await large).offset, (await behind).offset] == [0, 1]


@REAL_LOOPS
@bounded(2 * _LONGEST)
async def test_close_does_not_wait_for_a_thread(held: Held) -> None:
    """A close ends at its timeout, although the thread has not ended; the record is NOT_WRITTEN."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        producer = producer_for(cluster, **ZSTD)
        await producer.start()
        delivery = producer.send_nowait("t", bytes(LARGE))
        await until(under_way(held), pause=0.001)
        await producer.close(0.05)
        assert delivery.status is DeliveryStatus.NOT_WRITTEN
        assert isinstance(delivery.exception(), errors.ProducerClosed)
        held.release()
    assert stored_values(cluster) == []


@REAL_LOOPS
@bounded(2 * _LONGEST)
async def test_a_caller_cancelled_during_the_compression_leaves_its_record_queued(
    held: Held,
) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **ZSTD) as producer:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(producer.send, "t", bytes(LARGE))
                    await until(under_way(held), pause=0.001)
                    scope.cancel()
            held.release()
            await producer.flush()
        assert stored_values(cluster) == [bytes(LARGE)]


@REAL_LOOPS
@bounded(2 * _LONGEST)
async def test_an_error_in_the_thread_fails_its_records_and_no_others(held: Held) -> None:
    """If a compression thread raises, its records end NOT_WRITTEN, and later records are sent."""
    held.error = MemoryError("no room")
    held.release()
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **ZSTD) as producer:
            with pytest.raises(errors.InternalError, match="no room") as raised:
                await producer.send("t", bytes(LARGE))
            assert raised.value.status is DeliveryStatus.NOT_WRITTEN
            held.error = None
            assert (await producer.send("t", bytes(LARGE))).offset == 0


@ASYNCIO
@bounded(2 * _LONGEST)
async def test_a_system_without_threads_fails_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system permits no thread, the records end NOT_WRITTEN, and small batches go on."""

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **ZSTD) as producer:
            await producer.send("t", b"first")
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                with pytest.raises(errors.InternalError, match="can't start new thread"):
                    await producer.send("t", bytes(LARGE))
                assert (await producer.send("t", b"small")).offset == 1


@REAL_LOOPS
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
@bounded(60)
async def test_each_partition_keeps_the_order_of_its_records(codec: str) -> None:
    """Records of all sizes are stored in call order, whichever thread is the first to end."""
    source = random.Random(3)
    sizes = [source.choice((10, 1000, 40_000, 200_000)) for _ in range(120)]
    values = [b"%05d" % number + source.randbytes(size) for number, size in enumerate(sizes)]
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=3)
        async with producer_for(
            cluster, compression_type=codec, batch_size=400_000, buffer_memory=1 << 25
        ) as producer:
            for number, value in enumerate(values):
                producer.send_nowait("t", value, partition=number % 3)
                if number % 10 == 9:
                    await anyio.lowlevel.checkpoint()
            await producer.flush()
            assert producer.statistics().buffer_bytes_used == 0
        for partition in range(3):
            assert stored_values(cluster, partition=partition) == values[partition::3]


@REAL_LOOPS
@bounded(60)
async def test_the_records_of_one_call_are_compressed_in_threads(held: Held) -> None:
    """Records of one `send_many` keep their order, also if a thread compresses their batches."""
    source = random.Random(4)
    values = [b"%06d" % number + source.randbytes(100) for number in range(12_000)]
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **(ZSTD | {"batch_size": 400_000})) as producer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "t", values)
                await until(under_way(held), pause=0.001)
                held.release()
            assert producer.statistics().buffer_bytes_used == 0
        assert stored_values(cluster) == values
