"""What `AIOKafkaProducer` keeps for a settled record is freed without the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from aioidem import AIOKafkaProducer
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio


async def test_a_settled_record_is_freed_without_the_garbage_collector(
    cluster: EmbeddedCluster,
) -> None:
    """A future and its delivery are freed when the caller drops the future of a settled record."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"x")
        gc.collect()
        gc.disable()
        try:
            future = await producer.send("t", b"x")
            await producer.flush()
            assert future.done()
            assert future.delivery is not None
            seen = weakref.ref(future)
            del future
            assert seen() is None
        finally:
            gc.enable()
