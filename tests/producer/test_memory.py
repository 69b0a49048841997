"""What `buffer_memory` counts: a record's object as well as its bytes, and batches in flight."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from aioidem import Producer
from aioidem._engine.record import RECORD_MEMORY
from aioidem.broker import EmbeddedCluster
from aioidem.errors import BufferFullError

from .tools import ASYNCIO, producer_for

pytestmark = [pytest.mark.anyio, ASYNCIO]

COUNT = 2_000
ROUNDING = 50
"""How many bytes more the allocators take for a record than Python asks them for: up to 15 for each
of its objects, and 8 for a larger block.
"""
MOST_TOO_MUCH = 220
"""The most bytes by which the buffer's count for a record may exceed what the record takes. The
buffer counts a key even for a record without one, and each of several headers as the only one.
"""


def value_of(number: int, size: int) -> bytes:
    return b"%0*d" % (size, number)


def options_of(number: int, what: str) -> dict[str, Any]:
    """Return arguments of a send, made of objects that no other record has."""
    if what == "key":
        return {"key": b"%016d" % number}
    if what == "headers":
        return {"headers": [(name, b"%016d" % number) for name in ("one", "two", "three")]}
    return {}


@pytest.mark.parametrize("what", ["value", "key", "headers"])
@pytest.mark.parametrize("size", [100, 1_000, 10_000])
async def test_a_queued_record_counts_with_all_the_memory_that_it_takes(
    what: str, size: int
) -> None:
    """The buffer counts at least as many bytes for queued records as Python allocates for them.

    It must not count many more, because then it would hold fewer records than it could.
    """
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, buffer_memory=1 << 30) as producer,
    ):
        # The first records allocate the state of the topic, which does not belong to the records.
        queue(producer, 100, size, what)
        await producer.flush()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            queue(producer, COUNT, size, what)
            allocated = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        counted = producer.statistics().buffer_bytes_used
    assert allocated + COUNT * ROUNDING <= counted <= allocated + COUNT * MOST_TOO_MUCH


def queue(producer: Producer, count: int, size: int, what: str) -> None:
    for number in range(count):
        producer.send_nowait("t", value_of(number, size), **options_of(number, what))


async def test_the_buffer_is_empty_when_every_record_has_its_outcome() -> None:
    """The buffer counts 0 bytes at the end, whatever the records had and however they were sent."""
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster) as producer,
    ):
        for what in ("value", "key", "headers"):
            queue(producer, 20, 100, what)
            await producer.send("t", b"v", **options_of(1, what))
        await producer.send_many("t", [b"v"] * 20, headers=[("h", b"v")])
        await producer.flush()
        assert producer.statistics().buffer_bytes_used == 0


async def test_a_third_of_the_buffer_is_kept_for_batches_in_flight() -> None:
    """Records may take two thirds of buffer_memory; the error for one more says how many bytes."""
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, buffer_memory=45_000) as producer,
    ):
        await producer.send("t", b"v")
        with pytest.raises(BufferFullError, match=r"of the 30000 bytes that buffer_memory") as full:
            queue(producer, 100, 1_000, "value")
        told = str(full.value)
        assert told.startswith("BufferFullError: topic 't': no room for ")
        assert "Await wait_for_room() or an earlier delivery, and send again" in told
        assert producer.statistics().records_queued == 30_000 // (1_025 + RECORD_MEMORY)
