"""A call with bad input raises a clear typed error before the record gets a sequence.

A refused call changes nothing: no record is queued, no sequence is used, no byte of the buffer is
taken, and the next record is stored with the next sequence.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from aioidem import DeliveryStatus, Producer, Record, errors
from aioidem._config import ProducerConfig
from aioidem.broker import EmbeddedCluster

from .tools import (
    ASYNCIO,
    EVERY_WORLD,
    REAL_LOOPS,
    bounded,
    partition_of,
    producer_for,
    stored_values,
)

Transport = Literal["tcp", "memory"]

# --- options --------------------------------------------------------------------------------------

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"acks": 1}, "acks"),
    ({"acks": 0}, "acks"),
    ({"acks": 2, "enable_idempotence": False}, "acks"),
    ({"delivery_timeout": 29.0}, "delivery_timeout"),
    ({"delivery_timeout": 30.0, "linger": 0.1}, "linger"),
    ({"max_in_flight_requests_per_connection": 0}, "max_in_flight_requests_per_connection"),
    ({"max_in_flight_requests_per_connection": -1}, "max_in_flight_requests_per_connection"),
    ({"max_in_flight_requests_per_connection": 5.0}, "max_in_flight_requests_per_connection"),
    ({"max_in_flight_requests_per_connection": True}, "max_in_flight_requests_per_connection"),
    ({"window_discovery": "always"}, "window_discovery"),
    ({"window_discovery": True}, "window_discovery"),
    ({"broker_dedup": "both"}, "broker_dedup"),
    ({"in_doubt": "guess"}, "in_doubt"),
    ({"late_sealing": 1}, "late_sealing"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": "16384"}, "batch_size"),
    ({"linger": -0.001}, "linger"),
    ({"linger": float("nan")}, "linger"),
    ({"request_timeout": 0}, "request_timeout"),
    ({"buffer_memory": -1}, "buffer_memory"),
    ({"compression_type": "brotli"}, "compression_type"),
    ({"compression_level": 3}, "compression_level"),
    ({"retry_backoff": 2.0, "retry_backoff_max": 1.0}, "retry_backoff"),
    ({"transactional_id": "tx", "enable_idempotence": False}, "transactional_id"),
    ({"partitioner": "murmur2"}, "partitioner"),
    ({"client_id": ""}, "client_id"),
    ({"linger_ms": 5}, "linger_ms"),
    ({"max_in_flight": 5}, "max_in_flight"),
]


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS, ids=str)
def test_an_unknown_illegal_or_contradictory_option_is_refused_at_the_call_and_named(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(errors.ConfigError, match=named) as caught:
        Producer("localhost:9092", **options)
    # The message names the option and, unless it is unknown, its value.
    assert str(next(iter(options.values()))) in str(caught.value) or "unknown" in str(caught.value)
    assert isinstance(caught.value, ValueError)


BAD_SERVERS: list[Any] = [
    *["", ",", "h:0", "h:65536", "h:x", "http://h:9092", "h:1:2", "[::1"],
    *[[], [1], 9092, None],
]


@pytest.mark.parametrize("servers", BAD_SERVERS, ids=repr)
def test_an_address_that_cannot_be_one_is_refused_at_the_call(servers: Any) -> None:
    with pytest.raises(errors.ConfigError, match="bootstrap_servers"):
        Producer(servers)


def test_config_and_options_together_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="either"):
        Producer(config=ProducerConfig.build("h:1"), acks="all")


# --- records --------------------------------------------------------------------------------------


@asynccontextmanager
async def running(transport: Transport, **options: Any) -> AsyncIterator[Producer]:
    """Run a producer that has sent two records; after the block it sends a third."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", partitions=1)
        async with producer_for(cluster, max_block=0.5, **options) as producer:
            await producer.send_many("t", [b"0", b"1"])
            before = producer.statistics()
            yield producer
            after = producer.statistics()
            assert partition_of(producer).next_sequence == 2
            assert after.partitions == before.partitions
            held = (after.records_queued, after.buffer_bytes_used, after.buffer_waiters)
            assert held == (0, 0, 0)
            assert after.batches_sent == before.batches_sent
            assert (await producer.send("t", b"2")).offset == 2
            assert partition_of(producer).next_sequence == 3
        assert stored_values(cluster) == [b"0", b"1", b"2"]
        assert [batch.base_sequence for batch in cluster.batches("t")][-1] == 2


class NotBytes:
    """An object that is not bytes-like."""


def _wrong(*records: tuple[dict[str, Any], Any, str]) -> list[Any]:
    return [
        pytest.param(*record, id=f"{list(record[0])}-{number}")
        for number, record in enumerate(records)
    ]


BAD_RECORDS = _wrong(
    ({"value": "text"}, TypeError, "value must be bytes or None, not str"),
    ({"value": 5}, TypeError, "not int"),
    ({"value": NotBytes()}, TypeError, "not NotBytes"),
    ({"value": [1]}, TypeError, "not list"),
    ({"key": "text"}, TypeError, "key must be bytes or None, not str"),
    ({"topic": ""}, errors.RecordError, "topic"),
    ({"topic": "."}, errors.RecordError, "topic"),
    ({"topic": ".."}, errors.RecordError, "topic"),
    ({"topic": "a/b"}, errors.RecordError, "a/b"),
    ({"topic": "a b"}, errors.RecordError, "a b"),
    ({"topic": "é"}, errors.RecordError, "topic"),
    ({"topic": "t\n"}, errors.RecordError, "topic"),
    ({"topic": "x" * 250}, errors.RecordError, "topic"),
    ({"topic": b"t"}, (TypeError, errors.RecordError), "topic"),
    ({"topic": None}, (TypeError, errors.RecordError), "topic"),
    ({"topic": ["t"]}, (TypeError, errors.RecordError), "topic"),
    ({"partition": -1}, errors.RecordError, "partition -1"),
    ({"partition": 2**31}, errors.RecordError, "partition"),
    ({"partition": "0"}, TypeError, "partition"),
    ({"partition": True}, TypeError, "partition"),
    ({"partition": 0.0}, TypeError, "partition"),
    ({"timestamp": -1}, errors.RecordError, "timestamp"),
    ({"timestamp": float("nan")}, errors.RecordError, "timestamp"),
    ({"timestamp": float("inf")}, errors.RecordError, "timestamp"),
    ({"timestamp": 1e300}, errors.RecordError, "timestamp"),
    ({"timestamp": "now"}, TypeError, "timestamp"),
    ({"timestamp": 1_700_000_000_000}, errors.RecordError, "milliseconds"),
    ({"timestamp": 1_700_000_000_000.5}, errors.RecordError, r"time\.time\(\)"),
    ({"timestamp": 100_000_000_000}, errors.RecordError, "seconds since the epoch"),
    ({"headers": [("h",)]}, TypeError, "headers"),
    ({"headers": [5]}, TypeError, "headers"),
    ({"headers": [(b"h", b"")]}, TypeError, "header"),
    ({"headers": [("h", "text")]}, TypeError, "header 'h'"),
    ({"headers": [("\ud800", b"")]}, errors.RecordError, "encoded"),
    ({"headers": 5}, TypeError, "headers"),
    ({"value": bytes(1048576)}, errors.MessageSizeTooLargeError, "max_request_size"),
    ({"key": bytes(1048576)}, errors.MessageSizeTooLargeError, "max_request_size"),
    ({"headers": [("h", bytes(1048576))]}, errors.MessageSizeTooLargeError, "max_request_size"),
)


@pytest.mark.anyio
@pytest.mark.parametrize(("record", "error", "message"), BAD_RECORDS)
@bounded(10)
async def test_a_bad_record_is_refused_at_the_call_before_a_sequence_is_taken(
    transport: Transport, record: dict[str, Any], error: Any, message: str
) -> None:
    """A record that cannot be serialised never gets into a request (franz-go c733b9d)."""
    arguments = {"topic": "t", "value": b"v"} | record
    async with running(transport) as producer:
        with pytest.raises(error, match=message):
            await producer.send(**arguments)
        with pytest.raises(error, match=message):
            producer.send_nowait(**arguments)
        value = arguments.pop("value")
        with pytest.raises(error, match=message):
            await producer.send_many(values=[value], **arguments)


@pytest.mark.anyio
@bounded(10)
async def test_a_record_larger_than_the_buffer_is_refused_and_does_not_wait_for_room(
    transport: Transport,
) -> None:
    async with running(transport, buffer_memory=1000) as producer:
        with pytest.raises(errors.MessageSizeTooLargeError, match="buffer_memory"):
            await producer.send("t", bytes(1000))


@pytest.mark.anyio
@bounded(10)
async def test_a_partition_that_the_topic_does_not_have_fails_without_a_sequence(
    transport: Transport,
) -> None:
    async with running(transport) as producer:
        with pytest.raises(
            errors.UnknownTopicOrPartitionError, match="there is no partition 1"
        ) as caught:
            await producer.send("t", b"x", partition=1)
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN


@pytest.mark.anyio
@bounded(10)
async def test_send_many_with_a_bad_value_in_the_middle_says_which_records_were_sent(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            values: Any = [b"0", b"1", "two", b"3"]
            with pytest.raises(
                errors.PartialDeliveryError, match="stopped after 2 records"
            ) as caught:
                await producer.send_many("t", values)
            assert isinstance(caught.value.__cause__, TypeError)
            assert [d.status for d in caught.value.deliveries] == [DeliveryStatus.ACKED] * 2
            await producer.send("t", b"4")
        assert stored_values(cluster) == [b"0", b"1", b"4"]


@pytest.mark.anyio
@pytest.mark.parametrize("record", [Record(b"v", key=b"k"), Record(b"v"), Record()])
@bounded(10)
async def test_one_record_in_the_place_of_many_is_refused(
    transport: Transport, record: Any
) -> None:
    """A `Record` is a tuple: its key must not be written as a value."""
    async with running(transport) as producer:
        with pytest.raises(TypeError, match=r"not one Record: write \[record\]"):
            await producer.send_many("t", record)


@pytest.mark.anyio
@bounded(10)
async def test_a_record_too_large_for_the_topic_fails_alone(transport: Transport) -> None:
    """A record that is too large for its topic is refused by the broker and fails alone.

    The producer cannot know the limit of the topic before it sends.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "500"})
        async with producer_for(cluster) as producer:
            await producer.send("t", b"0")
            with pytest.raises(errors.MessageSizeTooLargeError) as caught:
                await producer.send("t", bytes(600))
            assert caught.value.status is DeliveryStatus.NOT_WRITTEN
            await producer.send("t", b"1")
        assert stored_values(cluster) == [b"0", b"1"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "payload", [bytearray(b"v"), memoryview(b"v")], ids=["bytearray", "memoryview"]
)
@bounded(10)
async def test_a_mutable_payload_is_copied_at_the_call(transport: Transport, payload: Any) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            delivery = producer.send_nowait("t", payload, key=payload, headers=[("h", payload)])
            if isinstance(payload, bytearray):
                payload[0] = 0
            await delivery
        [record] = cluster.batches("t")[0].records()
        assert (record.key, record.value, list(record.headers)) == (b"v", b"v", [("h", b"v")])


# --- peers that are no Kafka brokers --------------------------------------------------------------

Greet = Callable[[SocketStream], Awaitable[None]]


async def says(stream: SocketStream, answer: bytes) -> None:
    """Read the client's first bytes, and send `answer`."""
    await stream.receive()
    if answer:
        await stream.send(answer)


def sayer(answer: bytes) -> Greet:
    """Return a server that sends `answer` after the client's first bytes."""

    async def greet(stream: SocketStream) -> None:
        await says(stream, answer)

    return greet


async def openssl(stream: SocketStream) -> None:
    """Serve as OpenSSL does, which cannot read a Kafka request and sends at most an alert."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(await stream.receive())
    with pytest.raises(ssl.SSLError):
        server.do_handshake()
    if answer := outgoing.read():
        await stream.send(answer)


async def hangs_up(_stream: SocketStream) -> None:
    """Do nothing, so that `stranger` closes each connection at once."""


STRANGERS = [
    # Java's TLS listener, and so Kafka's own, sends a fatal alert, unexpected_message.
    pytest.param(sayer(b"\x15\x03\x03\x00\x02\x02\x0a"), errors.NotKafkaError, "TLS", id="TLS"),
    pytest.param(openssl, errors.NotKafkaError, "speaks TLS", id="OpenSSL"),
    pytest.param(
        sayer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        errors.NotKafkaError,
        "HTTP",
        id="HTTP",
    ),
    pytest.param(sayer(b"SSH-2.0-OpenSSH_9.6\r\n"), errors.NotKafkaError, "SSH", id="SSH"),
    pytest.param(sayer(b"\xff" * 64), errors.NotKafkaError, "not a plaintext Kafka", id="garbage"),
    pytest.param(
        sayer(b"\x00\x00\x00\x08" + bytes(8)),
        errors.KafkaError,
        "ApiVersions",
        id="a frame of zeros",
    ),
    pytest.param(sayer(b""), errors.KafkaConnectionError, "hung up", id="reads and closes"),
    pytest.param(hangs_up, errors.KafkaConnectionError, "127", id="closes at once"),
]


@asynccontextmanager
async def stranger(greet: Greet) -> AsyncIterator[int]:
    """Run a server on loopback that is no broker, and yield its port."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await greet(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's  # noqa: S610 - not Django's
        yield port
        tasks.cancel_scope.cancel()


@REAL_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize(("greet", "error", "named"), STRANGERS)
@bounded(10)
async def test_a_bootstrap_address_that_is_not_kafka_is_recognised_and_named(
    greet: Greet, error: type[errors.KafkaError], named: str
) -> None:
    async with stranger(greet) as port:
        producer = Producer(f"127.0.0.1:{port}")
        with pytest.raises(error, match=named) as caught:
            await producer.start()
        assert str(port) in str(caught.value)
        assert isinstance(caught.value, errors.KafkaError)
        with pytest.raises(errors.ProducerClosed):
            producer.send_nowait("t", b"x")


@REAL_LOOPS
@pytest.mark.anyio
@bounded(10)
async def test_an_unreachable_bootstrap_address_is_named() -> None:
    async with stranger(hangs_up) as port:
        pass
    with pytest.raises(errors.KafkaConnectionError, match=f"127.0.0.1:{port}") as caught:
        await Producer(f"127.0.0.1:{port}").start()
    assert os.strerror(errno.ECONNREFUSED) in str(caught.value)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@REAL_LOOPS
@pytest.mark.anyio
@bounded(10)
async def test_a_host_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(errors.KafkaConnectionError, match=r"no-such-host\.invalid") as caught:
        await Producer("no-such-host.invalid:9092").start()
    assert isinstance(caught.value.__cause__, socket.gaierror)
    assert (caught.value.__cause__.strerror or "?") in str(caught.value)


@REAL_LOOPS
@pytest.mark.anyio
@bounded(10)
async def test_each_bootstrap_address_has_its_reason() -> None:
    async with stranger(hangs_up) as one, stranger(hangs_up) as other:
        pass
    servers = f"127.0.0.1:{one},127.0.0.1:{other},no-such-host.invalid:9092"
    with pytest.raises(errors.KafkaConnectionError, match="Unable to bootstrap") as caught:
        await Producer(servers).start()
    refused = re.escape(os.strerror(errno.ECONNREFUSED))
    for port in (one, other):
        assert re.search(f"127.0.0.1:{port}: {refused}", str(caught.value))
    assert re.search(r"no-such-host\.invalid:9092: \w", str(caught.value))
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    kinds = [type(each) for each in caught.value.__cause__.exceptions]
    assert kinds == [ConnectionRefusedError, ConnectionRefusedError, socket.gaierror]


class Unreachable:
    """A network in which connecting fails with errno `number`, or hangs if that is ETIMEDOUT."""

    def __init__(self, number: int) -> None:
        self._error = OSError(number, os.strerror(number))

    async def __call__(self, *_: object, **__: object) -> SocketStream:
        if self._error.errno == errno.ETIMEDOUT:
            await anyio.sleep_forever()
        raise self._error


@ASYNCIO
@pytest.mark.anyio
@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT])
@bounded(10)
async def test_an_unreachable_network_and_silence_are_named(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anyio, "connect_tcp", Unreachable(number))
    with pytest.raises(errors.KafkaConnectionError, match=r"192\.0\.2\.1:9092") as caught:
        await Producer("192.0.2.1:9092", connection_setup_timeout=0.05).start()
    reason = "timed out" if number == errno.ETIMEDOUT else os.strerror(number)
    assert reason in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


@EVERY_WORLD
@pytest.mark.anyio
@bounded(20)
async def test_one_good_address_among_bad_ones_is_enough(transport: Transport) -> None:
    """One good bootstrap address is enough, at any place in the list, however the others fail."""
    async with EmbeddedCluster(transport=transport) as cluster:
        good = cluster.bootstrap_servers
        bad = "127.0.0.1:1"
        for servers in ([bad, good], [good, bad], [bad, "127.0.0.1:2", good]):
            async with Producer(servers, connector=cluster.connector) as producer:
                await producer.send("t", b"x")
        assert len(stored_values(cluster)) == 3


def test_a_config_in_the_place_of_the_addresses_is_refused_with_its_name() -> None:
    """The error says that the argument is config=..."""
    config: Any = ProducerConfig.build("h")
    with pytest.raises(errors.ConfigError, match=r"is a ProducerConfig: pass it as config="):
        Producer(config)
    assert Producer(config=config).config is config


def test_addresses_beside_a_config_are_refused() -> None:
    """A config has the addresses that are used: others beside it would be ignored."""
    config = ProducerConfig.build("h:1")
    with pytest.raises(errors.ConfigError, match=r"either bootstrap_servers \('h:2'\) or config"):
        Producer("h:2", config=config)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (lambda *_: 7, "the partitioner chose 7, which is none of the 3 partitions of topic 't'"),
        (lambda *_: 1 // 0, "the partitioner raised ZeroDivisionError.* for topic 't'"),
    ],
)
@bounded(10)
async def test_an_error_of_the_partitioner_names_the_topic(choice: Any, said: str) -> None:
    async with (
        EmbeddedCluster(transport="memory", default_partitions=3) as cluster,
        producer_for(cluster, partitioner=choice) as producer,
    ):
        with pytest.raises(errors.RecordError, match=said):
            await producer.send("t", b"v", key=b"k")


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", ["x", 5, None, [3], ["x"]])
async def test_what_is_no_failed_record_cannot_be_resolved(wrong: Any) -> None:
    """The error is a RecordError that names the type."""
    with pytest.raises(errors.RecordError, match=r"expected .* not "):
        await Producer("h").resolve(wrong)


@ASYNCIO
@pytest.mark.anyio
@bounded(60)
async def test_a_start_without_an_answer_names_the_addresses_and_what_to_do() -> None:
    """A peer that accepts and never answers, and max_block=0, are told apart."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with listener:
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            await Producer(f"127.0.0.1:{port}", max_block=0.2).start()
        assert f"(0.2 s): 127.0.0.1:{port}: no greeting answered for 0." in str(caught.value)
        assert "Check whether Kafka listens at these addresses" in str(caught.value)
        with pytest.raises(errors.KafkaTimeoutError, match="Raise max_block: with 0 "):
            await Producer(f"127.0.0.1:{port}", max_block=0).start()
