"""Send records on uvloop's event loop."""

from __future__ import annotations

import asyncio

import uvloop

import aioidem
from aioidem.broker import EmbeddedCluster


async def main() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    async with EmbeddedCluster() as cluster:
        async with aioidem.Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"value")
        assert cluster.log_end_offset("t") == 1


uvloop.run(main())
