"""Round-trip time and throttling of an embedded cluster, measured on a virtual clock."""

from __future__ import annotations

import anyio
import pytest
import trio.testing

from aioidem._broker.virtual import idempotent_batch, only_partition
from aioidem.broker import EmbeddedCluster

from .wire import connected, produce_values

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend",
        [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
        ids=["virtual"],
    ),
]


async def test_pipelined_requests_take_one_round_trip() -> None:
    """Ten requests sent at once over a round trip of 0.2 s are all answered after 0.2 s."""
    async with EmbeddedCluster(transport="memory", rtt=0.2) as cluster:
        cluster.create_topic("t")
        async with connected(cluster) as wire:
            start = anyio.current_time()
            sent = [await wire.send(0, 12, produce_values(idempotent_batch(s))) for s in range(10)]
            answers = [await wire.read(0, 12, s) for s in sent]
            assert anyio.current_time() - start == pytest.approx(0.2)
        assert [only_partition(a).base_offset for a in answers] == list(range(10))


async def test_a_changed_round_trip_time_applies_to_open_connections() -> None:
    """After `set_rtt` a request on an open connection takes the new round-trip time."""
    async with EmbeddedCluster(transport="memory", rtt=60.0) as cluster:
        cluster.create_topic("t")
        async with connected(cluster) as wire:
            cluster.set_rtt(0.5)
            start = anyio.current_time()
            await wire.produce(idempotent_batch(0))
            assert anyio.current_time() - start == pytest.approx(0.5)


async def test_a_throttled_broker_serves_a_connection_late() -> None:
    """A throttle time of 0.1 s delays each request after the first by 0.1 s (KIP-219)."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.set_throttle(0, 0.1)
        async with connected(cluster) as wire:
            start = anyio.current_time()
            for sequence in range(3):
                await wire.produce(idempotent_batch(sequence))
            assert anyio.current_time() - start == pytest.approx(0.2)
