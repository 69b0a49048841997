"""Real Kafka accepts and refuses clients as it should: mechanisms, TLS, tokens that expire, ACLs.

One cluster serves the module. It has a listener for TLS with client certificates, one for SASL over
TLS, and behind the proxy one for SASL in plaintext.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer
from aioidem._protocol.messages import decode_response, response_type
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    NotKafkaError,
    SaslAuthenticationFailed,
    SslAuthenticationError,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)
from aioidem.testing import Action, Drop, FrameSeen, Inspect, KafkaCluster
from tests.kafka.tools import (
    DESCRIBE_PRODUCERS,
    ONE_EACH,
    History,
    SpanCount,
    allow,
    bounded,
    check,
    outcomes,
)
from tests.security.tools import Authority, AwsSession, token

pytestmark = pytest.mark.anyio

CA = Authority()
ME = CA.identity("me@example.org")
USERS = {"alice": "alice-secret", "bob": "bob-secret", "carol": "carol-secret"}
TRUST: Mapping[str, Any] = {"ssl_truststore_certificates": CA.pem}
MTLS: Mapping[str, Any] = {
    **TRUST,
    "security_protocol": "SSL",
    "ssl_keystore_key": ME.key,
    "ssl_keystore_certificate_chain": ME.chain,
}
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TOPIC = 2
WRITE, DESCRIBE = 4, 8


def security(**more: Any) -> KafkaSecurity:
    return KafkaSecurity(
        CA.identity("localhost").both, CA.pem, USERS, **{"proxied": "SASL_PLAINTEXT", **more}
    )


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 - gives the module one event loop
) -> AsyncIterator[KafkaCluster]:
    sessions = {"PLAIN": 2.0, "SCRAM-SHA-256": 2.0, "OAUTHBEARER": 60.0}
    async with KafkaCluster(security=security(authorize=True, max_session=sessions)) as running:
        await allow(running, "alice", (TOPIC, WRITE, "open-"))
        for principal in ("alice", "bob"):
            await allow(running, principal, (TOPIC, DESCRIBE, "shown-"))
        yield running


def password(mechanism: str, name: str = "alice", word: str | None = None) -> Mapping[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_username": name,
        "sasl_password": word or USERS[name],
        **TRUST,
    }


def bearer(seconds: float, name: str = "alice") -> Mapping[str, Any]:
    async def provide() -> str:
        return token(time.time() + seconds, name)

    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provide,
        **TRUST,
    }


@asynccontextmanager
async def over_sasl(cluster: KafkaCluster, **options: Any) -> AsyncIterator[Producer]:
    async with Producer(cluster.secure_servers("SASL"), **options) as producer:
        yield producer


# --- authentication -------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", PASSWORDS)
@bounded(60)
async def test_the_right_password_is_let_in(cluster: KafkaCluster, mechanism: str) -> None:
    """Kafka accepts the right password by each mechanism."""
    topic = f"open-{mechanism}"
    await cluster.create_topic(topic)
    async with over_sasl(cluster, **password(mechanism)) as producer:
        history = History(producer, topic)
        await outcomes(history.send(500))
    await check(cluster, [history], topic)


@pytest.mark.parametrize("mechanism", PASSWORDS)
@pytest.mark.parametrize(("name", "word"), [("alice", "wrong"), ("nobody", "alice-secret")])
@bounded(60)
async def test_the_wrong_password_is_kept_out(
    cluster: KafkaCluster, mechanism: str, name: str, word: str
) -> None:
    """Kafka refuses a wrong name or password, and `start` fails."""
    producer = Producer(
        cluster.secure_servers("SASL"), **password(mechanism, name, word), max_block=30
    )
    with pytest.raises(SaslAuthenticationFailed, match="the broker refused to authenticate"):
        await producer.start()


@bounded(60)
async def test_a_token_is_let_in_until_it_expires(cluster: KafkaCluster) -> None:
    """Kafka accepts a token that is valid, and refuses one that has expired."""
    await cluster.create_topic("open-token")
    async with over_sasl(cluster, **bearer(60)) as producer:
        history = History(producer, "open-token")
        await outcomes(history.send(500))
    await check(cluster, [history], "open-token")
    with pytest.raises(SaslAuthenticationFailed, match="invalid_token"):
        await Producer(cluster.secure_servers("SASL"), **bearer(-60)).start()


@bounded(60)
async def test_scram_needs_no_tls(cluster: KafkaCluster) -> None:
    await cluster.create_topic("open-bare")
    options = {**password("SCRAM-SHA-512"), "security_protocol": "SASL_PLAINTEXT"}
    del options["ssl_truststore_certificates"]
    async with Producer(cluster.bootstrap_servers, **options) as producer:
        assert (await producer.send("open-bare", b"x")).offset == 0


@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM"])
@bounded(60)
async def test_a_mechanism_kafka_does_not_offer_is_named(
    cluster: KafkaCluster, mechanism: str
) -> None:
    """The error about a mechanism that Kafka does not offer names those that it offers."""
    options = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_aws_session": AwsSession("a", "b"),
        **TRUST,
    }
    with pytest.raises(UnsupportedSaslMechanismError, match=r"AWS_MSK_IAM, but .*PLAIN"):
        await Producer(cluster.secure_servers("SASL"), **options).start()


@bounded(60)
async def test_a_client_certificate_is_let_in(cluster: KafkaCluster) -> None:
    """Kafka accepts a client certificate; its subject has no permission, so a record is refused."""
    await cluster.create_topic("open-mtls")
    options = {**MTLS, "enable_idempotence": False}
    async with Producer(cluster.secure_servers("TLS"), **options) as producer:
        with pytest.raises(TopicAuthorizationFailedError, match="open-mtls"):
            await producer.send("open-mtls", b"x")


@pytest.mark.parametrize("other", ["none", "strange"])
@bounded(60)
async def test_another_client_certificate_or_none_is_kept_out(
    cluster: KafkaCluster, other: str
) -> None:
    """Kafka refuses a client without a certificate, or with one of another authority."""
    strange = Authority().identity("me@example.org")
    options = {**TRUST, "security_protocol": "SSL"}
    if other == "strange":
        options |= {
            "ssl_keystore_key": strange.key,
            "ssl_keystore_certificate_chain": strange.chain,
        }
    with pytest.raises(SslAuthenticationError, match=r"TLS failed: .*ALERT"):
        await Producer(cluster.secure_servers("TLS"), **options).start()


@bounded(60)
async def test_a_broker_whose_certificate_names_another_host_is_not_trusted(
    cluster: KafkaCluster,
) -> None:
    """A certificate for another host is refused, unless the check of the host is off."""
    by_address = cluster.secure_servers("SASL").replace("localhost", "127.0.0.1")
    with pytest.raises(SslAuthenticationError, match="certificate is not accepted"):
        await Producer(by_address, **password("PLAIN")).start()
    lax = {**password("PLAIN"), "ssl_endpoint_identification_algorithm": ""}
    async with Producer(by_address, **lax):
        pass


@bounded(60)
async def test_the_wrong_protocol_is_named_each_way(cluster: KafkaCluster) -> None:
    """If `security_protocol` is wrong, the error names the protocol that the listener uses."""
    tls, sasl, bare = (
        cluster.secure_servers("TLS"),
        cluster.secure_servers("SASL"),
        cluster.inner_servers,
    )
    with pytest.raises(NotKafkaError, match="it speaks TLS"):
        await Producer(tls).start()
    with pytest.raises(NotKafkaError, match="does not speak TLS, but plaintext Kafka"):
        await Producer(bare, security_protocol="SSL", ssl_truststore_certificates=CA.pem).start()
    with pytest.raises(IllegalSaslStateError, match="this listener does not use SASL"):
        await Producer(tls, **{**MTLS, **password("PLAIN")}).start()
    with pytest.raises(KafkaConnectionError, match="the listener may want SASL"):
        await Producer(sasl, security_protocol="SSL", ssl_truststore_certificates=CA.pem).start()


# --- sessions and tokens --------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
@bounded(60)
async def test_a_session_that_ended_while_idle_is_renewed_before_the_next_record(
    cluster: KafkaCluster, mechanism: str
) -> None:
    """A session that expired while the connection was idle is renewed before the next record."""
    topic = f"open-idle-{mechanism}"
    await cluster.create_topic(topic)
    options = bearer(2.0) if mechanism == "OAUTHBEARER" else password(mechanism)
    async with over_sasl(cluster, **options) as producer:
        assert (await producer.send(topic, b"1")).offset == 0
        await anyio.sleep_until(anyio.current_time() + 2.5)
        assert (await producer.send(topic, b"2")).offset == 1
        # If a connection had been lost, the batches in flight would have been sent again.
        assert producer.statistics().batches_retried == 0
        assert [each.node_id for each in producer.statistics().connections] == [0]


@bounded(60)
async def test_a_token_ends_the_session_and_the_next_one_goes_on(cluster: KafkaCluster) -> None:
    """Tokens that are valid for 2 s are replaced during 8 s of load, and no record is lost."""
    await cluster.create_topic("open-short")
    asked = 0

    def provide() -> str:
        nonlocal asked
        asked += 1
        return token(time.time() + 2)

    options = {**bearer(0), "sasl_oauth_token_provider": provide}
    async with over_sasl(cluster, **options) as producer:
        history = History(producer, "open-short")
        until = anyio.current_time() + 8
        while anyio.current_time() < until:
            await outcomes(history.send(50))
        assert producer.statistics().records_unknown == 0
    assert await check(cluster, [history], "open-short") == list(range(len(history.rows)))
    assert 5 <= asked <= 9


@bounded(60)
async def test_a_provider_that_runs_dry_ends_what_waits_with_an_error_in_time(
    cluster: KafkaCluster,
) -> None:
    """If a provider returns only expired tokens, a waiting record ends NOT_WRITTEN in time."""
    await cluster.create_topic("open-dry")
    lifetimes = iter([2, 2])

    def provide() -> str:
        return token(time.time() + next(lifetimes, -60))

    options = {**bearer(0), "sasl_oauth_token_provider": provide}
    options |= {"delivery_timeout": 6, "request_timeout": 3}
    async with over_sasl(cluster, **options) as producer:
        await producer.send("open-dry", b"1")
        await anyio.sleep_until(anyio.current_time() + 2.5)
        delivery = producer.send_nowait("open-dry", b"2")
        with anyio.fail_after(10):
            await outcomes([delivery])
        assert delivery.status is DeliveryStatus.NOT_WRITTEN


# --- authorisation --------------------------------------------------------------------------------


@bounded(60)
async def test_a_topic_that_may_not_be_written_is_named_and_the_others_go_on(
    cluster: KafkaCluster,
) -> None:
    """A send to a topic without WRITE permission fails and names the topic; other topics go on."""
    for topic in ("shown-1", "secret-1", "open-1"):
        await cluster.create_topic(topic)
    async with over_sasl(cluster, **password("SCRAM-SHA-512")) as producer:
        with pytest.raises(TopicAuthorizationFailedError, match="shown-1-0") as caught:
            await producer.send("shown-1", b"x")
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        with pytest.raises(TopicAuthorizationFailedError, match="'secret-1'") as caught:
            await producer.send("secret-1", b"x")
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        assert (await producer.send("open-1", b"x")).offset == 0
    assert await cluster.leader("secret-1") == 0


@bounded(60)
async def test_a_user_who_may_write_nothing_gets_no_producer_id(cluster: KafkaCluster) -> None:
    """A user who may write to no topic gets no producer id; the error names the permissions."""
    for name in ("bob", "carol"):
        producer = Producer(
            cluster.secure_servers("SASL"), **password("SCRAM-SHA-512", name), max_block=30
        )
        with pytest.raises(ClusterAuthorizationFailedError, match="IDEMPOTENT_WRITE on the clust"):
            await producer.start()
    plain = {**password("SCRAM-SHA-512", "bob"), "enable_idempotence": False}
    await cluster.create_topic("shown-2")
    async with over_sasl(cluster, **plain) as producer:
        with pytest.raises(TopicAuthorizationFailedError, match="shown-2-0"):
            await producer.send("shown-2", b"x")


def producers_told(cluster: KafkaCluster) -> list[int]:
    """Return a list that gets the error code of each partition that DescribeProducers answers."""
    codes: list[int] = []
    others = cluster.proxy.on_answer

    def watch(seen: FrameSeen) -> Action | None:
        if seen.api_key == DESCRIBE_PRODUCERS:
            return Inspect(functools.partial(note, seen.api_version))
        return None if others is None else others(seen)

    def note(version: int, payload: bytes) -> None:
        schema = response_type(DESCRIBE_PRODUCERS, version)
        assert schema is not None
        answer: Any = decode_response(schema, payload)[1]
        codes.extend(int(part.error_code) for topic in answer.topics for part in topic.partitions)

    cluster.proxy.on_answer = watch
    return codes


@bounded(90)
async def test_doubt_is_resolved_without_the_right_to_ask_for_producers(
    cluster: KafkaCluster,
) -> None:
    """Five batches in doubt are resolved without READ on the topic, which DescribeProducers needs.

    The five answers are lost and the broker restarts. The producer authenticates again, asks
    DescribeProducers where to begin, is refused, and resolves the batches without that answer.
    """
    await cluster.create_topic("open-doubt")
    options = {**password("SCRAM-SHA-512"), "security_protocol": "SASL_PLAINTEXT"}
    del options["ssl_truststore_certificates"]
    spans = SpanCount(cluster.proxy)
    async with Producer(cluster.bootstrap_servers, **options, **ONE_EACH) as producer:
        history = History(producer, "open-doubt")
        await outcomes(history.send(10))
        before = spans.answers
        spans.answer = lambda: Drop(silent=False)
        history.send(5)
        await cluster.proxy.until(lambda: spans.answers == before + 5)
        await cluster.terminate()
        spans.answer = lambda: None
        told = producers_told(cluster)
        await cluster.start()
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
    assert ErrorCode.out_of_order_sequence_number in spans.codes
    assert set(told) == {ErrorCode.topic_authorization_failed}
    assert await check(cluster, [history], "open-doubt") == list(range(15))


@bounded(60)
async def test_an_authentication_failure_is_one_type_to_catch(cluster: KafkaCluster) -> None:
    """Every failed authentication, by SASL or TLS, is an AuthenticationFailedError."""
    tries: list[tuple[str, Mapping[str, Any]]] = [
        (cluster.secure_servers("SASL"), password("PLAIN", "alice", "wrong")),
        (cluster.secure_servers("SASL"), bearer(-60)),
        (cluster.secure_servers("TLS"), {"security_protocol": "SSL"}),
        (cluster.secure_servers("TLS"), {**MTLS, **password("PLAIN")}),
    ]
    for servers, options in tries:
        with pytest.raises(AuthenticationFailedError), anyio.fail_after(10):
            await Producer(servers, **options).start()
