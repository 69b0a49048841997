"""Compress records with snappy."""

from __future__ import annotations

import asyncio

import aioidem
from aioidem.broker import EmbeddedCluster


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        async with aioidem.Producer(
            cluster.bootstrap_servers, compression_type="snappy"
        ) as producer:
            await producer.send("t", b"value" * 100)
        assert cluster.log_end_offset("t") == 1


asyncio.run(main())
