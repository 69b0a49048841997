"""Send records with aiokafka's types, and read them with aiokafka's consumer."""

from __future__ import annotations

import asyncio

import aiokafka
import aiokafka.structs

from aioidem.broker import EmbeddedCluster
from aioidem.integrations.aiokafka import AIOKafkaProducer


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        async with producer:
            metadata = await producer.send_and_wait("t", b"value")
        assert isinstance(metadata, aiokafka.structs.RecordMetadata)
        consumer = aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            record = await asyncio.wait_for(consumer.getone(), 20)
        assert record.value == b"value"


asyncio.run(main())
