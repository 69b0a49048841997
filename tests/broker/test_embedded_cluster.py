"""The embedded cluster on every event loop, over TCP connections and over streams in memory.

The cluster measures spans. A span is the number of a producer's batches from its oldest one without
a definite answer to its newest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import build
from aioidem._broker.memory import BUFFER_BYTES, stream_pair
from aioidem._broker.virtual import START_MS, idempotent_batch, only_partition
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import frame
from aioidem._protocol.messages import (
    correlation_id_of,
    encode_request,
    request_type,
)
from aioidem.broker import CloseConnection, Drop, EmbeddedCluster, RequestSeen
from aioidem.errors import (
    BrokerResponseError,
    ConfigError,
    InvalidConfigurationError,
    KafkaConnectionError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.waiting import until

from .wire import Wire, connected, produce_values

pytestmark = pytest.mark.anyio

BOUND = 20.0
Transport = Literal["tcp", "memory"]
TRANSPORTS: list[Transport] = ["tcp", "memory"]


def batch_time() -> float:
    """Return the timestamp of the tests' batches in epoch seconds, as a wall clock for the cluster.

    By this clock no batch is old, so no producer expires.
    """
    return START_MS / 1000


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    found: Transport = request.param
    return found


async def test_a_batch_goes_in_and_is_seen(transport: Transport) -> None:
    """A broker stores a produced batch, and counts it in `span` only until the answer.

    The span is the number of batches from the producer's oldest unresolved one to its newest.
    """
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                part = only_partition(await wire.produce(idempotent_batch(0, 3)))
                assert (part.error_code, part.base_offset) == (ErrorCode.none, 0)
            (batch,) = cluster.batches("t")
            assert (batch.count, batch.producer_id) == (3, 7)
            assert (cluster.log_end_offset("t"), cluster.high_watermark("t")) == (3, 3)
            assert (cluster.span("t"), cluster.max_span("t")) == (0, 1)
            assert cluster.max_unproven_span("t") == 1
            assert "running" in repr(cluster)


async def test_pipelined_requests_are_answered_in_order(transport: Transport) -> None:
    """A broker reads ten pipelined requests before it answers any, and answers them in order."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, rtt=0.2) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                sent = [
                    await wire.send(0, 12, produce_values(idempotent_batch(s))) for s in range(10)
                ]
                answers = [await wire.read(0, 12, s) for s in sent]
            assert [only_partition(a).base_offset for a in answers] == list(range(10))
            assert cluster.max_span("t") == 10


async def test_the_round_trip_can_be_changed_for_open_connections(transport: Transport) -> None:
    """`set_rtt` and `set_bandwidth` apply to open connections."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, rtt=60.0) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                cluster.set_rtt(0.0)
                cluster.set_bandwidth(1e9)
                assert only_partition(await wire.produce(idempotent_batch(0))).base_offset == 0


async def test_two_frames_in_pieces_are_two_requests(transport: Transport) -> None:
    """A broker reads two requests from two frames that arrive in pieces of five bytes."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster, connected(cluster) as wire:
            schema = request_type(18, 0)
            assert schema is not None
            frames = b"".join(
                encode_request(build(schema, {}), correlation_id=i, client_id=None) for i in (1, 2)
            )
            for at in range(0, len(frames), 5):
                await wire.stream.send(frames[at : at + 5])
            assert [correlation_id_of(await wire.frame()) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x0d\x00\x00\x00\x01",
        b"\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",
    ],
    ids=["http", "tls", "negative", "empty", "cut", "unknown-api"],
)
async def test_what_is_no_request_ends_its_own_connection_only(
    transport: Transport, garbage: bytes
) -> None:
    """Bytes that are no request close the connection on which they came, and no other."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as other:
                async with connected(cluster) as wire:
                    await wire.stream.send(garbage)
                    assert await wire.ended()
                assert only_partition(await other.produce(idempotent_batch(0))).base_offset == 0


async def test_an_api_versions_request_too_new_is_answered_in_version_0(
    transport: Transport,
) -> None:
    """An ApiVersions request in an unknown version is answered in version 0 (KIP-511)."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster, connected(cluster) as wire:
            await wire.stream.send(b"\x00\x00\x00\x0a\x00\x12\x00\x63\x00\x00\x00\x2a\xff\xff")
            answer = await wire.read(18, 0, 42)
            assert answer.error_code == ErrorCode.unsupported_version
            assert {a.api_key for a in answer.api_keys} == {18}


async def test_bytes_behind_a_request_are_let_be_as_kafka_lets_them(transport: Transport) -> None:
    """A broker ignores bytes after a request's last field, as Kafka does."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster, connected(cluster) as wire:
            cluster.create_topic("t")
            every_topic = (
                b"\x00\x03\x00\x0d\x00\x00\x00\x09\x00\x01w\x00" + bytes(4) + b"\x01\x00\x00"
            )
            await wire.stream.send(frame(every_topic))
            answer = await wire.read(3, 13, 9)
            assert [t.name for t in answer.topics] == ["t"]


async def test_a_produce_version_above_the_brokers_closes_the_connection(
    transport: Transport,
) -> None:
    """A Produce in a version above the broker's highest closes the connection."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, produce_versions=8) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                await wire.send(0, 9, produce_values(idempotent_batch(0)))
                assert await wire.ended()
            assert cluster.log_end_offset("t") == 0


async def test_a_broker_that_is_rolled_back_serves_its_old_versions_only(
    transport: Transport,
) -> None:
    """`set_produce_version` sets the highest Produce version of a broker that runs."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, retain=20) as cluster:
            cluster.create_topic("t")
            cluster.set_produce_version(0, 11)
            async with connected(cluster) as wire:
                await wire.send(0, 12, produce_values(idempotent_batch(0)))
                assert await wire.ended()
            cluster.set_produce_version(0, 14)
            async with connected(cluster) as wire:
                assert only_partition(await wire.produce(idempotent_batch(0))).base_offset == 0


async def test_a_leader_cannot_be_moved_to_nowhere(transport: Transport) -> None:
    """Moving a leader to a broker that does not exist is refused."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            with pytest.raises(BrokerResponseError):
                cluster.move_leader("t", 0, 5)


async def test_brokers_are_reached_through_what_metadata_says(transport: Transport) -> None:
    """Metadata names the addresses at which the brokers listen."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=3, transport=transport) as cluster:
            cluster.create_topic("t", partitions=3)
            assert len(cluster.bootstrap_servers.split(",")) == 3
            async with connected(cluster) as wire:
                values = {"topics": None, "include_topic_authorized_operations": False}
                answer = await wire.ask(3, 12, values)
            where = {b.node_id: (b.host, b.port) for b in answer.brokers}
            for part in answer.topics[0].partitions:
                stream = await cluster.connector.connect(*where[part.leader_id])
                await stream.aclose()


async def test_a_stopped_broker_ends_its_connections_and_returns_at_the_same_address(
    transport: Transport,
) -> None:
    """A stopped broker closes its connections, and starts again at the same address."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, wall_clock=batch_time) as cluster:
            cluster.create_topic("t")
            address = cluster.bootstrap_servers
            async with connected(cluster) as wire:
                for sequence in range(3):
                    await wire.produce(idempotent_batch(sequence))
                await cluster.stop_broker(0)
                await cluster.stop_broker(0)
                assert await wire.ended()
            assert cluster.bootstrap_servers == ""
            assert cluster.leader("t") == -1
            assert cluster.log_end_offset("t") == 3
            host, _, port = address.rpartition(":")
            with pytest.raises(KafkaConnectionError):
                await cluster.connector.connect(host, int(port))
            await cluster.start_broker(0)
            await cluster.start_broker(0)
            assert cluster.bootstrap_servers == address
            async with connected(cluster) as wire:
                codes = [
                    only_partition(await wire.produce(idempotent_batch(s))).error_code
                    for s in (0, 2, 3)
                ]
            assert codes == [ErrorCode.out_of_order_sequence_number, ErrorCode.none, ErrorCode.none]


async def test_a_broker_that_stops_while_a_client_connects_ends_that_connection_alone() -> None:
    """The stream was accepted, and the broker is gone before it is served."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2, transport="memory") as cluster:
            cluster.create_topic("t", partitions=2)
            host, _, port = cluster.bootstrap_servers.split(",")[0].rpartition(":")
            stream = await cluster.connector.connect(host, int(port))
            await cluster.stop_broker(0)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            async with connected(cluster, 1) as wire:
                answer = await wire.produce(idempotent_batch(0))
                assert only_partition(answer).error_code == ErrorCode.not_leader_or_follower


async def test_a_killed_broker_knows_the_last_batch_when_it_is_back(transport: Transport) -> None:
    """A killed broker remembers each producer's last batch after its restart."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, wall_clock=batch_time) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                for sequence in range(3):
                    await wire.produce(idempotent_batch(sequence))
            await cluster.stop_broker(0, clean=False)
            await cluster.start_broker(0)
            async with connected(cluster) as wire:
                assert only_partition(await wire.produce(idempotent_batch(2))).base_offset == 2
                older = only_partition(await wire.produce(idempotent_batch(1)))
                assert older.error_code == ErrorCode.out_of_order_sequence_number


async def test_a_leader_that_moves_answers_what_it_had_appended(transport: Transport) -> None:
    """An old leader answers a waiting Produce NOT_LEADER_OR_FOLLOWER with the batch's offset."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2, transport=transport) as cluster:
            cluster.create_topic("t", replication=2)
            cluster.hold_high_watermark("t")
            async with connected(cluster) as wire:
                sent = await wire.send(0, 12, produce_values(idempotent_batch(0)))
                await until(lambda: cluster.log_end_offset("t") == 1)
                cluster.move_leader("t", 0, 1)
                part = only_partition(await wire.read(0, 12, sent))
            code = ErrorCode.not_leader_or_follower
            assert (part.error_code, part.base_offset) == (code, 0)
            assert (cluster.leader("t"), cluster.leader_epoch("t")) == (1, 1)


async def test_a_held_high_watermark_holds_the_answer_until_it_is_released(
    transport: Transport,
) -> None:
    """A Produce waits while the high watermark is held, and is answered after its release."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            cluster.hold_high_watermark("t")
            async with connected(cluster) as wire:
                part = only_partition(await wire.produce(idempotent_batch(0), timeout=0.05))
                assert part.error_code == ErrorCode.request_timed_out
                sent = await wire.send(0, 12, produce_values(idempotent_batch(0)))
                await until(lambda: cluster.span("t") == 1)
                cluster.release_high_watermark("t")
                part = only_partition(await wire.read(0, 12, sent))
                assert (part.error_code, part.base_offset) == (ErrorCode.none, 0)


async def test_followers_can_be_paused_resumed_and_taken_out(transport: Transport) -> None:
    """Followers can be paused, resumed and taken out of the in-sync replicas."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2, transport=transport) as cluster:
            cluster.create_topic("t", replication=2)
            cluster.pause_follower("t", 0, 1)
            async with connected(cluster) as wire:
                sent = await wire.send(0, 12, produce_values(idempotent_batch(0)))
                await until(lambda: cluster.log_end_offset("t") == 1)
                assert cluster.high_watermark("t") == 0
                cluster.resume_follower("t", 0, 1)
                assert only_partition(await wire.read(0, 12, sent)).base_offset == 0
                cluster.pause_follower("t", 0, 1)
                cluster.shrink_isr("t", 0, 1)
                assert only_partition(await wire.produce(idempotent_batch(1))).base_offset == 1


async def test_a_throttled_broker_says_so(transport: Transport) -> None:
    """Produce answers of a throttled broker carry its throttle time (KIP-219)."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            cluster.set_throttle(0, 0.1)
            async with connected(cluster) as wire:
                answer = await wire.produce(idempotent_batch(0))
                assert answer.throttle_time == timedelta(seconds=0.1)


async def test_the_hook_sees_requests_and_can_close(transport: Transport) -> None:
    """A hook gets each request, and can have its connection closed."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            seen: list[int] = []

            def hook(request: RequestSeen) -> CloseConnection | None:
                seen.append(request.api_key)
                return CloseConnection(processed=True) if request.api_key == 0 else None

            cluster.intercept(hook)
            async with connected(cluster) as wire:
                await wire.send(0, 12, produce_values(idempotent_batch(0)))
                assert await wire.ended()
            assert seen == [0]
            assert cluster.log_end_offset("t") == 1
            assert cluster.span("t") == 1
            cluster.intercept(None)
            async with connected(cluster) as wire:
                assert only_partition(await wire.produce(idempotent_batch(0))).base_offset == 0
            assert cluster.span("t") == 0


async def test_a_request_is_served_after_its_client_hung_up(transport: Transport) -> None:
    """A request is served after its client has closed the connection."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport, rtt=0.3) as cluster:
            cluster.create_topic("t")
            async with connected(cluster) as wire:
                await wire.send(0, 12, produce_values(idempotent_batch(0)))
                await until(lambda: cluster.span("t") == 1)
            assert cluster.log_end_offset("t") == 0
            await until(lambda: cluster.log_end_offset("t") == 1)


async def test_leaving_the_cluster_ends_every_connection(transport: Transport) -> None:
    """Leaving the cluster's ``async with`` closes every connection."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t")
            cluster.intercept(lambda _request: Drop())
            wires = [
                Wire(await cluster.connector.connect(b.host, b.port))
                for b in cluster.state.running * 3
            ]
            for wire in wires:
                await wire.send(0, 12, produce_values(idempotent_batch(0)))
        for wire in wires:
            assert await wire.ended()
            await wire.stream.aclose()


async def test_an_error_inside_the_cluster_comes_out_of_it_unchanged(transport: Transport) -> None:
    """An exception in the body of the ``async with`` is not wrapped in an exception group."""
    with anyio.fail_after(BOUND):
        with pytest.raises(ZeroDivisionError):
            async with EmbeddedCluster(transport=transport):
                raise ZeroDivisionError


async def test_cancelling_a_cluster_that_starts_leaves_no_listener(
    listening_ports: Callable[[], set[int]],
) -> None:
    """Cancelling a cluster at any step of its start leaves no listener open."""
    before = listening_ports()
    opened: list[int] = []
    started = anyio.Event()

    async def run() -> None:
        async with EmbeddedCluster(brokers=3):
            started.set()
            await anyio.sleep_forever()

    with anyio.fail_after(BOUND):
        while not started.is_set():
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run)
                    for _ in range(len(opened)):
                        await anyio.lowlevel.checkpoint()
                    opened.append(len(listening_ports() - before))
                    scope.cancel()
            assert listening_ports() == before
    # Whether a cancellation also comes when only 1 or 2 listeners are open depends on when name
    # look-ups return.
    assert {0, 3} <= set(opened), f"listeners when the cluster was cancelled: {opened}"


async def test_topics_and_configs_by_hand(transport: Transport) -> None:
    """The cluster's methods create, change and delete topics and configs, with typed errors."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(transport=transport) as cluster:
            cluster.create_topic("t", configs={"producer.state.batches.to.retain": "20"})
            with pytest.raises(TopicAlreadyExistsError):
                cluster.create_topic("t")
            with pytest.raises(InvalidConfigurationError):
                cluster.create_topic("u", configs={"producer.state.batches.to.retain": "4"})
            with pytest.raises(InvalidConfigurationError):
                cluster.set_config("t", "producer.state.batches.to.retain", 4)
            with pytest.raises(InvalidConfigurationError):
                cluster.set_broker_config("log.producer.state.batches.to.retain", 4)
            with pytest.raises(UnknownTopicOrPartitionError):
                cluster.set_config("nope", "max.message.bytes", 1)
            with pytest.raises(UnknownTopicOrPartitionError):
                cluster.batches("t", 1)
            cluster.set_config("t", "max.message.bytes", 10)
            async with connected(cluster) as wire:
                part = only_partition(await wire.produce(idempotent_batch(0)))
                assert part.error_code == ErrorCode.message_too_large
                cluster.set_config("t", "max.message.bytes", None)
                assert only_partition(await wire.produce(idempotent_batch(0))).base_offset == 0
                cluster.delete_topic("t")
                part = only_partition(await wire.produce(idempotent_batch(1)))
                assert part.error_code == ErrorCode.unknown_topic_or_partition
            cluster.set_broker_config("num.partitions", 3)
            cluster.set_broker_config("num.partitions", None)
            cluster.set_broker_config("num.partitions", 2, broker_id=0)
            cluster.set_clock_offset(0, 5.0)


async def test_a_cluster_that_cannot_be_is_refused() -> None:
    """EmbeddedCluster raises ConfigError for options outside of their range."""
    for options in (
        {"brokers": 0},
        {"rtt": -1.0},
        {"rtt": math.nan},
        {"rtt": math.inf},
        {"bandwidth": 0.0},
        {"bandwidth": math.nan},
        {"retain": 4},
        {"configs": {"message.max.bytes": "x"}},
    ):
        with pytest.raises(ConfigError):
            EmbeddedCluster(**options)
    cluster = EmbeddedCluster()
    for bad in (-1.0, math.nan):
        with pytest.raises(ConfigError):
            cluster.set_rtt(bad)
        with pytest.raises(ConfigError):
            cluster.set_bandwidth(bad)


async def test_tcp_brokers_are_found_by_the_plain_connector_and_at_the_ports_asked_for() -> None:
    """TCP brokers listen at the ports that were given, and a plain TcpConnector reaches them."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            ports = [b.port for b in cluster.state.running]
            assert isinstance(cluster.connector, TcpConnector)
        async with EmbeddedCluster(brokers=2, ports=ports) as again:
            assert [b.port for b in again.state.running] == ports


# -- streams in memory -----------------------------------------------------------------------------


async def test_memory_streams_carry_bytes_both_ways_and_cut_them_to_size() -> None:
    """Memory streams carry bytes in both directions, in chunks of the size asked for."""
    with anyio.fail_after(BOUND):
        here, there = stream_pair()
        await here.send(b"hello")
        await there.send(b"hi")
        assert [await there.receive(2), await there.receive(9)] == [b"he", b"llo"]
        assert await here.receive() == b"hi"


async def test_memory_streams_make_a_fast_sender_wait() -> None:
    """A sender waits while the buffer of a memory stream is full."""
    with anyio.fail_after(BOUND):
        here, there = stream_pair()
        done = anyio.Event()

        async def send() -> None:
            await here.send(bytes(BUFFER_BYTES))
            await here.send(b"more")
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            assert not done.is_set()
            await there.receive(10)
            await done.wait()


async def test_memory_streams_end_like_sockets() -> None:
    """A closed memory stream delivers what was sent, then its end; sending to it fails."""
    with anyio.fail_after(BOUND):
        here, there = stream_pair()
        await here.send(b"last words")
        await here.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await here.send(b"x")
        with pytest.raises(anyio.ClosedResourceError):
            await here.receive()
        assert await there.receive() == b"last words"
        with pytest.raises(anyio.EndOfStream):
            await there.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await there.send(b"x")


async def test_memory_streams_can_be_half_closed() -> None:
    """A memory stream that was closed for sending can still receive."""
    with anyio.fail_after(BOUND):
        here, there = stream_pair()
        await here.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await there.receive()
        await there.send(b"still")
        assert await here.receive() == b"still"


async def test_closing_wakes_whoever_waits_on_a_memory_stream() -> None:
    """Closing a memory stream wakes the tasks that wait on it."""
    with anyio.fail_after(BOUND):
        here, there = stream_pair()
        caught: list[str] = []

        async def receive(stream: ByteStream) -> None:
            try:
                await stream.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError) as error:
                caught.append(type(error).__name__)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive, here)
            tasks.start_soon(receive, there)
            await anyio.wait_all_tasks_blocked()
            await here.aclose()
        assert sorted(caught) == ["ClosedResourceError", "EndOfStream"]
