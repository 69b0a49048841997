"""Deadlines that pass while a full window is in flight.

Records that were in flight end UNKNOWN, records that were never sent end NOT_WRITTEN, and neither
holds up later records.
"""

from __future__ import annotations

import pytest

from aioidem.structs import DeliveryStatus
from aioidem.testing import Drop, KafkaCluster
from tests.kafka.tools import History, SpanCount, bounded, check, outcomes
from tests.kafka.world import (
    World,
    fill,
    last_sequences,
    leave_in_doubt,
    producer_of,
    until,
)

pytestmark = pytest.mark.anyio

# The timeouts are short, but long enough for a busy machine: the records that a test sends before
# and after the fault must not expire.
SHORT = {"request_timeout": 1.0, "delivery_timeout": 4.0}
WAITING = 10


async def appended_up_to(cluster: KafkaCluster, topic: str, sequence: int) -> None:
    """Wait until the broker has the only producer's batches up to this sequence."""

    async def there() -> bool:
        return list((await last_sequences(cluster, topic)).values()) == [sequence]

    await until(there)


@pytest.mark.parametrize("fate", ["appended", "appended-later", "never-arrived"])
@bounded(60)
async def test_deadlines_pass_with_a_full_window_in_flight(
    cluster: KafkaCluster, world: World, fate: str
) -> None:
    topic = f"deadline-{fate}"
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    window = world.window
    first, last = 4 * window, 5 * window
    async with producer_of(cluster, world, **SHORT) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        match fate:
            case "appended":
                await leave_in_doubt(cluster, spans, history, window)
                cluster.proxy.freeze()
            case "appended-later":
                # The requests that the proxy has read reach the broker when the link thaws, long
                # after the client has closed its connection.
                cluster.proxy.freeze()
                history.send(window)
            case _:
                spans.request = Drop
                history.send(window)
        history.send(WAITING)
        told = await outcomes(history.deliveries[-window - WAITING :])
        assert told == [DeliveryStatus.UNKNOWN] * window + [DeliveryStatus.NOT_WRITTEN] * WAITING
        spans.answer = spans.request = lambda: None
        cluster.proxy.thaw()
        if fate == "appended-later":
            # The first batch of the next epoch would fence the late batches, so wait until the late
            # batches are appended.
            await appended_up_to(cluster, topic, last - 1)
        assert set(await outcomes(history.send(20))) == {DeliveryStatus.ACKED}
        assert producer.statistics().epoch_bumps == 1
        assert producer.statistics().data_loss_events == 0
    assert spans.max_span() == window
    calls = await check(cluster, [history], topic)
    doubtful = set(range(first, last))
    assert [call for call in calls if call not in doubtful] == [
        *range(first),
        *range(last + WAITING, last + WAITING + 20),
    ]
    assert [call for call in calls if call in doubtful] == (
        [] if fate == "never-arrived" else list(range(first, last))
    )
