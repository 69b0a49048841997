"""A broker names the records for which it refuses a batch (KIP-467); the others are delivered.

A compacted topic refuses records without a key, and a topic with `message.timestamp.before.max.ms`
refuses records that are too old. A batch with a bad record is refused before any of it is appended.
"""

from __future__ import annotations

import time

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Delivery, DeliveryStatus, errors
from aioidem._aiokafka import AIOKafkaProducer
from aioidem._broker.intercept import Action, CloseConnection, Refuse, RequestSeen
from aioidem._engine.refusals import refusal_error
from aioidem._protocol.produce import PartitionAnswer
from aioidem.broker import EmbeddedCluster

from .tools import ASYNCIO, PRODUCE, bounded, producer_for, stored_values

pytestmark = pytest.mark.anyio

RTT = 0.05
COMPACT = {"cleanup.policy": "compact"}
ACKED, NOT_WRITTEN = DeliveryStatus.ACKED, DeliveryStatus.NOT_WRITTEN


def told(deliveries: list[Delivery]) -> list[int]:
    """Return which records failed; each must have failed because the broker named it."""
    failed = [n for n, delivery in enumerate(deliveries) if delivery.status is not ACKED]
    for n in failed:
        error = deliveries[n].exception()
        assert deliveries[n].status is NOT_WRITTEN
        assert isinstance(error, errors.InvalidRecord)
        assert "without key" in str(error)
    return failed


@pytest.mark.parametrize("idempotent", [True, False])
@bounded(60)
async def test_one_bad_record_fails_alone_among_the_three_of_its_batch(idempotent: bool) -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs=COMPACT)
        async with producer_for(cluster, enable_idempotence=idempotent) as producer:
            keys = [b"a", None, b"c"]
            deliveries = [producer.send_nowait("t", b"v%d" % n, key=k) for n, k in enumerate(keys)]
            await producer.flush()
            assert told(deliveries) == [1]
            assert "record 1 of its batch of 3" in str(deliveries[1].exception())
        assert stored_values(cluster) == [b"v0", b"v2"]
        assert [d.metadata.offset for d in deliveries if d.status is ACKED] == [0, 1]


@pytest.mark.parametrize("codec", ["none", "gzip"])
@bounded(60)
async def test_bad_records_in_a_full_window_fail_alone_and_nothing_changes_its_order(
    codec: str,
) -> None:
    async with EmbeddedCluster(retain=20, rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs=COMPACT)
        async with producer_for(
            cluster,
            max_in_flight_requests_per_connection=20,
            batch_size=1000,
            late_sealing=False,
            compression_type=codec,
        ) as producer:
            await producer.send("t", b"first", key=b"k")
            bad = {3, 40, 41, 77, 150, 299}
            deliveries = [
                producer.send_nowait(
                    "t", (b"%06d" % n).ljust(100, b"."), key=None if n in bad else b"k", partition=0
                )
                for n in range(300)
            ]
            await producer.flush()
            assert told(deliveries) == sorted(bad)
            statistics = producer.statistics()
            assert (statistics.data_loss_events, statistics.records_unknown) == (0, 0)
        good = [(b"%06d" % n).ljust(100, b".") for n in range(300) if n not in bad]
        assert stored_values(cluster) == [b"first", *good]
        assert cluster.max_span("t") <= 20


@bounded(60)
async def test_a_batch_in_doubt_is_not_torn_apart() -> None:
    """A batch in doubt fails as a whole when its resend is refused for one record.

    The answer to the first copy was lost, and a refusal of the second copy does not tell whether
    the first copy is stored.
    """
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t")
        served = 0

        def hook(seen: RequestSeen) -> Action | None:
            nonlocal served
            if seen.api_key != PRODUCE:
                return None
            served += 1
            if served == 1:
                return CloseConnection(processed=True)
            cluster.set_config("t", "cleanup.policy", "compact")
            return None

        async with producer_for(cluster, delivery_timeout=10.0, request_timeout=2.0) as producer:
            await producer.send("t", b"first", key=b"k", partition=0)
            cluster.intercept(hook)
            deliveries = [
                producer.send_nowait("t", b"v%d" % n, key=k, partition=0)
                for n, k in enumerate([b"a", None, b"c"])
            ]
            await producer.flush()
            assert served > 1
            assert {each.status for each in deliveries} == {DeliveryStatus.UNKNOWN}
        assert stored_values(cluster) == [b"first", b"v0", b"v1", b"v2"]


@bounded(60)
async def test_records_too_old_fail_alone() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={"message.timestamp.before.max.ms": "60000"})
        async with producer_for(cluster) as producer:
            now = time.time()
            deliveries = [
                producer.send_nowait("t", b"%d" % n, timestamp=now - age)
                for n, age in enumerate([0, 3600, 0, 3600])
            ]
            await producer.flush()
            assert [each.status for each in deliveries] == [ACKED, NOT_WRITTEN] * 2
            assert isinstance(deliveries[1].exception(), errors.InvalidTimestampError)
        assert stored_values(cluster) == [b"0", b"2"]


@bounded(60)
async def test_in_a_transaction_one_bad_record_makes_it_abortable() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs=COMPACT)
        async with producer_for(cluster, transactional_id="x") as producer:
            await producer.begin_transaction()
            deliveries = [
                producer.send_nowait("t", b"v%d" % n, key=k) for n, k in enumerate([b"a", None])
            ]
            with pytest.raises(errors.KafkaError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            assert [each.status for each in deliveries] == [NOT_WRITTEN] * 2
            assert isinstance(deliveries[1].exception(), errors.InvalidRecord)
            async with producer.transaction():
                await producer.send("t", b"later", key=b"k")


@ASYNCIO
async def test_a_closed_batch_of_the_drop_in_fails_as_a_whole() -> None:
    """A batch that the caller built fails as a whole if one record is refused.

    The caller gets one outcome for the whole batch. If the producer sent the other records again
    without the refused one, they would be stored, and the outcome NOT_WRITTEN would be false.
    """
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", configs=COMPACT)
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        await producer.start()
        try:
            batch = producer.create_batch()
            for n, key in enumerate([b"a", None, b"c"]):
                batch.append(key=key, value=b"v%d" % n, timestamp=None)
            batch.close()
            sent = await producer.send_batch(batch, "t", partition=0)
            with pytest.raises(errors.InvalidRecord):
                await sent
            await producer.send_and_wait("t", b"later", key=b"k")
        finally:
            await producer.stop()
        assert stored_values(cluster) == [b"later"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (
            ErrorCode.invalid_timestamp,
            (
                ". Check the records' timestamps, this machine's clock, and the topic's "
                "message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            ),
        ),
        (
            ErrorCode.topic_authorization_failed,
            ". Grant this client's principal WRITE on the topic",
        ),
        (ErrorCode.invalid_request, ". The log of that broker may say more"),
    ],
)
@bounded(60)
async def test_the_error_of_a_refused_batch_says_who_refused_what_and_what_to_do(
    code: ErrorCode, advice: str
) -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            await producer.send("t", b"first")

            def refuse(request: RequestSeen) -> Action | None:
                return Refuse(code) if request.api_key == PRODUCE else None

            cluster.intercept(refuse)
            deliveries = [producer.send_nowait("t", b"v") for _ in range(2)]
            await producer.flush()
            for delivery in deliveries:
                error = delivery.exception()
                assert delivery.status is NOT_WRITTEN
                assert error is not None
                told = "t-0: broker 0 (embedded-0:9092) refused a batch of 2 records in attempt 1"
                assert error.args == (told + advice,)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.unsupported_compression_type, "Choose another compression_type"),
        (ErrorCode.kafka_storage_error, "Check the disks of that broker"),
        (ErrorCode.invalid_required_acks, "Set acks to 0, 1 or all"),
        (ErrorCode.corrupt_message, "Check the network and the memory of both machines"),
        (ErrorCode.policy_violation, "Ask whoever runs the cluster what its policy demands"),
        (
            ErrorCode.invalid_topic_exception,
            "Choose another topic: this one is internal to Kafka",
        ),
        (
            ErrorCode.not_enough_replicas,
            "Check the topic's min.insync.replicas, and which replicas run",
        ),
        (
            ErrorCode.not_enough_replicas_after_append,
            "Check the topic's min.insync.replicas, and which replicas run",
        ),
        (
            ErrorCode.unsupported_for_message_format,
            "Check the topic's message.format.version: records need version 2",
        ),
        (
            ErrorCode.transactional_id_authorization_failed,
            "Grant this client's principal WRITE on the transactional id",
        ),
    ],
)
def test_the_error_of_a_refused_batch_ends_with_what_to_do(code: int, advice: str) -> None:
    error = refusal_error("t-0", PartitionAnswer("t", None, 0, code, -1), 1, 1, "broker 2 (b:9092)")
    assert str(error.args[0]).endswith(f"in attempt 1. {advice}")


def test_the_error_of_a_refused_batch_has_the_broker_s_own_words_before_the_advice() -> None:
    answer = PartitionAnswer(
        "t", None, 0, ErrorCode.kafka_storage_error, -1, error_message="The disk is full."
    )
    error = refusal_error("t-0", answer, 1, 3, "broker 2 (b:9092)")
    assert error.args == (
        (
            "t-0: broker 2 (b:9092) refused a batch of 1 record in attempt 3: The disk is full. "
            "Check the disks of that broker"
        ),
    )
