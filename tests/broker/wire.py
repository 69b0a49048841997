"""A connection to a broker of an `EmbeddedCluster` on which a test sends its own requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
from anyio.abc import ByteStream

from aioidem._broker.entities import Entity, build
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    decode_response,
    encode_request,
    request_type,
    response_type,
)
from aioidem.broker import EmbeddedCluster


class Wire:
    """A connection on which a test sends requests, reads responses, and sees if it was closed."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._splitter = FrameSplitter(1 << 26)
        self._frames: list[bytes] = []
        self._last_id = 0

    async def send(self, api_key: int, version: int, values: dict[str, Any]) -> int:
        schema = request_type(api_key, version)
        assert schema is not None
        self._last_id += 1
        frame = encode_request(build(schema, values), correlation_id=self._last_id, client_id="w")
        await self.stream.send(frame)
        return self._last_id

    async def frame(self) -> bytes:
        while not self._frames:
            self._frames += self._splitter.feed(await self.stream.receive())
        return self._frames.pop(0)

    async def ask(self, api_key: int, version: int, values: dict[str, Any]) -> Entity:
        correlation_id = await self.send(api_key, version, values)
        return await self.read(api_key, version, correlation_id)

    async def read(self, api_key: int, version: int, correlation_id: int) -> Entity:
        schema = response_type(api_key, version)
        assert schema is not None
        found, answer = decode_response(schema, await self.frame())
        assert found == correlation_id
        return answer

    async def produce(self, data: bytes, topic: str = "t", *, timeout: float = 30.0) -> Entity:
        return await self.ask(0, 12, produce_values(data, topic, timeout))

    async def ended(self) -> bool:
        try:
            await self.frame()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True
        return False


def produce_values(data: bytes, topic: str = "t", timeout: float = 30.0) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": timedelta(seconds=timeout),
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
    }


@asynccontextmanager
async def connected(cluster: EmbeddedCluster, broker: int = 0) -> AsyncIterator[Wire]:
    running = {b.id: b for b in cluster.state.running}[broker]
    stream = await cluster.connector.connect(running.host, running.port)
    async with stream:
        yield Wire(stream)
