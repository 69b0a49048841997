"""Tokens from an OpenID provider: the client-credentials grant (RFC 6749, section 4.4; KIP-768).

A token is kept until a fifth of its life is left, and connections share it. The request is made
with the standard library, in a thread: one POST in many minutes is no reason for an HTTP client
among the dependencies.

Invariants: client id and secret go to the configured URL and nowhere else (no redirect is
followed); the answer's size and the time for it are bounded; nothing of the answer but its error
code is shown.
"""

from __future__ import annotations

import base64
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import quote_plus, urlencode

import anyio
import anyio.to_thread

from aioidem.errors import AuthenticationFailedError, KafkaConnectionError
from aioidem.protocol.messages import printable
from aioidem.secret import Secret

__all__ = ["ClientCredentials"]

_LONGEST_ANSWER: Final = 1 << 18
_USED_UP: Final = 0.8
"""Of a token's life, when it is replaced; Java's client refreshes there too."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002 - the names are the base class's
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None


class ClientCredentials:
    """A token provider.

    :param url: the provider's token endpoint; the configuration has checked its scheme.
    :param timeout: seconds for one request.
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
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._timeout = timeout
        self._clock = clock
        self._token: Secret[str] | None = None
        self._replace_at = 0.0
        # Of the thread and not of the event loop: a second producer may run in another loop.
        self._lock = threading.Lock()

    async def token(self) -> Secret[str]:
        """A token that is good for a while.

        :raises AuthenticationFailedError: the provider refuses, or its answer is not one.
        :raises KafkaConnectionError: the provider cannot be reached or fails.
        """
        token, good = self._token, self._clock() < self._replace_at
        if token is not None and good:
            return token
        return await anyio.to_thread.run_sync(self._fetch, abandon_on_cancel=True)

    def _fetch(self) -> Secret[str]:
        with self._lock:
            if self._token is not None and self._clock() < self._replace_at:
                return self._token
            asked = self._clock()
            self._token, lifetime = self._read(self._post())
            self._replace_at = asked + lifetime * _USED_UP
            return self._token

    def _post(self) -> Secret[bytes]:
        """The answer's body. Exceptions are not chained: their frames hold the request."""
        opener = urllib.request.build_opener(_NoRedirect)
        refused, failure = False, ""
        try:
            with opener.open(self._request(), timeout=self._timeout) as answer:
                return Secret(answer.read(_LONGEST_ANSWER + 1))
        except urllib.error.HTTPError as error:
            with error:
                refused = error.code < 500 and error.code != 429
                failure = f"HTTP status {error.code}{_oauth_error(error)}"
        except (OSError, HTTPException, ValueError) as error:
            failure = printable(str(getattr(error, "reason", "") or error))
        kind = AuthenticationFailedError if refused else KafkaConnectionError
        raise kind(f"no token from {self._url}: {failure}")

    def _request(self) -> urllib.request.Request:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret.reveal())}"
        return urllib.request.Request(  # noqa: S310 - the configuration has checked the scheme
            self._url,
            data=urlencode(form).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            },
        )

    def _read(self, body: Secret[bytes]) -> tuple[Secret[str], float]:
        """The token and the seconds it is good for."""
        if len(body.reveal()) <= _LONGEST_ANSWER:
            token, lifetime = _token_of(body)
            if token and lifetime > 0:
                return token, lifetime
        raise AuthenticationFailedError(f"the answer of {self._url} has no usable access_token")


def _token_of(body: Secret[bytes]) -> tuple[Secret[str], float]:
    try:
        answer = json.loads(body.reveal())
        lifetime = float(answer.get("expires_in", 300))
        token = Secret(str(answer["access_token"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Secret(""), 0.0
    return token, lifetime if math.isfinite(lifetime) else 0.0


def _oauth_error(error: urllib.error.HTTPError) -> str:
    """What RFC 6749 has a provider say, if it does."""
    try:
        answer: Any = json.loads(error.read(4096))
        code = answer.get("error", "")
    except (OSError, HTTPException, ValueError, AttributeError, RecursionError):
        return ""
    return f", {printable(code, 100)}" if isinstance(code, str) and code else ""
