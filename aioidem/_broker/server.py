"""The embedded cluster's connections: listeners, tasks, and the clock that drives `ClusterState`.

`ClusterState` decides everything that a client can notice. This module has only the listeners, two
tasks per connection, and one task that waits for the next event that is due.

Invariants
    `ClusterControls.span` counts a producer's unresolved batches. It counts a batch as soon as the
    frame is read from the stream, before the simulated delay of the connection.
    `ClusterServer.aclose` ends every connection and listener.

Rejected
    A task per request or per delayed answer: the event loop would then decide the order of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Literal

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskGroup

from aioidem._broker.decoding import read_request
from aioidem._broker.entities import Entity
from aioidem._broker.memory import MemoryConnector, MemoryStream, stream_pair
from aioidem._broker.requests import Connection, Delivery
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.state import ClusterState
from aioidem._broker.topology import Broker
from aioidem._network.listening import Listening
from aioidem._network.transport import Connector, TcpConnector, address, no_delay
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import encode_response
from aioidem._protocol.versions import ApiKey
from aioidem.errors import NotKafkaError, ProtocolError

__all__ = ["ClusterServer"]

_READ_BYTES: Final = 1 << 18
_MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
_MEMORY_PORT: Final = 9092
_STREAM_ENDED: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


class ClusterServer:
    """Connects a `ClusterState` to clients, over TCP or in memory.

    Args:
        state: The cluster.
        transport: "tcp" on 127.0.0.1, or "memory" (clients then use `connector`).
        ports: TCP port of each broker; 0 takes a free one, which the broker keeps if it restarts.
        security: The TLS settings of every connection.
        wall_clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        state: ClusterState,
        *,
        transport: Literal["tcp", "memory"],
        ports: Sequence[int],
        security: BrokerSecurity,
        wall_clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._transport = transport
        self._ports = list(ports) + [0] * (len(state.brokers) - len(ports))
        self._security = security
        self._wall_clock = wall_clock
        self._exits = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listening: dict[int, Listening] = {}
        self._channels: dict[int, _Channel] = {}
        self._asleep_until: float | None = None
        self._awake = anyio.Event()

    @property
    def running(self) -> bool:
        """Return whether the server has started and not ended."""
        return self._tasks is not None

    @property
    def connector(self) -> Connector:
        """Return the connector with which clients reach the brokers: in memory, or by plain TCP."""
        if self._transport == "memory":
            return MemoryConnector(self._accept_in_memory)
        return TcpConnector()

    async def start(self) -> None:
        """Listen for every broker, and start the clock."""
        self._tasks = await self._exits.enter_async_context(anyio.create_task_group())
        try:
            for broker in self._state.brokers.values():
                await self.listen(broker)
        except BaseException:
            await self.aclose()
            raise
        self._tasks.start_soon(self._run_clock)

    async def aclose(self) -> None:
        """End every connection and listener at once."""
        tasks, self._tasks = self._tasks, None
        with anyio.CancelScope(shield=True):
            for listening in self._listening.values():
                await listening.end()
            self._listening.clear()
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._exits.aclose()

    # -- time -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carry out the events that are due by now, and queue the answers that clients get."""
        if self._tasks is None:
            return
        for delivery in self._state.advance(anyio.current_time(), self._wall_ms()):
            channel = self._channels.get(delivery.connection.id)
            if channel is None:
                self._state.undelivered(delivery)
            else:
                channel.put(delivery)
        due = self._state.next_due()
        if due is not None and (self._asleep_until is None or due < self._asleep_until):
            self._awake.set()

    async def _run_clock(self) -> None:
        while True:
            self.pump()
            self._awake = anyio.Event()
            self._asleep_until = self._state.next_due()
            with anyio.CancelScope() as scope:
                if self._asleep_until is not None:
                    scope.deadline = self._asleep_until
                await self._awake.wait()

    def _wall_ms(self) -> int:
        return int(self._wall_clock() * 1000)

    # -- listeners --------------------------------------------------------------------------------

    async def stop_listening(self, broker_id: int) -> None:
        """Close a broker's listener; its connections stay open."""
        listening = self._listening.pop(broker_id, None)
        if listening is not None:
            await listening.end()

    async def listen(self, broker: Broker) -> None:
        """Open a broker's listener, at the port that the broker had before, if it had one."""
        if self._transport == "memory":
            broker.host, broker.port = f"embedded-{broker.id}", _MEMORY_PORT
            return
        broker.host = "127.0.0.1"
        port = self._ports[broker.id]
        try:
            listener = await anyio.create_tcp_listener(local_host=broker.host, local_port=port)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {address(broker.host, port)}") from error
        broker.port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        self._ports[broker.id] = broker.port
        listening = Listening(listener, anyio.CancelScope(), anyio.Event())
        try:
            if self._tasks is not None:
                # Wait until the loop runs. If it were cancelled before its first step, it would
                # never say that it has ended, and `aclose` would wait for that for ever.
                accept = partial(listening.accept, partial(self._accepted, broker), self._tasks)
                await self._tasks.start(accept)
                self._listening[broker.id] = listening
        except BaseException:
            await anyio.aclose_forcefully(listener)
            raise

    async def _accepted(self, broker: Broker, stream: ByteStream) -> None:
        # This runs in the server's task group and not in the listener's, so that a broker that
        # stops still delivers the answers that are in transit.
        no_delay(stream)
        await self._serve(broker, stream)

    def _accept_in_memory(self, host: str, port: int) -> MemoryStream | None:
        for broker in self._state.running:
            if (host, port) == (broker.host, broker.port) and self._tasks is not None:
                ours, theirs = stream_pair()
                self._tasks.start_soon(self._serve, broker, ours)
                return theirs
        return None

    # -- connections ------------------------------------------------------------------------------

    async def _serve(self, broker: Broker, raw: ByteStream) -> None:
        stream = await self._security.shield(raw)
        if stream is None:
            return
        try:
            connection = self._state.connect(broker.id)
        except ConnectionRefusedError:  # the broker was stopped during the client's handshake
            await anyio.aclose_forcefully(stream)
            return
        channel = self._channels[connection.id] = _Channel(stream)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.write, self._state)
                await self._read(broker, connection, channel)
                tasks.cancel_scope.cancel()
        finally:
            del self._channels[connection.id]
            self._state.disconnect(connection)
            await anyio.aclose_forcefully(stream)

    async def _read(self, broker: Broker, connection: Connection, channel: _Channel) -> None:
        splitter = FrameSplitter(_MAX_REQUEST_BYTES)
        while True:
            try:
                frames = splitter.feed(await channel.stream.receive(_READ_BYTES))
                now, wall_ms = anyio.current_time(), self._wall_ms()
                for payload in frames:
                    self._submit(broker, connection, payload, now, wall_ms)
            except (ProtocolError, NotKafkaError, *_STREAM_ENDED):
                return
            self.pump()

    def _submit(
        self, broker: Broker, connection: Connection, payload: bytes, now: float, wall_ms: int
    ) -> None:
        header, request = read_request(payload)
        if header.api_key != ApiKey.API_VERSIONS and not self._state.serves(
            broker, header.api_key, header.api_version
        ):
            raise ProtocolError(f"API {header.api_key} v{header.api_version} is not served")
        self._state.submit(
            connection,
            request,
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            now=now,
            wall_ms=wall_ms,
            size=len(payload) + 4,
        )


class _Channel:
    """Answers that wait to be written to one client."""

    __slots__ = ("_pending", "_wake", "stream")

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._pending: list[Delivery] = []
        self._wake = anyio.Event()

    def put(self, delivery: Delivery) -> None:
        """Queue a delivery for `write`."""
        self._pending.append(delivery)
        self._wake.set()

    async def write(self, state: ClusterState) -> None:
        """Write deliveries until one side closes the connection, then close the stream."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            batch, self._pending = self._pending, []
            closing = batch[-1].close if batch else False
            data = b"".join([_bytes_of(delivery) for delivery in batch])
            try:
                if data:
                    await self.stream.send(data)
            except _STREAM_ENDED:
                for delivery in batch:
                    state.undelivered(delivery)
                closing = True
            if closing:
                await self.stream.aclose()
                return


def _bytes_of(delivery: Delivery) -> bytes:
    if delivery.close:
        return b""
    if delivery.frame is not None:
        return delivery.frame
    response: Entity = delivery.response
    return encode_response(response, delivery.correlation_id)
