"""Send records with keys and headers; check whether compiled code or pure Python encodes them."""

from __future__ import annotations

import asyncio
import sys

import aioidem
from aioidem.broker import EmbeddedCluster


async def main(expected: str) -> None:
    info = aioidem.build_info()
    assert info.hot_path == expected, info
    async with (
        EmbeddedCluster() as cluster,
        aioidem.Producer(cluster.bootstrap_servers) as producer,
    ):
        for number in range(3):
            metadata = await producer.send(
                "t", b"value", key=b"key", headers=(("name", b"x"),), partition=0
            )
            assert metadata.offset == number


asyncio.run(main(sys.argv[1]))
