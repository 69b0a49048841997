"""Real Kafka's permissions, certificates, replicas and clock, as `aioidem doctor` sees them.

One broker serves the module. It has a listener for TLS with client certificates, one for SASL over
TLS, and behind the proxy one in plaintext, whose clients may do everything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from aioidem._doctor.finding import FindingName as Name
from aioidem._doctor.finding import Severity
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem.testing import KafkaCluster
from tests.doctor.setups import bad, findings
from tests.kafka.tools import allow, bounded
from tests.security.tools import Authority

pytestmark = pytest.mark.anyio

CA = Authority()
ME = CA.identity("me@example.org")
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
TRUST: Mapping[str, Any] = {"ssl_truststore_certificates": CA.pem}
MTLS: Mapping[str, Any] = {
    **TRUST,
    "security_protocol": "SSL",
    "ssl_keystore_key": ME.key,
    "ssl_keystore_certificate_chain": ME.chain,
}
TOPIC = 2
WRITE, DESCRIBE = 4, 8


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 - gives the module one event loop
) -> AsyncIterator[KafkaCluster]:
    security = KafkaSecurity(CA.identity("localhost").both, CA.pem, USERS, authorize=True)
    async with KafkaCluster(security=security) as running:
        await allow(running, "alice", (TOPIC, WRITE, "open-"))
        await allow(running, "bob", (TOPIC, DESCRIBE, "open-"))
        await running.create_topic("open-1")
        yield running


def user(name: str, **more: Any) -> Mapping[str, Any]:
    return {
        **TRUST,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": name,
        "sasl_password": USERS[name],
        **more,
    }


@bounded(60)
async def test_an_ordinary_user_gets_findings_and_no_failure(cluster: KafkaCluster) -> None:
    """With WRITE alone everything is examined that a producer can do."""
    servers = cluster.secure_servers("SASL")
    found = await findings(servers, "open-1", write_to="open-1", **user("alice"))
    assert bad(found) == {Name.CONFIGS_NOT_GRANTED}
    notes = {name for name, each in found.items() if each.severity is Severity.NOTE}
    assert notes == {Name.READ_NOT_GRANTED, Name.EXPIRATION_UNKNOWN, Name.CLOCK_UNKNOWN} | {
        Name.ONE_REPLICA
    }
    assert Name.RETAINED in found


@bounded(60)
async def test_a_user_who_may_only_look(cluster: KafkaCluster) -> None:
    found = await findings(cluster.secure_servers("SASL"), "open-1", **user("bob"))
    assert bad(found) == {
        Name.WRITE_NOT_GRANTED,
        Name.PRODUCER_ID_REFUSED,
        Name.CONFIGS_NOT_GRANTED,
    }


@bounded(60)
async def test_a_topic_that_a_user_may_not_see(cluster: KafkaCluster) -> None:
    found = await findings(cluster.secure_servers("SASL"), "secret", **user("alice"))
    assert bad(found) == {Name.TOPIC_NOT_VISIBLE}


@pytest.mark.parametrize(
    ("listener", "options", "name"),
    [
        ("SASL", user("alice", sasl_password="wrong"), Name.SASL_REFUSED),
        ("SASL", {}, Name.LISTENER_SPEAKS_TLS),
        ("SASL", {**TRUST, "security_protocol": "SSL"}, Name.LISTENER_WANTS_SASL),
        ("SASL", {**user("alice"), "ssl_truststore_certificates": None}, Name.TLS_UNTRUSTED),
        ("TLS", {**TRUST, "security_protocol": "SSL"}, Name.TLS_CLIENT_CERTIFICATE),
        ("TLS", {}, Name.LISTENER_SPEAKS_TLS),
        ("CLIENT", {**TRUST, "security_protocol": "SSL"}, Name.LISTENER_SPEAKS_PLAINTEXT),
        (
            "CLIENT",
            {**user("alice"), "security_protocol": "SASL_PLAINTEXT"},
            Name.LISTENER_WITHOUT_SASL,
        ),
    ],
)
@bounded(60)
async def test_a_client_whose_options_do_not_fit_the_listener(
    cluster: KafkaCluster, listener: str, options: Mapping[str, Any], name: Name
) -> None:
    plain = listener == "CLIENT"
    servers = cluster.bootstrap_servers if plain else cluster.secure_servers(listener)
    if options.get("security_protocol") == "SASL_PLAINTEXT":
        options = {key: value for key, value in options.items() if not key.startswith("ssl_")}
    assert bad(await findings(servers, **options)) == {name}


@bounded(60)
async def test_a_certificate_for_another_host(cluster: KafkaCluster) -> None:
    _, _, port = cluster.secure_servers("TLS").rpartition(":")
    found = await findings(f"127.0.0.1:{port}", **MTLS)
    assert bad(found) == {Name.TLS_HOST_NAME}
    # Only WRITE is missing then: the certificate's user has no rights.
    assert bad(await findings(f"localhost:{port}", **MTLS)) == {Name.PRODUCER_ID_REFUSED}


@bounded(60)
async def test_a_topic_that_refuses_what_the_producer_sends(cluster: KafkaCluster) -> None:
    configs = {
        "min.insync.replicas": "2",
        "compression.type": "gzip",
        "max.message.bytes": "10000",
        "message.timestamp.before.max.ms": "1000",
    }
    await cluster.create_topic("strict", configs=configs)
    found = await findings(cluster.bootstrap_servers, "strict", write_to="strict")
    assert bad(found) == {
        Name.BROKER_RECOMPRESSES,
        Name.BATCH_OVER_LIMIT,
        Name.WAITING_TOO_OLD,
    }
    # Since 3.7 min.insync.replicas counts up to the number of replicas, so the records were taken.
    assert Name.RETAINED in found


@bounded(60)
async def test_the_clocks_of_the_controller_and_of_the_leader(cluster: KafkaCluster) -> None:
    """The controller's needs DESCRIBE on the cluster, the leader's a record that it refuses."""
    await cluster.create_topic("clocks")
    found = await findings(cluster.bootstrap_servers, "clocks", write_to="clocks")
    assert bad(found) == set()
    assert "the active controller (0)" in found[Name.CLOCK].seen
    assert "the clock of broker 0" in found[Name.CLOCK].seen
    log = await cluster.dump_log("clocks")
    assert sum(batch.count for batch in log) == 5
