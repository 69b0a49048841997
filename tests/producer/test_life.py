"""A producer's life: start, stop, its statistics, its deliveries and their order, retries.

Tests for which the event loop matters run on asyncio, uvloop and trio, over TCP. The others run in
virtual time.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Delivery, DeliveryCounts, DeliveryStatus, Producer, TopicPartition, errors
from aioidem._broker.intercept import (
    Action,
    AfterAppend,
    CloseConnection,
    Drop,
    Refuse,
    RequestSeen,
)
from aioidem.broker import EmbeddedCluster
from tests.commands import ALONE

from .tools import (
    EVERY_WORLD,
    PRODUCE,
    REAL_LOOPS,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
    virtual_time,
)

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]


def on_arrival(cluster: EmbeddedCluster, records: int) -> anyio.Event:
    """Return an event that is set when `records` records are at a broker, which appends them."""
    arrived, count = anyio.Event(), 0

    def hook(seen: RequestSeen) -> None:
        nonlocal count
        count += sum(batch.count for batch in seen.batches)
        if count >= records:
            arrived.set()

    cluster.intercept(hook)
    return arrived


def unanswered(cluster: EmbeddedCluster) -> anyio.Event:
    """Serve no request any more, and return an event that is set when the first one has come."""
    arrived = anyio.Event()

    def hold(_seen: RequestSeen) -> Action | None:
        arrived.set()
        return Drop()

    cluster.intercept(hold)
    return arrived


# --- start and stop -------------------------------------------------------------------------------


@REAL_LOOPS
@bounded(10)
async def test_start_and_stop_may_be_called_from_different_tasks(transport: Transport) -> None:
    """Start and stop may run in different tasks, as the lifespan hooks of a web framework do.

    So start() may not open a task group, because only the task that opened one can close it.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.start)
        async with anyio.create_task_group() as tasks:
            for value in numbered(10):
                tasks.start_soon(producer.send, "t", value)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.stop)
        assert sorted(stored_values(cluster)) == numbered(10)


@EVERY_WORLD
@bounded(10)
async def test_stop_may_be_called_twice_and_by_two_tasks_at_once(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster)
        await producer.start()
        delivery = producer.send_nowait("t", b"x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.stop)
            tasks.start_soon(producer.stop)
        await producer.stop()
        assert delivery.status is DeliveryStatus.ACKED


@bounded(10)
async def test_stop_without_start_does_nothing(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster)
        await producer.stop()
        with pytest.raises(errors.ProducerClosed):
            await producer.start()


@bounded(10)
async def test_before_start_and_after_stop_every_call_says_closed(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster)
        for words in ("not started", "closed"):
            with pytest.raises(errors.ProducerClosed, match=words):
                await producer.send("t", b"x")
            with pytest.raises(errors.ProducerClosed, match=words):
                producer.send_nowait("t", b"x")
            with pytest.raises(errors.ProducerClosed, match=words):
                await producer.send_many("t", [b"x"])
            with pytest.raises(errors.ProducerClosed, match=words):
                await producer.flush()
            with pytest.raises(errors.ProducerClosed, match=words):
                await producer.wait_for_room()
            with pytest.raises(errors.ProducerClosed, match=words):
                await producer.partitions_for("t")
            if words == "not started":
                await producer.start()
                await producer.stop()
        with pytest.raises(errors.ProducerClosed):
            await producer.start()


class BoomError(Exception):
    """An application's own error."""


@EVERY_WORLD
@bounded(10)
async def test_leaving_the_block_by_an_exception_still_delivers_what_was_queued(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        deliveries = []
        producer = producer_for(cluster, linger=30.0)
        with contextlib.suppress(BoomError):
            async with producer:
                deliveries += [producer.send_nowait("t", value) for value in numbered(3)]
                raise BoomError
        assert [d.status for d in deliveries] == [DeliveryStatus.ACKED] * 3
        assert stored_values(cluster) == numbered(3)


@EVERY_WORLD
@bounded(10)
async def test_leaving_the_block_by_cancellation_settles_every_record_at_once(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        arrived = on_arrival(cluster, 1)
        with anyio.CancelScope() as scope:
            async with producer_for(cluster) as producer:
                written = producer.send_nowait("t", b"0")
                await arrived.wait()
                assert cluster.log_end_offset("t") == 1
                waiting = producer.send_nowait("t", b"1")
                scope.cancel()
                await written
        assert scope.cancelled_caught
        assert written.status is DeliveryStatus.UNKNOWN
        assert waiting.status is DeliveryStatus.NOT_WRITTEN
        assert isinstance(waiting.exception(), errors.ProducerClosed)
        assert isinstance(written.exception(), errors.ProducerClosed)


@REAL_LOOPS
@bounded(10)
async def test_a_start_that_is_cancelled_leaves_nothing_behind(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        arrived = unanswered(cluster)
        producer = producer_for(cluster)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.start)
            await arrived.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(errors.ProducerClosed):
            producer.send_nowait("t", b"x")
        await producer.stop()


def test_a_producer_that_was_never_made_says_nothing_when_it_is_collected() -> None:
    """A producer whose construction failed says nothing when it is collected.

    Its finaliser once raised AttributeError beside the error that says what was wrong.
    """
    make: Any = Producer
    with pytest.raises(TypeError, match="positional"):
        make("localhost:9092", "t")
    gc.collect()


@REAL_LOOPS
@bounded(10)
async def test_a_forgotten_producer_warns_and_is_collected(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster, client_id="forgotten")
        await producer.start()
        delivery = producer.send_nowait("t", b"x")
        await delivery
        gone = weakref.ref(producer)
        with pytest.warns(ResourceWarning, match="forgotten open.*was not closed"):  # noqa: PT031
            del producer
            gc.collect()
        assert gone() is None
        # The producer's connection is closed although nobody called close().
        while cluster.state.connections:
            await anyio.lowlevel.checkpoint()


@REAL_LOOPS
@bounded(10)
async def test_a_producer_that_never_started_or_was_stopped_is_forgotten_in_silence(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        producer = producer_for(cluster)
        del producer
        producer = producer_for(cluster)
        await producer.start()
        await producer.stop()
        del producer
        gc.collect()  # a ResourceWarning would be an error


_FORK = """
import os, sys, warnings
import anyio, aioidem
from aioidem.broker import EmbeddedCluster

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork() with threads

def in_child(producer):
    errors = 0
    for call in (
        lambda: producer.send_nowait("t", b"child"),
        lambda: drive(producer.send("t", b"child")),
        lambda: drive(producer.stop()),
        lambda: drive(producer.flush()),
    ):
        try:
            call()
        except aioidem.errors.ForkedProducerError as error:
            errors += str(os.getppid()) in str(error)
    return errors

def drive(coroutine):
    try:
        coroutine.send(None)
    finally:
        coroutine.close()

async def main():
    async with EmbeddedCluster() as cluster:
        async with aioidem.Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"parent 1")
            child = os.fork()
            if child == 0:
                os._exit(in_child(producer))
            _, status = os.waitpid(child, 0)
            await producer.send("t", b"parent 2")
        values = [r.value for b in cluster.batches("t") for r in b.records()]
        print(os.waitstatus_to_exitcode(status), values)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_producer_carried_over_a_fork_refuses_to_work_in_the_child(backend: str) -> None:
    """A forked child may not send: it would share producer id and sequences with its parent."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE + _FORK, backend],
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == "4 [b'parent 1', b'parent 2']", done.stderr


# --- deliveries -----------------------------------------------------------------------------------


@EVERY_WORLD
@bounded(10)
async def test_a_callback_that_raises_does_not_harm_other_records(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(_: Delivery) -> None:
        raise BoomError("mine")

    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            deliveries = [producer.send_nowait("t", value) for value in numbered(3)]
            for delivery in deliveries:
                delivery.add_done_callback(raises)
            await producer.send("t", b"3")
            assert [d.status for d in deliveries] == [DeliveryStatus.ACKED] * 3
            deliveries[0].add_done_callback(raises)  # settled: called at once, and logged as well
        assert stored_values(cluster) == numbered(4)
    logged = [r for r in caplog.records if r.exc_info and isinstance(r.exc_info[1], BoomError)]
    assert len(logged) == 4


@EVERY_WORLD
@bounded(10)
async def test_a_callback_may_send(transport: Transport) -> None:
    """A done callback may send another record (KAFKA-5503)."""
    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            last = anyio.Event()

            def send_next(delivery: Delivery) -> None:
                following = delivery.metadata.offset + 1
                if following == 50:
                    last.set()
                    return
                producer.send_nowait("t", b"%d" % following).add_done_callback(send_next)

            producer.send_nowait("t", b"0").add_done_callback(send_next)
            await last.wait()
        assert stored_values(cluster) == numbered(50)


@bounded(60)
async def test_failures_that_were_not_looked_at_are_reported_at_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "100"})
        async with producer_for(cluster, client_id="careless") as producer:
            unseen = [producer.send_nowait("t", bytes(200)) for _ in range(3)]
            seen = producer.send_nowait("t", bytes(200))
            with pytest.raises(errors.MessageSizeTooLargeError):
                await seen
            called_back: list[Delivery] = []
            told = producer.send_nowait("t", bytes(200))
            told.add_done_callback(called_back.append)
            await producer.flush()
            assert called_back == [told]
        assert all(d.status is DeliveryStatus.NOT_WRITTEN for d in unseen)
    [report] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "careless: 3 failed deliveries were never looked at" in report
    assert "MESSAGE_SIZE_TOO_LARGE" in report or "MessageSizeTooLarge" in report


@EVERY_WORLD
@bounded(10)
async def test_send_many_has_an_outcome_per_record(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "300"})
        async with producer_for(cluster, batch_size=1, late_sealing=False) as producer:
            whole = await producer.send_many("t", numbered(3), key=b"k", headers=[("h", b"v")])
            assert [d.metadata.offset for d in whole] == [0, 1, 2]
            assert whole.count(DeliveryStatus.ACKED) == len(whole) == 3
            values = [b"3", bytes(400), b"4", bytes(400), b"5"]
            with pytest.raises(
                errors.PartialDeliveryError, match="2 of 5 records failed"
            ) as caught:
                await producer.send_many("t", values)
            outcomes = [delivery.status for delivery in caught.value.deliveries]
            refused, stored = DeliveryStatus.NOT_WRITTEN, DeliveryStatus.ACKED
            assert outcomes == [stored, refused, stored, refused, stored]
            assert len(await producer.send_many("t", [])) == 0
        assert stored_values(cluster) == numbered(6)


@bounded(60)
async def test_flush_ends_lingering_for_what_was_queued_before_it() -> None:
    """A flush ends the linger of records queued before it, and not of those queued after it.

    That holds where the topic was not known yet, too.
    """
    async with (
        EmbeddedCluster(transport="memory", default_partitions=3) as cluster,
        producer_for(cluster, linger=20.0) as producer,
    ):
        began = anyio.current_time()
        for _ in ("unknown topic", "known topic"):
            early = [producer.send_nowait("t", b"x", partition=p) for p in range(3)]
            began = anyio.current_time()
            await producer.flush()
            assert anyio.current_time() - began < 1.0
            assert all(delivery.done() for delivery in early)
        late = producer.send_nowait("t", b"y")
        await virtual_time(19.0)
        assert not late.done()
        await late
        assert anyio.current_time() - began == pytest.approx(20.0, abs=1.0)


# --- what a producer reports ----------------------------------------------------------------------


@bounded(10)
async def test_statistics_and_repr_tell_what_it_is_doing() -> None:
    async with EmbeddedCluster(retain=20, rtt=0.1, transport="memory") as cluster:
        cluster.create_topic("t")
        producer = producer_for(cluster, client_id="teller", linger=5.0)
        assert repr(producer) == "<aioidem.Producer teller new, 0 records queued, 0 acked>"
        async with producer:
            first = producer.send_nowait("t", b"x", partition=0)
            assert "teller open, id 0 epoch 0, 1 records queued, 0 acked" in repr(producer)
            statistics = producer.statistics()
            assert (statistics.records_queued, statistics.producer_id) == (1, 0)
            assert statistics.buffer_bytes_used > 0
            assert repr(first) == "<Delivery pending>"
            await virtual_time(1.0)
            assert partition_of(producer).pending_records == 1
            await producer.flush()
            assert repr(first) == "<Delivery acked t-0@0>"
            here = partition_of(producer)
            assert (here.window, here.span, here.max_span, here.in_flight) == (20, 0, 1, 0)
            assert (here.leader, here.leader_epoch, here.next_sequence) == (0, 0, 1)
            [link] = producer.statistics().connections
            assert link.rtt == pytest.approx(0.1, rel=0.01)
            assert (link.node_id, link.connected, link.produce_version) == (0, True, 14)
            statistics = producer.statistics()
            assert (statistics.records_acked, statistics.batches_sent) == (1, 1)
            with pytest.raises(AttributeError):
                statistics.records_acked = 2  # type: ignore[misc]
        assert "teller closed" in repr(producer)
        assert producer.statistics().connections == ()


def test_a_producer_with_bad_options_has_a_repr() -> None:
    made = Producer.__new__(Producer)
    with pytest.raises(errors.ConfigError):
        made.__init__(acks=7)  # type: ignore[misc]
    assert repr(made) == "<aioidem.Producer (not configured)>"


@EVERY_WORLD
@bounded(10)
async def test_partitions_for_names_them_and_makes_the_topic_where_brokers_do(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport, default_partitions=4) as cluster:
        cluster.create_topic("seven", partitions=7)
        async with producer_for(cluster) as producer:
            assert await producer.partitions_for("seven") == set(range(7))
            assert await producer.partitions_for("made") == set(range(4))
        async with producer_for(
            cluster, allow_auto_create_topics=False, max_block=0.2, retry_backoff=0.01
        ) as producer:
            with pytest.raises(errors.UnknownTopicOrPartitionError):
                await producer.partitions_for("absent")
        assert "absent" not in cluster.state.topics


# --- records --------------------------------------------------------------------------------------


@EVERY_WORLD
@bounded(10)
async def test_keys_values_headers_and_tombstones_arrive_as_they_were(transport: Transport) -> None:
    records: list[tuple[Any, Any, Any]] = [
        (b"k", b"v", []),
        (None, b"v", [("h", b"1"), ("h", b"2"), ("", b""), ("n", None), ("ü", b"\x00")]),
        (b"k", None, [("tombstone", b"")]),
        (None, None, []),
        (b"", b"", []),
        (bytes(range(256)), bytes(range(256)) * 100, [("x" * 300, bytes(1000))]),
    ]
    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            for key, value, headers in records:
                await producer.send("t", value, key=key, headers=headers)
        stored = [record for batch in cluster.batches("t") for record in batch.records()]
        assert [(r.key, r.value, list(r.headers)) for r in stored] == records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@bounded(10)
async def test_every_codec_is_stored_as_such_and_reads_back(codec: Any) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster, compression_type=codec) as producer:
            values = [b"value " * 100 + value for value in numbered(200)]
            await producer.send_many("t", values)
        batches = cluster.batches("t")
        assert {batch.codec.name.lower() for batch in batches} == {codec}
        assert all(batch.crc_ok() for batch in batches)
        assert stored_values(cluster) == values


@bounded(10)
async def test_timestamps_are_the_callers_or_the_brokers() -> None:
    clock = 1_700_000_000.0
    async with EmbeddedCluster(transport="memory", wall_clock=lambda: clock) as cluster:
        cluster.create_topic("create")
        cluster.create_topic("append", configs={"message.timestamp.type": "LogAppendTime"})
        async with producer_for(cluster) as producer:
            own = await producer.send("create", b"x", timestamp=1_600_000_000.123)
            assert (own.timestamp, own.timestamp_type) == (1_600_000_000_123, 0)
            theirs = await producer.send("append", b"x", timestamp=1_600_000_000.123)
            assert (theirs.timestamp, theirs.timestamp_type) == (1_700_000_000_000, 1)
            many = await producer.send_many("create", numbered(3), timestamp=0)
            assert [d.metadata.timestamp for d in many] == [0, 0, 0]
        [stored] = cluster.batches("create")[0].records()
        assert stored.timestamp_ms == 1_600_000_000_123
        assert cluster.batches("append")[0].log_append
        assert cluster.batches("append")[0].records()[0].timestamp_ms == 1_700_000_000_000


@bounded(10)
async def test_a_timestamp_the_topic_refuses_fails_its_record_alone() -> None:
    async with (
        EmbeddedCluster(transport="memory", wall_clock=lambda: 1e9) as cluster,
        producer_for(cluster) as producer,
    ):
        with pytest.raises(errors.InvalidTimestampError) as caught:
            await producer.send("t", b"x", timestamp=2e9)
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        assert (await producer.send("t", b"y", timestamp=1e9)).offset == 0


@EVERY_WORLD
@bounded(10)
async def test_metadata_says_where_a_record_is(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport, default_partitions=2) as cluster:
        async with producer_for(cluster) as producer:
            await producer.send("t", b"0", partition=1)
            there = await producer.send("t", b"1", partition=1)
            assert (there.topic, there.partition, there.offset) == ("t", 1, 1)
            assert there.topic_partition == TopicPartition("t", 1)
            assert there.has_offset
            assert there.log_start_offset == 0
        assert stored_values(cluster, "t", 1) == [b"0", b"1"]


@EVERY_WORLD
@bounded(10)
async def test_acks_0_is_never_called_acknowledged(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        arrived = on_arrival(cluster, 20)
        async with producer_for(cluster, acks=0, enable_idempotence=False) as producer:
            deliveries = await producer.send_many("t", numbered(20))
            assert {d.status for d in deliveries} == {DeliveryStatus.UNKNOWN}
            assert {d.exception() for d in deliveries} == {None}
            assert not any(d.metadata.has_offset for d in deliveries)
            kinds = {(d.metadata.timestamp_type, d.metadata.log_start_offset) for d in deliveries}
            assert kinds == {(0, None)}, "the times are those of the records"
            assert producer.statistics().records_acked == 0
            await arrived.wait()
        assert stored_values(cluster) == numbered(20)


@EVERY_WORLD
@bounded(10)
async def test_acks_1_is_acknowledged_by_the_leader_alone(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with producer_for(cluster, acks=1, enable_idempotence=False) as producer:
            assert (await producer.send("t", b"x")).offset == 0
        assert cluster.high_watermark("t") == 0
        assert cluster.batches("t")[0].producer_id == -1


# --- retries --------------------------------------------------------------------------------------


def once(condition: Callable[[RequestSeen], bool], action: Action) -> Callable[[RequestSeen], Any]:
    """Make an interceptor that acts on the first Produce request for which the condition holds."""
    done = False

    def hook(seen: RequestSeen) -> Action | None:
        nonlocal done
        if done or seen.api_key != PRODUCE or not condition(seen):
            return None
        done = True
        return action

    return hook


def carries(sequence: int) -> Callable[[RequestSeen], bool]:
    """Return a condition: whether a request carries the batch of this base sequence."""
    return lambda seen: any(batch.base_sequence == sequence for batch in seen.batches)


FAULTS = [
    pytest.param(CloseConnection(), id="connection cut before the append"),
    pytest.param(CloseConnection(processed=True), id="connection cut after the append"),
    pytest.param(Drop(), id="request lost"),
    pytest.param(Drop(processed=True), id="answer lost"),
    pytest.param(Refuse(ErrorCode.not_leader_or_follower), id="NOT_LEADER"),
    pytest.param(AfterAppend(ErrorCode.not_leader_or_follower), id="NOT_LEADER after the append"),
    pytest.param(Refuse(ErrorCode.not_enough_replicas), id="NOT_ENOUGH_REPLICAS"),
    pytest.param(AfterAppend(ErrorCode.request_timed_out), id="REQUEST_TIMED_OUT"),
    pytest.param(Refuse(ErrorCode.corrupt_message), id="CORRUPT_MESSAGE"),
    pytest.param(Refuse(ErrorCode.leader_not_available), id="LEADER_NOT_AVAILABLE"),
    pytest.param(AfterAppend(ErrorCode.unknown_server_error), id="UNKNOWN_SERVER_ERROR"),
    pytest.param(Refuse(ErrorCode.kafka_storage_error), id="KAFKA_STORAGE_ERROR"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("sequence", [0, 1, 30], ids=["first", "second", "under load"])
@bounded(120)
async def test_after_any_single_fault_there_is_exactly_one_copy_in_order(
    fault: Action, sequence: int
) -> None:
    async with EmbeddedCluster(retain=20, rtt=0.05, transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.intercept(once(carries(sequence), fault))
        async with producer_for(
            cluster,
            max_in_flight_requests_per_connection=20,
            batch_size=1,
            late_sealing=False,
            request_timeout=5.0,
        ) as producer:
            deliveries = await producer.send_many("t", numbered(60))
            # No sequence was given up: nothing was lost or sent under another identity.
            statistics = producer.statistics()
            assert (statistics.epoch_bumps, statistics.data_loss_events) == (0, 0)
        assert stored_values(cluster) == numbered(60)
        # A batch that only a later batch's success proves to be stored has the offset -1.
        for number, delivery in enumerate(deliveries):
            assert delivery.metadata.offset in (number, -1)


@REAL_LOOPS
@pytest.mark.parametrize(
    "fault", [CloseConnection(), CloseConnection(processed=True)], ids=["before", "after"]
)
@bounded(20)
async def test_a_connection_cut_mid_request_leaves_exactly_one_copy_in_order(
    transport: Transport, fault: Action
) -> None:
    async with EmbeddedCluster(rtt=0.01, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(once(carries(10), fault))
        async with producer_for(cluster, batch_size=1, late_sealing=False) as producer:
            await producer.send_many("t", numbered(40))
        assert stored_values(cluster) == numbered(40)


@EVERY_WORLD
@bounded(20)
async def test_records_follow_a_leader_that_moves_to_and_fro(transport: Transport) -> None:
    async with EmbeddedCluster(brokers=3, rtt=0.01, transport=transport) as cluster:
        cluster.create_topic("t", replication=3)
        async with producer_for(
            cluster, batch_size=1, late_sealing=False, retry_backoff=0.01
        ) as producer:
            deliveries = [producer.send_nowait("t", value) for value in numbered(120)]
            for broker, number in [(1, 20), (2, 50), (0, 80)]:
                await deliveries[number]
                cluster.move_leader("t", 0, broker)
            await producer.flush()
            assert [d.status for d in deliveries] == [DeliveryStatus.ACKED] * 120
        assert stored_values(cluster) == numbered(120)


@bounded(60)
async def test_records_survive_a_restart_of_the_only_broker() -> None:
    async with EmbeddedCluster(rtt=0.01, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, batch_size=1, late_sealing=False) as producer:
            for start, clean in [(0, True), (60, False)]:
                deliveries = [producer.send_nowait("t", value) for value in numbered(60, start)]
                await deliveries[10]
                await cluster.stop_broker(0, clean=clean)
                await virtual_time(2.0)
                await cluster.start_broker(0)
                await producer.flush()
                assert {d.status for d in deliveries} == {DeliveryStatus.ACKED}
        assert stored_values(cluster) == numbered(120)


@bounded(60)
async def test_no_request_is_larger_than_max_request_size() -> None:
    """No request is larger than max_request_size, however many partitions share a connection."""
    sizes: list[int] = []

    def look(seen: RequestSeen) -> Action | None:
        if seen.api_key == PRODUCE:
            sizes.append(sum(batch.size for batch in seen.batches))
        return None

    async with EmbeddedCluster(rtt=0.05, transport="memory") as cluster:
        cluster.create_topic("t", partitions=10)
        cluster.intercept(look)
        async with producer_for(cluster, max_request_size=50_000) as producer:
            deliveries = [
                producer.send_nowait("t", bytes(1000), partition=number % 10)
                for number in range(3000)
            ]
            await producer.flush()
            assert {d.status for d in deliveries} == {DeliveryStatus.ACKED}
        assert max(sizes) <= 50_000


@bounded(60)
async def test_a_recreated_topic_is_written_to_under_its_new_id_and_a_bumped_epoch() -> None:
    """Records sent after a topic was recreated go to the new topic, under its id and a new epoch.

    The first request still has the old topic's id, and is refused without an append. So the records
    can be sent again to the new topic.
    """
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            await producer.send_many("t", numbered(5))
            cluster.delete_topic("t")
            cluster.create_topic("t")
            assert (await producer.send("t", b"5")).offset == 0
            assert (await producer.send("t", b"6")).offset == 1
            assert producer.statistics().epoch_bumps == 1
        assert stored_values(cluster) == [b"5", b"6"]
        assert cluster.batches("t")[0].producer_epoch == 1


async def test_after_wait_for_room_there_is_room_for_a_record_of_that_size() -> None:
    """After wait_for_room(size) the buffer has room for a record of that size.

    If wait_for_room returned earlier, at a quarter of free buffer, then callers with a larger
    record would call send_nowait and wait_for_room in a busy loop.
    """
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, buffer_memory=1000) as producer:
            first = producer.send_nowait("t", b"x" * 900)
            with pytest.raises(errors.BufferFullError):
                producer.send_nowait("t", b"y" * 700)
            await producer.wait_for_room(700)
            second = producer.send_nowait("t", b"y" * 700)
            assert (await first).has_offset
            assert (await second).has_offset


# --- calls at the ends of a life ------------------------------------------------------------------


@EVERY_WORLD
@bounded(20)
async def test_a_start_during_which_the_producer_is_closed_says_so(transport: Transport) -> None:
    """It does not say that metadata took too long."""
    async with EmbeddedCluster(transport=transport) as cluster:
        arrived = unanswered(cluster)
        producer = producer_for(cluster)

        async def start() -> None:
            with pytest.raises(errors.ProducerClosed, match="closed while it was being started"):
                await producer.start()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await arrived.wait()
            await producer.close()


@EVERY_WORLD
@bounded(20)
async def test_a_flush_without_time_returns_if_nothing_is_to_be_waited_for(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            await producer.send("t", b"x")
            assert await producer.flush(0) == DeliveryCounts(0, 0, 0)
            cluster.hold_high_watermark("t")
            producer.send_nowait("t", b"y")
            with pytest.raises(errors.KafkaTimeoutError, match="1 records have no outcome"):
                await producer.flush(0)
            cluster.release_high_watermark("t")
            assert await producer.flush() == DeliveryCounts(1, 0, 0)


@pytest.mark.parametrize(
    ("timeout", "kind"),
    [
        (timedelta(seconds=5), TypeError),
        ("5", TypeError),
        (True, TypeError),
        (float("nan"), ValueError),
    ],
)
@bounded(10)
async def test_a_close_with_a_bad_timeout_closes_nothing(
    timeout: Any, kind: type[Exception]
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        producer = producer_for(cluster, linger=1.0)
        await producer.start()
        delivery = producer.send_nowait("t", b"x")
        with pytest.raises(kind, match="timeout"):
            await producer.close(timeout)
        assert not delivery.done()
        await producer.close()
        assert delivery.status is DeliveryStatus.ACKED


@bounded(20)
@pytest.mark.parametrize("timeout", [timedelta(seconds=5), "5", float("nan")])
@pytest.mark.parametrize("call", ["flush", "commit_transaction", "abort_transaction", "resolve"])
async def test_a_call_with_a_bad_timeout_does_nothing(call: str, timeout: Any) -> None:
    """It leaves the record in its buffer, and the transaction open."""
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster, transactional_id="x", linger=1.0) as producer,
    ):
        await producer.begin_transaction()
        delivery = producer.send_nowait("t", b"x")
        asked = delivery if call == "resolve" else producer
        with pytest.raises((TypeError, ValueError), match="timeout"):
            await getattr(asked, call)(timeout=timeout)
        assert not delivery.done()
        await producer.commit_transaction()
        assert delivery.status is DeliveryStatus.ACKED


class Fails(logging.Handler):
    """A handler of the program whose disk is full; it does not handle its own errors."""

    def emit(self, record: logging.LogRecord) -> None:
        raise BoomError(record.getMessage())


def refuses(record: logging.LogRecord) -> bool:
    raise BoomError(record.getMessage())


@EVERY_WORLD
@pytest.mark.parametrize("part", ["handler", "filter"])
@bounded(20)
async def test_a_log_that_fails_does_not_end_the_producer(
    transport: Transport, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error goes to stderr, as that of a handler does that handles its own errors."""
    logger, handler = logging.getLogger("aioidem"), Fails()

    def raises(_: Delivery) -> None:
        raise ZeroDivisionError

    if part == "handler":
        logger.addHandler(handler)
    else:
        logger.addFilter(refuses)
    try:
        async with (
            EmbeddedCluster(transport=transport) as cluster,
            producer_for(cluster) as producer,
        ):
            for value in numbered(2):
                delivery = producer.send_nowait("t", value)
                delivery.add_done_callback(raises)
                await delivery
    finally:
        logger.removeHandler(handler)
        logger.removeFilter(refuses)
    assert "BoomError: a delivery callback raised [callback-raised]" in capsys.readouterr().err
