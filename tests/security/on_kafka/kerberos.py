"""GSSAPI with a Kerberos realm and real Kafka: only a client with a valid ticket is accepted.

    pip install 'aioidem[gssapi]'; python -m pytest tests/security/on_kafka/kerberos.py

pytest does not collect this file by itself, because it needs the package ``gssapi`` and MIT's
``krb5kdc``, ``kdb5_util`` and ``kadmin.local`` on the path (Debian: krb5-kdc and
krb5-admin-server), which few machines have. The realm is used by this test only, on a port of its
own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioidem import Producer
from aioidem._testing.kafka_process import reserve_port
from aioidem.errors import AuthenticationFailedError, SaslAuthenticationFailed
from aioidem.testing import KafkaCluster
from tests.kafka.tools import History, allow, bounded, check, outcomes

from .test_security import TOPIC, TRUST, security

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("kerberos")]

WRITE = 4
SESSION = 2.0
JVM = ("-Xmx256m",)
TOOLS = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"


class Realm:
    """A Kerberos realm in a folder: its principals and their keys."""

    name = "AIOIDEM.TEST"

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {self.name}\n dns_lookup_kdc = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {self.name} = {{\n  kdc = localhost:{port}\n }}\n"
            f"[domain_realm]\n localhost = {self.name}\n"
        )
        profile = folder / "kdc.conf"
        profile.write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
            f"[realms]\n {self.name} = {{\n  database_name = {folder}/principals\n"
            f"  key_stash_file = {folder}/stash\n  acl_file = {folder}/acl\n }}\n"
        )
        more = os.environ.get("KRB5_CONFIG")  # this variable may name a folder with plugins
        self.environment = {
            **os.environ,
            "PATH": TOOLS,
            "KRB5_CONFIG": f"{self.config}:{more}" if more else str(self.config),
            "KRB5_KDC_PROFILE": str(profile),
        }
        self.run("kdb5_util", "create", "-s", "-r", self.name, "-P", "of this test")

    def run(self, *command: str) -> None:
        """Run one of Kerberos' tools on the realm; a failure fails the test."""
        found = shutil.which(command[0], path=TOOLS)
        assert found is not None, f"{command[0]} is not installed"
        done = subprocess.run(
            [found, *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def keytab(self, principal: str) -> Path:
        """Add a principal; return the file with its keys."""
        file = self.folder / f"{principal.replace('/', '-')}.keytab"
        for query in (f"addprinc -randkey {principal}", f"ktadd -k {file} {principal}"):
            self.run("kadmin.local", "-r", self.name, "-q", query)
        assert file.exists()
        return file

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the server that issues the realm's tickets, until the block ends."""
        kdc = shutil.which("krb5kdc", path=TOOLS)
        assert kdc is not None
        with subprocess.Popen(
            [kdc, "-n", "-r", self.name],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield
            finally:
                process.terminate()

    @contextmanager
    def as_user(self, keytab: Path) -> Iterator[None]:
        """Let this process get tickets with `keytab` only, and begin without any ticket."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KRB5_CONFIG", str(self.config))
            patch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{keytab}")
            patch.setenv("KRB5CCNAME", f"MEMORY:{keytab.stem}")
            yield


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    made = Realm(tmp_path_factory.mktemp("realm"), reserve_port())
    with made.serving():
        yield made


@pytest.fixture(scope="module")
async def cluster(
    realm: Realm,
    anyio_backend: object,  # noqa: ARG001 - gives the module one event loop
) -> AsyncIterator[KafkaCluster]:
    keys = realm.keytab("kafka/localhost")
    module = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keys}" principal="kafka/localhost@{realm.name}";'
    )
    listener = "listener.name.sasl"
    properties: dict[str, str | int] = {
        f"{listener}.sasl.enabled.mechanisms": "GSSAPI,PLAIN",
        f"{listener}.gssapi.sasl.jaas.config": module,
        f"{listener}.sasl.kerberos.service.name": "kafka",
        f"{listener}.gssapi.connections.max.reauth.ms": round(SESSION * 1000),
    }
    async with KafkaCluster(
        security=security(proxied="PLAINTEXT", authorize=True),
        properties=properties,
        jvm_options=(*JVM, f"-Djava.security.krb5.conf={realm.config}"),
    ) as running:
        await allow(running, "alice", (TOPIC, WRITE, "open-"))
        yield running


def options(**more: Any) -> Mapping[str, Any]:
    return {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", **TRUST, **more}


@bounded(90)
async def test_a_user_with_a_ticket_is_accepted_and_renews_the_session(
    cluster: KafkaCluster, realm: Realm
) -> None:
    """Kafka accepts Alice by her ticket, and she writes for three sessions, which are renewed."""
    await cluster.create_topic("open-1")
    with realm.as_user(realm.keytab("alice")):
        async with Producer(cluster.secure_servers("SASL"), **options()) as producer:
            history = History(producer, "open-1")
            until = anyio.current_time() + 3 * SESSION
            while anyio.current_time() < until:
                await outcomes(history.send(50))
            # If a connection had been lost, the batches in flight would have been sent again.
            assert producer.statistics().batches_retried == 0
    assert await check(cluster, [history], "open-1") == list(range(len(history.rows)))


@bounded(60)
async def test_a_user_without_a_key_gets_no_ticket(cluster: KafkaCluster, realm: Realm) -> None:
    """A user without a valid key gets no ticket, and the producer fails to start."""
    keys = realm.keytab("dave")
    # The realm now has new keys for Dave, and the file has the old ones.
    realm.run("kadmin.local", "-r", realm.name, "-q", "cpw -randkey dave")
    for keytab in (keys, realm.folder / "nothing.keytab"):
        with (
            realm.as_user(keytab),
            pytest.raises(AuthenticationFailedError, match="GSSAPI: ") as caught,
        ):
            await Producer(cluster.secure_servers("SASL"), **options()).start()
        assert not caught.value.retriable


@bounded(60)
async def test_a_ticket_for_somebody_else_is_refused_by_the_broker(
    cluster: KafkaCluster, realm: Realm
) -> None:
    """A ticket for another service of the realm is refused by the broker."""
    realm.keytab("other/localhost")
    producer = Producer(
        cluster.secure_servers("SASL"), **options(sasl_kerberos_service_name="other")
    )
    with (
        realm.as_user(realm.keytab("erin")),
        pytest.raises(SaslAuthenticationFailed, match="the broker refused to authenticate"),
    ):
        await producer.start()
