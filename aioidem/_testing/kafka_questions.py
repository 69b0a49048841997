"""Send requests to the brokers of a `KafkaCluster`, past their proxies; one connection per request.

Brokers learn of a change one by one, so the answer of one broker may differ from what the
controller knows. Where that matters, all brokers are asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from aioidem._broker.entities import build
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    decode_response,
    encode_request,
    request_type,
    response_type,
)
from aioidem._protocol.versions import ApiKey
from aioidem._testing.kafka_broker import HOST, KafkaBroker
from aioidem.errors import KafkaConnectionError, KafkaError, ProtocolError

__all__ = ["POLL_SECONDS", "KafkaQuestions"]

POLL_SECONDS: Final = 0.02
"""Seconds between two requests while a condition is waited for."""

_ANSWER_SECONDS: Final = 10.0
_MAX_ANSWER_BYTES: Final = 100 << 20
_METADATA: Final = (ApiKey.METADATA, 12)


class KafkaQuestions:
    """Sends requests to the brokers of one cluster.

    Args:
        brokers: The brokers; the list may grow until the cluster has started.
        timeout: Seconds to wait for a condition.
    """

    def __init__(self, brokers: Sequence[KafkaBroker], timeout: float) -> None:
        self._brokers = brokers
        self._timeout = timeout

    def responsive(self) -> list[KafkaBroker]:
        """Return the brokers that run and are not paused."""
        return [each for each in self._brokers if each.running and not each.paused]

    async def ask(
        self, broker: KafkaBroker, api_key: int, version: int, fields: Mapping[str, Any]
    ) -> Any:
        """Send one request to one broker, and return the response as an object of the library kio.

        Raises:
            KafkaError: There is no schema of this API in this version.
            KafkaConnectionError: The broker cannot be reached, closed the connection, or did not
                respond within 10 seconds.
        """
        schema, answer = request_type(api_key, version), response_type(api_key, version)
        if schema is None or answer is None:
            raise KafkaError(f"there is no schema of API {api_key} in version {version}")
        request = encode_request(
            build(schema, fields), correlation_id=0, client_id="KafkaCluster", version=version
        )
        try:
            with anyio.fail_after(_ANSWER_SECONDS):
                payload = await _exchange(broker.inner_port, request)
        except TimeoutError:
            raise KafkaConnectionError(
                f"broker {broker.node_id} did not answer within {_ANSWER_SECONDS:g} s"
            ) from None
        return decode_response(answer, payload)[1]

    async def ask_any(self, api_key: int, version: int, **fields: Any) -> Any:
        """Ask the first responsive broker, which forwards requests for the controller.

        Raises:
            KafkaError: No broker runs, or `ask` fails.
        """
        responsive = self.responsive()
        if not responsive:
            raise KafkaError("no broker is running")
        return await self.ask(responsive[0], api_key, version, fields)

    async def metadata(self, broker: KafkaBroker, topic: str | None) -> Any:
        """Return a broker's response to Metadata; None if the broker does not give one.

        Args:
            broker: The broker to ask.
            topic: The topic to ask about; None: ask about no topic, so the response has only the
                brokers.
        """
        fields = {
            "topics": [] if topic is None else [{"name": topic, "topic_id": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        try:
            return await self.ask(broker, *_METADATA, fields)
        except (KafkaConnectionError, ProtocolError):
            return None

    async def partition(self, broker: KafkaBroker, topic: str, partition: int) -> Any:
        """Return one broker's Metadata of a partition; None if the broker has none or fails."""
        metadata = await self.metadata(broker, topic)
        for each in () if metadata is None else metadata.topics:
            for state in each.partitions:
                if state.partition_index == partition:
                    return state
        return None

    async def newest(self, topic: str, partition: int) -> list[Any]:
        """Return the partition's Metadata of each broker that knows the newest leader epoch.

        A broker that was paused answers with an older epoch until it has caught up.
        """
        known = [
            state
            for broker in self.responsive()
            if (state := await self.partition(broker, topic, partition)) is not None
        ]
        newest = max((int(state.leader_epoch) for state in known), default=-1)
        return [state for state in known if int(state.leader_epoch) == newest]

    async def until(self, condition: Callable[[], Awaitable[bool]], failure: str) -> None:
        """Wait until the condition is true.

        Raises:
            KafkaError: The condition was not true within the timeout; the message begins with
                ``failure``.
        """
        try:
            with anyio.fail_after(self._timeout):
                while not await condition():  # noqa: ASYNC110 - another process sends no event
                    await anyio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise KafkaError(f"{failure}, after {self._timeout:g} s") from None


async def _exchange(port: int, request: bytes) -> bytes:
    stream = await TcpConnector().connect(HOST, port)
    splitter = FrameSplitter(_MAX_ANSWER_BYTES)
    async with stream:
        try:
            await stream.send(request)
            while True:
                for payload in splitter.feed(await stream.receive()):
                    return payload
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError) as error:
            raise KafkaConnectionError(
                f"the broker at port {port} closed the connection: {error}"
            ) from error
