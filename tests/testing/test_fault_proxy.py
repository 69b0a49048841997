"""Each fault of `FaultProxy` between our producer and the embedded broker, on each event loop.

A broker's metadata names the broker's address, not the proxy's, so the clients here use a connector
that connects to the proxy instead.
"""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._network.transport import TcpConnector
from aioidem._testing.fault_relay import JitteryLane
from aioidem.broker import EmbeddedCluster
from aioidem.errors import ConfigError, KafkaConnectionError
from aioidem.testing import (
    Action,
    BlackHole,
    Cut,
    Delay,
    Drop,
    FaultProxy,
    FrameSeen,
    Hold,
    RetentionFace,
    Rewrite,
)

pytestmark = pytest.mark.anyio

PRODUCE, METADATA, DESCRIBE_CONFIGS = 0, 3, 32
BOUND = 15
QUICK: dict[str, Any] = {
    "request_timeout": 0.5,
    "reconnect_backoff": 0.01,
    "retry_backoff": 0.01,
}


class Through:
    """A connector that connects to the proxy instead of the broker's address."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    async def connect(self, host: str, port: int) -> ByteStream:
        assert (host, port) == self._proxy.upstream
        return await TcpConnector().connect(self._proxy.host, self._proxy.port)


class World:
    """A broker with topic ``t``, its proxy, and producers that connect through the proxy."""

    def __init__(self, cluster: EmbeddedCluster, proxy: FaultProxy) -> None:
        self.cluster = cluster
        self.proxy = proxy

    def producer(self, **options: Any) -> Producer:
        return Producer(
            self.cluster.bootstrap_servers,
            connector=Through(self.proxy),
            **{**QUICK, "batch_size": 1, "late_sealing": False, **options},
        )

    def values(self) -> list[bytes | None]:
        return [r.value for batch in self.cluster.batches("t") for r in batch.records()]


@asynccontextmanager
async def world(broker: dict[str, Any] | None = None, **proxy: Any) -> AsyncIterator[World]:
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(**(broker or {})) as cluster:
            cluster.create_topic("t")
            host, port = cluster.bootstrap_servers.split(":")
            async with FaultProxy(host, int(port), **proxy) as running:
                yield World(cluster, running)


def once(
    api_key: int, action: Action, when: Callable[[], bool] = lambda: True
) -> Callable[[FrameSeen], Action | None]:
    """Return a hook that applies the action to the first frame of one API."""
    left = [action]
    return lambda seen: left.pop() if left and seen.api_key == api_key and when() else None


@asynccontextmanager
async def between(**proxy: Any) -> AsyncIterator[tuple[FaultProxy, socket.socket, socket.socket]]:
    """Yield a proxy with a plain socket on either side, the client's and the broker's.

    The sockets block, so a test waits for them in threads.
    """
    in_thread = anyio.to_thread.run_sync
    with anyio.fail_after(BOUND), socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND)
        async with FaultProxy("127.0.0.1", server.getsockname()[1], **proxy) as running:
            client = await in_thread(socket.create_connection, ("127.0.0.1", running.port), BOUND)
            with client:
                broker, _ = await in_thread(server.accept)
                with broker:
                    broker.settimeout(BOUND)
                    await running.until(lambda: running.connections == 1)
                    yield running, client, broker


def _until_its_end(stream: socket.socket) -> tuple[bytes, bool]:
    """Return what arrives until the connection ends, and whether it ends with RST."""
    arrived = b""
    try:
        while data := stream.recv(1000):
            arrived += data
    except ConnectionResetError:
        return arrived, True
    return arrived, False


def _request(number: int) -> bytes:
    """Return the frame of an ApiVersions request with this correlation id."""
    return struct.pack(">ihhih", 10, 18, 0, number, -1)


def _answer(number: int) -> bytes:
    """Return a frame that a proxy takes for the response to the request with this id."""
    return struct.pack(">ii", 4 + 30, number) + bytes(range(30))


def at(number: int, action: Action) -> Callable[[FrameSeen], Action | None]:
    """Return a hook that applies the action to the frame with this correlation id."""
    return lambda seen: action if seen.correlation_id == number else None


# --- the link -------------------------------------------------------------------------------------


async def test_without_rules_everything_passes_and_is_traced() -> None:
    """Without hooks the proxy passes every frame on, and its trace has every frame."""
    async with world() as w:
        async with w.producer(compression_type="lz4", batch_size=1 << 20) as producer:
            await producer.send_many("t", [bytes(10_000)] * 300, partition=0)
        assert len(w.values()) == 300
        seen = [each for each, action in w.proxy.trace if action is None]
        asked = [(each.connection, each.correlation_id) for each in seen if not each.answer]
        answered = [(each.connection, each.correlation_id) for each in seen if each.answer]
        assert sorted(asked) == sorted(answered)
        assert {each.api_key for each in seen} >= {0, 3, 18, 22}
        assert {each.client_id for each in seen} == {producer.config.client_id}
        await w.proxy.until(lambda: w.proxy.connections == 0)
        assert w.proxy.outstanding() == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_jitter_comes_from_the_seed_and_keeps_the_order(seed: int) -> None:
    """Jitter depends only on the seed, connection and direction, and never reorders records."""
    async with world(jitter=0.02, seed=seed) as w:
        lanes = [JitteryLane(w.proxy, seed, 1, "up") for _ in range(2)]
        other = JitteryLane(w.proxy, seed, 2, "up")
        dues = [[lane.due(0.0, 10) for _ in range(50)] for lane in (*lanes, other)]
        assert dues[0] == dues[1] != dues[2]
        assert dues[0] == sorted(dues[0])
        assert 0.0 < dues[0][0] < dues[0][-1] <= 0.02
        async with w.producer() as producer:
            await producer.send_many("t", [b"%d" % number for number in range(60)], partition=0)
        assert w.values() == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize(
    "bad",
    [
        {"rtt": -1.0},
        {"rtt": math.nan},
        {"jitter": -0.1},
        {"jitter": math.inf},
        {"bandwidth": 0.0},
        {"bandwidth": math.nan},
    ],
)
async def test_a_link_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    """FaultProxy refuses delays and a bandwidth that no link can have with ConfigError."""
    with pytest.raises(ConfigError):
        FaultProxy("127.0.0.1", 9092, **bad)  # type: ignore[arg-type]


# --- frames ---------------------------------------------------------------------------------------


async def test_a_held_answer_and_all_behind_it_wait_for_the_release() -> None:
    """A held response, and everything after it on the connection, waits for `release`."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        hold = Hold()
        w.proxy.on_answer = once(PRODUCE, hold)
        sent = [producer.send_nowait("t", b"%d" % number, partition=0) for number in (1, 2, 3)]
        await w.proxy.until(lambda: w.cluster.log_end_offset("t") == 4)
        assert not any(each.done() for each in sent)
        hold.release()
        assert [(await each).offset for each in sent] == [1, 2, 3]
        assert producer.statistics().batches_retried == 0


async def test_a_delayed_request_keeps_the_others_behind_it() -> None:
    """Requests that are sent after a delayed one are not passed on before it."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        w.proxy.on_request = once(PRODUCE, Delay(0.1))
        await producer.send_many("t", [b"1", b"2"], partition=0)
        assert [action for _, action in w.proxy.trace if action is not None] == [Delay(0.1)]
        assert w.values() == [b"0", b"1", b"2"]


async def test_a_dropped_answer_is_a_lost_one_and_the_resend_gets_its_offset() -> None:
    """A resend after a dropped response is answered with the offset of the first append."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        w.proxy.on_answer = once(PRODUCE, Drop())
        assert (await producer.send("t", b"1", partition=0)).offset == 1
        assert producer.statistics().batches_retried == 1
        assert w.values() == [b"0", b"1"]


async def test_a_dropped_request_never_arrives() -> None:
    """A dropped request does not reach the broker."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        w.proxy.on_request = once(PRODUCE, Drop())
        delivery = producer.send_nowait("t", b"1", partition=0)
        await w.proxy.until(lambda: isinstance(w.proxy.trace[-1][1], Drop))
        assert w.cluster.log_end_offset("t") == 1
        assert (await delivery).offset == 1


@pytest.mark.parametrize("after", [0, 1, 4, 9, 40, -1])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("answer", [False, True], ids=["request", "answer"])
async def test_wherever_a_connection_is_cut_the_record_is_there_once(
    after: int, reset: bool, answer: bool
) -> None:
    """Wherever a connection is cut within a frame, the record is in the log exactly once."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        hook = once(PRODUCE, Cut(after, reset))
        if answer:
            w.proxy.on_answer = hook
        else:
            w.proxy.on_request = hook
        opened = w.proxy.opened
        assert (await producer.send("t", b"1", partition=0)).offset == 1
        assert w.proxy.opened > opened
        assert w.values() == [b"0", b"1"]


@pytest.mark.parametrize("after", [0, 1, 4, 9, -1])
@pytest.mark.parametrize("answer", [False, True], ids=["request", "answer"])
async def test_a_cut_lets_exactly_the_first_bytes_arrive(after: int, answer: bool) -> None:
    """`Cut(n)` passes on n bytes of a frame (-1: all but the last), then ends the connection."""
    async with between() as (proxy, client, broker):
        make, source, sink = (_answer, broker, client) if answer else (_request, client, broker)
        whole, cut, behind = make(1), make(2), make(3)
        if answer:
            proxy.on_answer = at(2, Cut(after))
        else:
            proxy.on_request = at(2, Cut(after))
        source.sendall(whole + cut + behind)
        arrived, reset = await anyio.to_thread.run_sync(_until_its_end, sink)
        assert arrived == whole + cut[:after]
        assert not reset


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("how", ["request", "answer", "disconnect"])
async def test_both_sides_see_the_end_that_the_fault_asks_for(how: str, reset: bool) -> None:
    """Both sides of a cut connection see FIN, or RST if the fault says so."""
    async with between() as (proxy, client, broker):
        cut = at(2, Cut(9, reset))
        if how == "request":
            proxy.on_request = cut
            client.sendall(_request(2))
        elif how == "answer":
            proxy.on_answer = cut
            broker.sendall(_answer(2))
        else:
            proxy.disconnect(reset=reset)
        for stream in (client, broker):
            assert (await anyio.to_thread.run_sync(_until_its_end, stream))[1] == reset


async def test_a_black_hole_discards_both_directions_and_closes_nothing() -> None:
    """BlackHole discards all bytes in both directions; the client's timeout ends the connection."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        w.proxy.on_answer = once(PRODUCE, BlackHole())
        opened = w.proxy.opened
        assert (await producer.send("t", b"1", partition=0)).offset == 1
        assert w.proxy.opened == opened + 1
        assert producer.statistics().batches_retried == 1
        assert w.values() == [b"0", b"1"]


async def test_requests_and_answers_can_be_rewritten() -> None:
    """Rewrite changes one request or one response."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        wrong = Rewrite(lambda payload: payload.replace(b"right", b"wrong"))
        w.proxy.on_request = once(PRODUCE, wrong)
        # The changed batch fails its checksum; the resend is not rewritten.
        assert (await producer.send("t", b"right", partition=0)).offset == 1
        assert producer.statistics().batches_retried == 1
        not_leader = struct.pack(">h", ErrorCode.not_leader_or_follower)
        w.proxy.on_answer = once(PRODUCE, Rewrite(lambda payload: _with_code(payload, not_leader)))
        assert (await producer.send("t", b"2", partition=0)).offset == 2
        assert producer.statistics().batches_retried == 2
        assert w.values() == [b"0", b"right", b"2"]


def _with_code(payload: bytes, code: bytes) -> bytes:
    """Return a Produce response (v13 or v14, one topic, one partition) with another error code."""
    at = 4 + 1 + 1 + 16 + 1 + 4
    return payload[:at] + code + payload[at + 2 :]


# --- whole connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_all_connections_can_be_cut_at_once(reset: bool) -> None:
    """`disconnect` closes every connection at once."""
    async with world(rtt=0.05) as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        sent = [producer.send_nowait("t", b"%d" % number, partition=0) for number in range(1, 4)]
        await w.proxy.until(lambda: w.proxy.outstanding(PRODUCE) == 3)
        w.proxy.disconnect(reset=reset)
        assert [(await each).offset for each in sent] == [1, 2, 3]
        assert w.values() == [b"0", b"1", b"2", b"3"]


async def test_what_a_client_sent_before_it_closed_still_arrives() -> None:
    """Bytes that a client sent before it closed its connection still reach the broker."""
    request = _request(1)
    arrived: list[bytes] = []
    with anyio.fail_after(BOUND), socket.create_server(("127.0.0.1", 0)) as server:
        reader = threading.Thread(target=_read_all, args=(server, arrived))
        reader.start()
        async with FaultProxy("127.0.0.1", server.getsockname()[1], rtt=0.1) as proxy:
            stream = await Through(proxy).connect(*proxy.upstream)
            await stream.send(request)
            await stream.aclose()
            await anyio.to_thread.run_sync(reader.join)
            assert b"".join(arrived) == request
            await proxy.until(lambda: proxy.connections == 0)


def _read_all(server: socket.socket, into: list[bytes]) -> None:
    stream, _ = server.accept()
    with stream:
        while data := stream.recv(1000):
            into.append(data)


async def test_frozen_nothing_arrives_and_thawed_everything_does() -> None:
    """A frozen proxy passes nothing on, and passes everything on after `thaw`."""
    async with world() as w, w.producer(request_timeout=10) as producer:
        await producer.send("t", b"0", partition=0)
        w.proxy.freeze()
        delivery = producer.send_nowait("t", b"1", partition=0)
        await w.proxy.until(lambda: w.proxy.outstanding(PRODUCE) == 1)
        assert w.cluster.log_end_offset("t") == 1
        w.proxy.thaw()
        assert (await delivery).offset == 1
        assert producer.statistics().batches_retried == 0


async def test_refusing_ends_new_connections_and_open_ones_stay() -> None:
    """After `refuse` the proxy refuses new connections, and open connections continue."""
    async with world() as w, w.producer() as producer:
        await producer.send("t", b"0", partition=0)
        await w.proxy.refuse()
        with pytest.raises(KafkaConnectionError):
            await Through(w.proxy).connect(*w.proxy.upstream)
        await producer.send("t", b"1", partition=0)
        await w.proxy.accept()
        stream = await Through(w.proxy).connect(*w.proxy.upstream)
        await stream.aclose()


async def test_a_client_is_closed_if_its_broker_cannot_be_reached() -> None:
    """The proxy closes a client's connection if the broker cannot be reached."""
    async with world() as w:
        await w.cluster.stop_broker(0)
        stream = await Through(w.proxy).connect(*w.proxy.upstream)
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            await stream.receive()
        await stream.aclose()
        await w.cluster.start_broker(0)
        async with w.producer() as producer:
            await producer.send("t", b"v")


async def test_bytes_that_are_not_kafka_pass_and_disturb_no_other() -> None:
    """The proxy passes on bytes that are no Kafka frames, and the next connection works."""
    async with world() as w:
        stream = await Through(w.proxy).connect(*w.proxy.upstream)
        await stream.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        await stream.aclose()
        async with w.producer() as producer:
            await producer.send("t", b"v")


# -- KIP-1269 through the proxy --------------------------------------------------------------------


async def window_of(w: World, topic: str = "t", **options: Any) -> tuple[int, set[int]]:
    """Return a producer's window after 12 records, and the Produce versions that the proxy saw."""
    async with w.producer(max_in_flight_requests_per_connection=30, **options) as producer:
        for number in range(12):
            await producer.send(topic, b"%d" % number, partition=0)
        [partition] = producer.statistics().partitions
    versions = {s.api_version for s, _ in w.proxy.trace if s.api_key == PRODUCE and not s.answer}
    return partition.window, versions


@pytest.mark.parametrize("discovery", ["auto", "on"])
async def test_a_broker_of_v13_shows_v14_and_each_topics_value(discovery: str) -> None:
    """With a RetentionFace, the proxy makes a broker of Produce v13 appear to speak v14 (KIP-1269).

    The v14 responses announce the number of retained batches that the RetentionFace has for the
    topic, and the producer takes the number as its window.
    """
    face = RetentionFace(20, {"own": 9})
    async with world({"produce_versions": 13}, retention=face) as w:
        w.cluster.create_topic("own")
        window, versions = await window_of(w, window_discovery=discovery)
        assert window == 20
        assert 14 in versions
        assert (await window_of(w, "own", window_discovery=discovery))[0] == 9
        face.set("own", 30)
        face.set(None, 5)
        assert (await window_of(w, "own", window_discovery=discovery))[0] == 30
        assert (await window_of(w, window_discovery=discovery))[0] == 5


async def test_a_broker_below_v13_is_never_given_v14() -> None:
    """Even with a RetentionFace, the proxy offers no Produce v14 if the broker lacks v13."""
    async with world({"produce_versions": 12}, retention=RetentionFace(20)) as w:
        assert await window_of(w, window_discovery="on") == (5, {12})


async def test_without_a_face_v14_is_not_offered() -> None:
    """Without a RetentionFace the proxy does not offer Produce v14."""
    async with world({"produce_versions": 13}) as w:
        assert await window_of(w, window_discovery="on") == (5, {13})


async def test_faults_and_the_face_go_together() -> None:
    """With a RetentionFace the proxy's hooks see the client's Produce v14, not the broker's v13."""
    async with (
        world({"produce_versions": 13}, retention=RetentionFace(20)) as w,
        w.producer(window_discovery="on") as producer,
    ):
        await producer.send("t", b"0", partition=0)
        payloads: list[bytes] = []
        w.proxy.on_request = lambda s: Rewrite(_noted(payloads)) if s.api_key == 0 else None
        w.proxy.on_answer = lambda s: Rewrite(_noted(payloads)) if s.api_key == 0 else None
        assert (await producer.send("t", b"1", partition=0)).offset == 1
        request, answer = payloads
        assert request[:4] == b"\x00\x00\x00\x0e"
        # One tagged field: tag 1, with the number 20 in four bytes.
        assert b"\x01\x01\x04\x00\x00\x00\x14" in answer


def _noted(into: list[bytes]) -> Callable[[bytes], bytes]:
    def note(payload: bytes) -> bytes:
        into.append(payload)
        return payload

    return note


@pytest.mark.parametrize("batches", [0, -1, 1 << 31])
def test_a_face_with_an_impossible_value_is_refused(batches: int) -> None:
    """RetentionFace raises ConfigError for a number of batches below 1 or above 2**31 - 1."""
    with pytest.raises(ConfigError):
        RetentionFace(batches)
