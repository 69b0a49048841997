"""Send records with the dependencies of an installation without extras."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aioidem
from aioidem.broker import EmbeddedCluster


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        codecs: tuple[Any, ...] = ("none", "gzip", "lz4", "zstd")
        for count, codec in enumerate(codecs):
            async with aioidem.Producer(
                cluster.bootstrap_servers, compression_type=codec
            ) as producer:
                metadata = await producer.send("t", b"value" * 100)
                assert metadata.offset == count


assert Path(sys.prefix) in Path(aioidem.__file__).parents, aioidem.__file__
asyncio.run(main())
