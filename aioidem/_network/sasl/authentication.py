"""Authenticate one connection, and decide when its session must be renewed (KIP-368).

The connection does the IO: `run` receives a function that sends one request and returns the answer.
`run` authenticates a new connection, or renews the session of an open one, whose other requests the
connection holds back meanwhile.

Invariants: the exchange has at most ten rounds. A session is renewed on the same connection and for
the same principal only: brokers refuse another principal, which therefore needs a new connection.
Messages are wrapped in `Secret`, which prints as stars, because a traceback may show local
variables. An exception of a mechanism ends this exchange and nothing else.

Renewal is lazy, as in Java's client: once 85 to 95 % of the session's lifetime have passed, a
renewal precedes the next request. The exact share is random, so that a thousand producers do not
renew at the same moment. An idle connection fetches no tokens. A broker refuses a renewal less than
a second after the last authentication, so a renewal waits until that second has passed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from aioidem._config.secret import Secret
from aioidem._network.sasl.client import SaslClient
from aioidem._network.sasl.mechanism import Mechanism
from aioidem._network.threads import OwnThreads
from aioidem._protocol.messages import decode_response, encode_request, response_type
from aioidem._protocol.sasl import (
    authenticate_answer,
    authenticate_request,
    check_handshake,
    handshake_request,
)
from aioidem._protocol.versions import ApiKey, ApiVersionTable
from aioidem.errors import (
    AuthenticationFailedError,
    InternalError,
    KafkaConnectionError,
    KafkaError,
)

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["Ask", "Authentication"]

T = TypeVar("T")

Ask = Callable[[int, Secret[bytes]], Awaitable[bytes]]
"""A function that takes a correlation id and a request with that id, sends the request, and returns
the answer.
"""

_THREADS: Final = OwnThreads("steps of an authentication")
_MAX_ROUNDS: Final = 10
_EARLIEST, _LATEST = 0.85, 0.95
_BETWEEN_SECONDS: Final = 1.1
_RANDOM: Final = random.SystemRandom()


class Authentication:
    """The authentication of one connection.

    Args:
        client: Makes the mechanism for each exchange.
        host: The broker's host, as the cluster advertises it.
        client_id: The client id in each request's header, or None.
        versions: The API versions that the broker offers.
        new_correlation_id: Returns an unused correlation id of the connection.

    Raises:
        IncompatibleBrokerVersion: The broker does not offer SaslHandshake and SaslAuthenticate in
            versions that this client speaks.
    """

    __slots__ = (
        "_begun_at",
        "_client",
        "_client_id",
        "_host",
        "_new_correlation_id",
        "_principal",
        "_renew_at",
        "_version",
        "waits_for",
    )

    def __init__(
        self,
        client: SaslClient,
        host: str,
        client_id: str | None,
        versions: ApiVersionTable,
        new_correlation_id: Callable[[], int],
    ) -> None:
        versions.choose(ApiKey.SASL_HANDSHAKE)
        self._version = versions.choose(ApiKey.SASL_AUTHENTICATE)
        self._client = client
        self._host = host
        self._client_id = client_id
        self._new_correlation_id = new_correlation_id
        self._begun_at: float | None = None
        self._renew_at: float | None = None
        self._principal: str | None = None
        # What `run` waits for, for messages.
        self.waits_for = client.source

    @property
    def due(self) -> bool:
        """Whether the session must be renewed with `run` before anything else may be sent."""
        return self._renew_at is not None and anyio.current_time() >= self._renew_at

    async def run(self, ask: Ask) -> None:
        """Authenticate the connection, for the first time or to renew its session.

        Args:
            ask: Sends a frame on the connection and returns the answer.

        Raises:
            AuthenticationFailedError: The broker rejects the client, or the client the broker.
            KafkaConnectionError: Credentials cannot be fetched, or they now name another principal,
                which needs a new connection.
            ProtocolError: An answer is malformed.
        """
        name = self._client.name
        self.waits_for = self._client.source
        mechanism = await _typed(name, lambda: self._client.mechanism(self._host))
        if self._begun_at is not None:
            if mechanism.principal != self._principal:
                raise KafkaConnectionError(
                    "the user name has changed, so a new connection is needed"
                )
            await anyio.sleep_until(self._begun_at + _BETWEEN_SECONDS)
        self._begun_at, self._principal = anyio.current_time(), mechanism.principal
        check_handshake(
            await self._answer(
                ask, ApiKey.SASL_HANDSHAKE, 1, partial(handshake_request, mechanism.name)
            ),
            mechanism.name,
        )
        try:
            await self._exchange(ask, mechanism)
        except AuthenticationFailedError:
            self._client.refused(mechanism)
            raise

    async def _exchange(self, ask: Ask, mechanism: Mechanism) -> None:
        message = await self._call(mechanism, lambda: Secret(mechanism.first()))
        for _ in range(_MAX_ROUNDS):
            sent_at = anyio.current_time()
            answer = authenticate_answer(
                await self._answer(
                    ask, ApiKey.SASL_AUTHENTICATE, self._version, _carrying(self._version, message)
                )
            )
            reply = await self._call(mechanism, partial(_next, mechanism, answer.challenge))
            if reply is None:
                self._expect_end(sent_at, answer.lifetime)
                return
            message = reply
        raise AuthenticationFailedError(f"{mechanism.name}: no end after {_MAX_ROUNDS} rounds")

    def _expect_end(self, sent_at: float, lifetime: float | None) -> None:
        # The lifetime begins when our last message reaches the broker, after `sent_at`. So the
        # session lasts at least as long as computed here.
        part = _RANDOM.uniform(_EARLIEST, _LATEST)
        self._renew_at = None if lifetime is None else sent_at + lifetime * part

    async def _call(self, mechanism: Mechanism, step: Callable[[], T]) -> T:
        self.waits_for = f"a step of {mechanism.name} in this process"
        return await _typed(mechanism.name, lambda: _perform(mechanism, step))

    async def _answer(
        self, ask: Ask, api_key: ApiKey, version: int, make: Callable[[], RequestPayload]
    ) -> Any:
        schema = response_type(api_key, version)
        if schema is None:
            raise InternalError(f"no schema for {api_key.name} v{version}")
        self.waits_for = "the broker's answer"
        correlation_id = self._new_correlation_id()
        frame = Secret(
            encode_request(make(), correlation_id=correlation_id, client_id=self._client_id)
        )
        return decode_response(schema, await ask(correlation_id, frame))[1]


def _carrying(version: int, message: Secret[bytes]) -> Callable[[], RequestPayload]:
    return lambda: authenticate_request(version, message.reveal())


def _next(mechanism: Mechanism, challenge: bytes) -> Secret[bytes] | None:
    message = mechanism.next(challenge)
    return None if message is None else Secret(message)


async def _perform(mechanism: Mechanism, step: Callable[[], T]) -> T:
    if not mechanism.blocking:
        return step()
    # A cancelled task does not wait for the thread: that could take long, and the result is not
    # needed.
    return await _THREADS.run(step)


async def _typed(name: str, step: Callable[[], Awaitable[T]]) -> T:
    """Await a step that handles credentials, and turn each of its failures into a `KafkaError`.

    If an exception is not a `KafkaError`, the message shows only its class: its text and the frames
    of its traceback may contain the credentials, as those of a UnicodeEncodeError do.
    """
    try:
        return await step()
    except KafkaError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's callables may raise anything
        kind = type(error).__name__
    raise AuthenticationFailedError(f"{name}: the credentials cannot be used: {kind} was raised")
