"""Tokens from an OpenID provider: the client-credentials grant (RFC 6749, section 4.4; KIP-768).

A token is kept until a fifth of its life is left, and all connections of a producer share it. They
share the request for it, too: while one of them asks, the others wait for what it gets, token or
failure. If the one that asks is cancelled, one of those that wait asks anew.

Invariants: one request at a time; `timeout` bounds the whole of it (connect, headers and body
together), however slowly the provider answers; no thread is started, so nothing outlives the
producer; client id and secret go to the configured URL and nowhere else (no redirect is followed);
the answer's size is bounded; nothing of the answer but its error code is shown, and the client
secret not even if it is there; of the URL nothing behind a question mark is shown; what was asked
for is given once, however short its life.

The HTTP client logs each request with the URL and the status line as they are: that record is
dropped.

Rejected: urllib in a thread. Its time-out is one socket operation's, so an endpoint that sends a
byte now and then is waited for without end, and the thread that waits keeps the process alive.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, NamedTuple
from urllib.parse import quote_plus

import anyio
import anyio.lowlevel
import anyio.to_thread

from aioidem._config.secret import Secret
from aioidem._network.waiting import Signal, new_signal
from aioidem._protocol.messages import printable
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    KafkaConnectionError,
    KafkaError,
)

__all__ = ["ClientCredentials"]

_LONGEST_ANSWER: Final = 1 << 18
_USED_UP: Final = 0.8
"""Part of a token's life after which it is replaced; Java's client refreshes there too."""


class _Answer(NamedTuple):
    """What the provider answered."""

    status: int
    body: Secret[bytes]


class _HttpClient(NamedTuple):
    """The HTTP library, and whom it trusts."""

    module: ModuleType
    tls: ssl.SSLContext


class _Request:
    """A request under way, and how it ended for those who wait for it."""

    __slots__ = ("ended", "failure", "token")

    def __init__(self) -> None:
        self.ended: Signal = new_signal()
        # Both are None while it is under way, and if the task that asked was cancelled.
        self.token: Secret[str] | None = None
        self.failure: KafkaError | None = None


class ClientCredentials:
    """Fetches and keeps the access token of one producer. Belongs to one event loop.

    Args:
        url: the provider's token endpoint; the configuration has checked its scheme.
        client_id: who asks.
        client_secret: the password that goes with it.
        scope: what the token is asked for; None leaves that to the provider.
        timeout: seconds for a whole request, from connecting to the answer's last byte.
        clock: seconds, for the age of a token.

    Raises:
        ConfigError: the HTTP client of `aioidem[oauth]` is not installed.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: Secret[str],
        *,
        scope: str | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if importlib.util.find_spec("httpx2") is None:
            raise ConfigError(
                "sasl_oauthbearer_token_endpoint_url needs an HTTP client: "
                "pip install 'aioidem[oauth]'"
            )
        self._url = url
        self._shown = printable(url.partition("?")[0])
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._timeout = timeout
        self._clock = clock
        self._http: _HttpClient | None = None
        self._token: Secret[str] | None = None
        self._replace_at = 0.0
        self._request: _Request | None = None

    async def token(self) -> Secret[str]:
        """Return a token that is good for a while.

        Raises:
            AuthenticationFailedError: the provider refuses, or its answer is not a token.
            KafkaConnectionError: the provider cannot be reached, fails, or takes longer than
                `timeout` seconds.
        """
        while True:
            if self._token is not None and self._clock() < self._replace_at:
                return self._token
            if self._request is None:
                return await self._ask()
            request = self._request
            await request.ended.wait()
            if request.failure is not None:
                raise copy.copy(request.failure)
            if request.token is not None:
                return request.token

    async def _ask(self) -> Secret[str]:
        """Fetch a token for all who want one."""
        request = self._request = _Request()
        try:
            asked = self._clock()
            answer = await self._exchange()
            taken = answer if isinstance(answer, KafkaError) else self._take(answer, asked)
            if isinstance(taken, KafkaError):
                request.failure = taken
            else:
                request.token = taken
        finally:
            self._request = None
            request.ended.set()
        if isinstance(taken, KafkaError):
            raise taken
        return taken

    async def _exchange(self) -> _Answer | KafkaError:
        """Post the request and read the answer.

        A failure is returned and not raised: frames of a traceback show the request.
        """
        failure = f"it did not answer in full within {self._timeout:g} s"
        with anyio.move_on_after(self._timeout):
            if self._http is None:
                self._http = await anyio.to_thread.run_sync(_load_http_client)
            try:
                with _unheard(self._http.module.__name__, self._url):
                    return await self._post(self._http)
            except (self._http.module.HTTPError, self._http.module.InvalidURL, OSError) as error:
                failure = printable(self._hidden(str(error)) or type(error).__name__)
        return KafkaConnectionError(f"no token from {self._shown}: {failure}")

    async def _post(self, http: _HttpClient) -> _Answer:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        body = bytearray()
        # Read without decoding: a short body can decompress to a very long one.
        async with (
            http.module.AsyncClient(verify=http.tls, timeout=None) as client,
            client.stream(
                "POST",
                self._url,
                data=form,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                auth=http.module.BasicAuth(*self._credentials()),
                follow_redirects=False,
            ) as answer,
        ):
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _LONGEST_ANSWER:
                    break
                # Pieces that are here already come without a wait, however small they are.
                await anyio.lowlevel.checkpoint()
            return _Answer(answer.status_code, Secret(bytes(body)))

    def _credentials(self) -> tuple[str, str]:
        """Name and password for HTTP Basic, form-encoded first (RFC 6749, section 2.3.1)."""
        return quote_plus(self._client_id), quote_plus(self._client_secret.reveal())

    def _hidden(self, said: str) -> str:
        """Take the client secret out of what the provider says: it knows it, and may repeat it."""
        name, password = self._credentials()
        said = said.replace(base64.b64encode(f"{name}:{password}".encode()).decode(), "***")
        return said.replace(password, "***").replace(self._client_secret.reveal(), "***")

    def _take(self, answer: _Answer, asked: float) -> Secret[str] | KafkaError:
        """Keep the token of an answer and return it, or what is wrong with the answer."""
        if not 200 <= answer.status < 300:
            refused = answer.status < 500 and answer.status != 429
            kind = AuthenticationFailedError if refused else KafkaConnectionError
            code = printable(self._hidden(_oauth_error(answer.body)), 100)
            told = f"HTTP status {answer.status}{', ' if code else ''}{code}"
            return kind(f"no token from {self._shown}: {told}")
        if len(answer.body.reveal()) <= _LONGEST_ANSWER:
            token, lifetime = _token_of(answer.body)
            if token and lifetime > 0:
                self._token, self._replace_at = token, asked + lifetime * _USED_UP
                return token
        return AuthenticationFailedError(f"the answer of {self._shown} has no usable access_token")


def _load_http_client() -> _HttpClient:
    """Import the client and load the system's authorities: for a thread, it takes 0.1 s."""
    import httpx2

    tls = httpx2.create_ssl_context()
    httpx2.AsyncClient(verify=tls)  # unused, but the first one imports the transport
    return _HttpClient(httpx2, tls)


def _token_of(body: Secret[bytes]) -> tuple[Secret[str], float]:
    """The token and the seconds it is good for; an empty one where there is none."""
    try:
        answer = json.loads(body.reveal())
        lifetime = float(answer.get("expires_in", 300))
        token = answer["access_token"]
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
        return Secret(""), 0.0
    if not isinstance(token, str):
        return Secret(""), 0.0
    return Secret(token), lifetime if math.isfinite(lifetime) else 0.0


def _oauth_error(body: Secret[bytes]) -> str:
    """The error code that RFC 6749 (section 5.2) has a provider send; empty if it is not there."""
    try:
        code = json.loads(body.reveal()[:4096]).get("error", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return code if isinstance(code, str) else ""


@contextmanager
def _unheard(name: str, url: str) -> Iterator[None]:
    """Drop what a logger is told of a URL, and nothing else."""

    def of_another(record: logging.LogRecord) -> bool:
        # The client's URLs are equal to a text that means the same.
        return not isinstance(record.args, tuple) or url not in record.args

    logger = logging.getLogger(name)
    logger.addFilter(of_another)
    try:
        yield
    finally:
        logger.removeFilter(of_another)
