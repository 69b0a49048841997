"""Producers authenticate with every mechanism, renew sessions, and change credentials.

The embedded brokers' side of each mechanism is written independently of the client's. Tests that
depend on time use trio's virtual clock and brokers in memory; the mechanisms themselves are tested
on each event loop, over TCP.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
import trio.testing
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer
from aioidem._broker.entities import respond
from aioidem._broker.intercept import Action, Drop, RequestSeen, Respond, RespondRaw
from aioidem._broker.security import MECHANISMS, BrokerSecurity
from aioidem._config.secret import Secret
from aioidem._protocol.messages import encode_response
from aioidem.broker import EmbeddedCluster
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    DeliveryTimeoutError,
    IllegalSaslStateError,
    KafkaConnectionError,
    ProtocolError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from tests.broker.wire import connected

from .tools import USERS, Authority, AwsSession, bounded, password, sasl, token

pytestmark = pytest.mark.anyio

CA = Authority()
VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["virtual"],
)
PRODUCE, HANDSHAKE, AUTHENTICATE = 0, 17, 36


def brokers(*mechanisms: str, **more: Any) -> EmbeddedCluster:
    """Return a cluster (not started) whose brokers offer these mechanisms."""
    settings = {name: more.pop(name) for name in ("max_session", "tls") if name in more}
    security = BrokerSecurity(mechanisms=mechanisms, users=USERS, **settings)
    return EmbeddedCluster(security=security, **more)


def of(cluster: EmbeddedCluster, **options: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, connector=cluster.connector, **options)


def credentials(mechanism: str, right: bool = True) -> Mapping[str, Any]:
    """Return options with Alice's credentials, or with a wrong password or an expired token."""
    secret = "alice-secret" if right else "alice-secreT"
    if mechanism == "OAUTHBEARER":
        seconds = 60 if right else -60

        async def provide() -> str:
            return token(time.time() + seconds)

        return sasl(mechanism, sasl_oauth_token_provider=provide)
    if mechanism == "AWS_MSK_IAM":
        return sasl(mechanism, sasl_aws_session=AwsSession("alice", secret))
    return password(mechanism, word=secret)


async def _pass(seconds: float) -> None:
    """Let virtual time pass."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


# --- every mechanism ------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@bounded(30)
async def test_the_right_credentials_are_let_in(mechanism: str, secure: bool) -> None:
    """With the right credentials, a producer authenticates by each mechanism and sends records."""
    tls = CA.server("127.0.0.1") if secure else None
    options = dict(credentials(mechanism))
    if secure:
        options |= {"security_protocol": "SASL_SSL", "ssl_truststore_certificates": CA.pem}
    async with brokers(*MECHANISMS, tls=tls) as cluster:
        async with of(cluster, **options) as producer:
            await producer.send_many("t", [b"x"] * 100, partition=0)
        assert cluster.log_end_offset("t") == 100
        names = {
            connection.sasl.principal for connection in cluster.state.connections if connection.sasl
        }
        assert names <= {"alice"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@bounded(30)
async def test_the_wrong_credentials_are_kept_out_at_once(mechanism: str) -> None:
    """With wrong credentials, `start` fails at once, with an error that is not retriable."""
    async with brokers(*MECHANISMS) as cluster:
        producer = of(cluster, **credentials(mechanism, right=False))
        with pytest.raises(SaslAuthenticationFailed, match="the broker refused to") as caught:
            await producer.start()
    assert isinstance(caught.value, AuthenticationFailedError)
    assert not caught.value.retriable
    assert caught.value.errno == ErrorCode.sasl_authentication_failed


@pytest.mark.parametrize("mechanism", MECHANISMS)
@bounded(30)
async def test_no_other_mechanism_is_ever_tried(mechanism: str) -> None:
    """A broker without the producer's mechanism gets the mechanism's name, but no credentials."""
    seen: list[tuple[int, Any]] = []

    def watch(request: RequestSeen) -> None:
        seen.append((request.api_key, request.request))

    others = tuple(each for each in MECHANISMS if each != mechanism)
    async with brokers(*others) as cluster:
        cluster.intercept(watch)
        with pytest.raises(UnsupportedSaslMechanismError, match=f"does not offer {mechanism}, but"):
            await of(cluster, **credentials(mechanism)).start()
    assert {key for key, _ in seen} == {18, HANDSHAKE}
    assert {entity.mechanism for key, entity in seen if key == HANDSHAKE} == {mechanism}


@bounded(30)
async def test_sasl_to_a_listener_without_is_named() -> None:
    """If the listener does not use SASL, a producer with SASL fails with an error that says so."""
    async with EmbeddedCluster() as cluster:
        with pytest.raises(IllegalSaslStateError, match="this listener does not use SASL"):
            await of(cluster, **password("SCRAM-SHA-256")).start()


@bounded(30)
async def test_no_sasl_to_a_listener_with_is_hinted_at() -> None:
    """If the listener requires SASL, the error of a producer without SASL suggests SASL."""
    async with brokers("PLAIN") as cluster:
        with pytest.raises(KafkaConnectionError, match="the listener may want SASL"):
            await of(cluster).start()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@bounded(30)
async def test_a_broker_that_stays_silent_has_the_setup_timeout(mechanism: str) -> None:
    """If a broker never answers SaslAuthenticate, `start` fails after connection_setup_timeout."""
    async with brokers(mechanism) as cluster:
        cluster.intercept(lambda seen: Drop(silent=True) if seen.api_key == AUTHENTICATE else None)
        producer = of(cluster, **password(mechanism), connection_setup_timeout=0.5)
        awaited = r"not finish within 0\.5 s; it waits for the broker's answer"
        with pytest.raises(KafkaConnectionError, match=awaited):
            await producer.start()


@bounded(30)
async def test_keys_are_derived_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCRAM derives its key in another thread, as a million iterations would block the loop."""
    derive, threads = hashlib.pbkdf2_hmac, set[int]()

    def derived(name: str, word: bytes, *more: Any) -> bytes:
        # Only the client derives a key from the wrong password; the broker uses the right one.
        if word == b"alice-secreT":
            threads.add(threading.get_ident())
        return derive(name, word, *more)

    monkeypatch.setattr("hashlib.pbkdf2_hmac", derived)
    async with brokers("SCRAM-SHA-256") as cluster:
        with pytest.raises(SaslAuthenticationFailed):
            await of(cluster, **credentials("SCRAM-SHA-256", right=False)).start()
    assert threads
    assert threading.get_ident() not in threads


@bounded(30)
async def test_a_megabyte_is_all_that_is_taken_before_the_end_of_the_exchange() -> None:
    """Until authentication is over, a frame of more than 64 KiB ends the connection."""

    def flood(seen: RequestSeen) -> Action | None:
        if seen.api_key != AUTHENTICATE:
            return None
        return RespondRaw(seen.correlation_id.to_bytes(4, "big") + bytes(1 << 16))

    async with brokers("PLAIN") as cluster:
        cluster.intercept(flood)
        with pytest.raises(ProtocolError, match="frame of 65540 bytes announced; 1 to 65536"):
            await of(cluster, **password("PLAIN")).start()


def bearer(claims: bytes) -> bytes:
    """Return the OAUTHBEARER message with an unsigned token of these claims."""
    payload = base64.urlsafe_b64encode(claims).rstrip(b"=")
    return b"n,,\x01auth=Bearer e30." + payload + b".\x01\x01"


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("AWS_MSK_IAM", b"[]"),
        ("AWS_MSK_IAM", b"1"),
        ("AWS_MSK_IAM", b'{"x-amz-credential": 1}'),
        ("OAUTHBEARER", bearer(b"[1]")),
        ("OAUTHBEARER", bearer(b'{"sub": "a", "exp": null}')),
        ("OAUTHBEARER", bearer(b'{"sub": "a", "exp": "9"}')),
        ("OAUTHBEARER", bearer(b'{"sub": "a", "exp": Infinity}')),
        ("OAUTHBEARER", bearer(b'{"sub": "a", "exp": NaN}')),
        ("OAUTHBEARER", b"\xff"),
    ],
)
@bounded(30)
async def test_a_message_that_no_client_sends_ends_its_connection_alone(
    mechanism: str, message: bytes
) -> None:
    """The embedded broker refuses it and serves others."""
    async with brokers(mechanism) as cluster, connected(cluster) as wire:
        await wire.ask(HANDSHAKE, 1, {"mechanism": mechanism})
        answer = await wire.ask(AUTHENTICATE, 2, {"auth_bytes": message})
        if not answer.error_code:  # OAUTHBEARER's refusal has an empty answer of the client's
            assert answer.auth_bytes == b'{"status":"invalid_token"}'
            answer = await wire.ask(AUTHENTICATE, 2, {"auth_bytes": b"\x01"})
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert await wire.ended()
        async with of(cluster, **credentials(mechanism)) as producer:
            await producer.send("t", b"v")


@pytest.mark.parametrize("answer", [b"", b"v=AAAA", b"e=other-error"])
@bounded(30)
async def test_success_without_the_brokers_proof_is_no_success(answer: bytes) -> None:
    """An answer without error and without the broker's SCRAM signature fails the authentication.

    Anybody could send such an answer; only the signature proves that the broker knows the user.
    """
    rounds = 0

    def pretend(seen: RequestSeen) -> Action | None:
        nonlocal rounds
        rounds += seen.api_key == AUTHENTICATE
        if seen.api_key != AUTHENTICATE or rounds % 2:
            return None
        values = {"error_code": 0, "error_message": None, "auth_bytes": answer}
        return Respond(respond(AUTHENTICATE, seen.api_version, values))

    async with brokers("SCRAM-SHA-512") as cluster:
        cluster.intercept(pretend)
        with pytest.raises(AuthenticationFailedError, match="SCRAM-SHA-512: "):
            await of(cluster, **password("SCRAM-SHA-512")).start()
        assert cluster.state.topics == {}


@pytest.mark.parametrize("asked", [HANDSHAKE, AUTHENTICATE])
@bounded(30)
async def test_an_answer_to_another_request_does_not_authenticate(asked: int) -> None:
    """An answer with another correlation id than its request's ends the connection.

    The client cannot know what such an answer is about, whatever it says.
    """
    values: Mapping[int, Mapping[str, Any]] = {
        HANDSHAKE: {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)},
        AUTHENTICATE: {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b""},
    }

    def mistake(seen: RequestSeen) -> Action | None:
        if seen.api_key != asked:
            return None
        answer = respond(asked, seen.api_version, values[asked])
        return RespondRaw(encode_response(answer, seen.correlation_id + 1)[4:])

    async with brokers("PLAIN") as cluster:
        cluster.intercept(mistake)
        with pytest.raises(ProtocolError, match=r"correlation id \d+ came instead of \d+$"):
            await of(cluster, **password("PLAIN")).start()


@bounded(30)
async def test_what_the_broker_says_is_escaped_and_cut() -> None:
    """A broker's error message is escaped and shortened."""

    def shout(seen: RequestSeen) -> Action | None:
        if seen.api_key != AUTHENTICATE:
            return None
        text = "\x1b[31mred\n" + "x" * 5000
        values = {"error_code": 58, "error_message": text, "auth_bytes": b""}
        return Respond(respond(AUTHENTICATE, seen.api_version, values))

    async with brokers("PLAIN") as cluster:
        cluster.intercept(shout)
        with pytest.raises(SaslAuthenticationFailed) as caught:
            await of(cluster, **password("PLAIN")).start()
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "whether the broker has this user" in str(caught.value)


# --- credentials ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@bounded(30)
async def test_credentials_may_come_from_a_callable(hidden: bool, waits: bool) -> None:
    """A callable, async or not, may provide the credentials."""
    pair: tuple[str, Any] = "bob", (Secret("bob-secret") if hidden else "bob-secret")

    async def asynchronous() -> tuple[str, Any]:
        await anyio.lowlevel.checkpoint()
        return pair

    given: Callable[[], object] = asynchronous if waits else lambda: pair
    options = sasl("SCRAM-SHA-256", sasl_credentials=given)
    async with brokers("SCRAM-SHA-256") as cluster, of(cluster, **options) as producer:
        await producer.send("t", b"x")


@pytest.mark.parametrize(
    "answer", [None, "bob", ("bob",), ("bob", None), (1, "x"), ("a", "b", "c")]
)
@bounded(30)
async def test_a_callable_that_returns_something_else_is_an_authentication_failure(
    answer: object,
) -> None:
    """A callable that returns no name and password fails the authentication."""
    async with brokers("PLAIN") as cluster:
        producer = of(cluster, **sasl("PLAIN", sasl_credentials=lambda: answer))
        with pytest.raises(AuthenticationFailedError, match="did not return"):
            await producer.start()


@bounded(30)
async def test_a_callable_that_raises_is_an_authentication_failure_with_its_cause() -> None:
    """A callable that raises fails the authentication; its exception is the cause."""

    def fail() -> object:
        raise LookupError("the vault is sealed")

    async with brokers("OAUTHBEARER") as cluster:
        producer = of(cluster, **sasl("OAUTHBEARER", sasl_oauth_token_provider=fail))
        with pytest.raises(AuthenticationFailedError, match="raised LookupError") as caught:
            await producer.start()
    assert "sealed" not in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)


@bounded(30)
async def test_a_provider_of_aiokafkas_kind_gives_token_and_extensions() -> None:
    """A token provider with aiokafka's methods provides the token and its extensions."""

    class Provider:
        async def token(self) -> str:
            return token(time.time() + 60)

        def extensions(self) -> Mapping[str, str]:
            return {"pool": "p1"}

    messages: list[bytes] = []

    def watch(seen: RequestSeen) -> None:
        if seen.api_key == AUTHENTICATE:
            messages.append(seen.request.auth_bytes)

    async with brokers("OAUTHBEARER") as cluster:
        cluster.intercept(watch)
        async with of(cluster, **sasl("OAUTHBEARER", sasl_oauth_token_provider=Provider())):
            pass
    assert all(b"\x01pool=p1\x01\x01" in each for each in messages)
    assert messages


@bounded(30)
async def test_a_changed_password_is_used_from_the_next_connection_on() -> None:
    """Changed credentials are used from the next connection on."""
    users = {"alice": "old"}
    security = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users=users)
    async with EmbeddedCluster(security=security) as cluster:
        options = password("SCRAM-SHA-256", word="old")
        async with of(cluster, **options, reconnect_backoff_max=0.1) as producer:
            await producer.send("t", b"1")
            users["alice"] = "new"
            producer.set_sasl_credentials("alice", "new")
            await cluster.stop_broker(0)
            await cluster.start_broker(0)
            assert (await producer.send("t", b"2")).offset == 1


@bounded(30)
async def test_credentials_cannot_be_set_where_none_are_used() -> None:
    """`set_sasl_credentials` raises ConfigError if the producer uses no name and password."""
    async with EmbeddedCluster() as cluster, of(cluster) as producer:
        with pytest.raises(ConfigError, match="uses no SASL"):
            producer.set_sasl_credentials("a", "b")
    options = credentials("OAUTHBEARER")
    async with brokers("OAUTHBEARER") as cluster, of(cluster, **options) as producer:
        with pytest.raises(ConfigError, match="not options of this producer"):
            producer.set_sasl_credentials("a", "b")


# --- refused at run time --------------------------------------------------------------------------


async def _locked_out(options: Mapping[str, Any], users: dict[str, str]) -> tuple[Any, float]:
    """Change Alice's password at the broker; return the next record's error, and after how long.

    The time is in seconds, from the send of the record to its error.
    """
    security = BrokerSecurity(mechanisms=("PLAIN",), users=users)
    async with (
        EmbeddedCluster(security=security, transport="memory") as cluster,
        of(cluster, **options, delivery_timeout=60, request_timeout=5, max_block=60) as producer,
    ):
        await producer.send("t", b"1")
        users["alice"] = "changed"
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        await _pass(0.01)  # lets the producer notice the end of the connection
        began = anyio.current_time()
        delivery = producer.send_nowait("t", b"2")
        with pytest.raises((AuthenticationFailedError, DeliveryTimeoutError)) as caught:
            await delivery
        assert delivery.status is DeliveryStatus.NOT_WRITTEN
        return caught.value, anyio.current_time() - began


@VIRTUAL
@bounded(300)
async def test_values_that_are_refused_again_and_again_end_the_producer() -> None:
    """A fixed password that brokers refuse repeatedly fails records long before their deadline."""
    error, seconds = await _locked_out(password("PLAIN"), dict(USERS))
    assert isinstance(error, SaslAuthenticationFailed)
    assert error.status is DeliveryStatus.NOT_WRITTEN
    assert 0.1 < seconds < 10


@VIRTUAL
@bounded(300)
async def test_refusals_of_an_earlier_password_do_not_count() -> None:
    """A new password may be refused, too, until all brokers have heard of it."""
    users = {"alice": "old"}
    security = BrokerSecurity(mechanisms=("PLAIN",), users=users)
    async with EmbeddedCluster(security=security, transport="memory") as cluster:
        attempts = 0

        def watch(seen: RequestSeen) -> None:
            nonlocal attempts
            if seen.api_key == AUTHENTICATE:
                attempts += 1
                if attempts == 4:
                    producer.set_sasl_credentials("alice", "new")
                elif attempts == 7:
                    users["alice"] = "new"

        async with of(cluster, **password("PLAIN", word="old")) as producer:
            await producer.send("t", b"1")
            users["alice"] = "changed"
            cluster.intercept(watch)
            await cluster.stop_broker(0)
            await cluster.start_broker(0)
            assert (await producer.send("t", b"2")).offset == 1
            assert attempts >= 7


@VIRTUAL
@bounded(300)
async def test_a_callable_is_asked_again_until_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A callable whose credentials are refused is called again until a record's deadline.

    The log has one warning about it, and not one for each attempt.
    """
    caplog.set_level(logging.WARNING, "aioidem")
    calls: list[float] = []

    def callable_() -> tuple[str, str]:
        calls.append(anyio.current_time())
        return "alice", "alice-secret"

    options = sasl("PLAIN", sasl_credentials=callable_)
    error, seconds = await _locked_out(options, dict(USERS))
    assert isinstance(error, DeliveryTimeoutError)
    assert 59 < seconds < 66
    assert 20 < len(calls) < 200
    [warning] = [each for each in caplog.messages if each.endswith("[authentication]")]
    assert "refuses this client: [Error 58] SaslAuthenticationFailed" in warning


# --- sessions (KIP-368) ---------------------------------------------------------------------------


class Exchanges:
    """The SASL exchanges that the brokers see, and the number of other requests during one."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.begun: list[float] = []
        self.between = 0
        self.connections: set[int] = set()
        self._open = False
        cluster.intercept(self._watch)

    def _watch(self, seen: RequestSeen) -> None:
        if seen.api_key == HANDSHAKE:
            self.begun.append(seen.now)
            self.connections.add(seen.connection_id)
            self._open = True
        elif seen.api_key == AUTHENTICATE:
            self._open = False
        else:
            self.between += self._open


@pytest.mark.thorough
@VIRTUAL
@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
@bounded(600)
async def test_a_session_is_renewed_with_the_pipeline_full_and_nothing_is_lost(
    mechanism: str,
) -> None:
    """Sessions of 2 s are renewed while twenty requests are in flight, and no record is lost."""
    options = dict(credentials(mechanism))
    # Brokers check tokens by the real clock, sessions end by the virtual one: no token may expire.
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = lambda: token(time.time() + 1e6)
    async with brokers(
        mechanism, max_session=2.0, rtt=0.15, retain=20, transport="memory"
    ) as cluster:
        exchanges = Exchanges(cluster)
        async with of(
            cluster,
            **options,
            max_in_flight_requests_per_connection=20,
            batch_size=1,
            late_sealing=False,
        ) as producer:
            values = [b"%d" % number for number in range(3500)]
            await producer.send_many("t", values, partition=0)
            statistics = producer.statistics()
            assert len(cluster.state.connections) == 1  # still the same connection
            # the bootstrap connection, and the one for the records
            assert exchanges.connections <= {1, 2}
        stored = [r.value for batch in cluster.batches("t", 0) for r in batch.records()]
        assert stored == values
        assert cluster.max_span("t") > 15
        assert len(exchanges.begun) > 12
        assert exchanges.between == 0
        gaps = [b - a for a, b in zip(exchanges.begun[2:], exchanges.begun[3:], strict=False)]
        assert all(1.6 < gap < 2.4 for gap in gaps)
        assert statistics.records_unknown == 0


@VIRTUAL
@bounded(600)
async def test_a_session_that_ended_while_idle_is_renewed_before_the_next_record() -> None:
    """A session that ended while the connection was idle is renewed before the next record."""
    async with brokers("PLAIN", max_session=5.0, transport="memory") as cluster:
        exchanges = Exchanges(cluster)
        async with of(cluster, **password("PLAIN"), connections_max_idle=None) as producer:
            await producer.send("t", b"1")
            before = len(exchanges.begun)
            await _pass(100)
            assert len(exchanges.begun) == before  # no renewal while the connection is idle
            await producer.send("t", b"2")
            assert len(exchanges.begun) == before + 1
        assert cluster.log_end_offset("t") == 2


@pytest.mark.thorough
@VIRTUAL
@bounded(600)
async def test_a_broker_wants_a_second_between_renewals_and_gets_it() -> None:
    """The producer renews a session only after more than a second, because brokers require that.

    A Kafka broker, like the embedded one, refuses a renewal within a second of the previous one.
    """
    async with brokers("PLAIN", max_session=0.5, transport="memory", rtt=0.01) as cluster:
        exchanges = Exchanges(cluster)
        async with of(cluster, **password("PLAIN"), batch_size=1, late_sealing=False) as producer:
            await producer.send_many("t", [b"x"] * 3000, partition=0)
        assert cluster.log_end_offset("t") == 3000
        gaps = [b - a for a, b in zip(exchanges.begun[2:], exchanges.begun[3:], strict=False)]
        assert gaps
        assert min(gaps) > 1.0


@VIRTUAL
@bounded(600)
async def test_a_renewal_that_is_refused_ends_the_connection_and_nothing_is_in_doubt() -> None:
    """If a broker refuses to renew a session, the next record fails and is NOT_WRITTEN."""
    users = dict(USERS)
    security = BrokerSecurity(mechanisms=("PLAIN",), users=users, max_session=5.0)
    async with EmbeddedCluster(security=security, transport="memory", rtt=0.1) as cluster:
        async with of(cluster, **password("PLAIN"), connections_max_idle=None) as producer:
            await producer.send("t", b"1")
            users["alice"] = "changed"
            await _pass(10)
            delivery = producer.send_nowait("t", b"2")
            with pytest.raises(SaslAuthenticationFailed):
                await delivery
            assert delivery.status is DeliveryStatus.NOT_WRITTEN
        assert cluster.log_end_offset("t") == 1


@VIRTUAL
@bounded(600)
async def test_a_new_user_name_gets_a_new_connection_and_nothing_is_lost() -> None:
    """After a change of the user name, a new connection is used, and no record is lost.

    The old connection cannot be used, because Kafka refuses a renewal that changes the principal.
    """
    async with brokers("PLAIN", max_session=5.0, transport="memory", rtt=0.1) as cluster:
        async with of(cluster, **password("PLAIN"), batch_size=1, late_sealing=False) as producer:
            deliveries = [producer.send_nowait("t", b"%d" % n, partition=0) for n in range(500)]
            await deliveries[0]
            producer.set_sasl_credentials("bob", "bob-secret")
            for each in deliveries:
                await each
            names = {c.sasl.principal for c in cluster.state.connections if c.sasl is not None}
            assert names == {"bob"}
        stored = [r.value for batch in cluster.batches("t", 0) for r in batch.records()]
        assert stored == [b"%d" % n for n in range(500)]


@VIRTUAL
@bounded(600)
async def test_a_renewal_the_broker_does_not_answer_ends_the_connection_in_time() -> None:
    """If a renewal gets no answer for 3 s (connection_setup_timeout), a new connection is used."""
    renewals = 0

    def swallow(seen: RequestSeen) -> Action | None:
        nonlocal renewals
        renewals += seen.api_key == HANDSHAKE
        # Handshake 1 is for the bootstrap connection, 2 for the broker's; 3 is for the renewal.
        if seen.api_key == AUTHENTICATE and renewals == 3:
            return Drop(silent=True)
        return None

    async with brokers("PLAIN", max_session=5.0, transport="memory") as cluster:
        cluster.intercept(swallow)
        async with of(
            cluster,
            **password("PLAIN"),
            connection_setup_timeout=3,
            request_timeout=20,
            connections_max_idle=None,
        ) as producer:
            await producer.send("t", b"1")
            await _pass(6)
            began = anyio.current_time()
            assert (await producer.send("t", b"2")).offset == 1
            assert 3 <= anyio.current_time() - began < 5
        assert cluster.log_end_offset("t") == 2


@pytest.mark.thorough
@bounded(60)
async def test_expiring_tokens_are_replaced_before_they_expire() -> None:
    """A session ends when its token expires, and each renewal uses a new token."""
    given: list[float] = []

    def provide() -> str:
        given.append(time.time())
        return token(time.time() + 3)

    async with brokers("OAUTHBEARER", rtt=0.05) as cluster:
        async with of(
            cluster,
            **sasl("OAUTHBEARER", sasl_oauth_token_provider=provide),
            batch_size=1,
            late_sealing=False,
        ) as producer:
            while len(given) < 4:  # two connections, and two renewals
                await producer.send("t", b"x", partition=0)
            acked = producer.statistics().records_acked
            assert producer.statistics().records_unknown == 0
        assert acked == cluster.log_end_offset("t")
