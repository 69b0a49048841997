"""Client credentials (KIP-768): tokens fetched, kept, replaced, and refused, from a server on this
machine. The server is the standard library's, in a thread, in plaintext: TLS is the library's part.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import anyio
import pytest

from aioidem import Producer
from aioidem.broker import EmbeddedCluster
from aioidem.broker.security import BrokerSecurity
from aioidem.errors import AuthenticationFailedError, KafkaConnectionError
from aioidem.network.sasl.oidc import ClientCredentials
from aioidem.secret import Secret

from .tools import bounded, sasl, token

pytestmark = pytest.mark.anyio

Answer = Callable[["Provider"], None]


@pytest.fixture
def anyio_backend() -> str:
    """Requests are made in a thread: the loop makes no difference."""
    return "asyncio"


class Provider(BaseHTTPRequestHandler):
    """An OpenID provider that answers as the test says."""

    asked: list[tuple[dict[str, str], dict[str, list[str]]]]
    answer: Answer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((dict(self.headers), parse_qs(body.decode())))
        type(self).answer(self)

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing to stderr."""


def gives(body: object, status: int = 200, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda provider: provider.say(status, data, **headers)


@contextmanager
def provider(answer: Answer) -> Iterator[tuple[str, Any]]:
    """Its token endpoint, and what it was asked."""
    handler: Any = type("Handler", (Provider,), {"asked": [], "answer": staticmethod(answer)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token", handler
        finally:
            server.shutdown()
            thread.join()


def client(url: str, **more: Any) -> ClientCredentials:
    return ClientCredentials(url, "m:e", Secret("canary /secret"), **more)


@bounded(20)
async def test_the_client_is_authenticated_and_the_scope_asked_for() -> None:
    with provider(gives({"access_token": "t1", "expires_in": 60})) as (url, handler):
        assert (await client(url, scope="a b").token()).reveal() == "t1"
    [(headers, form)] = handler.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}
    # RFC 6749, 2.3.1: both are form-encoded before they are joined.
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == "m%3Ae:canary+%2Fsecret"


@bounded(20)
async def test_a_token_is_kept_until_a_fifth_of_its_life_is_left() -> None:
    now = 0.0
    with provider(gives({"access_token": "t", "expires_in": 100})) as (url, handler):
        credentials = client(url, clock=lambda: now)
        for at, asked in [(0.0, 1), (79.0, 1), (81.0, 2), (160.0, 2), (162.0, 3)]:
            now = at
            await credentials.token()
            assert len(handler.asked) == asked


@bounded(20)
async def test_connections_that_need_a_token_at_once_share_one_request() -> None:
    with provider(gives({"access_token": "t", "expires_in": 100})) as (url, handler):
        credentials = client(url)
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(credentials.token)
    assert len(handler.asked) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (gives({"error": "invalid_client"}, 401), AuthenticationFailedError, "401, invalid_client"),
        (gives({"error": "\x1b[31m" + "x" * 999}, 400), AuthenticationFailedError, r"400, \\x1b"),
        (gives(b"<html>", 403), AuthenticationFailedError, "403$"),
        (gives(b"", 429), KafkaConnectionError, "429"),
        (gives(b"", 500), KafkaConnectionError, "500"),
        (gives(b"", 302, Location="http://127.0.0.1:9/"), AuthenticationFailedError, "302"),
        (gives(b"", 307, Location="http://127.0.0.1:9/"), AuthenticationFailedError, "307"),
        (gives({"token": "t"}), AuthenticationFailedError, "no usable access_token"),
        (gives(b"not json"), AuthenticationFailedError, "no usable access_token"),
        (gives(b"[" * 100_000), AuthenticationFailedError, "no usable access_token"),
        (gives([1]), AuthenticationFailedError, "no usable access_token"),
        (gives({"access_token": ""}), AuthenticationFailedError, "no usable access_token"),
        (
            gives({"access_token": "t", "expires_in": "NaN"}),
            AuthenticationFailedError,
            "no usable access_token",
        ),
        (
            gives({"access_token": "t", "expires_in": -5}),
            AuthenticationFailedError,
            "no usable access_token",
        ),
        (
            gives({"access_token": "t" * (1 << 19)}),
            AuthenticationFailedError,
            "no usable access_token",
        ),
    ],
)
@bounded(20)
async def test_what_goes_wrong_is_typed_short_and_without_secrets(
    answer: Answer, kind: type[Exception], says: str
) -> None:
    with provider(answer) as (url, _), pytest.raises(kind, match=says) as caught:
        await client(url).token()
    assert "canary" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.__context__ is None


@bounded(20)
async def test_a_provider_that_cannot_be_reached_or_stays_silent_is_a_connection_error() -> None:
    with pytest.raises(KafkaConnectionError, match="no token from"):
        await client("http://127.0.0.1:9/token").token()
    silence = threading.Event()

    def wait(_: Provider) -> None:
        silence.wait(5)

    with provider(wait) as (url, _):
        began = time.monotonic()
        with pytest.raises(KafkaConnectionError, match="timed out"):
            await client(url, timeout=0.2).token()
        assert time.monotonic() - began < 3
        silence.set()


@bounded(30)
async def test_a_producer_authenticates_with_tokens_from_the_provider() -> None:
    given = gives({"access_token": token(time.time() + 60), "expires_in": 60})
    with provider(given) as (url, handler):
        options = sasl(
            "OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret="canary",
        )
        security = BrokerSecurity(mechanisms=("OAUTHBEARER",))
        async with EmbeddedCluster(security=security) as cluster:
            async with Producer(cluster.bootstrap_servers, **options) as producer:
                await producer.send("t", b"x")
            handler.answer = staticmethod(gives({"error": "invalid_client"}, 401))
            with pytest.raises(AuthenticationFailedError, match="invalid_client"):
                await Producer(cluster.bootstrap_servers, **options).start()
    assert len(handler.asked) == 2
