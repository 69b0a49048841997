"""Faults inside transactions, of protocol v2 (KIP-890) on Kafka 4.3.1 and of v1 on Kafka 3.9.1.

Each test ends with what is committed, as aiokafka's read_committed consumer sees it; at the end of
the file Java's consumer reads all of it once more. Where it matters how often a transaction was
ended, the test counts the markers that Kafka's dump tool shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer, TopicPartition
from aioidem._producer.delivery import Delivery
from aioidem._protocol.messages import decode_response, response_type
from aioidem.errors import (
    AbortableTransactionError,
    BrokerResponseError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidProducerEpoch,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailedError,
    TransactionAborted,
)
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, Cut, Drop, FrameSeen, Hold, Inspect, KafkaCluster
from tests.kafka.tools import History, SpanCount, bounded, outcomes
from tests.kafka.transactional import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    FIND,
    INIT,
    PRODUCE,
    Witness,
    decided,
    each_of,
    ends,
    forget,
    group_offset,
    markers_written,
    next_of,
    seen_of,
    send,
)
from tests.kafka.world import (
    WORLDS,
    World,
    delete_records,
    forbid_writing,
    leave_in_doubt,
    producer_of,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "world", [WORLDS["stock"], WORLDS["older"]], ids=["stock", "older"], indirect=True
    ),
]

ACKED, NOT_WRITTEN, UNKNOWN = (
    DeliveryStatus.ACKED,
    DeliveryStatus.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN,
)
SOURCE = "txn-source"


@pytest.fixture(scope="module")
async def witness(shared: KafkaCluster) -> AsyncIterator[Witness]:
    await shared.create_topic(SOURCE)
    seen = Witness(shared)
    yield seen
    await seen.java_reads_the_same()


@asynccontextmanager
async def writing(
    cluster: KafkaCluster, world: World, topic: str, **options: Any
) -> AsyncIterator[Producer]:
    """Create a topic, and run a producer whose transactional id is the topic's name."""
    await cluster.create_topic(topic)
    forget(cluster)
    async with producer_of(
        cluster, world, transactional_id=topic, retry_backoff_max=0.2, **options
    ) as producer:
        yield producer


def modern(world: World) -> bool:
    """Return whether the broker speaks transactions v2."""
    return world.version >= "4"


async def transaction(
    producer: Producer, topic: str, name: str, count: int = 5, *, offset: int | None = None
) -> None:
    """Commit a transaction of `count` records, and of a group's offset if one is given."""
    await producer.begin_transaction()
    send(producer, topic, name, count)
    if offset is not None:
        await send_offset(producer, topic, offset)
    await producer.commit_transaction()


async def send_offset(producer: Producer, group: str, offset: int) -> None:
    await producer.send_offsets_to_transaction({TopicPartition(SOURCE, 0): offset}, group)


def statuses(deliveries: Iterable[Delivery]) -> set[DeliveryStatus]:
    return {each.status for each in deliveries}


async def doomed(producer: Producer, cause: type[KafkaError]) -> None:
    """Assert that the open transaction cannot be committed, because of `cause`, and abort it."""
    with pytest.raises(AbortableTransactionError) as caught:
        await producer.commit_transaction()
    assert isinstance(caught.value.__cause__, cause)
    await producer.abort_transaction()


async def until_answered(cluster: KafkaCluster, api_key: int, count: int) -> None:
    """Wait until the broker has answered `count` requests of an API, on whatever connections."""
    await cluster.proxy.until(lambda: len(seen_of(cluster, api_key, answer=True)) >= count)


# -- without faults --------------------------------------------------------------------------------


@bounded(60)
async def test_commits_and_aborts_in_the_protocol_of_the_cluster(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    async with writing(cluster, world, "txn-ends") as producer:
        for number, (name, commit) in enumerate([("one", True), ("two", False), ("three", True)]):
            await producer.begin_transaction()
            sent = send(producer, "txn-ends", name, 3 * world.window)
            await send_offset(producer, "txn-ends", number)
            assert set(await outcomes(sent)) == {ACKED}
            await (producer.commit_transaction() if commit else producer.abort_transaction())
            expected = 2 * (number // 2)
            assert await group_offset(cluster, "txn-ends", SOURCE) == expected
        await producer.begin_transaction()
        sent = send(producer, "txn-ends", "four", 3)
        await producer.abort_transaction()
        assert statuses(sent) <= {ACKED, NOT_WRITTEN}
        for each in sent:
            assert each.status is ACKED or isinstance(each.exception(), TransactionAborted)
    spoken = {seen.api_version for seen in seen_of(cluster, END)}
    assert spoken == ({5} if modern(world) else {4})
    added = seen_of(cluster, ADD_PARTITIONS) + seen_of(cluster, ADD_OFFSETS)
    assert bool(added) is not modern(world)
    await witness.reads("txn-ends", ("one", 3 * world.window), ("three", 3 * world.window))
    assert (await ends(cluster, "txn-ends"))[:3] == ["COMMIT", "ABORT", "COMMIT"]


@bounded(60)
async def test_an_abort_right_after_a_commit(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """An abort right after a commit succeeds, although the coordinator still writes markers."""
    topic, names = "txn-at-once", [str(number) for number in range(20)]
    async with writing(cluster, world, topic) as producer:
        for name in names:
            await transaction(producer, topic, name, 3)
            await producer.begin_transaction()
            send(producer, topic, f"{name}-aborted", 2)
            for _ in range(int(name) % 5):
                await anyio.lowlevel.checkpoint()
            await producer.abort_transaction()
    await witness.reads(topic, *((name, 3) for name in names))


# -- fencing ---------------------------------------------------------------------------------------


@bounded(60)
async def test_a_twin_fences_what_is_open(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """If another producer takes the transactional id, commit and every later call raise."""
    topic = "txn-twin"
    async with writing(cluster, world, topic) as old:
        await transaction(old, topic, "before")
        await old.begin_transaction()
        assert set(await outcomes(send(old, topic, "lost", 5))) == {ACKED}
        async with producer_of(cluster, world, transactional_id=topic) as twin:
            with pytest.raises(ProducerFenced) as caught:
                await old.commit_transaction()
            assert caught.value.status is NOT_WRITTEN
            for call in (old.begin_transaction, old.commit_transaction, old.abort_transaction):
                with pytest.raises(ProducerFenced):
                    await call()
            with pytest.raises(ProducerFenced):
                await old.send(topic, b"never")
            await transaction(twin, topic, "after")
    await witness.reads(topic, ("before", 5), ("after", 5))


@pytest.mark.parametrize("arrived", [True, False], ids=["it-was", "it-was-not"])
@bounded(60)
async def test_a_twin_comes_while_the_commit_is_unanswered(
    cluster: KafkaCluster, world: World, witness: Witness, arrived: bool
) -> None:
    """A producer that is fenced while its commit is unanswered reports the commit as UNKNOWN.

    Another producer has taken the transactional id, so the first cannot learn the outcome any more.
    """
    topic = f"txn-twin-{arrived}"
    async with writing(cluster, world, topic) as old:
        await old.begin_transaction()
        assert set(await outcomes(send(old, topic, "doubt", 5))) == {ACKED}
        lost = each_of(END, Drop(silent=False))
        if arrived:
            cluster.proxy.on_answer = lost
        else:
            cluster.proxy.on_request = lost
        with pytest.raises(KafkaTimeoutError):
            await old.commit_transaction(timeout=0.3)
        if arrived:
            await until_answered(cluster, END, 1)
        # The second attempt of the commit must reach the broker only after the other producer has
        # taken the transactional id.
        await cluster.proxy.refuse()
        cluster.proxy.disconnect()
        cluster.proxy.on_answer = cluster.proxy.on_request = None
        async with Producer(cluster.inner_servers, transactional_id=topic) as twin:
            await cluster.proxy.accept()
            with pytest.raises(ProducerFenced) as caught:
                await old.commit_transaction()
            assert caught.value.status is UNKNOWN
            await transaction(twin, topic, "after")
    told = [("doubt", 5)] if arrived else []
    await witness.reads(topic, *told, ("after", 5))


# -- lost requests and answers ---------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["answer", "request"])
@bounded(60)
async def test_each_answer_and_each_request_is_lost_once(
    cluster: KafkaCluster, world: World, witness: Witness, lost: str
) -> None:
    """After each lost request or answer the transaction is committed once, with its offsets."""
    topic = f"txn-lost-{lost}"
    apis = [PRODUCE, COMMIT_OFFSETS, END] + ([] if modern(world) else [ADD_PARTITIONS, ADD_OFFSETS])
    names = []

    def lose(api_key: int) -> None:
        if lost == "answer":
            cluster.proxy.on_answer = next_of(api_key, Cut())
        else:
            cluster.proxy.on_request = next_of(api_key, Drop())

    lose(FIND)
    async with writing(cluster, world, topic, request_timeout=0.7) as producer:
        for number, api_key in enumerate(apis):
            names.append(f"api-{api_key}")
            lose(api_key)
            await transaction(producer, topic, names[-1], offset=number)
            assert any(action is not None for _, action in cluster.proxy.trace)
            forget(cluster)
        assert await group_offset(cluster, topic, SOURCE) == len(apis) - 1
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "aborted", 3))) == {ACKED}
        lose(END)
        await producer.abort_transaction()
    lose(INIT)
    async with producer_of(cluster, world, transactional_id=topic, request_timeout=0.7) as producer:
        await transaction(producer, topic, "last")
    await witness.reads(topic, *((name, 5) for name in names), ("last", 5))


@bounded(60)
async def test_a_commit_whose_answer_does_not_come_is_nothing_else_until_it_is_known(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """After an unanswered commit only another commit is allowed, which then returns the outcome."""
    topic = "txn-silent"
    async with writing(cluster, world, topic) as producer:
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "one", 5))) == {ACKED}
        cluster.proxy.on_answer = each_of(END, Drop(silent=False))
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction(timeout=0.5)
        await until_answered(cluster, END, 1)
        assert await decided(cluster, topic) == 6  # it is committed, and only we do not know
        with pytest.raises(IllegalStateError):
            await producer.abort_transaction()
        with pytest.raises(IllegalStateError):
            await producer.begin_transaction()
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction(timeout=0.1)
        cluster.proxy.on_answer = None
        cluster.proxy.disconnect()
        await producer.commit_transaction()
        await transaction(producer, topic, "two")
    await witness.reads(topic, ("one", 5), ("two", 5))
    assert await ends(cluster, topic) == ["COMMIT", "COMMIT"]


# -- requests that come late (KAFKA-17754) ---------------------------------------------------------


@bounded(60)
async def test_kafka_17754_a_commit_that_comes_late_does_not_end_the_next_transaction(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """A late EndTxn has an old epoch and does not end the next transaction (KAFKA-17754).

    In transactions v2 each EndTxn raises the epoch; in v1 the producer has requested a new epoch.
    """
    topic = "txn-late-end"
    held = Hold()
    async with writing(cluster, world, topic, request_timeout=0.7) as producer:
        cluster.proxy.on_request = next_of(END, held)
        await transaction(producer, topic, "one")
        assert len(seen_of(cluster, END)) == 2
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "aborted", 5))) == {ACKED}
        held.release()
        await until_answered(cluster, END, 2)
        await producer.abort_transaction()
        await transaction(producer, topic, "three")
    await witness.reads(topic, ("one", 5), ("three", 5))
    assert await ends(cluster, topic) == ["COMMIT", "ABORT", "COMMIT"]


@pytest.mark.parametrize("inside", [True, False], ids=["inside-the-next", "after-it"])
@bounded(60)
async def test_kafka_17754_offsets_that_come_late_are_refused(
    cluster: KafkaCluster, world: World, witness: Witness, inside: bool
) -> None:
    """A late TxnOffsetCommit of an older epoch is refused (KAFKA-17754).

    Kafka 3.9.1 then forgets the offsets of the open transaction until it restarts: they are in its
    log, and not in its memory. No client can prevent that.
    """
    topic = f"txn-late-offsets-{inside}"
    held = Hold()
    codes: list[int] = []
    async with writing(cluster, world, topic, request_timeout=0.7) as producer:
        cluster.proxy.on_request = next_of(COMMIT_OFFSETS, held)
        cluster.proxy.on_answer = partial(note_codes, codes)
        await transaction(producer, topic, "one", offset=1)
        assert len(seen_of(cluster, COMMIT_OFFSETS)) == 2
        await producer.begin_transaction()
        await outcomes(send(producer, topic, "two", 5))
        await send_offset(producer, topic, 2)
        if inside:
            held.release()
            await cluster.proxy.until(lambda: len(codes) == 3)
        await producer.commit_transaction()
        if not inside:
            assert await group_offset(cluster, topic, SOURCE) == 2
            held.release()
            await cluster.proxy.until(lambda: len(codes) == 3)
        assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_producer_epoch]
        if modern(world) or not inside:
            assert await group_offset(cluster, topic, SOURCE) == 2
    await witness.reads(topic, ("one", 5), ("two", 5))


def note_codes(codes: list[int], seen: FrameSeen) -> Action | None:
    """Collect the error codes of an answer to TxnOffsetCommit."""
    schema = response_type(COMMIT_OFFSETS, seen.api_version)
    if seen.api_key != COMMIT_OFFSETS or schema is None:
        return None

    def look(payload: bytes) -> None:
        response: Any = decode_response(schema, payload)[1]
        codes.extend(int(part.error_code) for each in response.topics for part in each.partitions)

    return Inspect(look)


@bounded(60)
async def test_a_batch_that_comes_after_its_transaction_was_aborted_is_in_no_other(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """A batch that reaches the broker after its transaction was aborted joins no later transaction.

    The batch ends UNKNOWN at its delivery timeout. The proxy holds its request back until the next
    transaction is open.
    """
    topic = "txn-late-batch"
    held = Hold()
    async with writing(
        cluster, world, topic, request_timeout=0.7, delivery_timeout=1.0
    ) as producer:
        await transaction(producer, topic, "one")
        forget(cluster)
        await producer.begin_transaction()
        fates = iter((held,))
        lost = Drop()
        cluster.proxy.on_request = lambda seen: (
            next(fates, lost) if seen.api_key == PRODUCE else None
        )
        [sent] = send(producer, topic, "late", 1)
        assert await outcomes([sent]) == [UNKNOWN]
        with pytest.raises(AbortableTransactionError):
            await producer.send(topic, b"refused")
        cluster.proxy.on_request = None
        await doomed(producer, DeliveryTimeoutError)
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "three", 5))) == {ACKED}
        held.release()
        await until_answered(cluster, PRODUCE, 6)
        await producer.commit_transaction()
    await witness.reads(topic, ("one", 5), ("three", 5))


# -- time ------------------------------------------------------------------------------------------


@bounded(60)
async def test_kip_588_the_coordinator_aborts_what_takes_too_long(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """A transaction that takes too long is abortable in v2 and fences its producer in v1.

    See KIP-588.
    """
    topic = "txn-timeout"
    async with writing(cluster, world, topic, transaction_timeout=1.0) as producer:
        await transaction(producer, topic, "one")
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "late", 5))) == {ACKED}
        assert await decided(cluster, topic) == 12
        if modern(world):
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            await transaction(producer, topic, "three")
        else:
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)) as caught:
                await producer.commit_transaction()
            assert caught.value.status is NOT_WRITTEN
    await witness.reads(topic, ("one", 5), *([("three", 5)] if modern(world) else []))


@bounded(60)
async def test_kip_588_a_record_comes_after_the_coordinator_has_aborted(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """A record after a transaction timeout makes the transaction abortable (KIP-588).

    Produce answers INVALID_PRODUCER_EPOCH; EndTxn then shows whether it was a timeout.
    """
    topic = "txn-timeout-write"
    async with writing(cluster, world, topic, transaction_timeout=1.0) as producer:
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "late", 5))) == {ACKED}
        assert await decided(cluster, topic) == 6
        sent = send(producer, topic, "later", 3)
        assert ACKED not in await outcomes(sent)
        with pytest.raises(AbortableTransactionError) as caught:
            await producer.commit_transaction()
        assert isinstance(caught.value.__cause__, BrokerResponseError)
        if modern(world):
            await producer.abort_transaction()
            await transaction(producer, topic, "two")
        else:
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                await producer.abort_transaction()
    await witness.reads(topic, *([("two", 5)] if modern(world) else []))


# -- the broker, which is the coordinator, goes and comes back -------------------------------------


@bounded(90)
async def test_kill_9_and_restart_inside_a_transaction_and_while_it_is_committed(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    topic = "txn-kill"
    async with writing(cluster, world, topic) as producer:
        await producer.begin_transaction()
        first = send(producer, topic, "one", 5)
        await send_offset(producer, topic, 1)
        assert set(await outcomes(first)) == {ACKED}
        await cluster.kill()
        more = [producer.send_nowait(topic, each, partition=0) for each in [b"txn-kill/more/0"]]
        await cluster.start()
        cluster.proxy.on_answer = each_of(END, Drop(silent=False))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.commit_transaction)
            await until_answered(cluster, END, 1)
            tasks.cancel_scope.cancel()  # this stops the waiting, not the commit
        assert set(await outcomes(more)) == {ACKED}
        await markers_written(cluster, topic)
        await cluster.kill()
        cluster.proxy.on_answer = None
        await cluster.start()
        await producer.commit_transaction()
        assert await group_offset(cluster, topic, SOURCE) == 1
        await transaction(producer, topic, "two", offset=2)
        assert await group_offset(cluster, topic, SOURCE) == 2
    await witness.reads(topic, ("one", 5), ("more", 1), ("two", 5))


@bounded(60)
async def test_librdkafka_3575_out_of_order_makes_no_second_transaction_of_it(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """OUT_OF_ORDER inside a transaction makes it abortable and bumps no epoch (librdkafka #3575).

    After a clean restart the broker remembers one batch, so it answers OUT_OF_ORDER to the oldest
    batch of a full window in doubt. If the producer bumped its epoch then, the batches before and
    after the bump would be committed in different transactions.
    """
    topic = "txn-out-of-order"
    async with writing(cluster, world, topic) as producer:
        spans = SpanCount(cluster.proxy)
        await transaction(producer, topic, "one")
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "lost", 3))) == {ACKED}
        history = History(producer, topic)
        await leave_in_doubt(cluster, spans, history, world.window)
        await cluster.terminate()
        spans.answer = lambda: None
        spans.forget()
        await cluster.start()
        told = await outcomes(history.deliveries)
        assert ErrorCode.out_of_order_sequence_number in spans.codes
        assert told[0] is UNKNOWN
        assert NOT_WRITTEN not in told
        await doomed(producer, OutOfOrderSequenceNumber)
        await transaction(producer, topic, "three")
    await witness.reads(topic, ("one", 5), ("three", 5))
    assert await ends(cluster, topic) == ["COMMIT", "ABORT", "COMMIT"]


# -- records that are refused ----------------------------------------------------------------------


@bounded(60)
async def test_one_record_too_large_dooms_its_transaction_and_no_other(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    topic = "txn-too-large"
    async with writing(cluster, world, topic) as producer:
        await cluster.set_config(topic, "max.message.bytes", 1000)
        await transaction(producer, topic, "one")
        await producer.begin_transaction()
        sent = send(producer, topic, "lost", 5)
        large = producer.send_nowait(topic, bytes(3000), partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            await large
        assert large.status is NOT_WRITTEN
        assert set(await outcomes(sent)) == {ACKED}
        await doomed(producer, MessageSizeTooLargeError)
        await transaction(producer, topic, "three")
    await witness.reads(topic, ("one", 5), ("three", 5))


@bounded(60)
async def test_a_topic_that_may_not_be_written_to_dooms_its_transaction_and_no_other(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    topic, forbidden = "txn-allowed", "txn-forbidden"
    await cluster.create_topic(forbidden)
    await forbid_writing(cluster, forbidden)
    async with writing(cluster, world, topic) as producer:
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "lost", 5))) == {ACKED}
        refused = send(producer, forbidden, "never", 2)
        assert set(await outcomes(refused)) == {NOT_WRITTEN}
        await doomed(producer, TopicAuthorizationFailedError)
        await transaction(producer, topic, "two")
    await witness.reads(topic, ("two", 5))
    assert await cluster.dump_log(forbidden) == ()


@bounded(60)
async def test_records_of_an_open_transaction_are_deleted(
    cluster: KafkaCluster, world: World, witness: Witness
) -> None:
    """A transaction can be committed after some of its records were deleted (DeleteRecords)."""
    topic = "txn-deleted"
    async with writing(cluster, world, topic) as producer:
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "gone", 5))) == {ACKED}
        assert await delete_records(cluster, topic) == 5
        assert set(await outcomes(send(producer, topic, "one", 5))) == {ACKED}
        await producer.commit_transaction()
        await transaction(producer, topic, "two")
    await witness.reads(topic, ("one", 5), ("two", 5), for_good=False)
