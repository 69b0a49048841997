"""`EmbeddedCluster.in_thread`, for callers that block, and `records`, which reads a topic."""

from __future__ import annotations

import inspect
import socket
import threading
import warnings
from contextlib import suppress
from typing import Any

import anyio
import pytest

from aioidem import Producer
from aioidem._broker import threaded
from aioidem._broker.entities import build
from aioidem._broker.intercept import RequestSeen
from aioidem._protocol.messages import encode_request, request_type
from aioidem.broker import EmbeddedCluster, ThreadedCluster
from aioidem.errors import (
    ConfigError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

with warnings.catch_warnings():
    # Importing kafka-python warns: it loads its schemas through a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

# Members that belong to the cluster's event loop: other threads reach them through `call`.
OF_THE_LOOP = {"connector", "in_thread", "state"}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_it_has_all_that_an_embedded_cluster_has() -> None:
    """ThreadedCluster has the public members of EmbeddedCluster that other threads may use."""
    assert public(ThreadedCluster) == public(EmbeddedCluster) - OF_THE_LOOP | {"call"}


def test_a_client_that_blocks_its_thread_uses_it() -> None:
    """A client that blocks its thread can use a cluster that was started with `in_thread`."""
    with EmbeddedCluster.in_thread(brokers=2) as cluster:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        admin.create_topics([kafka.admin.NewTopic("t", num_partitions=2, replication_factor=1)])
        admin.close()
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        producer.send("t", b"value", b"key", [("h", b"1")], 1, 1_700_000_000_000).get(10)
        producer.close(timeout=10)
        assert cluster.records("t") == [(1, 0, 1_700_000_000_000, b"key", b"value", (("h", b"1"),))]
        assert cluster.call(lambda inner: list(inner.state.topics)) == ["t"]
    assert threading.active_count() == len(threading.enumerate())
    assert not any(each.name == "embedded-cluster" for each in threading.enumerate())


def test_its_brokers_are_stopped_and_started_from_outside() -> None:
    """Other threads can stop and start the brokers of a ThreadedCluster."""
    with EmbeddedCluster.in_thread(brokers=2) as cluster:
        cluster.create_topic("t", partitions=1, replication=2)
        assert cluster.leader("t") == 0
        cluster.stop_broker(0)
        assert cluster.leader("t") == 1
        assert cluster.bootstrap_servers.count(":") == 1
        cluster.start_broker(0)
        assert cluster.bootstrap_servers.count(":") == 2


def test_what_is_wrong_is_raised_where_it_was_asked_for() -> None:
    """An error in a ThreadedCluster's method is raised in the thread that called the method."""
    with pytest.raises(TypeError, match="borkers"):
        EmbeddedCluster.in_thread(borkers=2)
    with pytest.raises(ConfigError, match="brokers must be 1 or more"):  # noqa: SIM117
        with EmbeddedCluster.in_thread(brokers=0):
            pytest.fail("it started")
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        with pytest.raises(TopicAlreadyExistsError):
            cluster.create_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.records("u")
        with pytest.raises(KeyError):
            cluster.call(lambda inner: inner.state.topics["u"])
        with pytest.raises(TimeoutError, match="mine"):
            cluster.call(lambda _inner: (_ for _ in ()).throw(TimeoutError("mine")))
    with pytest.raises(RuntimeError, match="does not run"):
        cluster.create_topic("u")
    with pytest.raises(RuntimeError, match="does not run"):
        EmbeddedCluster.in_thread().create_topic("t")


def produce(servers: str, topic: str = "t") -> None:
    async def main() -> None:
        async with Producer(servers) as producer:
            await producer.send(topic, b"v")

    anyio.run(main)


def test_a_hook_is_called_in_its_thread_and_may_use_it() -> None:
    """A hook runs in the cluster's thread, where it may call methods that do not wait."""
    seen: list[tuple[str, int]] = []
    with EmbeddedCluster.in_thread() as cluster:

        def hook(request: RequestSeen) -> None:
            if request.api_key == 0:
                seen.append((threading.current_thread().name, cluster.leader("t")))
                with pytest.raises(RuntimeError, match="a hook cannot wait"):
                    cluster.stop_broker(0)

        cluster.create_topic("t")
        cluster.intercept(hook)
        produce(cluster.bootstrap_servers)
    assert seen == [("embedded-cluster", 0)]


def break_it(cluster: ThreadedCluster) -> None:
    def hook(_request: RequestSeen) -> None:
        raise ZeroDivisionError("in the hook")

    cluster.intercept(hook)
    host, port = cluster.bootstrap_servers.split(":")
    schema = request_type(18, 0)
    assert schema is not None
    ask = encode_request(build(schema, {}), correlation_id=1, client_id="x")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(ask)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    for each in threading.enumerate():
        if each.name == "embedded-cluster":
            each.join(10)


def test_what_ends_it_is_raised_by_the_next_call_and_at_the_end() -> None:
    """An error that ends the cluster makes the next call fail, and comes out of the ``with``."""
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012, SIM117
        with EmbeddedCluster.in_thread() as cluster:
            break_it(cluster)
            with pytest.raises(RuntimeError, match="does not run") as told:
                cluster.create_topic("t")
            assert isinstance(told.value.__cause__, ExceptionGroup)
    assert raised.group_contains(ZeroDivisionError, match="in the hook")
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012, SIM117
        with EmbeddedCluster.in_thread() as cluster:
            break_it(cluster)
            raise ValueError("mine")


def test_a_call_that_blocks_does_not_hold_the_next_one_up_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call fails with KafkaTimeoutError while an earlier call blocks the cluster's thread."""
    monkeypatch.setattr(threaded, "_SECONDS", 0.3)
    entered, go_on = threading.Event(), threading.Event()
    with EmbeddedCluster.in_thread() as cluster:

        def block(_inner: Any) -> None:
            entered.set()
            go_on.wait(20)

        def call() -> None:
            with pytest.raises(KafkaTimeoutError):
                cluster.call(block)

        blocking = threading.Thread(target=call)
        blocking.start()
        assert entered.wait(10)
        with pytest.raises(KafkaTimeoutError, match="did not answer within"):
            cluster.create_topic("t")
        blocking.join(10)
        assert not blocking.is_alive()
        go_on.set()
        monkeypatch.setattr(threaded, "_SECONDS", 10.0)
        cluster.create_topic("u")


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_records_are_what_a_consumer_reads() -> None:
    """`records` returns what a consumer would read: records below the high watermark."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"b", partition=1, timestamp=2.0)
            await producer.send(
                "t", b"a", key=b"k", partition=0, timestamp=1.0, headers=[("h", None)]
            )
        found = cluster.records("t")
        assert found == [
            (0, 0, 1000, b"k", b"a", (("h", None),)),
            (1, 0, 2000, None, b"b", ()),
        ]
        assert [(each.partition, each.value) for each in found] == [(0, b"a"), (1, b"b")]
        assert cluster.records("t", 1) == found[1:]
        cluster.hold_high_watermark("t", 0)
        async with Producer(
            cluster.bootstrap_servers, acks=1, enable_idempotence=False
        ) as producer:
            await producer.send("t", b"not committed", partition=0)
        assert cluster.log_end_offset("t", 0) == 2
        assert cluster.records("t", 0, isolation="read_uncommitted") == found[:1]
        for missing in ("u", "t"):
            with pytest.raises(UnknownTopicOrPartitionError):
                cluster.records(missing, 7)


@pytest.mark.anyio
async def test_records_of_transactions_are_there_once_they_are_committed() -> None:
    """`records` returns a transaction's records once the transaction is committed."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")

        def values(**options: Any) -> list[bytes | None]:
            return [each.value for each in cluster.records("t", **options)]

        async with (
            Producer(cluster.bootstrap_servers, transactional_id="tx") as producer,
            Producer(cluster.bootstrap_servers) as other,
        ):
            for value, commit in ((b"one", True), (b"two", False), (b"three", True)):
                await producer.begin_transaction()
                await producer.send("t", value)
                await other.send("t", b"beside " + value)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
            done = [b"one", b"beside one", b"beside two", b"three", b"beside three"]
            assert values() == done
            await producer.begin_transaction()
            await producer.send("t", b"open")
            await other.send("t", b"behind")
            assert values() == done
            everything = [b"one", b"beside one", b"two", b"beside two", b"three", b"beside three"]
            assert values(isolation="read_uncommitted") == [*everything, b"open", b"behind"]
            await producer.commit_transaction()
            assert values() == [*done, b"open", b"behind"]
