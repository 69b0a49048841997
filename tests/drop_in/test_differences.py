"""What the drop-in does differently on purpose: tests show its behaviour and aiokafka's.

Every test here is a row of the table in docs/aiokafka.md, and every row has a test. When an
assertion about aiokafka fails with a new release, its row can go.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import anyio
import pytest
from aiokafka.producer.transaction_manager import TransactionManager
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, ConsumerGroupMetadata, DeliveryStatus, errors
from aioidem._broker.entities import respond
from aioidem._broker.intercept import (
    Action,
    CloseConnection,
    Delay,
    Drop,
    Refuse,
    RequestSeen,
    Respond,
)
from aioidem._engine.idempotence import wire_sequence
from aioidem.broker import EmbeddedCluster
from aioidem.helpers import create_ssl_context

from .suite import raised

THEIRS = aiokafka.AIOKafkaProducer
PAGE = Path(__file__).parents[2] / "docs" / "aiokafka.md"
PRODUCE = 0
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_leak")]

Script = list[Action | None]
# These timeouts leave the producer enough time to start, and 1 s to deliver a record.
SHORT = {"request_timeout_ms": 500, "delivery_timeout_ms": 1000, "max_block_ms": 20_000}


def on_produce(cluster: EmbeddedCluster, script: Script, then: Action | None = None) -> None:
    """Answer Produce requests with these actions in turn, and all later ones with `then`."""
    left = list(script)

    def hook(seen: RequestSeen) -> Action | None:
        if seen.api_key != PRODUCE:
            return None
        return left.pop(0) if left else then

    cluster.intercept(hook)


def made(cluster: EmbeddedCluster, client: Any, **arguments: Any) -> Any:
    return client(bootstrap_servers=cluster.bootstrap_servers, **arguments)


async def within(seconds: float, awaitable: Any) -> bool:
    """Return whether an awaitable ends within `seconds`; its task is not cancelled."""
    done, _ = await asyncio.wait([asyncio.ensure_future(awaitable)], timeout=seconds)
    return bool(done)


async def test_timestamps_are_each_records_own(cluster: EmbeddedCluster) -> None:
    async def told(client: Any) -> list[int]:
        async with made(cluster, client, linger_ms=20) as producer:
            futures = [
                await producer.send("t", b"x", partition=0, timestamp_ms=stamp)
                for stamp in (1000, 1001, 1002)
            ]
            return [(await future).timestamp for future in futures]

    assert await told(THEIRS) == [1000, 1000, 1000]
    assert await told(AIOKafkaProducer) == [1000, 1001, 1002]


async def test_a_duplicate_tells_no_wrong_offsets(cluster: EmbeddedCluster) -> None:
    async def told(client: Any) -> list[int]:
        duplicate = Refuse(ErrorCode.duplicate_sequence_number)
        topic = client.__module__.partition(".")[0]
        async with made(cluster, client, linger_ms=20, enable_idempotence=True) as producer:
            await producer.send_and_wait(topic, b"before", partition=0)
            on_produce(cluster, [CloseConnection(processed=True), duplicate])
            futures = [await producer.send(topic, b"x", partition=0) for _ in range(3)]
            offsets = [(await future).offset for future in futures]
        cluster.intercept(None)
        return offsets

    assert await told(THEIRS) == [-1, 0, 1]
    assert await told(AIOKafkaProducer) == [1, 2, 3]


async def test_sequences_wrap_to_zero() -> None:
    place = aiokafka.TopicPartition("t", 0)
    theirs = TransactionManager(None, 1000)
    theirs.increment_sequence_number(place, 2**31 - 2)
    theirs.increment_sequence_number(place, 3)
    assert theirs.sequence_number(place) < 0
    assert wire_sequence(2**31 - 2 + 3) == 1


async def test_a_record_that_never_left_takes_no_number() -> None:
    async def goes_on(client: Any) -> bool:
        async with EmbeddedCluster(brokers=2, transport="tcp") as cluster:
            cluster.create_topic("t")
            arguments = {"enable_idempotence": True, "request_timeout_ms": 1000}
            if client is AIOKafkaProducer:
                arguments.update(SHORT)
            leader = cluster.leader("t")
            async with made(cluster, client, **arguments) as producer:
                await producer.send_and_wait("t", b"0", partition=0)
                await cluster.stop_broker(leader)
                await producer.client.force_metadata_update()
                await raised(producer.send_and_wait("t", b"lost", partition=0))
                await cluster.start_broker(leader)
                await producer.client.force_metadata_update()
                try:
                    await producer.send_and_wait("t", b"1", partition=0)
                except aiokafka.errors.OutOfOrderSequenceNumber:
                    return False
                return True

    assert not await goes_on(THEIRS)
    assert await goes_on(AIOKafkaProducer)


async def test_every_record_has_a_deadline(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    theirs = made(cluster, THEIRS, enable_idempotence=True, request_timeout_ms=1000)
    ours = made(cluster, AIOKafkaProducer, **SHORT)
    async with theirs, ours:
        on_produce(cluster, [], Drop())
        waits = await theirs.send("t", b"x")
        ends = await ours.send("t", b"x")
        assert await within(20, ends)
        assert isinstance(ends.exception(), errors.KafkaTimeoutError)
        assert ends.exception().status is DeliveryStatus.UNKNOWN
        assert not await within(1.5, asyncio.shield(waits))
        cluster.intercept(None)
        await waits


async def test_stop_ends_by_the_deadline(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    theirs = made(cluster, THEIRS, enable_idempotence=True, request_timeout_ms=1000)
    ours = made(cluster, AIOKafkaProducer, **SHORT)
    await theirs.start()
    await ours.start()
    on_produce(cluster, [], Drop())
    waits = await theirs.send("t", b"x")
    ends = await ours.send("t", b"x")
    assert await within(20, ours.stop())
    assert isinstance(ends.exception(), errors.KafkaTimeoutError)
    stopping = asyncio.ensure_future(theirs.stop())
    assert not await within(1.5, asyncio.shield(stopping))
    cluster.intercept(None)
    await stopping
    await waits


async def test_flush_does_not_linger(cluster: EmbeddedCluster) -> None:
    async def flushed(client: Any) -> bool:
        async with made(cluster, client, linger_ms=2000) as producer:
            await producer.send("t", b"x", partition=0)
            return await within(1, producer.flush())

    assert not await flushed(THEIRS)  # it waits for the end of linger_ms (2 s)
    assert await flushed(AIOKafkaProducer)


async def test_a_request_has_the_size_that_was_asked_for(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", partitions=3)

    async def largest(client: Any) -> int:
        sizes: list[int] = []

        def hook(seen: RequestSeen) -> None:
            sizes.append(sum(batch.size for batch in seen.batches))

        async with made(cluster, client, linger_ms=20, max_request_size=1000) as producer:
            await producer.partitions_for("t")
            cluster.intercept(hook)
            for partition in range(3):
                await producer.send("t", b"x" * 600, partition=partition)
            await producer.flush()
        cluster.intercept(None)
        return max(sizes)

    assert await largest(THEIRS) > 1000
    assert await largest(AIOKafkaProducer) <= 1000


@pytest.mark.parametrize(
    ("record", "ours"),
    [
        ({"value": None, "key": None}, errors.RecordError),
        ({"value": b"x", "partition": 99}, errors.UnknownTopicOrPartitionError),
        ({"value": b"x", "partition": -1}, errors.UnknownTopicOrPartitionError),
    ],
)
async def test_what_a_user_does_wrong_has_a_typed_error(
    cluster: EmbeddedCluster, record: dict[str, Any], ours: type[Exception]
) -> None:
    cluster.create_topic("t")
    for client, expected in ((THEIRS, AssertionError), (AIOKafkaProducer, ours)):
        async with made(cluster, client) as producer:
            assert type(await raised(producer.send("t", **record))) is expected


@pytest.mark.parametrize("topic", ["no topic!", "", ".", "x" * 250, None])
async def test_a_name_that_no_topic_can_have_is_refused_at_once(
    cluster: EmbeddedCluster, topic: Any
) -> None:
    async def told(client: Any) -> tuple[type[Exception], bool]:
        async with made(cluster, client, request_timeout_ms=1500) as producer:
            sending = asyncio.ensure_future(raised(producer.send(topic, b"x")))
            at_once = await within(1, sending)
            return type(await sending), at_once

    assert await told(THEIRS) == (aiokafka.errors.UnknownTopicOrPartitionError, False)
    assert await told(AIOKafkaProducer) == (errors.RecordError, True)


async def test_a_partitioner_that_fails_is_a_record_error(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    def fails(_key: bytes | None, _everything: Any, _available: Any) -> int:
        raise LookupError("mine")

    def elsewhere(_key: bytes | None, _everything: Any, _available: Any) -> int:
        return 99

    async with made(cluster, THEIRS, partitioner=fails) as producer:
        assert isinstance(await raised(producer.send("t", b"x")), LookupError)
    async with made(cluster, THEIRS, partitioner=elsewhere, request_timeout_ms=1500) as producer:
        future = await producer.send("t", b"x")
        assert not await within(1, future)
        assert isinstance(await raised(future), aiokafka.errors.NotLeaderForPartitionError)
    for partitioner in (fails, elsewhere):
        async with made(cluster, AIOKafkaProducer, partitioner=partitioner) as producer:
            error = await raised(producer.send_and_wait("t", b"x"))
            assert isinstance(error, errors.RecordError)
            assert isinstance(error.__cause__, LookupError) == (partitioner is fails)


@pytest.mark.parametrize(
    "arguments",
    [
        {"linger_ms": -1},
        {"max_batch_size": 0},
        {"bootstrap_servers": []},
        {"key_serializer": 5},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"},
        {"security_protocol": "SSL", "ssl_context": "none"},
    ],
    ids=str,
)
async def test_what_cannot_work_is_refused_by_the_constructor(arguments: dict[str, Any]) -> None:
    await THEIRS(**arguments).stop()
    with pytest.raises(errors.ConfigError):
        AIOKafkaProducer(**arguments)


async def test_an_empty_batch_has_metadata_without_an_offset(cluster: EmbeddedCluster) -> None:
    async def told(client: Any) -> Any:
        async with made(cluster, client) as producer:
            return await (await producer.send_batch(producer.create_batch(), "t", partition=0))

    assert await told(THEIRS) is None
    assert (await told(AIOKafkaProducer)).offset == -1


async def test_a_batchs_future_tells_its_first_records_timestamp(cluster: EmbeddedCluster) -> None:
    async def told(client: Any) -> int:
        async with made(cluster, client) as producer:
            batch = producer.create_batch()
            batch.append(timestamp=1234, key=None, value=b"x")
            sent = await (await producer.send_batch(batch, "t", partition=0))
            return int(sent.timestamp)

    assert await told(THEIRS) == -1
    assert await told(AIOKafkaProducer) == 1234


async def test_a_batch_is_sent_once(cluster: EmbeddedCluster) -> None:
    async with made(cluster, AIOKafkaProducer) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"x")
        await producer.send_batch(batch, "t", partition=0)
        assert batch.append(timestamp=None, key=None, value=b"too late") is None
        error = await raised(producer.send_batch(batch, "t", partition=0))
        assert isinstance(error, errors.RecordError)
    async with made(cluster, THEIRS) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"x")
        for _ in range(2):  # the second time, it fails or sends the records again
            future = await producer.send_batch(batch, "theirs", partition=0)
            await asyncio.wait([future], timeout=2)
    assert cluster.log_end_offset("t") == 1
    assert cluster.log_end_offset("theirs") == 2


async def test_batches_do_not_wait_for_one_another(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    async def queued(client: Any) -> bool:
        async with made(cluster, client) as producer:
            await producer.send_and_wait("t", b"x", partition=0)
            on_produce(cluster, [], Delay(0.4))
            for number in range(3):
                batch = producer.create_batch()
                batch.append(timestamp=None, key=None, value=b"%d" % number)
                if not await within(0.1, producer.send_batch(batch, "t", partition=0)):
                    cluster.intercept(None)
                    return False
            cluster.intercept(None)
            return True

    assert not await queued(THEIRS)
    assert await queued(AIOKafkaProducer)


async def test_sending_before_the_start_is_refused(cluster: EmbeddedCluster) -> None:
    theirs, ours = made(cluster, THEIRS), made(cluster, AIOKafkaProducer)
    sending = asyncio.ensure_future(theirs.send("t", b"x"))
    assert not await within(0.3, asyncio.shield(sending))
    sending.cancel()
    await theirs.stop()
    assert isinstance(await raised(ours.send("t", b"x")), errors.ProducerClosed)
    for client, waits in ((THEIRS, True), (AIOKafkaProducer, False)):
        stopped = made(cluster, client)
        await stopped.start()
        await stopped.stop()
        asking = asyncio.ensure_future(raised(stopped.partitions_for("new")))
        assert await within(0.3, asyncio.shield(asking)) is not waits
        asking.cancel()


async def test_a_producer_is_started_once(cluster: EmbeddedCluster) -> None:
    def senders() -> list[asyncio.Task[Any]]:
        named = "_sender_routine"
        return [t for t in asyncio.all_tasks() if named in getattr(t.get_coro(), "__name__", "")]

    theirs = made(cluster, THEIRS)
    await theirs.start()
    await theirs.start()
    assert len(senders()) == 2
    await theirs.stop()
    [left] = senders()
    left.cancel()
    async with made(cluster, AIOKafkaProducer) as ours:
        assert isinstance(await raised(ours.start()), errors.ProducerClosed)
        assert (await ours.send_and_wait("t", b"x")).offset == 0


async def test_what_is_omitted_is_safe(cluster: EmbeddedCluster) -> None:
    seen: dict[str, tuple[int, bool]] = {}

    def hook(request: RequestSeen) -> None:
        if request.api_key == PRODUCE:
            seen[str(request.client_id)] = (
                request.request.acks,
                all(batch.producer_id >= 0 for batch in request.batches),
            )

    cluster.intercept(hook)
    for client, name in ((THEIRS, "theirs"), (AIOKafkaProducer, "ours")):
        async with made(cluster, client, client_id=name) as producer:
            await producer.send_and_wait("t", b"x")
    assert seen == {"theirs": (1, False), "ours": (-1, True)}


async def test_a_producer_may_be_made_anywhere(cluster: EmbeddedCluster) -> None:
    def in_a_thread(client: Any) -> Any:
        return made(cluster, client)

    with pytest.raises(RuntimeError, match="event loop"):
        await anyio.to_thread.run_sync(in_a_thread, THEIRS)
    async with await anyio.to_thread.run_sync(in_a_thread, AIOKafkaProducer) as producer:
        await producer.send_and_wait("t", b"x")


async def test_tls_needs_no_context_and_a_context_needs_tls() -> None:
    with pytest.raises(ValueError, match="ssl_context"):
        THEIRS(security_protocol="SSL")
    AIOKafkaProducer(security_protocol="SSL")
    await THEIRS(ssl_context=create_ssl_context()).stop()  # aiokafka would speak plaintext here
    with pytest.raises(ValueError, match="expected security_protocol SSL"):
        AIOKafkaProducer(ssl_context=create_ssl_context())


async def test_a_wrong_call_is_a_kafka_error_as_well() -> None:
    assert not issubclass(aiokafka.errors.IllegalOperation, aiokafka.errors.KafkaError)
    assert issubclass(errors.IllegalOperation, errors.KafkaError)
    assert issubclass(errors.ConsumerStoppedError, errors.KafkaError)


async def test_time_before_1970_is_refused(cluster: EmbeddedCluster) -> None:
    async with made(cluster, THEIRS) as producer:
        assert (await producer.send_and_wait("t", b"x", timestamp_ms=-5)).timestamp == -5
    async with made(cluster, AIOKafkaProducer) as producer:
        error = await raised(producer.send("t", b"x", timestamp_ms=-5))
        assert isinstance(error, errors.RecordError)


async def test_time_in_smaller_units_is_refused(cluster: EmbeddedCluster) -> None:
    micros = 1_700_000_000_000_000
    async with made(cluster, THEIRS) as producer:
        error = await raised(producer.send_and_wait("t", b"x", timestamp_ms=micros))
        assert isinstance(error, aiokafka.errors.InvalidTimestampError)
    async with made(cluster, AIOKafkaProducer) as producer:
        error = await raised(producer.send("t", b"x", timestamp_ms=micros))
        assert isinstance(error, errors.RecordError)
        assert "microseconds" in str(error)


async def test_one_bad_answer_does_not_end_a_partition(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    async def goes_on(client: Any) -> bool:
        async with made(cluster, client, enable_idempotence=True) as producer:
            await producer.send_and_wait("t", b"0", partition=0)
            on_produce(cluster, [Refuse(ErrorCode.invalid_timestamp)])
            await raised(producer.send_and_wait("t", b"refused", partition=0))
            cluster.intercept(None)
            try:
                await producer.send_and_wait("t", b"1", partition=0)
            except aiokafka.errors.OutOfOrderSequenceNumber:
                return False
            return True

    assert not await goes_on(THEIRS)
    assert await goes_on(AIOKafkaProducer)


# -- transactions ----------------------------------------------------------------------------------

ADD_OFFSETS, END_TXN, COMMIT_OFFSETS = 25, 26, 28


def no_group(seen: RequestSeen) -> Action | None:
    """Answer AddOffsetsToTxn and TxnOffsetCommit with GROUP_AUTHORIZATION_FAILED."""
    refusal = {"throttle_time": timedelta(0), "error_code": ErrorCode.group_authorization_failed}
    if seen.api_key == COMMIT_OFFSETS:
        part = {"partition_index": 0, "error_code": ErrorCode.group_authorization_failed}
        refusal = {"throttle_time": timedelta(0), "topics": [{"name": "t", "partitions": [part]}]}
    elif seen.api_key != ADD_OFFSETS:
        return None
    return Respond(respond(seen.api_key, seen.api_version, refusal))


def transactional(cluster: EmbeddedCluster, client: Any, **arguments: Any) -> Any:
    return made(cluster, client, transactional_id=client.__module__, **arguments)


async def offsets_of(cluster: EmbeddedCluster, group: str, partition: int = 0) -> int | None:
    place = aiokafka.TopicPartition("t", partition)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([place])
        async with asyncio.timeout(5):
            return await consumer.committed(place)  # type: ignore[no-any-return]
    finally:
        await consumer.stop()


async def test_calls_out_of_order_have_a_typed_error(cluster: EmbeddedCluster) -> None:
    for client, expected in (
        (THEIRS, AssertionError),
        (AIOKafkaProducer, errors.IllegalStateError),
    ):
        async with transactional(cluster, client) as producer:
            assert type(await raised(producer.commit_transaction())) is expected
            assert type(await raised(producer.abort_transaction())) is expected
            await producer.begin_transaction()
            assert type(await raised(producer.begin_transaction())) is expected
            await producer.abort_transaction()


async def test_a_transaction_with_a_failed_record_is_not_committed(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t")

    async def committed(client: Any) -> BaseException | None:
        async with transactional(cluster, client) as producer:
            await producer.begin_transaction()
            on_produce(cluster, [Refuse(ErrorCode.invalid_timestamp)])
            await raised(producer.send_and_wait("t", b"refused"))
            cluster.intercept(None)
            error = None
            try:
                await producer.commit_transaction()
            except errors.KafkaError as refusal:
                error = refusal
                await producer.abort_transaction()
            async with producer.transaction():
                pass
            return error

    assert await committed(THEIRS) is None  # it commits without the record
    assert isinstance(await committed(AIOKafkaProducer), errors.InvalidTimestampError)


async def test_a_failed_transaction_says_why(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    cluster.intercept(no_group)
    for client, expected in (
        (THEIRS, aiokafka.errors.IllegalOperation),
        (AIOKafkaProducer, errors.GroupAuthorizationFailedError),
    ):
        async with transactional(cluster, client) as producer:
            await producer.begin_transaction()
            offsets = {aiokafka.TopicPartition("t", 0): 1}
            refused = await raised(producer.send_offsets_to_transaction(offsets, "group"))
            assert type(refused).__name__ == "GroupAuthorizationFailedError"  # with both clients
            assert type(await raised(producer.send("t", b"x"))) is expected
            again = producer.send_offsets_to_transaction(offsets, "group")
            assert type(await raised(again)) is expected
            refused = await raised(producer.commit_transaction())
            assert type(refused).__name__ == "GroupAuthorizationFailedError"  # with both clients
            await producer.abort_transaction()


async def test_an_abort_delivers_nothing_first(cluster: EmbeddedCluster) -> None:
    async def outcome(client: Any) -> asyncio.Future[Any]:
        topic = client.__module__.partition(".")[0]
        async with transactional(cluster, client, linger_ms=1000) as producer:
            await producer.begin_transaction()
            future: asyncio.Future[Any] = await producer.send(topic, b"x", partition=0)
            await producer.abort_transaction()
            await asyncio.wait([future], timeout=5)
            return future

    assert (await outcome(THEIRS)).exception() is None
    assert cluster.log_end_offset("aiokafka") > 0
    error = (await outcome(AIOKafkaProducer)).exception()
    assert isinstance(error, errors.TransactionAborted)
    assert error.status is DeliveryStatus.NOT_WRITTEN
    assert cluster.log_end_offset("aioidem") == 0


async def test_the_end_of_a_transaction_has_a_deadline(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    def hook(seen: RequestSeen) -> Action | None:
        return Drop() if seen.api_key == END_TXN else None

    theirs = transactional(cluster, THEIRS, request_timeout_ms=1000)
    ours = transactional(cluster, AIOKafkaProducer, **SHORT | {"max_block_ms": 1000})
    async with theirs, ours:
        ends = []
        for producer in (ours, theirs):
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"x")
            cluster.intercept(hook)
            ends.append(asyncio.ensure_future(producer.commit_transaction()))
            if producer is ours:
                assert isinstance(await raised(ends[0]), errors.KafkaTimeoutError)
                cluster.intercept(None)
                await producer.commit_transaction()  # asks for the outcome
            else:
                assert not await within(1.5, asyncio.shield(ends[1]))
                cluster.intercept(None)
                await ends[1]
    assert cluster.last_stable_offset("t") == cluster.log_end_offset("t")


async def test_stop_aborts_an_open_transaction(cluster: EmbeddedCluster) -> None:
    for client, ended in ((THEIRS, False), (AIOKafkaProducer, True)):
        topic = client.__module__.partition(".")[0]
        async with transactional(cluster, client) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"x", partition=0)
        open_at = cluster.last_stable_offset(topic)
        # An open transaction stops read_committed consumers at its first record, until it times
        # out after a minute.
        assert (open_at == cluster.log_end_offset(topic)) is ended


async def test_a_block_that_cannot_commit_aborts(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")

    async def goes_on(client: Any) -> bool:
        async def block() -> None:
            async with producer.transaction():
                offsets = {aiokafka.TopicPartition("t", 0): 1}
                await raised(producer.send_offsets_to_transaction(offsets, "group"))

        async with transactional(cluster, client) as producer:
            cluster.intercept(no_group)
            assert type(await raised(block())).__name__ == "GroupAuthorizationFailedError"
            cluster.intercept(None)
            try:
                await producer.begin_transaction()
            except AssertionError:
                await producer.abort_transaction()
                return False
            return True

    assert not await goes_on(THEIRS)
    assert await goes_on(AIOKafkaProducer)


async def test_a_fatal_error_is_raised_by_every_call(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    for client, expected in (
        (THEIRS, [AssertionError, aiokafka.errors.IllegalOperation, AssertionError]),
        (AIOKafkaProducer, [errors.ProducerFenced] * 3),
    ):
        async with transactional(cluster, client) as old, transactional(cluster, client) as new:
            async with new.transaction():
                await new.send_and_wait("t", b"new")
            await old.begin_transaction()
            await raised(old.send_and_wait("t", b"old"))
            with suppress(AssertionError, errors.KafkaError):
                await old.abort_transaction()  # `old` may not know yet that it is fenced
            calls = [old.begin_transaction(), old.send("t", b"x"), old.commit_transaction()]
            assert [type(await raised(call)) for call in calls] == expected


async def test_offsets_are_numbers_from_zero(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    place = aiokafka.TopicPartition("t", 0)
    async with transactional(cluster, THEIRS) as producer:
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({place: -5}, "theirs")
        await producer.commit_transaction()
    async with transactional(cluster, THEIRS) as producer:
        await producer.begin_transaction()
        sending = asyncio.ensure_future(
            producer.send_offsets_to_transaction({place: ("5", "")}, "theirs")
        )
        # The illegal offset ended aiokafka's sender task, so the call raises a bare KafkaError.
        assert type(await raised(sending)) is aiokafka.errors.KafkaError
    async with transactional(cluster, AIOKafkaProducer) as producer, producer.transaction():
        for offset, expected in ((-5, errors.RecordError), (("5", ""), TypeError)):
            sending = producer.send_offsets_to_transaction({place: offset}, "ours")
            assert type(await raised(sending)) is expected
        await producer.send_offsets_to_transaction({place: 5}, "ours")
    assert await offsets_of(cluster, "ours") == 5


async def test_two_groups_offsets_go_into_one_transaction(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    place = aiokafka.TopicPartition("t", 0)

    async def both(client: Any) -> bool:
        async with transactional(cluster, client, request_timeout_ms=1000) as producer:
            groups = [f"{client.__module__}-{number}" for number in (1, 2)]
            try:
                async with producer.transaction():
                    for group in groups:
                        await producer.send_offsets_to_transaction({place: 3}, group)
            except (AssertionError, aiokafka.errors.KafkaError):
                return False
        return [await offsets_of(cluster, group) for group in groups] == [3, 3]

    assert not await both(THEIRS)
    assert await both(AIOKafkaProducer)


async def test_offsets_come_with_the_consumers_place(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    place = aiokafka.TopicPartition("t", 0)
    cluster.set_group("group", 7, {"member": None})
    async with transactional(cluster, THEIRS) as producer, producer.transaction():
        anyone = ConsumerGroupMetadata("group", 7, "member")
        sending = producer.send_offsets_to_transaction({place: 3}, anyone)
        assert isinstance(await raised(sending), ValueError)
    async with transactional(cluster, AIOKafkaProducer) as producer:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({place: 3}, anyone)
        await producer.begin_transaction()
        late = ConsumerGroupMetadata("group", 6, "member")
        refused = await raised(producer.send_offsets_to_transaction({place: 2}, late))
        assert isinstance(refused, errors.IllegalGenerationError | errors.CommitFailedError)
        await producer.abort_transaction()
    assert await offsets_of(cluster, "group") == 3


async def test_a_transaction_that_timed_out_can_be_aborted(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    cluster.set_broker_config("transaction.abort.timed.out.transaction.cleanup.interval.ms", "100")

    async def goes_on(client: Any) -> bool:
        arguments = {"transaction_timeout_ms": 300}
        async with transactional(cluster, client, **arguments) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"x")
            async with asyncio.timeout(20):
                # A broker does not notify clients of a transaction timeout, so the test polls for
                # it.
                while cluster.last_stable_offset("t") < cluster.log_end_offset("t"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            refused = await raised(producer.send_and_wait("t", b"too late"))
            assert type(refused).__name__ == "ProducerFenced"  # with both clients
            try:
                await producer.abort_transaction()
            except (AssertionError, aiokafka.errors.KafkaError):
                return False
            async with producer.transaction():
                await producer.send("t", b"y")
            return True

    assert not await goes_on(THEIRS)
    assert await goes_on(AIOKafkaProducer)


def test_the_table_and_these_tests_name_one_another() -> None:
    def named(text: str, pattern: str) -> set[str]:
        return set(re.findall(pattern, text))

    table = PAGE.read_text(encoding="utf-8").partition("## What differs")[2].partition("\n## ")[0]
    source = Path(__file__).read_text(encoding="utf-8")
    here = named(source, r"async def (test_\w+)")
    assert named(table, r"`(test_\w+)`") == here
