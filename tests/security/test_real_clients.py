"""Other clients can use the embedded brokers' TLS and SASL.

aiokafka authenticates with each of its mechanisms; librdkafka also renews its sessions (KIP-368). A
mistake that our client and our broker have in common would show here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import anyio
import anyio.to_thread
import confluent_kafka
import pytest

from aioidem._broker.intercept import RequestSeen
from aioidem._broker.security import MECHANISMS, BrokerSecurity
from aioidem.broker import EmbeddedCluster

from .tools import USERS, Authority, bounded, token

pytestmark = pytest.mark.anyio

CA = Authority()
HANDSHAKE = 17


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio only, which aiokafka needs."""
    return "asyncio"


class Tokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def token(self) -> str:
        return token(time.time() + self._seconds)


def security(**more: Any) -> BrokerSecurity:
    return BrokerSecurity(tls=CA.server("127.0.0.1"), mechanisms=MECHANISMS, users=USERS, **more)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@bounded(30)
async def test_aiokafka_is_let_in_and_kept_out(mechanism: str, right: bool, tmp_path: Any) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(CA.pem)
    from aiokafka.helpers import create_ssl_context

    async with EmbeddedCluster(security=security()) as cluster:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            security_protocol="SASL_SSL",
            ssl_context=create_ssl_context(cafile=str(file)),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password=USERS["alice"] if right else "wrong",
            sasl_oauth_token_provider=Tokens(60 if right else -60),
            enable_idempotence=True,
        )
        if right:
            async with producer:
                await producer.send_and_wait("t", b"x", partition=0)
            assert cluster.log_end_offset("t") == 1
        else:
            try:
                with pytest.raises(aiokafka.errors.KafkaError):
                    await producer.start()
            finally:
                await producer.stop()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@bounded(60)
async def test_librdkafka_is_let_in_and_renews_its_session(mechanism: str) -> None:
    handshakes: list[int] = []

    def watch(seen: RequestSeen) -> None:
        if seen.api_key == HANDSHAKE:
            handshakes.append(seen.connection_id)

    def renewed() -> bool:
        """Return whether some connection has authenticated three times."""
        return any(handshakes.count(each) > 2 for each in set(handshakes))

    options: Mapping[str, Any] = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": CA.pem,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": USERS["alice"],
        "enable.idempotence": True,
    }
    async with EmbeddedCluster(security=security(max_session=1.5)) as cluster:
        cluster.intercept(watch)
        sent = await anyio.to_thread.run_sync(
            _produce, cluster.bootstrap_servers, options, renewed, abandon_on_cancel=True
        )
        assert renewed()
        assert cluster.log_end_offset("t") == sent


def _produce(servers: str, options: Mapping[str, Any], enough: Callable[[], bool]) -> int:
    """Send records one after another until the condition holds."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **options})
    failures: list[Any] = []
    sent, until = 0, time.monotonic() + 40
    while not enough() and time.monotonic() < until:
        producer.produce("t", b"x", partition=0, on_delivery=lambda e, _: failures.append(e))
        sent += 1
        assert producer.flush(20) == 0
        producer.poll(0.05)
    assert set(failures) == {None}
    return sent
