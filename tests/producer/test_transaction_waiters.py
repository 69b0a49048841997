"""Two callers that end one transaction at once each get its true outcome: commit or abort."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest

from aioidem import Producer
from aioidem.broker import EmbeddedCluster
from aioidem.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    TransactionAborted,
)

from .tools import bounded, producer_for

BOTH_GENERATIONS = pytest.mark.parametrize("version", [0, 2])
pytestmark = [pytest.mark.anyio, BOTH_GENERATIONS]

Version = Literal[0, 2]


@asynccontextmanager
async def running(
    version: Version, **options: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    async with EmbeddedCluster(transport="memory", transaction_version=version) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, transactional_id="x", **options) as producer:
            yield cluster, producer


async def ended(call: Any, told: list[Any]) -> None:
    try:
        told.append(await call())
    except KafkaError as error:
        told.append(error)


def committed(cluster: EmbeddedCluster) -> bool:
    """Return whether the last transaction of the only transactional id was committed."""
    (transaction,) = cluster.state.transactions.transactions()
    return transaction.state.value == "CompleteCommit"


@bounded(600)
async def test_a_commit_that_another_call_turns_into_an_abort_is_not_reported_as_one(
    version: Version,
) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        cluster.hold_high_watermark("t")
        producer.send_nowait("t", b"1")
        told: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended, producer.commit_transaction, told)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(producer.abort_transaction)
            await anyio.wait_all_tasks_blocked()
            cluster.release_high_watermark("t")
        assert isinstance(told[0], TransactionAborted)
        assert not committed(cluster)
        async with producer.transaction():
            await producer.send("t", b"2")
        assert committed(cluster)


@bounded(600)
async def test_two_callers_of_one_commit_get_the_same_outcome(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        told: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended, producer.commit_transaction, told)
            tasks.start_soon(ended, producer.commit_transaction, told)
        assert told == [None, None]
        assert committed(cluster)
        with pytest.raises(IllegalStateError):
            await producer.commit_transaction()


@bounded(600)
async def test_a_commit_that_ends_while_the_producer_closes_is_reported(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.hold_markers()
        told: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended, producer.commit_transaction, told)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(producer.close)
            await anyio.wait_all_tasks_blocked()
            cluster.release_markers()
        assert told == [None]
        assert committed(cluster)


@bounded(600)
async def test_the_outcome_of_an_abandoned_commit_is_learned_by_calling_again(
    version: Version,
) -> None:
    async with running(version, max_block=1.0) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        await cluster.stop_broker(cluster.coordinator("x"))
        with pytest.raises(KafkaTimeoutError, match="call again"):
            await producer.commit_transaction()
        with pytest.raises(IllegalStateError):
            await producer.begin_transaction()
        await cluster.start_broker(0)
        await producer.commit_transaction(timeout=60)
        assert committed(cluster)
        await producer.begin_transaction()
        await producer.abort_transaction()


@bounded(600)
async def test_an_abort_while_the_last_commit_is_being_marked_is_not_taken_for_a_twin(
    version: Version,
) -> None:
    """A transaction in which nothing was written is aborted without an EndTxn request.

    The coordinator still writes the markers of the last commit, so that every write is refused with
    CONCURRENT_TRANSACTIONS. In transactions v2 an EndTxn with the next epoch would fence the
    producer at that time.
    """
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        cluster.hold_markers()
        await producer.commit_transaction()  # returns before the markers are written
        await producer.begin_transaction()
        delivery = producer.send_nowait("t", b"2")
        with anyio.move_on_after(5):  # virtual time, in which the broker refuses it repeatedly
            await delivery
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.abort_transaction)
            with anyio.move_on_after(5):  # virtual time
                await anyio.sleep_forever()
            cluster.release_markers()
        async with producer.transaction():
            await producer.send("t", b"3")
        values = [r.value for batch in cluster.batches("t") for r in batch.records()]
        assert [value for value in values if value and value.isdigit()] == [b"1", b"3"]


@bounded(600)
async def test_a_closed_producer_aborts_what_is_open(version: Version) -> None:
    async with running(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        await producer.close()
        (transaction,) = cluster.state.transactions.transactions()
        assert transaction.state.value == "CompleteAbort"
        with pytest.raises(ProducerClosed):
            await producer.begin_transaction()
