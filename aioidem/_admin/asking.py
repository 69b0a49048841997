"""One question to one broker, and its answer: for what the producer never asks.

A connection for each question, with the producer's own security, closed behind it. `until_known`
asks again, with another server to begin with, while brokers are away or busy.

Invariants: a question is bounded by the configuration's `request_timeout`, and connecting by its
own; asking again by a time that is given, and the last reason is in the error.

Rejected: the producer's connections (they are the sender's, whose questions are of its own plan).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any, Final, NamedTuple, TypeVar

import anyio

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
# Timed out, network, loading, no coordinator, another coordinator, a transaction that is not over.
_AGAIN: Final = frozenset({7, 13, 14, 15, 16, 88})


class Place(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


async def until_known(
    config: ProducerConfig, what: str, timeout: float, find: Callable[[Place], Awaitable[_T]]
) -> _T:
    """Find something out, beginning at each server of `bootstrap_servers` in turn.

    Args:
        config: how to connect.
        what: for the error.
        timeout: seconds.
        find: asks.

    Raises:
        KafkaTimeoutError: not within `timeout`.
        AuthenticationFailedError, BrokerResponseError: refused for good.
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
    raise errors.KafkaTimeoutError(f"{what}: not known within {timeout:g} s: {reason}")


async def ask(
    config: ProducerConfig, place: Place, api_key: int, make: Callable[[Connection], Any]
) -> Any:
    """Ask that broker.

    Args:
        config: how to connect.
        place: whom.
        api_key: of the question.
        make: the question, in a version that the connection's broker speaks.

    Returns:
        The answer, as kio has it.

    Raises:
        KafkaConnectionError, KafkaTimeoutError, AuthenticationFailedError,
        IncompatibleBrokerVersion: there is none.
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
