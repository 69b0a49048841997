"""Records that a real broker names in a refusal (KIP-467) fail alone; the others are delivered."""

from __future__ import annotations

import pytest

from aioidem import Producer, errors
from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from tests.kafka.tools import bounded, outcomes
from tests.kafka.world import RTT, World

pytestmark = pytest.mark.anyio


@bounded(60)
async def test_records_without_a_key_fail_alone_in_the_full_window_of_a_compacted_topic(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("keyed", configs={"cleanup.policy": "compact"})
    cluster.proxy.set_link(rtt=RTT)
    bad = {1, 30, 31, 99, 250}
    async with Producer(
        cluster.bootstrap_servers,
        max_in_flight_requests_per_connection=world.window,
        batch_size=400,
        late_sealing=False,
        linger=0.002,
    ) as producer:
        sent = [
            producer.send_nowait("keyed", b"%06d" % n, key=None if n in bad else b"%d" % n)
            for n in range(300)
        ]
        await outcomes(sent)
        for n, delivery in enumerate(sent):
            if n in bad:
                assert delivery.status is DeliveryStatus.NOT_WRITTEN
                error = delivery.exception()
                assert isinstance(error, errors.InvalidRecord)
                assert "without key" in str(error)
            else:
                assert delivery.status is DeliveryStatus.ACKED, (n, delivery)
        told = producer.statistics()
        assert (told.records_not_written, told.records_unknown) == (len(bad), 0)
        assert told.data_loss_events == 0
        assert told.epoch_bumps > 0
    dump = await cluster.dump_log("keyed")
    found = [int(record.payload or "") for batch in dump for record in batch.records]
    assert found == [n for n in range(300) if n not in bad]
    assert [d.metadata.offset for n, d in enumerate(sent) if n not in bad] == list(range(295))
