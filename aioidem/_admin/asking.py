"""Send a request to a broker and return the answer, for requests that the producer never sends.

Each request opens a connection, with the producer's own security settings, and closes it
afterwards. `until_known` repeats a request, at another bootstrap server each time, while brokers
are unreachable or busy.

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
from aioidem._network.transport import TcpConnector
from aioidem._protocol.messages import decode_response, encode_request, response_type

__all__ = ["Place", "ask", "until_known"]

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
    raise errors.KafkaTimeoutError(
        f"{what}: no answer within {timeout:g} s; the last failure: {reason}"
    )


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
        KafkaConnectionError: the broker cannot be reached, or the connection was lost.
        KafkaTimeoutError: there was no answer within the configuration's `request_timeout`.
        AuthenticationFailedError: the broker refuses the credentials, or the broker itself cannot
            be authenticated.
        IncompatibleBrokerVersion: the broker offers no version of the API that aioidem speaks.
    """
    connection = await Connection.open(
        secured(limited(TcpConnector(), config), config),
        place.host,
        place.port,
        client_id=config.client_id,
        setup_timeout=config.connection_setup_timeout,
        max_frame_bytes=config.max_frame_bytes,
        sasl=sasl_client(config),
    )
    try:
        request = make(connection)
        schema = response_type(api_key, type(request).__version__)
        if schema is None:
            raise errors.InternalError(f"no schema for API {api_key}")
        _, answer = decode_response(schema, await _answer(config, connection, request))
    finally:
        with anyio.CancelScope(shield=True):
            await connection.aclose()
    return answer


async def _answer(config: ProducerConfig, connection: Connection, request: Any) -> bytes:
    frames: list[bytes] = []
    causes: list[errors.KafkaError] = []
    over = anyio.Event()

    def take(_: int, frame: bytes) -> None:
        frames.append(frame)
        over.set()

    async def run() -> None:
        causes.append(await connection.run(take, lambda _written, _read: None))
        over.set()

    number = connection.next_correlation_id()
    frame = encode_request(request, correlation_id=number, client_id=config.client_id)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        connection.write(frame, correlation_id=number)
        with anyio.move_on_after(config.request_timeout):
            await over.wait()
        tasks.cancel_scope.cancel()
    if frames:
        return frames[0]
    if causes:
        raise causes[0]
    raise errors.KafkaTimeoutError(f"no answer within {config.request_timeout:g} s")
