"""Ask one broker several questions on one connection, which is opened as the producer would.

`_admin.asking` opens a connection for each request; here the answers of one connection belong
together, because behind one address there may be several brokers.

Invariants: the connection is closed when `visit` ends. Opening it takes at most `Bounds.opening`
seconds, and each answer at most `Bounds.answer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from anyio.abc import ByteStream

from aioidem._admin.asking import Place
from aioidem._config import ProducerConfig
from aioidem._doctor.facts import Failure, FailureKind
from aioidem._doctor.failures import failure_of
from aioidem._network.allowed import limited
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.tls import secured
from aioidem._network.tls_probe import answers_plaintext, speaks
from aioidem._network.transport import Connector, TcpConnector
from aioidem._protocol.answer_limits import answer_limit
from aioidem._protocol.messages import decode_response, encode_request, response_type
from aioidem._protocol.versions import ApiKey, ApiVersionTable
from aioidem.errors import InternalError, KafkaConnectionError, KafkaError, KafkaTimeoutError

__all__ = ["Bounds", "Session", "visit"]

Make = Callable[[ApiVersionTable], Any]
"""Makes a request, in a version that the broker offers."""


class Bounds(NamedTuple):
    """The most seconds for opening a connection, and for each answer."""

    opening: float
    answer: float

    @classmethod
    def of(cls, config: ProducerConfig, timeout: float) -> Bounds:
        """Return the bounds for an examination of `timeout` seconds: the options', but a third."""
        third = timeout / 3
        return cls(min(config.connection_setup_timeout, third), min(config.request_timeout, third))


class Session:
    """An open connection to a broker, for one request at a time."""

    def __init__(self, config: ProducerConfig, connection: Connection, seconds: float) -> None:
        self._config = config
        self._connection = connection
        self._seconds = seconds
        self._waiting: tuple[anyio.Event, list[bytes]] | None = None
        self._over = anyio.Event()
        self.round_trip = 0.0
        """How long the last answer took, in seconds."""

    @property
    def versions(self) -> ApiVersionTable:
        """What the broker offers."""
        return self._connection.versions

    async def run(self) -> None:
        """Read answers until the connection ends."""
        await self._connection.run(self._take, lambda _written, _read: None)
        self._over.set()
        if self._waiting is not None:
            self._waiting[0].set()

    def _take(self, _correlation_id: int, frame: bytes) -> None:
        if self._waiting is not None:
            self._waiting[1].append(frame)
            self._waiting[0].set()

    async def ask(self, api: ApiKey, make: Make) -> Any:
        """Send a request, and return its answer, decoded by kio's schema.

        Raises:
            KafkaConnectionError: The connection has ended.
            KafkaTimeoutError: There was no answer in time.
            IncompatibleBrokerVersion: The broker offers no version of the API that aioidem speaks.
            ProtocolError: The answer is malformed.
        """
        request = make(self.versions)
        number = self._connection.next_correlation_id()
        frame = encode_request(request, correlation_id=number, client_id=self._config.client_id)
        schema = response_type(api, type(request).__version__)
        if schema is None:
            raise InternalError(f"no schema for API {api}")
        return decode_response(schema, await self.exchange(api, frame, number))[1]

    def next_correlation_id(self) -> int:
        """Return the id for the next request of `exchange`."""
        return self._connection.next_correlation_id()

    async def exchange(self, api: ApiKey, frame: bytes, correlation_id: int) -> bytes:
        """Send a frame, and return the answer's frame without its length prefix.

        Raises:
            KafkaConnectionError: The connection has ended.
            KafkaTimeoutError: There was no answer in time.
        """
        came, frames = self._waiting = (anyio.Event(), [])
        began = anyio.current_time()
        try:
            if not self._over.is_set():
                self._connection.write(
                    frame,
                    correlation_id=correlation_id,
                    limit=answer_limit(api, self._config.max_frame_bytes),
                )
                with anyio.move_on_after(self._seconds):
                    await came.wait()
        finally:
            self._waiting = None
        self.round_trip = anyio.current_time() - began
        if frames:
            return frames[0]
        if self._connection.cause is not None:
            raise self._connection.cause
        raise KafkaTimeoutError(f"no answer within {self._seconds:g} s")


async def visit(
    config: ProducerConfig,
    place: Place,
    bounds: Bounds,
    use: Callable[[Session], Awaitable[None]],
    *,
    address: str | None = None,
) -> Failure | None:
    """Open a connection, let `use` ask questions on it, and close it.

    Args:
        config: how to connect.
        place: the broker's address.
        bounds: the most seconds for opening and for each answer.
        use: asks the questions, and keeps what it learns as it learns it.
        address: the IP address to connect to, instead of looking the host's name up.

    Returns:
        Why the connection could not be opened, or failed while it was used; None if it did not.
    """
    connector = limited(TcpConnector() if address is None else _Pinned(address), config)
    try:
        connection = await Connection.open(
            secured(connector, config),
            place.host,
            place.port,
            client_id=config.client_id,
            setup_timeout=bounds.opening,
            max_frame_bytes=config.max_frame_bytes,
            sasl=sasl_client(config),
        )
    except KafkaError as error:
        return await _identified(config, connector, place, failure_of(error))
    session = Session(config, connection, bounds.answer)
    failure: Failure | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run)
            try:
                await use(session)
            # The group would wrap the error if it left the block.
            except KafkaError as error:
                failure = _on_request(error)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await connection.aclose()
    return failure


def _on_request(error: KafkaError) -> Failure:
    failure = failure_of(error)
    if isinstance(error, KafkaConnectionError) and failure.kind is FailureKind.HUNG_UP:
        return Failure(FailureKind.HUNG_UP_ON_REQUEST, failure.text)
    return failure


async def _identified(
    config: ProducerConfig, connector: Connector, place: Place, failure: Failure
) -> Failure:
    """Find out what a peer speaks that does not speak what was expected."""
    if failure.kind is not FailureKind.NOT_KAFKA:
        return failure
    if config.security_protocol in {"SSL", "SASL_SSL"}:
        if await answers_plaintext(connector, place.host, place.port):
            return Failure(FailureKind.SPEAKS_PLAINTEXT, failure.text)
    elif await speaks(connector, place.host, place.port) == "TLS":
        return Failure(FailureKind.SPEAKS_TLS, failure.text)
    return failure


class _Pinned:
    """A connector that connects to one IP address, whatever the host's name."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def connect(self, host: str, port: int) -> ByteStream:  # noqa: ARG002 - a Connector
        return await TcpConnector().connect(self._address, port)
