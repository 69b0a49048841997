"""Access tokens from an OpenID provider, by the client-credentials grant (RFC 6749, 4.4; KIP-768).

A token is used until a fifth of its lifetime is left or a broker refuses it, and all connections of
a producer share it.
The connections also share the request for a token: while one task's request is under way, the other
tasks wait for its result, a token or an error. If the requesting task is cancelled, one of the
waiting tasks sends a new request.

Invariants: at most one request is under way at a time. `timeout` limits the whole request
(connecting, headers and body together), however slowly the provider answers. No thread waits for
the provider, so none outlives the producer. Client id and secret are sent to the configured URL
only; redirects are not followed. The answer's size is limited. Error messages show the URL up to
its question mark and, of an answer, only the status and the error code. If the provider repeats the
client secret, the message shows ``***`` instead. A token is returned at least once, however short
its lifetime.

The HTTP client logs the URL and the status line of each request; those log records are dropped.

Rejected: urllib in a thread. Its timeout applies to each socket operation, so the wait for an
endpoint that sends one byte now and then never ends, and the thread keeps the process alive.
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

from aioidem._config.secret import Secret
from aioidem._network.threads import OwnThreads
from aioidem._network.waiting import Signal, new_signal
from aioidem._protocol.messages import printable
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    KafkaConnectionError,
    KafkaError,
)

__all__ = ["ClientCredentials"]

_THREADS: Final = OwnThreads("loading the HTTP client")
_LONGEST_ANSWER: Final = 1 << 18
_PASSING: Final = frozenset({408, 429})
"""HTTP statuses below 500 that say nothing about the credentials: a timeout, too many requests."""
_USED_UP: Final = 0.8
"""The share of a token's lifetime after which it is replaced, the same as in Java's client."""

_YOUNG: Final = 10.0
"""For so many seconds a token is used although brokers refuse it."""


class _Answer(NamedTuple):
    """The HTTP status and the body of the provider's answer."""

    status: int
    body: Secret[bytes]


class _HttpClient(NamedTuple):
    """The imported HTTP library, and a TLS context with the authorities to trust."""

    module: ModuleType
    tls: ssl.SSLContext


class _Request:
    """A request for a token, and its result for the tasks that wait for it."""

    __slots__ = ("ended", "failure", "token")

    def __init__(self) -> None:
        self.ended: Signal = new_signal()
        # `token` and `failure` are None while the request is under way, and for ever if the
        # requesting task was cancelled.
        self.token: Secret[str] | None = None
        self.failure: KafkaError | None = None


class ClientCredentials:
    """The source of one producer's access tokens: fetches a token, and keeps it while it is valid.

    A token that a broker refuses, as after it was revoked or the provider's keys were changed, is
    replaced for the next authentication, unless it is less than ten seconds old. So a client whose
    tokens are all refused asks for a new one every ten seconds, not each time it connects.

    It belongs to one event loop.

    Args:
        url: The provider's token endpoint; the configuration has checked its scheme.
        client_id: The client's id at the provider.
        client_secret: The secret that belongs to the client id.
        scope: The scope to ask for; None leaves that to the provider.
        timeout: Seconds for a whole request, from connecting to the answer's last byte.
        clock: Returns the time in seconds, to measure a token's age.

    Raises:
        ConfigError: The HTTP client of `aioidem[oauth]` is not installed.
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
        self._asked_at = 0.0
        self._replace_at = 0.0
        self._request: _Request | None = None

    @property
    def shown(self) -> str:
        """The token endpoint's URL up to its question mark, for messages."""
        return self._shown

    async def token(self) -> Secret[str]:
        """Return a valid token, fetched anew if the last one is near its end.

        Raises:
            AuthenticationFailedError: The provider refuses, or its answer contains no token.
            KafkaConnectionError: The provider cannot be reached, fails, or takes longer than
                `timeout` seconds.
            ConfigError: The environment asks the HTTP client for what it does not have.
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

    def refused(self, token: Secret[str]) -> None:
        """Note that a broker has refused a token, which `token` returned."""
        # Several connections may have shown the same token; its successor is not refused yet.
        if token is self._token and self._clock() >= self._asked_at + _YOUNG:
            self._token = None

    async def _ask(self) -> Secret[str]:
        """Fetch a token for all tasks that wait for one."""
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
            raise copy.copy(taken)  # which gets a broker's address, and those that wait another's
        return taken

    async def _exchange(self) -> _Answer | KafkaError:
        """Post the request and read the answer.

        An error is returned and not raised, because the frames of a traceback contain the request.
        """
        failure = f"it did not answer in full within {self._timeout:g} s"
        with anyio.move_on_after(self._timeout):
            if self._http is None:
                try:
                    self._http = await _THREADS.run(_load_http_client)
                except KafkaError as error:
                    return error
                except Exception as error:  # noqa: BLE001 - the library may raise anything
                    return ConfigError(f"no token from {self._shown}: {_unusable(error)}")
            try:
                with _unlogged(self._http.module.__name__, self._url):
                    return await self._post(self._http)
            except (self._http.module.HTTPError, self._http.module.InvalidURL, OSError) as error:
                failure = printable(self._hidden(str(error)) or type(error).__name__)
        return KafkaConnectionError(f"no token from {self._shown}: {failure}")

    async def _post(self, http: _HttpClient) -> _Answer:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        body = bytearray()
        # The body is not decompressed, because a short one can decompress to a very long one.
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
                # Reading chunks that have already arrived does not wait: let other tasks run.
                await anyio.lowlevel.checkpoint()
            return _Answer(answer.status_code, Secret(bytes(body)))

    def _credentials(self) -> tuple[str, str]:
        """Return client id and secret for HTTP Basic, form-encoded (RFC 6749, 2.3.1)."""
        return quote_plus(self._client_id), quote_plus(self._client_secret.reveal())

    def _hidden(self, said: str) -> str:
        """Remove the client secret from the provider's text, which may repeat it."""
        name, password = self._credentials()
        said = said.replace(base64.b64encode(f"{name}:{password}".encode()).decode(), "***")
        return said.replace(password, "***").replace(self._client_secret.reveal(), "***")

    def _take(self, answer: _Answer, asked: float) -> Secret[str] | KafkaError:
        """Keep and return the token of an answer, or return what is wrong with the answer."""
        if not 200 <= answer.status < 300:
            refused = answer.status < 500 and answer.status not in _PASSING
            kind = AuthenticationFailedError if refused else KafkaConnectionError
            code = printable(self._hidden(_oauth_error(answer.body)), 100)
            problem = f"HTTP status {answer.status}{', ' if code else ''}{code}"
            return kind(f"no token from {self._shown}: {problem}")
        if len(answer.body.reveal()) <= _LONGEST_ANSWER:
            token, lifetime = _token_of(answer.body)
            if token and lifetime > 0:
                self._token, self._asked_at = token, asked
                self._replace_at = asked + lifetime * _USED_UP
                return token
        return AuthenticationFailedError(f"the answer of {self._shown} has no usable access_token")


def _load_http_client() -> _HttpClient:
    """Import the HTTP client and load the system's CAs; it takes 0.1 s, so a thread calls it."""
    import httpx2

    tls = httpx2.create_ssl_context()
    # Making the first client imports the HTTP transport, so one is made here, in the thread.
    httpx2.AsyncClient(verify=tls)
    return _HttpClient(httpx2, tls)


def _unusable(error: Exception) -> str:
    """Return why there is no HTTP client. Other texts than these may show a proxy's password."""
    said = f": {error}" if isinstance(error, ImportError | OSError) else ""
    return (
        f"the HTTP client cannot be made ({type(error).__name__}{said}). It reads ALL_PROXY, "
        "HTTPS_PROXY, HTTP_PROXY, SSL_CERT_FILE and SSL_CERT_DIR from the environment"
    )


def _token_of(body: Secret[bytes]) -> tuple[Secret[str], float]:
    """Return an answer's token and the token's lifetime in seconds; an empty token for none."""
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
    """Return the error code of the answer (RFC 6749, section 5.2), empty if it has none."""
    try:
        code = json.loads(body.reveal()[:4096]).get("error", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return code if isinstance(code, str) else ""


@contextmanager
def _unlogged(name: str, url: str) -> Iterator[None]:
    """Drop those log records of the logger `name` that mention this URL."""

    def of_another(record: logging.LogRecord) -> bool:
        # The HTTP client logs URL objects of its own, which compare equal to the text of the URL.
        return not isinstance(record.args, tuple) or url not in record.args

    logger = logging.getLogger(name)
    logger.addFilter(of_another)
    try:
        yield
    finally:
        logger.removeFilter(of_another)
