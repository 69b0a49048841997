"""Tokens from an OpenID provider (KIP-768) are fetched, kept and replaced; bad answers are refused.

The tests' provider is an HTTP server in a thread. It has no TLS, which is the task of the HTTP
library.
"""

from __future__ import annotations

import base64
import json
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from aioidem import Producer
from aioidem._broker.entities import respond
from aioidem._broker.intercept import Action, RequestSeen, Respond
from aioidem._config.secret import Secret
from aioidem._network.sasl import oidc
from aioidem._network.sasl.oidc import ClientCredentials
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import AuthenticationFailedError, ConfigError, KafkaConnectionError

from .tools import bounded, sasl, token

pytestmark = pytest.mark.anyio

Answer = Callable[["Provider"], None]


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio only, because the requests do not depend on the event loop."""
    return "asyncio"


class Provider(BaseHTTPRequestHandler):
    """An OpenID provider that answers as a test says."""

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
        """Log nothing."""


def gives(body: object, status: int = 200, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda provider: provider.say(status, data, **headers)


@contextmanager
def provider(answer: Answer) -> Iterator[tuple[str, Any]]:
    """Yield a token endpoint's URL, and its handler class, whose `asked` has the requests."""
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
    """The request for a token has the client's ID and secret, and the scope."""
    with provider(gives({"access_token": "t1", "expires_in": 60})) as (url, handler):
        assert (await client(url, scope="a b").token()).reveal() == "t1"
    [(headers, form)] = handler.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}
    # The client's ID and secret are each form-encoded, then joined by a colon (RFC 6749, 2.3.1).
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()
    assert pair == "m%3Ae:canary+%2Fsecret"


@bounded(20)
async def test_a_token_is_kept_until_a_fifth_of_its_life_is_left() -> None:
    """A token is reused until a fifth of its lifetime is left."""
    now = 0.0
    with provider(gives({"access_token": "t", "expires_in": 100})) as (url, handler):
        credentials = client(url, clock=lambda: now)
        for at, asked in [(0.0, 1), (79.0, 1), (81.0, 2), (160.0, 2), (162.0, 3)]:
            now = at
            await credentials.token()
            assert len(handler.asked) == asked


@pytest.mark.parametrize("lifetime", [1e-300, 0.001, 1])
@bounded(20)
async def test_a_token_of_a_very_short_life_is_not_asked_for_again_and_again(
    lifetime: float,
) -> None:
    """A token with a very short lifetime is returned, and is not fetched again at once."""
    with provider(gives({"access_token": "t", "expires_in": lifetime})) as (url, handler):
        credentials = client(url, clock=lambda: 0.0 if not handler.asked else 5.0)
        with anyio.fail_after(10):
            assert (await credentials.token()).reveal() == "t"
        assert len(handler.asked) == 1


@bounded(20)
async def test_waiting_callers_get_the_token_that_came_even_if_it_has_expired() -> None:
    """All callers that wait for one request get its token, even if the token has expired."""
    with provider(gives({"access_token": "t", "expires_in": 1})) as (url, handler):
        credentials = client(url, clock=lambda: 0.0 if not handler.asked else 5.0)
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(credentials.token)
    assert len(handler.asked) == 1


_PIECES = 50_000


@bounded(20)
async def test_others_run_while_an_answer_comes_in_very_small_pieces() -> None:
    """Other tasks run while an endpoint's answer arrives in tiny pieces, such as single bytes."""
    answer = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * _PIECES + b"0\r\n\r\n"
    ran = 0

    async def count() -> None:
        nonlocal ran
        while True:
            await anyio.lowlevel.checkpoint()
            ran += 1

    with endpoint(HEAD + answer) as url:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            with pytest.raises(AuthenticationFailedError, match="no usable access_token"):
                await client(url).token()
            tasks.cancel_scope.cancel()
    # Without a break after each piece, the counter would advance about once per socket read.
    assert ran >= _PIECES


@bounded(20)
async def test_what_the_http_client_logs_of_the_endpoint_is_not_the_endpoints_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The HTTP client's log has no control characters of the endpoint, and no query of the URL."""
    forged = b"HTTP/1.1 400 \x1b[2Jall is well\r\nContent-Length: 0\r\n\r\n"
    with (
        endpoint(forged) as url,
        caplog.at_level("INFO"),
        pytest.raises(AuthenticationFailedError, match="400"),
    ):
        await client(f"{url}?key=canary").token()
    assert "\x1b" not in caplog.text
    assert "canary" not in caplog.text


@bounded(20)
async def test_a_refused_token_is_replaced_every_ten_seconds_at_most() -> None:
    """A token that brokers refuse is forgotten, but no sooner than ten seconds after its request.

    Otherwise a client without rights would ask the provider each time it connects.
    """
    now = 0.0
    with provider(gives({"access_token": "t", "expires_in": 3600})) as (url, handler):
        credentials = client(url, clock=lambda: now)
        for at, asked in [(0.0, 1), (9.9, 1), (10.1, 2), (20.0, 2), (20.2, 3)]:
            now = at
            credentials.refused(await credentials.token())
            await credentials.token()
            assert len(handler.asked) == asked


@bounded(20)
async def test_a_token_is_kept_when_its_predecessor_is_refused() -> None:
    """Several connections are refused with one token; only the first refusal replaces it."""
    now = 0.0
    with provider(gives({"access_token": "t", "expires_in": 3600})) as (url, handler):
        credentials = client(url, clock=lambda: now)
        first, now = await credentials.token(), 20.0
        credentials.refused(first)
        second, now = await credentials.token(), 40.0
        credentials.refused(first)
        assert await credentials.token() is second
    assert len(handler.asked) == 2


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
        (gives(b"", 408), KafkaConnectionError, "408"),
        (gives(b"", 500), KafkaConnectionError, "500"),
        (gives(b"", 302, Location="http://127.0.0.1:9/"), AuthenticationFailedError, "302"),
        (gives(b"", 307, Location="http://127.0.0.1:9/"), AuthenticationFailedError, "307"),
        (gives({"token": "t"}), AuthenticationFailedError, "no usable access_token"),
        (gives(b"not json"), AuthenticationFailedError, "no usable access_token"),
        (gives(b"[" * 100_000), AuthenticationFailedError, "no usable access_token"),
        (gives([1]), AuthenticationFailedError, "no usable access_token"),
        (gives({"access_token": None}), AuthenticationFailedError, "no usable access_token"),
        (gives({"access_token": ""}), AuthenticationFailedError, "no usable access_token"),
        (
            gives({"access_token": "t", "expires_in": "NaN"}),
            AuthenticationFailedError,
            "no usable access_token",
        ),
        (
            gives(b'{"access_token": "t", "expires_in": ' + b"9" * 400 + b"}"),
            AuthenticationFailedError,
            "no usable access_token",
        ),
        # A provider knows the client secret, so its error may contain the secret.
        (gives({"error": "no such secret: canary /secret"}, 401), AuthenticationFailedError, "401"),
        (
            gives({"error": "no such secret: canary+%2Fsecret"}, 401),
            AuthenticationFailedError,
            "401",
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
        (
            gives({"access_token": "t", "expires_in": 10**400}),
            AuthenticationFailedError,
            "no usable access_token",
        ),
    ],
)
@bounded(20)
async def test_what_goes_wrong_is_typed_short_and_without_secrets(
    answer: Answer, kind: type[Exception], says: str
) -> None:
    """Each wrong answer of an endpoint causes a typed, short error without secrets."""
    with provider(answer) as (url, _), pytest.raises(kind, match=says) as caught:
        await client(url).token()
    assert "canary" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.__context__ is None


@bounded(20)
async def test_a_provider_that_cannot_be_reached_is_a_connection_error() -> None:
    with pytest.raises(KafkaConnectionError, match="no token from"):
        await client("http://127.0.0.1:9/token").token()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks5://me:canary@127.0.0.1:1", "ImportError: Using SOCKS proxy"),
        ("ALL_PROXY", "odd://me:canary@127.0.0.1:1", "ValueError"),
        ("SSL_CERT_FILE", "/there/is/none", "FileNotFoundError"),
    ],
)
@bounded(20)
async def test_an_environment_without_an_http_client_is_not_the_fault_of_the_credentials(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says) as caught:
        await client("http://127.0.0.1:9/token").token()
    assert name in str(caught.value)
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
NOT_IN_TIME = "did not answer in full within 0.3 s"


class Endpoint(socketserver.BaseRequestHandler):
    """A token endpoint that sends `begin` at once, and then `then` every 10 ms for ever."""

    begin: bytes
    then: bytes
    gone: threading.Event

    def handle(self) -> None:
        try:
            self.request.recv(1 << 16)
            self.request.sendall(self.begin)
            while not self.gone.wait(0.01):
                self.request.sendall(self.then)
        except OSError:
            return


@contextmanager
def endpoint(begin: bytes, then: bytes = b"") -> Iterator[str]:
    """Run a token endpoint that sends until the block ends or the connection is closed."""
    gone = threading.Event()
    handler: Any = type("Handler", (Endpoint,), {"begin": begin, "then": then, "gone": gone})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token"
        finally:
            gone.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("begin", "then", "kind", "says"),
    [
        (b"", b"", KafkaConnectionError, NOT_IN_TIME),
        (b"HTTP/1.1 200 OK\r\nX-Drip: ", b"x", KafkaConnectionError, NOT_IN_TIME),
        (HEAD + b"Content-Length: 9999\r\n\r\n", b" ", KafkaConnectionError, NOT_IN_TIME),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, HEAD[:9], KafkaConnectionError, "no token from"),
        (
            HEAD + b"Content-Length: 999999999\r\n\r\n",
            b" " * (1 << 18),
            AuthenticationFailedError,
            "no usable access_token",
        ),
        (b"\x15\x03\x01\x00\x02\x02\x46", b"", KafkaConnectionError, "no token from"),
        (b"", b"220 mail.example.org ESMTP\r\n", KafkaConnectionError, "no token from"),
    ],
    ids=["silence", "header-drip", "body-drip", "no-end-of-100", "no-end", "garbage", "banner"],
)
@bounded(20)
async def test_one_deadline_bounds_the_whole_answer_and_no_thread_waits_for_it(
    begin: bytes, then: bytes, kind: type[Exception], says: str
) -> None:
    """The whole answer must arrive within one timeout, and no thread goes on waiting for it."""
    with endpoint(begin, then) as url:
        # The answer that is too long needs more time than the others, because it is refused only
        # when as many bytes as are allowed (256 KiB) have been read.
        credentials = client(url, timeout=15.0 if kind is AuthenticationFailedError else 0.3)
        ours = {thread for thread in threading.enumerate() if "Handler" not in thread.name}
        for _ in range(3):
            with pytest.raises(kind, match=says):
                await credentials.token()
            # At most one thread is left: the worker thread of anyio that imported the HTTP client.
            # No attempt adds a thread.
            left = [
                thread
                for thread in threading.enumerate()
                if thread not in ours and "process_request" not in thread.name
            ]
            assert len(left) <= 1, left


@bounded(20)
async def test_all_callers_that_wait_for_a_failed_request_get_an_error() -> None:
    """Each caller that waits for a failed request gets an error of its own."""
    told: list[KafkaConnectionError] = []
    with provider(gives(b"", 503)) as (url, handler):
        credentials = client(url)

        async def ask() -> None:
            with pytest.raises(KafkaConnectionError, match="503") as caught:
                await credentials.token()
            told.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
    assert len(handler.asked) == 1
    assert len({id(error) for error in told}) == 8  # each error has a traceback of its own


@bounded(20)
async def test_what_one_caller_adds_to_its_error_is_not_in_those_of_the_others() -> None:
    """A connection puts its broker's address before the text, perhaps before the others wake up."""
    texts: list[str] = []
    with provider(gives({"error": "invalid_client"}, 401)) as (url, handler):
        credentials = client(url)

        async def ask(broker: str) -> None:
            try:
                await credentials.token()
            except AuthenticationFailedError as error:
                error.args = (f"{broker}: {error.args[0]}",)
                texts.append(error.args[0])

        async with anyio.create_task_group() as tasks:
            for broker in ("b1", "b2", "b3"):
                tasks.start_soon(ask, broker)
    assert len(handler.asked) == 1
    assert sorted(text.split(" token ")[0] for text in texts) == ["b1: no", "b2: no", "b3: no"]


@bounded(20)
async def test_if_the_one_that_asks_is_cancelled_another_one_asks() -> None:
    """If the caller that makes the request is cancelled, another waiting caller makes a new one."""
    arrived, held = threading.Event(), threading.Event()

    def hold_the_first(asked: Provider) -> None:
        if len(asked.asked) == 1:
            arrived.set()
            held.wait(10)
        else:
            gives({"access_token": "t", "expires_in": 100})(asked)

    got: list[str] = []
    with provider(hold_the_first) as (url, handler):
        credentials = client(url)

        async def ask() -> None:
            got.append((await credentials.token()).reveal())

        first = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:

            async def ask_first() -> None:
                with first:
                    await ask()

            tasks.start_soon(ask_first)
            await anyio.to_thread.run_sync(arrived.wait, 10)
            for _ in range(3):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
        held.set()
    assert got == ["t"] * 3
    assert len(handler.asked) == 2


DRIPPED = """
import sys

import anyio

from aioidem import Producer
from aioidem.errors import KafkaError


async def main() -> None:
    producer = Producer(
        sys.argv[1],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_allow_plaintext=True,
        sasl_oauthbearer_token_endpoint_url=sys.argv[2],
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret="canary",
    )
    with anyio.move_on_after(0.5):
        await producer.start()
    await producer.close(timeout=0)
    print("closed", flush=True)


anyio.run(main)
"""


@bounded(40)
async def test_a_process_ends_though_the_endpoint_drips_on() -> None:
    """A process can end while an endpoint still sends its answer byte by byte."""
    security = BrokerSecurity(mechanisms=("OAUTHBEARER",))
    with endpoint(b"HTTP/1.1 200 OK\r\nX-Drip: ", b"x") as url:
        async with EmbeddedCluster(security=security) as cluster:
            with anyio.fail_after(30):  # the endpoint never ends by itself
                done = await anyio.run_process(
                    [sys.executable, "-c", DRIPPED, cluster.bootstrap_servers, url]
                )
    assert done.stdout.split() == [b"closed"]


@bounded(30)
async def test_a_silent_endpoint_is_named_by_the_connection_that_waits_for_it() -> None:
    """It is not the broker that keeps the authentication waiting, and the error says so."""
    security = BrokerSecurity(mechanisms=("OAUTHBEARER",))
    with endpoint(b"") as url:
        options = sasl(
            "OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret="canary",
            connection_setup_timeout=0.2,
        )
        async with EmbeddedCluster(security=security) as cluster:
            with pytest.raises(KafkaConnectionError, match=f"waits for a token from {url}"):
                await Producer(cluster.bootstrap_servers, **options).start()


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


@bounded(30)
async def test_a_producer_fetches_a_new_token_after_its_token_was_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a broker has refused the token, the next connection shows a new one."""
    now, offered, revoked = 0.0, list[bytes](), set[bytes]()
    monkeypatch.setattr(oidc, "ClientCredentials", partial(ClientCredentials, clock=lambda: now))

    def answer(asked: Provider) -> None:
        each = token(time.time() + 3600, serial=len(asked.asked))
        gives({"access_token": each, "expires_in": 3600})(asked)

    def judge(seen: RequestSeen) -> Action | None:
        if seen.api_key != 36:
            return None
        offered.append(seen.request.auth_bytes)
        if offered[-1] not in revoked:
            return None
        values = {"error_code": 58, "error_message": "revoked", "auth_bytes": b""}
        return Respond(respond(36, seen.api_version, values))

    with provider(answer) as (url, handler):
        options = sasl(
            "OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret="canary",
            reconnect_backoff_max=0.1,
        )
        security = BrokerSecurity(mechanisms=("OAUTHBEARER",))
        async with EmbeddedCluster(security=security) as cluster:
            cluster.intercept(judge)
            async with Producer(cluster.bootstrap_servers, **options) as producer:
                await producer.send("t", b"1")
                revoked.update(offered)
                now = 60.0
                await cluster.stop_broker(0)
                await cluster.start_broker(0)
                await producer.send("t", b"2")
    assert len(handler.asked) == len(set(offered)) == 2
