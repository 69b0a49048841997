"""Authentication of one connection: the exchange, and when it is due again (KIP-368).

Who asks is the connection: `run` is given a function that sends one frame and returns its answer,
on a fresh connection and on one that was parked for it alike.

Invariants: it ends in at most ten rounds; a session is renewed on the same connection before it
ends, and only for the same principal (brokers refuse another one; its records belong on a
connection of its own); no message is kept in a local variable while something else may fail;
whatever a mechanism raises ends this exchange and nothing else.

Renewing is lazy, as Java's: before something is to be sent, once 85 to 95 % of the session are over
(at random, so that a thousand producers do not renew at once). An idle connection asks for no
tokens. A broker refuses a renewal within a second of the last one, so one is not begun before.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from kio.static.protocol import RequestPayload

from aioidem._config.secret import Secret
from aioidem._network.sasl.client import SaslClient
from aioidem._network.sasl.mechanism import Mechanism
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

__all__ = ["Ask", "Authentication"]

T = TypeVar("T")

Ask = Callable[[int, Secret[bytes]], Awaitable[bytes]]
"""Sends a frame, which has this correlation id, and returns the answer to it."""

_MAX_ROUNDS: Final = 10
_EARLIEST, _LATEST = 0.85, 0.95
_BETWEEN_SECONDS: Final = 1.1
_RANDOM: Final = random.SystemRandom()


class Authentication:
    """One connection's.

    :param versions: what its broker offers.
    :param new_correlation_id: of that connection.
    :raises IncompatibleBrokerVersion: the broker is too old for SASL in Kafka's frames.
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

    @property
    def due(self) -> bool:
        """Whether nothing may be sent before `run`."""
        return self._renew_at is not None and anyio.current_time() >= self._renew_at

    async def run(self, ask: Ask) -> None:
        """Authenticate.

        :raises AuthenticationFailedError: one side does not accept the other.
        :raises KafkaConnectionError: credentials cannot be fetched, or have become another
            principal's, and a new connection is to use them.
        :raises ProtocolError: an answer is malformed.
        """
        name = self._client.name
        mechanism = await _typed(name, lambda: self._client.mechanism(self._host))
        if self._begun_at is not None:
            if mechanism.principal != self._principal:
                raise KafkaConnectionError("closed for a new one with the new user name")
            await anyio.sleep_until(self._begun_at + _BETWEEN_SECONDS)
        self._begun_at, self._principal = anyio.current_time(), mechanism.principal
        check_handshake(
            await self._answer(
                ask, ApiKey.SASL_HANDSHAKE, 1, partial(handshake_request, mechanism.name)
            ),
            mechanism.name,
        )
        await self._exchange(ask, mechanism)

    async def _exchange(self, ask: Ask, mechanism: Mechanism) -> None:
        message = await _call(mechanism, lambda: Secret(mechanism.first()))
        for _ in range(_MAX_ROUNDS):
            sent_at = anyio.current_time()
            answer = authenticate_answer(
                await self._answer(
                    ask, ApiKey.SASL_AUTHENTICATE, self._version, _carrying(self._version, message)
                )
            )
            reply = await _call(mechanism, partial(_next, mechanism, answer.challenge))
            if reply is None:
                self._expect_end(sent_at, answer.lifetime)
                return
            message = reply
        raise AuthenticationFailedError(f"{mechanism.name}: no end after {_MAX_ROUNDS} rounds")

    def _expect_end(self, sent_at: float, lifetime: float | None) -> None:
        # The broker counts from when it took the last message, which is no sooner than this.
        part = _RANDOM.uniform(_EARLIEST, _LATEST)
        self._renew_at = None if lifetime is None else sent_at + lifetime * part

    async def _answer(
        self, ask: Ask, api_key: ApiKey, version: int, make: Callable[[], RequestPayload]
    ) -> Any:
        schema = response_type(api_key, version)
        if schema is None:
            raise InternalError(f"no schema for {api_key.name} v{version}")
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


async def _call(mechanism: Mechanism, step: Callable[[], T]) -> T:
    return await _typed(mechanism.name, lambda: _perform(mechanism, step))


async def _perform(mechanism: Mechanism, step: Callable[[], T]) -> T:
    if not mechanism.blocking:
        return step()
    # Given up on cancellation: the object is of no more use then, and the wait could be long.
    return await anyio.to_thread.run_sync(step, abandon_on_cancel=True)


async def _typed(name: str, step: Callable[[], Awaitable[T]]) -> T:
    """Await what handles credentials, and make every failure of it an error of ours.

    An exception of another library is told by its class alone: its text and its frames may have the
    credentials, as those of a UnicodeEncodeError do.
    """
    try:
        return await step()
    except KafkaError:
        raise
    except Exception as error:  # noqa: BLE001 - which libraries are asked is the user's choice
        kind = type(error).__name__
    raise AuthenticationFailedError(f"{name}: the credentials cannot be used: {kind} was raised")
