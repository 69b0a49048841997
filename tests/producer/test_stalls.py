"""After a stall of the event loop, waiting answers are read before requests count as overdue."""

from __future__ import annotations

import pytest
import trio.testing

from aioidem.broker import EmbeddedCluster

from .tools import bounded, partition_of, producer_for

pytestmark = pytest.mark.anyio

RTT = 0.1


@bounded(60)
async def test_a_stall_past_the_request_timeout_loses_no_connection_whose_answer_is_ready() -> None:
    """A stall past the request timeout closes no connection whose answer is ready.

    After the stall every request looks overdue, although the answers came during the stall.
    """
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with EmbeddedCluster(transport="memory", rtt=RTT) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, request_timeout=5.0) as producer:
            await producer.send("t", b"0")
            before = producer.statistics().connections
            delivery = producer.send_nowait("t", b"1")
            await trio.testing.wait_all_tasks_blocked()
            assert partition_of(producer).in_flight == 1
            clock.jump(20.0)
            assert (await delivery).offset == 1
            statistics = producer.statistics()
            assert statistics.batches_retried == 0
            assert [c.node_id for c in statistics.connections] == [c.node_id for c in before]
        assert len(cluster.batches("t")) == 2
