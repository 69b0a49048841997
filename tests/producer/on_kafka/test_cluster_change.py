"""A bootstrap address that moves to another real cluster, where the producer id is taken.

Both clusters are new, and hand out the same producer ids. If the moved producer kept its id and
raised its epoch, it would fence the native producer, which has the same id in that cluster. If the
native producer then raised its epoch too, the broker would take its records for duplicates of the
moved producer's, and acknowledge them with those offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aioidem import Producer, errors
from aioidem.structs import DeliveryStatus
from aioidem.testing import FaultProxy, KafkaCluster
from tests.kafka.tools import STOCK, bounded

pytestmark = pytest.mark.anyio

NEWEST = STOCK[0]
TOPIC = "moved"
OPTIONS: dict[str, Any] = {"request_timeout": 5.0, "delivery_timeout": 40.0}


async def send(producer: Producer, values: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Send the values one after the other; return offset and value of each acknowledged one."""
    acknowledged = []
    for value in values:
        delivery = producer.send_nowait(TOPIC, value)
        try:
            metadata = await delivery
        except errors.KafkaError:
            assert delivery.status is DeliveryStatus.UNKNOWN
        else:
            acknowledged.append((metadata.offset, value))
    return acknowledged


async def log_of(cluster: KafkaCluster) -> list[tuple[int, bytes]]:
    """Return offset and value of each record, as Kafka's own tool reads the log."""
    dump = await cluster.dump_topic(TOPIC)
    records = [record for batch in dump[0] for record in batch.records]
    return [(record.offset, (record.payload or "").encode()) for record in records]


@bounded(120)
async def test_each_acknowledged_record_is_in_the_log_it_was_acknowledged_for() -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(KafkaCluster(NEWEST)) for _ in range(2)]
        for cluster in (first, second):
            await cluster.create_topic(TOPIC)
        proxy = first.proxy
        name = await stack.enter_async_context(FaultProxy(proxy.host, proxy.port))
        native = await stack.enter_async_context(Producer(second.bootstrap_servers, **OPTIONS))
        carried = await stack.enter_async_context(Producer(name.address, **OPTIONS))
        in_first = await send(carried, [b"a%d" % number for number in range(5)])
        in_second = await send(native, [b"b0", b"b1"])
        ids = native.statistics().producer_id, carried.statistics().producer_id
        assert ids[0] == ids[1], "the two clusters handed out different producer ids"
        kept = await log_of(first)
        name.upstream = second.proxy.host, second.proxy.port
        name.disconnect()
        await first.kill()
        for turn in range(3):
            in_second += await send(carried, [b"c%d" % turn])
            in_second += await send(native, [b"d%d" % turn])
        assert set(in_first) <= set(kept)
        assert set(in_second) <= set(await log_of(second))
        assert len(in_second) >= 7
        assert carried.statistics().producer_id != native.statistics().producer_id
