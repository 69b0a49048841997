"""FaultProxy: a TCP proxy that knows Kafka's frames, in front of any broker.

A client that connects to the proxy reaches the broker behind it, over a link whose round-trip time,
jitter and bandwidth are set here. Hooks may delay, hold, drop, cut or rewrite each frame (see
`fault_actions`); how bytes pass is in `fault_relay`. With a `RetentionFace` the broker seems to
implement KIP-1269.

The broker must advertise the proxy's address, or clients connect past the proxy: see `KafkaCluster`
and ``listen_port``.

Invariants
    Random delays depend only on the seed, the number of the connection and the direction.
    Leaving the ``async with`` ends every connection and the listener.

Rejected
    netem and iptables: they need root, and cannot see frames. A thread per connection: the hooks
    would need locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskGroup

from aioidem._broker.link import can_be
from aioidem._network.listening import Listening
from aioidem._network.transport import Connector, TcpConnector, no_delay
from aioidem._testing.fault_actions import Action, FrameHook, FrameSeen
from aioidem._testing.fault_relay import Relay, reset_on_close
from aioidem._testing.kafka_retention import RetentionFace
from aioidem.errors import ConfigError, KafkaConnectionError

__all__ = ["FaultProxy"]

_TRACED: Final = 4096


class FaultProxy:
    """A TCP proxy in front of one broker. It belongs to one event loop.

    Use it as ``async with FaultProxy(host, port) as proxy`` and connect clients to
    `address`. Leaving the block closes every connection and the listener.

    Args:
        host: Host of the broker.
        port: Port of the broker; `upstream` changes host and port later.
        listen_host: Address to listen at.
        listen_port: Port to listen at; 0 takes a free one.
        rtt: Round-trip time of every connection, in seconds.
        jitter: Upper bound of a random delay that is added in each direction, in seconds; the order
            of bytes is kept.
        bandwidth: Bytes per second of every connection in each direction; None: unlimited.
        retention: How many batches the proxy says that the broker retains (KIP-1269); None: the
            proxy adds nothing to the broker's answers.
        connector: How to reach the broker; None: TCP.
        seed: Seed of the jitter.

    Attributes:
        on_request: Hook that decides about each request; None: requests pass.
        on_answer: Hook that decides about each response; None: responses pass.
        trace: The last 4,096 frames, each with the action that the hook chose.

    Raises:
        ConfigError: A delay is negative, or the bandwidth is not positive.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        rtt: float = 0.0,
        jitter: float = 0.0,
        bandwidth: float | None = None,
        retention: RetentionFace | None = None,
        connector: Connector | None = None,
        seed: int = 0,
    ) -> None:
        self.upstream = (host, port)
        self.host = listen_host
        self.port = listen_port
        self.retention = retention
        self.on_request: FrameHook | None = None
        self.on_answer: FrameHook | None = None
        self.trace: deque[tuple[FrameSeen, Action | None]] = deque(maxlen=_TRACED)
        self.set_link(rtt=rtt, jitter=jitter, bandwidth=bandwidth)
        self._connector = connector or TcpConnector()
        self._seed = seed
        self._opened = 0
        self._relays: dict[int, Relay] = {}
        self._frozen: anyio.Event | None = None
        self._changed: anyio.Event | None = None
        self._exits = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listening: Listening | None = None

    def __repr__(self) -> str:
        host, port = self.upstream
        state = "listening" if self._listening is not None else "not listening"
        return (
            f"<FaultProxy {self.host}:{self.port} -> {host}:{port}, {state}, "
            f"{len(self._relays)} connections>"
        )

    async def __aenter__(self) -> Self:
        """Open the listener.

        Raises:
            OSError: The port cannot be bound.
        """
        self._tasks = await self._exits.enter_async_context(anyio.create_task_group())
        try:
            await self.accept()
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every connection and the listener."""
        await self._shut()

    @property
    def address(self) -> str:
        """Return ``host:port`` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self._relays)

    @property
    def opened(self) -> int:
        """Return how many connections were opened since the start."""
        return self._opened

    def outstanding(self, api_key: int | None = None) -> int:
        """Count the requests on open connections whose response has not begun to arrive.

        Args:
            api_key: Count requests of this API only; None: of all APIs.
        """
        return sum(
            api_key is None or asked.seen.api_key == api_key
            for relay in self._relays.values()
            for asked in relay.asked.values()
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition()`` is true.

        The condition is evaluated at each frame, and whenever a connection opens or closes.
        """
        while not condition():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    # -- the link ----------------------------------------------------------------------------------

    def set_link(
        self, *, rtt: float = 0.0, jitter: float = 0.0, bandwidth: float | None = None
    ) -> None:
        """Change the link of every connection, for bytes that arrive from now on.

        Args:
            rtt: Round-trip time, in seconds.
            jitter: Upper bound of the random delay in each direction, in seconds.
            bandwidth: Bytes per second in each direction; None: unlimited.

        Raises:
            ConfigError: A delay is negative or not finite, or the bandwidth is not positive.
        """
        if not can_be((rtt, jitter), bandwidth):
            raise ConfigError(
                f"rtt={rtt}, jitter={jitter}, bandwidth={bandwidth}: delays must be finite and 0 "
                "or more, and a bandwidth must be more than 0, or None"
            )
        self.rtt, self.jitter, self.bandwidth = rtt, jitter, bandwidth

    # -- faults for all connections ----------------------------------------------------------------

    def disconnect(self, *, reset: bool = False) -> None:
        """Close every connection now, and discard what is in transit.

        Args:
            reset: Close with RST instead of FIN.
        """
        for relay in list(self._relays.values()):
            relay.close(reset=reset)

    def freeze(self) -> None:
        """Deliver nothing until `thaw`, also on new connections; all connections stay open."""
        if self._frozen is None:
            self._frozen = anyio.Event()

    def thaw(self) -> None:
        """End `freeze`, and deliver what was in transit."""
        if self._frozen is not None:
            self._frozen.set()
            self._frozen = None

    async def refuse(self) -> None:
        """Refuse new connections; open ones stay open. `accept` ends this."""
        if self._listening is not None:
            listening, self._listening = self._listening, None
            await listening.end()

    async def accept(self) -> None:
        """Accept connections again, at the same port.

        Raises:
            OSError: The port cannot be bound.
        """
        if self._listening is not None or self._tasks is None:
            return
        listener = await anyio.create_tcp_listener(local_host=self.host, local_port=self.port)
        self.port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        listening = Listening(listener, anyio.CancelScope(), anyio.Event())
        try:
            # `Listening.end` waits until the loop has ended, so the loop must have started.
            await self._tasks.start(partial(listening.accept, self._relay, self._tasks))
        except BaseException:
            await anyio.aclose_forcefully(listener)
            raise
        self._listening = listening

    # -- inside ------------------------------------------------------------------------------------

    async def _relay(self, client: ByteStream) -> None:
        self._opened += 1
        number = self._opened
        no_delay(client)
        try:
            broker = await self._connector.connect(*self.upstream)
        except KafkaConnectionError:
            # The client is connected already: it can be reset, not refused.
            reset_on_close(client)
            await anyio.aclose_forcefully(client)
            return
        relay = self._relays[number] = Relay(self, number, self._seed, client, broker)
        self.notify()
        try:
            await relay.run()
        finally:
            del self._relays[number]
            self.notify()

    def notify(self) -> None:
        """Let every waiting `until` evaluate its condition."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def pass_gate(self) -> None:
        """Return once the proxy is not frozen."""
        while self._frozen is not None:
            await self._frozen.wait()

    async def _shut(self) -> None:
        tasks, self._tasks = self._tasks, None
        with anyio.CancelScope(shield=True):
            await self.refuse()
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._exits.aclose()
