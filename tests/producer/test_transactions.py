"""The transactional calls of `Producer`, and what is left when a call does not end well.

Each call is cancelled at each of its awaits, times out and is repeated, finds the producer fenced,
is made in a state that does not allow it, and gets bad arguments. The tests run with levels 0 and 2
of `transaction.version`, in virtual time, and where the loop could matter also on asyncio and trio
over TCP. `tests.simulated.read_committed` reads from the log what read_committed consumers see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import (
    ConsumerGroupMetadata,
    Delivery,
    DeliveryStatus,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, Delay, Drop, RequestSeen, Respond, Rewrite
from aioidem._producer.native import internals
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster
from aioidem.errors import (
    AbortableTransactionError,
    IllegalGenerationError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    ProducerFenced,
    RecordError,
    TransactionAborted,
    TransactionalIdAuthorizationFailed,
)
from tests.simulated.read_committed import committed_records
from tests.simulated.whole import AtAwait

from .tools import bounded, producer_for, virtual_time

BOTH_GENERATIONS = pytest.mark.parametrize("version", [0, 2])
LOOPS = pytest.mark.parametrize("anyio_backend", ["virtual", "asyncio", "trio"], indirect=True)
pytestmark = [pytest.mark.anyio, BOTH_GENERATIONS]

Version = Literal[0, 2]
Transport = Literal["tcp", "memory"]
SOURCE = TopicPartition("src", 0)


@asynccontextmanager
async def running(
    version: Version, transport: Transport = "memory", **options: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    options.setdefault("transactional_id", "x")
    async with EmbeddedCluster(transport=transport, transaction_version=version) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("src")
        async with producer_for(cluster, **options) as producer:
            yield cluster, producer


def committed(cluster: EmbeddedCluster) -> list[bytes | None]:
    """Return the values that a read_committed consumer sees; no transaction may be open."""
    [partition] = cluster.state.topics["t"].partitions
    replica = partition.leader_replica
    assert replica is not None
    seen, left_open = committed_records("t", 0, replica.log.batches)
    assert not left_open
    return [record.value for record in seen]


def position(cluster: EmbeddedCluster, group: str = "g") -> int | None:
    known = cluster.state.groups.committed(group).get((SOURCE.topic, SOURCE.partition))
    return None if known is None else known.offset


async def works(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Check that a transaction with records and offsets can still be committed."""
    async with producer.transaction():
        await producer.send("t", b"works")
        await producer.send_offsets_to_transaction({SOURCE: 1000}, "g")
    assert committed(cluster)[-1:] == [b"works"]
    assert position(cluster) == 1000
    assert producer.statistics().buffer_bytes_used == 0


async def end(producer: Producer) -> bool:
    """End the transaction that is open or in doubt, and return whether it was committed."""
    try:
        await producer.abort_transaction()
    except IllegalStateError:
        try:
            await producer.commit_transaction()
        except IllegalStateError:
            return False  # no transaction is open or in doubt any more
        return True
    return False


async def leave_by_an_error(producer: Producer) -> Delivery:
    with suppress(ZeroDivisionError):
        async with producer.transaction():
            await producer.send("t", b"4")
            left = producer.send_nowait("t", b"5")
            await producer.send_offsets_to_transaction({SOURCE: 8}, "g")
            raise ZeroDivisionError
    return left


@LOOPS
@bounded(60)
async def test_a_block_commits_and_a_block_that_raises_aborts(
    version: Version, transport: Transport
) -> None:
    async with running(version, transport) as (cluster, producer):
        async with producer.transaction():
            producer.send_nowait("t", b"1")
            await producer.send_many("t", [b"2", b"3"])
            await producer.send_offsets_to_transaction({SOURCE: OffsetAndMetadata(7, "m")}, "g")
        assert committed(cluster) == [b"1", b"2", b"3"]
        assert position(cluster) == 7
        left = await leave_by_an_error(producer)
        assert committed(cluster) == [b"1", b"2", b"3"]
        assert position(cluster) == 7
        assert left.status in (DeliveryStatus.ACKED, DeliveryStatus.NOT_WRITTEN)
        await works(cluster, producer)


# -- cancelled -------------------------------------------------------------------------------------


async def begin(producer: Producer) -> None:
    await producer.begin_transaction()


async def send(producer: Producer) -> None:
    await producer.send("t", b"sent")


async def send_offsets(producer: Producer) -> None:
    await producer.send_offsets_to_transaction({SOURCE: 5}, "g")


async def commit(producer: Producer) -> None:
    await producer.commit_transaction()


async def abort(producer: Producer) -> None:
    await producer.abort_transaction()


async def block(producer: Producer) -> None:
    async with producer.transaction():
        await producer.send("t", b"sent")
        await producer.send_offsets_to_transaction({SOURCE: 5}, "g")


Step = Callable[[Producer], Awaitable[None]]


@LOOPS
@pytest.mark.parametrize(
    ("before", "call", "awaits"),
    [
        ((), begin, 2),
        ((begin,), send, 3),
        ((begin,), send_offsets, 3),
        ((begin, send, send_offsets), commit, 3),
        ((begin, send, send_offsets), abort, 3),
        ((), block, 12),
    ],
    ids=["begin", "send", "send offsets", "commit", "abort", "block"],
)
@bounded(60)
async def test_cancelled_at_any_await_it_leaves_a_usable_producer(
    version: Version, transport: Transport, before: tuple[Step, ...], call: Step, awaits: int
) -> None:
    async with running(version, transport) as (cluster, producer):
        for n in range(1, awaits + 1):
            seen = committed(cluster)
            for step in before:
                await step(producer)
            with anyio.CancelScope() as scope:
                coroutine: Any = call(producer)
                await AtAwait(coroutine, n, scope)
            ended = await end(producer)
            new = committed(cluster)[len(seen) :]
            if not scope.cancelled_caught and call in (commit, block):
                assert new == [b"sent"]
            else:
                assert new == ([b"sent"] if ended and call is not send_offsets else [])
            await works(cluster, producer)


# -- timeouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["virtual"], indirect=True)
@bounded(60)
async def test_offsets_of_a_missing_partition_time_out_with_its_name(
    version: Version, transport: Transport
) -> None:
    """The error names the group, and the partition that the coordinator does not know."""
    async with running(version, transport) as (_, producer):
        await producer.begin_transaction()
        with pytest.raises(
            KafkaTimeoutError, match="of group 'g' for missing-7, refused by broker"
        ):
            await producer.send_offsets_to_transaction(
                {SOURCE: 1, TopicPartition("missing", 7): 1}, "g", timeout=2.0
            )


@LOOPS
@pytest.mark.parametrize("fault", ["loading", "markers"])
@pytest.mark.parametrize("ending", ["commit", "abort"])
@bounded(60)
async def test_an_end_that_timed_out_is_taken_up_again(
    version: Version, transport: Transport, ending: str, fault: str
) -> None:
    async with running(version, transport, max_block=20.0) as (cluster, producer):
        call = producer.commit_transaction if ending == "commit" else producer.abort_transaction
        await works(cluster, producer)
        await producer.begin_transaction()
        await producer.send("t", b"1")
        if fault == "loading":
            cluster.fail_coordinator("x", ErrorCode.coordinator_load_in_progress)
            for _ in range(2):
                with pytest.raises(KafkaTimeoutError, match="call again"):
                    await call(timeout=0.05)
            if ending == "commit":  # during an abort, begin_transaction waits
                with pytest.raises(IllegalStateError):
                    await producer.begin_transaction()
            cluster.fail_coordinator("x", None)
            await call()
        else:
            # The commit or abort is decided, but its markers are not in the logs yet: the call
            # returns all the same.
            cluster.hold_markers()
            await call()
            cluster.release_markers()
        assert committed(cluster) == [b"works"] + [b"1"] * (ending == "commit")
        with pytest.raises(IllegalStateError):
            await call()
        await works(cluster, producer)


@LOOPS
@bounded(60)
async def test_offsets_that_timed_out_are_sent_once(version: Version, transport: Transport) -> None:
    async with running(version, transport) as (cluster, producer):
        await producer.begin_transaction()
        cluster.fail_coordinator("g", ErrorCode.coordinator_load_in_progress)
        for _ in range(3):
            with pytest.raises(KafkaTimeoutError, match="call again"):
                await producer.send_offsets_to_transaction({SOURCE: 3}, "g", timeout=0.05)
        cluster.fail_coordinator("g", None)
        await producer.send_offsets_to_transaction({SOURCE: 3}, "g")
        assert position(cluster) is None
        await producer.commit_transaction()
        assert position(cluster) == 3


@bounded(60)
async def test_a_commit_carries_offsets_whose_call_timed_out(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        cluster.fail_coordinator("g", ErrorCode.coordinator_load_in_progress)
        with pytest.raises(KafkaTimeoutError):
            await producer.send_offsets_to_transaction({SOURCE: 3}, "g", timeout=0.05)
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction(timeout=0.5)
        assert position(cluster) is None
        cluster.fail_coordinator("g", None)
        await producer.commit_transaction()
        assert position(cluster) == 3


@bounded(60)
async def test_a_start_that_is_refused_says_why_and_can_be_tried_again(version: Version) -> None:
    async with EmbeddedCluster(transport="memory", transaction_version=version) as cluster:
        cluster.fail_coordinator("x", ErrorCode.transactional_id_authorization_failed)
        first = producer_for(cluster, transactional_id="x")
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await first.start()
        cluster.fail_coordinator("x", ErrorCode.coordinator_load_in_progress)
        second = producer_for(cluster, transactional_id="x", max_block=1.0)
        with pytest.raises(KafkaTimeoutError, match=r"producer id.*Loading|Load"):
            await second.start()
        cluster.fail_coordinator("x", None)
        cluster.create_topic("t")
        cluster.create_topic("src")
        async with producer_for(cluster, transactional_id="x") as third:
            await third.init_transactions()
            await works(cluster, third)


@bounded(600)
async def test_a_record_that_is_not_delivered_dooms_its_transaction_and_no_other(
    version: Version,
) -> None:
    async with running(version, delivery_timeout=5.0, request_timeout=1.0) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.hold_high_watermark("t")
        with pytest.raises(KafkaError):
            await producer.send("t", b"2")
        with pytest.raises(AbortableTransactionError) as caught:
            producer.send_nowait("t", b"3")
        assert caught.value.__cause__ is not None
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        with pytest.raises(AbortableTransactionError):
            await producer.send_offsets_to_transaction({SOURCE: 1}, "g")
        with pytest.raises(AbortableTransactionError):
            await producer.begin_transaction()
        cluster.release_high_watermark("t")
        await producer.abort_transaction()
        assert committed(cluster) == []
        await works(cluster, producer)


@bounded(600)
async def test_a_block_whose_commit_fails_is_aborted(version: Version) -> None:
    async with running(version, delivery_timeout=5.0, request_timeout=1.0) as (cluster, producer):
        cluster.hold_high_watermark("t")
        with pytest.raises(AbortableTransactionError):
            async with producer.transaction():
                producer.send_nowait("t", b"1")
        cluster.release_high_watermark("t")
        await works(cluster, producer)
        assert committed(cluster) == [b"works"]


# -- the end of a producer -------------------------------------------------------------------------


@LOOPS
@bounded(60)
async def test_once_fenced_every_call_fails_at_once_with_the_cause(
    version: Version, transport: Transport
) -> None:
    async with running(version, transport) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        async with producer_for(cluster, transactional_id="x") as twin:
            with pytest.raises(ProducerFenced) as caught:
                await producer.commit_transaction()
            assert caught.value.status is DeliveryStatus.NOT_WRITTEN
            calls: list[Callable[[], Awaitable[Any]]] = [
                producer.begin_transaction,
                producer.commit_transaction,
                producer.abort_transaction,
                producer.init_transactions,
                lambda: producer.send_offsets_to_transaction({SOURCE: 1}, "g"),
                lambda: producer.send("t", b"2"),
                lambda: producer.send_many("t", [b"3"]),
                lambda: internals(producer).intake.enqueue("t", b"4"),
                producer.flush,
            ]
            for call in calls:
                with anyio.fail_after(0.5), pytest.raises(ProducerFenced):
                    await call()
            with pytest.raises(ProducerFenced):
                producer.send_nowait("t", b"5")
            await works(cluster, twin)
            await producer.close()
        assert committed(cluster) == [b"works"]


@LOOPS
@bounded(60)
async def test_closing_aborts_what_is_open(version: Version, transport: Transport) -> None:
    async with running(version, transport) as (cluster, producer):
        await works(cluster, producer)
        await producer.begin_transaction()
        await producer.send("t", b"1")
        await producer.send_offsets_to_transaction({SOURCE: 1}, "g")
        cluster.hold_high_watermark("t")
        left = producer.send_nowait("t", b"2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.close)
            await anyio.wait_all_tasks_blocked()
            cluster.release_high_watermark("t")
        assert left.status in (DeliveryStatus.NOT_WRITTEN, DeliveryStatus.ACKED)
        assert committed(cluster) == [b"works"]
        assert position(cluster) == 1000
        with pytest.raises(ProducerClosed):
            await producer.begin_transaction()
        with pytest.raises(ProducerClosed):
            producer.send_nowait("t", b"3")


@bounded(60)
async def test_closing_aborts_what_could_not_be_committed(version: Version) -> None:
    """While a commit is undecided it cannot be aborted; once it is refused, it is."""
    ends = 0

    def refuse(seen: RequestSeen) -> Action | None:
        nonlocal ends
        if seen.api_key != ApiKey.END_TXN:
            return None
        ends += 1
        actions: dict[int, Action] = {1: Drop(processed=False), 2: answer}
        return actions.get(ends)

    async with running(version) as (cluster, producer):
        answer = Respond(
            respond(
                ApiKey.END_TXN,
                5 if version else 3,
                {
                    "throttle_time": ZERO_MS,
                    "error_code": ErrorCode.transaction_abortable,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
        )
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.intercept(refuse)
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction(0.05)
        await producer.close()
        assert ends == 3
        assert committed(cluster) == []


@bounded(60)
async def test_a_send_that_waits_for_room_does_not_enter_the_next_transaction(
    version: Version,
) -> None:
    refused: list[KafkaError] = []

    async def send(number: int) -> None:
        try:
            await producer.send("t", b"%d" % number + bytes(9000))
        except KafkaError as error:
            refused.append(error)

    async with running(version, buffer_memory=100_000, max_block=30.0) as (cluster, producer):
        cluster.set_rtt(0.01)
        async with anyio.create_task_group() as tasks:
            await producer.begin_transaction()
            for number in range(60):
                tasks.start_soon(send, number)
            await anyio.wait_all_tasks_blocked()
            await producer.abort_transaction()
            assert producer.statistics().buffer_waiters > 40
            await producer.begin_transaction()
            await producer.send("t", b"second")
            await producer.commit_transaction()
        assert committed(cluster) == [b"second"]
        assert len(refused) == 60
        assert {type(error) for error in refused} <= {TransactionAborted, IllegalOperation}
        assert sum("another one was begun" in str(error) for error in refused) > 40
        assert {error.status for error in refused} == {DeliveryStatus.NOT_WRITTEN}
        assert producer.statistics().buffer_bytes_used == 0


@bounded(60)
async def test_a_producer_that_vanished_is_followed_by_one_of_its_name(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        await producer.close(timeout=0)  # nothing is ended: as if the process had been killed
        async with producer_for(cluster, transactional_id="x") as heir:
            await works(cluster, heir)
        assert committed(cluster) == [b"works"]


# -- calls in a state that does not allow them -----------------------------------------------------


@bounded(60)
async def test_a_record_needs_a_transaction(version: Version) -> None:
    async with running(version) as (cluster, producer):
        for _ in range(2):
            with pytest.raises(IllegalOperation, match="begin a transaction"):
                await producer.send("t", b"1")
            with pytest.raises(IllegalOperation):
                producer.send_nowait("t", b"2")
            with pytest.raises(IllegalOperation):
                await producer.send_many("t", [b"3"])
            with pytest.raises(IllegalStateError):
                await producer.commit_transaction()
            with pytest.raises(IllegalStateError):
                await producer.abort_transaction()
            with pytest.raises(IllegalStateError):
                await producer.send_offsets_to_transaction({SOURCE: 1}, "g")
            await works(cluster, producer)
        assert committed(cluster) == [b"works"] * 2


@bounded(60)
async def test_a_transaction_that_is_being_ended_takes_no_more(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        with pytest.raises(IllegalStateError):
            await producer.begin_transaction()
        cluster.hold_high_watermark("t")
        first = producer.send_nowait("t", b"1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.commit_transaction)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(IllegalOperation):
                producer.send_nowait("t", b"2")
            with pytest.raises(IllegalStateError):
                await producer.send_offsets_to_transaction({SOURCE: 1}, "g")
            cluster.release_high_watermark("t")
        assert first.status is DeliveryStatus.ACKED
        assert committed(cluster) == [b"1"]


@bounded(60)
async def test_aborted_records_say_so(version: Version) -> None:
    async with running(version, linger=1.0) as (cluster, producer):
        await producer.begin_transaction()
        left = producer.send_nowait("t", b"1")
        await producer.abort_transaction()
        assert left.status is DeliveryStatus.NOT_WRITTEN
        assert isinstance(left.exception(), TransactionAborted)
        assert committed(cluster) == []
        await works(cluster, producer)


@bounded(60)
async def test_without_a_transactional_id_there_are_no_transactions(version: Version) -> None:
    async with running(version, transactional_id=None) as (_, producer):
        calls: list[Callable[[], Awaitable[None]]] = [
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send_offsets_to_transaction({SOURCE: 1}, "g"),
        ]
        for call in calls:
            with pytest.raises(IllegalOperation, match="transactional_id"):
                await call()
        with pytest.raises(IllegalOperation):
            async with producer.transaction():
                pytest.fail("the transactional block was entered")
        await producer.send("t", b"1")


# -- bad arguments ---------------------------------------------------------------------------------


_BYTES: Any = b"m"
_TEXT: Any = "0"
_NOTHING: Any = None


@pytest.mark.parametrize(
    ("offsets", "group", "expected"),
    [
        ({SOURCE: "1"}, "g", TypeError),
        ({SOURCE: True}, "g", TypeError),
        ({SOURCE: 1.0}, "g", TypeError),
        ({SOURCE: None}, "g", TypeError),
        ({SOURCE: -1}, "g", RecordError),
        ({SOURCE: OffsetAndMetadata(-1, "")}, "g", RecordError),
        ({SOURCE: OffsetAndMetadata(1, _BYTES)}, "g", TypeError),
        ({TopicPartition("", 0): 1}, "g", RecordError),
        ({TopicPartition("a/b", 0): 1}, "g", RecordError),
        ({TopicPartition("src", -1): 1}, "g", RecordError),
        ({TopicPartition("src", _TEXT): 1}, "g", TypeError),
        ({SOURCE: 1}, "", TypeError),
        ({SOURCE: 1}, None, TypeError),
        ({SOURCE: 1}, ConsumerGroupMetadata(""), TypeError),
        ({SOURCE: 2**63}, "g", RecordError),
        ({SOURCE: OffsetAndMetadata(1, "\ud800")}, "g", RecordError),
        ({SOURCE: OffsetAndMetadata(1, "m" * 32_768)}, "g", RecordError),
        ({SOURCE: 1}, "\ud800", RecordError),
        ({SOURCE: 1}, "g" * 32_768, RecordError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", 2**31), RecordError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", -2), RecordError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", _TEXT), TypeError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", True), TypeError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", 1, _NOTHING), TypeError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", 1, "\ud800"), RecordError),
        ({SOURCE: 1}, ConsumerGroupMetadata("g", 1, "m", _BYTES), TypeError),
        ([(SOURCE, 1)], "g", TypeError),
        (None, "g", TypeError),
        ({"src": 1}, "g", TypeError),
        ({5: 1}, "g", TypeError),
        ({("src", 0, 1): 1}, "g", TypeError),
        ({SOURCE: (1,)}, "g", TypeError),
        ({SOURCE: (1, "", 2)}, "g", TypeError),
    ],
)
@bounded(60)
async def test_nonsense_is_refused_and_leaves_the_transaction_as_it_was(
    version: Version, offsets: Any, group: Any, expected: type[Exception]
) -> None:
    async with running(version) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1")
            with pytest.raises(expected):
                await producer.send_offsets_to_transaction(offsets, group)
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send("t", bytes(2_000_000))
            with pytest.raises(TypeError):
                await producer.send("t", "text")  # type: ignore[arg-type]
            await producer.send_offsets_to_transaction({}, "g")
        assert committed(cluster) == [b"1"]
        assert position(cluster) is None


@bounded(60)
async def test_a_consumer_that_has_lost_its_place_cannot_commit(version: Version) -> None:
    """Offsets of a consumer with an old generation are refused, and the transaction must abort.

    The group's coordinator compares the consumer's generation with the group's own (KIP-447).
    """
    async with running(version) as (cluster, producer):
        cluster.set_group("g", 3, {"member": None})
        stale = ConsumerGroupMetadata("g", 2, "member")
        await producer.begin_transaction()
        await producer.send("t", b"1")
        with pytest.raises(AbortableTransactionError) as caught:
            await producer.send_offsets_to_transaction({SOURCE: 1}, stale)
        assert isinstance(caught.value.__cause__, IllegalGenerationError)
        await producer.abort_transaction()
        assert committed(cluster) == []
        async with producer.transaction():
            await producer.send("t", b"2")
            fresh = ConsumerGroupMetadata("g", 3, "member")
            await producer.send_offsets_to_transaction({SOURCE: 2}, fresh)
        assert (committed(cluster), position(cluster)) == ([b"2"], 2)


@bounded(300)
async def test_an_end_that_grants_the_same_epoch_again_costs_no_partition(version: Version) -> None:
    """A partition whose sequences were given up would wait for a newer epoch for ever."""
    async with running(version, delivery_timeout=40.0) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1")
        statistics = producer.statistics()
        again = {"producer_id": statistics.producer_id, "producer_epoch": statistics.producer_epoch}

        def same(request: RequestSeen) -> Action | None:
            if request.api_key != ApiKey.END_TXN or version == 0:
                return None
            return Rewrite(lambda answer: dataclasses.replace(answer, **again))

        cluster.intercept(same)
        await producer.begin_transaction()
        await producer.send("t", b"2")
        cluster.hold_high_watermark("t")
        producer.send_nowait("t", b"3")
        await producer.abort_transaction()
        cluster.release_high_watermark("t")
        await works(cluster, producer)
        assert committed(cluster) == [b"1", b"works"]


# -- a producer that was taken over, or has ended --------------------------------------------------


@bounded(30)
@pytest.mark.parametrize("how", ["abort", "close", "transaction"])
async def test_a_producer_that_was_taken_over_leaves_its_successors_transaction_open(
    version: Version, how: str
) -> None:
    async with running(version) as (cluster, old):
        await old.begin_transaction()
        await old.send("t", b"old")
        if how == "transaction":
            await old.commit_transaction()
        async with producer_for(cluster, transactional_id="x") as new:
            await new.begin_transaction()
            await new.send("t", b"new")
            match how:
                case "abort":
                    with pytest.raises(ProducerFenced):
                        await old.abort_transaction()
                case "close":
                    await old.close()
                case _:
                    with pytest.raises(KafkaError):
                        async with old.transaction():
                            await old.send("t", b"zombie")
            await new.commit_transaction()
        assert committed(cluster) == ([b"old"] if how == "transaction" else []) + [b"new"]


def end_answered(action: Action) -> Callable[[RequestSeen], Action | None]:
    """Return a hook for the answers to EndTxn."""
    return lambda request: action if request.api_key == ApiKey.END_TXN else None


@bounded(30)
async def test_a_commit_that_the_end_of_the_producer_interrupts_is_unknown(
    version: Version,
) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.intercept(end_answered(Drop(processed=True, silent=True)))

        async def commit() -> None:
            with pytest.raises(ProducerClosed) as caught:
                await producer.commit_transaction()
            assert caught.value.status is DeliveryStatus.UNKNOWN

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            await anyio.wait_all_tasks_blocked()
            await producer.close(timeout=0)
        with pytest.raises(ProducerClosed) as again:
            await producer.commit_transaction()
        assert again.value.status is DeliveryStatus.UNKNOWN


@bounded(30)
async def test_a_commit_that_took_place_is_told_once_after_the_producer_has_ended(
    version: Version,
) -> None:
    """The first call has timed out, and the answer came before the producer was closed."""
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.intercept(end_answered(Delay(0.5)))
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction(timeout=0.1)
        await virtual_time(1.0)
        await producer.close()
        await producer.commit_transaction()
        with pytest.raises(ProducerClosed):
            await producer.commit_transaction()
