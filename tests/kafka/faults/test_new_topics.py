"""Records for topics that do not exist yet (F16): the broker makes them, and is not ready at once.

A broker accepts any first sequence of a producer that it has no state of. Were two batches sent to
a leader that is becoming one, the first could be refused and the second accepted.
"""

from __future__ import annotations

import pytest

from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from tests.kafka.faults.world import World, producer_of
from tests.kafka.tools import History, SpanCount, bounded, check, outcomes

pytestmark = pytest.mark.anyio

TOPICS, RECORDS = 3, 50


@bounded(60)
async def test_f16_new_partitions_get_one_batch_until_they_have_answered_for_one(
    cluster: KafkaCluster, world: World
) -> None:
    for number in range(TOPICS):
        topic = f"f16-{number}"
        spans = SpanCount(cluster.proxy)
        unanswered: list[int] = []

        def count(spans: SpanCount = spans, unanswered: list[int] = unanswered) -> None:
            if 0 not in spans.codes:
                unanswered.append(spans.requests - spans.answers + 1)

        spans.answer = count
        async with producer_of(cluster, world) as producer:
            history = History(producer, topic)
            assert set(await outcomes(history.send(RECORDS))) == {DeliveryStatus.ACKED}
        assert set(unanswered) == {1}
        assert spans.max_span() == world.window
        assert await check(cluster, [history], topic) == list(range(RECORDS))
