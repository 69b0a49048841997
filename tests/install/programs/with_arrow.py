"""Write the rows of an Arrow table."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import aioidem
from aioidem.broker import EmbeddedCluster


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        async with aioidem.Producer(cluster.bootstrap_servers) as producer:
            await producer.send_table("t", pa.table({"value": [b"0", b"1"]}))
        assert cluster.log_end_offset("t") == 2


asyncio.run(main())
