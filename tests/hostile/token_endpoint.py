"""Fuzz target: a token endpoint's answer, through the whole HTTP client.

The first byte of an input is the size of the pieces in which the answer arrives, the rest is the
answer with status line and headers. A `$` in it is the client secret, which the endpoint knows and
may repeat. No connection is made: the HTTP client gets a stream in memory.
"""

from __future__ import annotations

import base64
import copy
import functools
from collections.abc import Iterator
from typing import Final
from unittest import mock

import anyio

from aioidem._config.secret import Secret
from aioidem._network.sasl.oauthbearer import OAuthBearer
from aioidem._network.sasl.oidc import ClientCredentials
from aioidem.errors import AuthenticationFailedError, KafkaConnectionError

from .conversation import in_virtual_time
from .parsers import check_text

__all__ = ["answers", "token_endpoint"]

_SECRET: Final = "c4n4rySecret"
_BASIC: Final = base64.b64encode(f"me:{_SECRET}".encode()).decode()
_BACKEND: Final = "httpcore2._async.connection_pool.AutoBackend"


class _Stream:
    """A connection whose peer has already sent everything."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    async def read(self, max_bytes: int, **_: object) -> bytes:
        piece = next(self._pieces, b"")
        assert len(piece) <= max_bytes
        return piece

    async def write(self, _buffer: bytes, **_: object) -> None:
        """Drop the data, which no peer reads."""

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""

    async def start_tls(self, *_: object, **__: object) -> _Stream:
        raise AssertionError("TLS was asked for at an http URL")

    def get_extra_info(self, _info: str) -> None:
        """Return None: there is no such information about a stream in memory."""


class _Network:
    """Answers every connection with the same bytes, and notes for which hosts it was asked."""

    def __init__(self, answer: bytes, size: int) -> None:
        self.asked: list[tuple[str, int]] = []
        self._answer = answer
        self._size = size

    async def connect_tcp(self, host: str, port: int, **_: object) -> _Stream:
        self.asked.append((host, port))
        answer, size = self._answer, self._size
        return _Stream(answer[at : at + size] for at in range(0, len(answer), size))


@functools.cache
def _loaded() -> ClientCredentials:
    """Make a client once and load its HTTP library, which takes longer than a thousand inputs."""
    credentials = ClientCredentials("http://provider/token", "me", Secret(_SECRET))

    async def load() -> None:
        with mock.patch(_BACKEND, return_value=_Network(b"", 1)):
            try:
                await credentials.token()
            except KafkaConnectionError:
                return
        raise AssertionError("no answer is a token")

    anyio.run(load)
    return credentials


def token_endpoint(data: bytes) -> None:
    """Check that `ClientCredentials.token` returns a token or raises an error that it documents."""
    size = (*data[:1], 1)[0] or 1
    network = _Network(data[1:].replace(b"$", _SECRET.encode()), size)
    credentials = copy.copy(_loaded())
    with mock.patch(_BACKEND, return_value=network):
        in_virtual_time(lambda: _ask(credentials))
    assert network.asked == [("provider", 80)], f"asked {network.asked}"


async def _ask(credentials: ClientCredentials) -> None:
    try:
        token = await credentials.token()
        assert token
        assert token.reveal() not in f"{token!r}" or token.reveal() in "Secret('***')"
        OAuthBearer(token).first()
    except (AuthenticationFailedError, KafkaConnectionError) as error:
        said = str(error)
        check_text(said)
        assert _SECRET not in said, "the client secret is shown"
        assert _BASIC not in said, "the client secret is shown"


# --- seeds: the inputs that a run begins with -----------------------------------------------------

_BODIES: Final = (
    b'{"access_token":"t0k3n","expires_in":300,"token_type":"Bearer"}',
    b'{"access_token":"t0k3n","expires_in":"1e999"}',
    b'{"access_token":"t\\u0001\\ud800","expires_in":-1}',
    b'{"access_token":null}',
    b'{"error":"invalid_client","error_description":"$"}',
    b'{"error":"no such secret: $\\u001b[2J"}',
    b"[[[[1]]]]",
    b"",
)
_HEADERS: Final = (
    b"Content-Type: application/json\r\n",
    b"Set-Cookie: a=b; Max-Age=99999999999; Domain=.example\r\n",
    b"Location: http://[::1]:99999/$\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Connection: close\r\n",
)


def answers() -> Iterator[bytes]:
    """Yield answers that vary in body, status, header or framing."""
    for body in _BODIES:
        for status in (b"200 OK", b"401 $", b"302 Found", b"503 Busy", b"204 None"):
            yield b"\x40" + _answer(status, _HEADERS[0], body)
    for header in _HEADERS:
        for status in (b"200 OK", b"302 Found", b"400 Bad"):
            yield b"\xff" + _answer(status, header, _BODIES[0])
    chunks = b"8;x=$\r\n" + _BODIES[0][:8] + b"\r\n0\r\nTrailer: $\r\n\r\n"
    yield b"\7HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    yield b"\7HTTP/1.1 100 Continue\r\n\r\n" * 3 + _answer(b"200 OK", b"", _BODIES[0])
    yield b"\1HTTP/1.0 200\r\n\r\n" + _BODIES[0]
    yield b"\1HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + _BODIES[0]
    yield b"\1HTTP/9.9 $ OK\r\n\r\n"
    yield b"\1HTTP/1.1 200 OK\r\n$\x1b[2J: \0\r\n\r\n"
    yield b"\1HTTP/1.1 101 Switching\r\nUpgrade: $\r\n\r\n"
    yield b"\xff" + _answer(
        b"200 OK", b"", b'{"access_token":"t","expires_in":' + b"9" * 400 + b"}"
    )


def _answer(status: bytes, headers: bytes, body: bytes) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body.replace(b"$", _SECRET.encode()))
    return b"HTTP/1.1 " + status + b"\r\n" + headers + length + b"\r\n" + body
