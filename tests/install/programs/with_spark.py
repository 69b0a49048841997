"""Write a batch as a Spark task does; without a driver this needs no Java."""

from __future__ import annotations

import asyncio

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from aioidem._spark.sink import AioidemDataSource
from aioidem.broker import EmbeddedCluster


def write(servers: str) -> None:
    source = AioidemDataSource({"kafka.bootstrap.servers": servers, "topic": "t"})
    writer = source.writer(StructType([StructField("value", BinaryType())]), overwrite=False)
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
    assert writer.write(iter([batch])).rows == 2


async def main() -> None:
    async with EmbeddedCluster() as cluster:
        await asyncio.to_thread(write, cluster.bootstrap_servers)
        assert cluster.log_end_offset("t") == 2


asyncio.run(main())
