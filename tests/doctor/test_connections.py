"""Each way in which brokers cannot be reached is a finding of its own."""

from __future__ import annotations

import contextlib
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from aioidem._doctor.finding import FindingName as Name
from aioidem._doctor.finding import Severity
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from tests.security.tools import USERS, Authority, password

from .setups import bad, closed_port, findings, peer, replaced, rewriting

pytestmark = pytest.mark.anyio

METADATA, API_VERSIONS = 3, 18
CA = Authority()
TRUST: dict[str, Any] = {"security_protocol": "SSL", "ssl_truststore_certificates": CA.pem}


# --- what listens at the bootstrap servers --------------------------------------------------------


async def test_a_healthy_cluster_has_no_finding_worse_than_a_note() -> None:
    async with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("t", partitions=3)
        found = await findings(cluster.bootstrap_servers, "t", rate=1e6)
    assert bad(found) == set()
    ok = {name for name, each in found.items() if each.severity is Severity.OK}
    assert ok == {Name.BOOTSTRAP, Name.FEATURES, Name.ROUND_TRIP, Name.WINDOW, Name.RATE}


async def test_a_name_that_dns_does_not_know() -> None:
    found = await findings("no-such-host.invalid:9092")
    assert bad(found) == {Name.NAME_NOT_KNOWN}
    assert "no-such-host.invalid:9092" in found[Name.NAME_NOT_KNOWN].seen


async def test_a_port_on_which_nothing_listens() -> None:
    found = await findings(f"127.0.0.1:{await closed_port()}")
    assert bad(found) == {Name.REFUSED}
    assert found[Name.REFUSED].severity is Severity.ERROR


async def test_one_bootstrap_server_of_two_is_down() -> None:
    """While another server answers, it is a warning."""
    down = f"127.0.0.1:{await closed_port()}"
    async with EmbeddedCluster() as cluster:
        found = await findings(f"{down},{cluster.bootstrap_servers}")
    assert found[Name.REFUSED].severity is Severity.WARNING
    assert down in found[Name.REFUSED].seen


async def test_a_listener_that_never_answers() -> None:
    async def silent(_: SocketStream) -> None:
        await anyio.sleep_forever()

    async with peer(silent) as server:
        found = await findings(server, timeout=0.5)
    assert bad(found) == {Name.NO_ANSWER}


async def test_a_listener_that_hangs_up() -> None:
    async def hang_up(_: SocketStream) -> None:
        return

    async with peer(hang_up) as server:
        found = await findings(server)
    assert bad(found) == {Name.HUNG_UP}


async def test_a_web_server() -> None:
    async def web(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    async with peer(web) as server:
        found = await findings(server)
    assert bad(found) == {Name.NOT_KAFKA}


async def test_a_broker_that_is_too_old() -> None:
    """A broker without Produce v3 cannot be used."""

    def old(answer: Any) -> Any:
        keys = (each for each in answer.api_keys if each.api_key != 0)
        return replaced(answer, api_keys=tuple(keys))

    async with EmbeddedCluster() as cluster:
        cluster.intercept(rewriting(API_VERSIONS, old))
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.TOO_OLD}


# --- TLS ------------------------------------------------------------------------------------------


async def test_a_listener_with_tls_is_spoken_to_without() -> None:
    async with EmbeddedCluster(security=BrokerSecurity(tls=CA.server("127.0.0.1"))) as cluster:
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.LISTENER_SPEAKS_TLS}


async def test_a_listener_without_tls_is_spoken_to_with_tls() -> None:
    async with EmbeddedCluster() as cluster:
        found = await findings(cluster.bootstrap_servers, **TRUST)
    assert bad(found) == {Name.LISTENER_SPEAKS_PLAINTEXT}


async def test_a_certificate_of_an_authority_that_is_not_trusted() -> None:
    security = BrokerSecurity(tls=Authority().server("127.0.0.1"))
    async with EmbeddedCluster(security=security) as cluster:
        found = await findings(cluster.bootstrap_servers, **TRUST)
    assert bad(found) == {Name.TLS_UNTRUSTED}


async def test_a_certificate_for_another_host() -> None:
    security = BrokerSecurity(tls=CA.server("broker-1.example"))
    async with EmbeddedCluster(security=security) as cluster:
        found = await findings(cluster.bootstrap_servers, **TRUST)
    assert bad(found) == {Name.TLS_HOST_NAME}


async def test_a_certificate_that_has_expired() -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    security = BrokerSecurity(tls=CA.server("127.0.0.1", not_after=yesterday))
    async with EmbeddedCluster(security=security) as cluster:
        found = await findings(cluster.bootstrap_servers, **TRUST)
    assert bad(found) == {Name.TLS_OUT_OF_DATE}


# --- SASL -----------------------------------------------------------------------------------------

SASL = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users=USERS, scram_iterations=4096)


async def test_a_listener_with_sasl_is_spoken_to_without() -> None:
    async with EmbeddedCluster(security=SASL) as cluster:
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.LISTENER_WANTS_SASL}


async def test_a_listener_without_sasl_is_spoken_to_with_sasl() -> None:
    async with EmbeddedCluster() as cluster:
        found = await findings(cluster.bootstrap_servers, **password("SCRAM-SHA-256"))
    assert bad(found) == {Name.LISTENER_WITHOUT_SASL}


async def test_a_mechanism_that_is_not_enabled() -> None:
    async with EmbeddedCluster(security=SASL) as cluster:
        found = await findings(cluster.bootstrap_servers, **password("PLAIN"))
    assert bad(found) == {Name.SASL_MECHANISM, Name.CREDENTIALS_READABLE}
    assert "SCRAM-SHA-256" in found[Name.SASL_MECHANISM].seen


async def test_a_wrong_password_is_not_shown() -> None:
    async with EmbeddedCluster(security=SASL) as cluster:
        wrong = password("SCRAM-SHA-256", word="canary-8713")
        found = await findings(cluster.bootstrap_servers, **wrong)
    assert bad(found) == {Name.SASL_REFUSED}
    assert "canary-8713" not in repr(found)


OAUTH = BrokerSecurity(mechanisms=("OAUTHBEARER",), users=USERS)


def client_credentials(endpoint: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_allow_plaintext": True,
        "sasl_oauthbearer_token_endpoint_url": f"http://{endpoint}/token",
        "sasl_oauthbearer_client_id": "me",
        "sasl_oauthbearer_client_secret": "canary-8713",
    }


async def test_a_token_endpoint_that_is_down_is_no_broker_that_hangs_up() -> None:
    endpoint = f"127.0.0.1:{await closed_port()}"
    async with EmbeddedCluster(security=OAUTH) as cluster:
        found = await findings(cluster.bootstrap_servers, **client_credentials(endpoint))
    assert bad(found) == {Name.IDENTITY_PROVIDER, Name.CREDENTIALS_READABLE}
    assert endpoint in found[Name.IDENTITY_PROVIDER].seen
    assert "canary-8713" not in repr(found)


async def test_a_token_endpoint_that_refuses_is_no_broker_that_refuses() -> None:
    async def refuse(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    async with EmbeddedCluster(security=OAUTH) as cluster, peer(refuse) as endpoint:
        found = await findings(cluster.bootstrap_servers, **client_credentials(endpoint))
    assert bad(found) == {Name.IDENTITY_PROVIDER, Name.CREDENTIALS_READABLE}
    assert "401" in found[Name.IDENTITY_PROVIDER].seen


# --- what the cluster advertises ------------------------------------------------------------------


def advertising(**places: tuple[str, int]) -> Any:
    """Return a hook by which the brokers b0, b1, ... are advertised at other addresses."""

    def change(answer: Any) -> Any:
        brokers = []
        for each in answer.brokers:
            host, port = places.get(f"b{int(each.node_id)}", (each.host, each.port))
            brokers.append(replaced(each, host=host, port=port))
        return replaced(answer, brokers=tuple(brokers))

    return rewriting(METADATA, change)


async def test_an_advertised_listener_that_refuses() -> None:
    """It is an error where the broker leads a partition of the topic, and else a warning."""
    port = await closed_port()
    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("both", partitions=2)
        cluster.create_topic("one", partitions=1)
        cluster.intercept(advertising(b1=("127.0.0.1", port)))
        both = await findings(cluster.bootstrap_servers, "both")
        one = await findings(cluster.bootstrap_servers, "one")
    assert bad(both) == bad(one) == {Name.REFUSED}
    assert both[Name.REFUSED].severity is Severity.ERROR
    assert one[Name.REFUSED].severity is Severity.WARNING
    assert f"broker 1 (127.0.0.1:{port})" in one[Name.REFUSED].seen


async def test_an_advertised_listener_that_dns_does_not_know() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.intercept(advertising(b0=("kafka-0.internal.invalid", 9092)))
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.NAME_NOT_KNOWN}
    assert "as it is advertised" in found[Name.NAME_NOT_KNOWN].seen


async def test_an_advertised_listener_that_is_not_allowed() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.intercept(advertising(b0=("127.0.0.2", 9092)))
        found = await findings(cluster.bootstrap_servers, allowed_brokers="*.example.org")
    assert bad(found) == {Name.NOT_ALLOWED}


async def test_a_cluster_that_names_any_number_of_brokers() -> None:
    """Three hundred brokers are asked at most, and the finding says how many were not."""
    port = await closed_port()

    def crowd(answer: Any) -> Any:
        [one] = answer.brokers
        more = (replaced(one, node_id=each, port=port) for each in range(1, 400))
        return replaced(answer, brokers=(one, *more))

    async with EmbeddedCluster() as cluster:
        cluster.intercept(rewriting(METADATA, crowd))
        found = await findings(cluster.bootstrap_servers)
    assert "100 more brokers" in found[Name.NOT_FINISHED].seen


async def test_two_brokers_that_advertise_one_address() -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        first = cluster.bootstrap_servers.split(",")[0]
        cluster.intercept(advertising(b1=("127.0.0.1", int(first.split(":")[1]))))
        found = await findings(first)
    assert bad(found) == {Name.SHARED_LISTENER, Name.WRONG_BROKER}
    assert "brokers 0, 1" in found[Name.SHARED_LISTENER].seen


async def test_two_brokers_whose_addresses_are_exchanged() -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        one, two = (int(each.split(":")[1]) for each in cluster.bootstrap_servers.split(","))
        cluster.intercept(advertising(b0=("127.0.0.1", two), b1=("127.0.0.1", one)))
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.WRONG_BROKER}


async def test_two_clusters_among_the_bootstrap_servers() -> None:
    async with EmbeddedCluster(seed=1) as one, EmbeddedCluster(seed=2) as two:
        found = await findings(f"{one.bootstrap_servers},{two.bootstrap_servers}")
    assert bad(found) == {Name.TWO_CLUSTERS}
    assert one.bootstrap_servers in found[Name.TWO_CLUSTERS].seen
    assert two.bootstrap_servers in found[Name.TWO_CLUSTERS].seen


async def test_two_clusters_behind_one_address() -> None:
    """A load balancer that leads to another cluster with each connection is found."""
    async with EmbeddedCluster(seed=1) as one, EmbeddedCluster(seed=2) as two:
        ahead = itertools.cycle((one.bootstrap_servers, two.bootstrap_servers))

        async def balance(stream: SocketStream) -> None:
            host, _, port = next(ahead).partition(":")
            other = await anyio.connect_tcp(host, int(port))
            async with other, anyio.create_task_group() as tasks:
                tasks.start_soon(copy, other, stream, tasks.cancel_scope)
                await copy(stream, other, tasks.cancel_scope)

        async with peer(balance) as server:
            found = await findings(server)
    assert bad(found) == {Name.TWO_CLUSTERS}
    assert server in found[Name.TWO_CLUSTERS].seen


async def copy(source: SocketStream, sink: SocketStream, scope: anyio.CancelScope) -> None:
    """Copy bytes from one stream to the other until one of them ends; then cancel the scope."""
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await sink.send(await source.receive())
    scope.cancel()
