"""Send a request to a broker and return the answer, for requests that the producer never sends.

Each request or conversation opens a connection, with the producer's own security settings, and
closes it afterwards (`kept_connections.py` keeps it). `until_known` repeats a request, at another
bootstrap server each time, while brokers are unreachable or busy.

Invariants: the configuration's `connection_setup_timeout` bounds the time for connecting, its
`request_timeout` the time for the answer, and the caller's `timeout` the time for all repetitions.
When `timeout` has passed, the error that is raised names the last failure.

Rejected: using the producer's connections: only the sender may use them, because only the sender
knows which requests are outstanding on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._network.allowed import limited
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.tls import secured
from aioidem._network.transport import Connector, TcpConnector
from aioidem._protocol.messages import decode_response, encode_request, response_type

__all__ = ["Ask", "Asker", "Place", "ask", "converse", "open_connection", "until_known"]

_T = TypeVar("_T")
_PAUSE: Final = 0.1
# Answers after which the same request may succeed: timeouts, lost connections, coordinators that
# load, move or are not known yet, and offsets that an open transaction may still change.
_AGAIN: Final = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.unstable_offset_commit,
    }
)


class Place(NamedTuple):
    """The address at which a broker listens."""

    host: str
    port: int


Ask = Callable[[ProducerConfig, Place, int, Callable[[Connection], Any]], Awaitable[Any]]
"""A function with the arguments and the result of `ask`."""


async def until_known(
    config: ProducerConfig, what: str, timeout: float, find: Callable[[Place], Awaitable[_T]]
) -> _T:
    """Call `find` until a call succeeds, each time with the next of the `bootstrap_servers`.

    Args:
        config: how to connect.
        what: the information that is requested, in words for the error message.
        timeout: seconds for all attempts together.
        find: called for each attempt with the server to ask; returns the information.

    Raises:
        KafkaTimeoutError: no attempt succeeded within `timeout`.
        AuthenticationFailedError: a broker refuses the credentials.
        BrokerResponseError: a broker answered with an error that repeating does not cure.
    """
    servers = cycle(Place(host, port) for host, port in config.bootstrap_servers)
    reason: errors.KafkaError | None = None
    with anyio.move_on_after(timeout):
        while True:
            try:
                return await find(next(servers))
            except errors.AuthenticationFailedError:
                raise
            except errors.BrokerResponseError as error:
                if error.errno not in _AGAIN:
                    raise
                reason = error
            except (errors.KafkaConnectionError, errors.KafkaTimeoutError) as error:
                reason = error
            await anyio.sleep(_PAUSE)
    why = "the first attempt had not ended" if reason is None else f"the last failure: {reason}"
    raise errors.KafkaTimeoutError(f"{what}: no answer within {timeout:g} s; {why}")


async def ask(
    config: ProducerConfig, place: Place, api_key: int, make: Callable[[Connection], Any]
) -> Any:
    """Send one request to one broker, and return its answer.

    Args:
        config: how to connect.
        place: the broker's address.
        api_key: the number of the request's Kafka API.
        make: makes the request, in a version that the connection's broker offers.

    Returns:
        The decoded response, an object of kio's schema.

    Raises:
        KafkaError: as `converse` and `Asker.ask`.
    """

    async def once(asker: Asker) -> Any:
        return await asker.ask(api_key, make)

    return await converse(config, place, once)


async def converse(
    config: ProducerConfig,
    place: Place,
    talk: Callable[[Asker], Awaitable[_T]],
    connector: Connector | None = None,
) -> _T:
    """Open a connection to a broker, call `talk` with it, and close it.

    Args:
        config: how to connect.
        place: the broker's address.
        talk: sends the requests, and returns what is wanted.
        connector: opens the byte stream; None opens a TCP connection.

    Raises:
        KafkaConnectionError: the broker cannot be reached.
        AuthenticationFailedError: the broker refuses the credentials, or the broker itself cannot
            be authenticated.
        KafkaError: `talk` has raised it.
    """
    connection = await open_connection(config, place, connector)
    results: list[_T] = []
    failure: errors.KafkaError | None = None
    asker = Asker(config, connection)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asker.run)
            # The error is raised below, outside of the task group, which would wrap it.
            try:
                results.append(await talk(asker))
            except errors.KafkaError as error:
                failure = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await connection.aclose()
    if failure is not None:
        raise failure
    return results[0]


async def open_connection(
    config: ProducerConfig, place: Place, connector: Connector | None = None
) -> Connection:
    """Open a connection to a broker, with the producer's own security settings; see `converse`."""
    return await Connection.open(
        secured(limited(connector or TcpConnector(), config), config),
        place.host,
        place.port,
        client_id=config.client_id,
        setup_timeout=config.connection_setup_timeout,
        max_frame_bytes=config.max_frame_bytes,
        sasl=sasl_client(config),
    )


class Asker:
    """Sends requests on one connection, one after the other.

    Args:
        config: how long to wait for an answer.
        connection: the connection, which nobody else uses.
    """

    def __init__(self, config: ProducerConfig, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._frames: list[bytes] = []
        self._cause: errors.KafkaError | None = None
        self._told = anyio.Event()

    async def run(self) -> None:
        """Run the connection until it ends; `converse` does so in a task of its own."""
        try:
            await self._connection.run(self._take, lambda _written, _read: None)
        finally:
            self._cause = self._connection.cause
            self._told.set()

    def _take(self, _: int, frame: bytes) -> None:
        self._frames.append(frame)
        self._told.set()

    async def ask(self, api_key: int, make: Callable[[Connection], Any]) -> Any:
        """Send a request, and return its answer.

        Args:
            api_key: the number of the request's Kafka API.
            make: makes the request, in a version that the connection's broker offers.

        Returns:
            The decoded response, an object of kio's schema.

        Raises:
            KafkaConnectionError: the connection was lost.
            KafkaTimeoutError: there was no answer within the configuration's `request_timeout`.
            IncompatibleBrokerVersion: the broker offers no version of the API that aioidem speaks.
        """
        request = make(self._connection)
        schema = response_type(api_key, type(request).__version__)
        if schema is None:
            raise errors.InternalError(f"no schema for API {api_key}")
        _, answer = decode_response(schema, await self._answer(request))
        return answer

    async def _answer(self, request: Any) -> bytes:
        connection, timeout = self._connection, self._config.request_timeout
        number = connection.next_correlation_id()
        frame = encode_request(request, correlation_id=number, client_id=self._config.client_id)
        connection.write(frame, correlation_id=number)
        with anyio.move_on_after(timeout):
            while not self._frames and self._cause is None:
                await self._told.wait()
                self._told = anyio.Event()
        if self._frames:
            return self._frames.pop()
        raise self._cause or errors.KafkaTimeoutError(f"no answer within {timeout:g} s")
