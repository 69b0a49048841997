"""Send records on trio's event loop."""

from __future__ import annotations

import trio

import aioidem
from aioidem.broker import EmbeddedCluster


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        async with aioidem.Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"value")
        assert cluster.log_end_offset("t") == 1


trio.run(main)
