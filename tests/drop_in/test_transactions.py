"""The drop-in's transactions, beyond the suite that aiokafka's own producer passes as well."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

import aioidem.integrations.aiokafka
from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster

from .suite import raised

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_leak")]
CLASSES = [AIOKafkaProducer, aioidem.integrations.aiokafka.AIOKafkaProducer]


@pytest.mark.parametrize("client", CLASSES)
async def test_what_is_refused_outside_of_a_transaction_takes_no_room(
    cluster: EmbeddedCluster, client: Any
) -> None:
    cluster.create_topic("t")
    async with client(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id="x"
    ) as producer:
        batch = producer.create_batch()
        for _ in range(10):
            batch.append(timestamp=None, key=None, value=b"x" * 100)
        for _ in range(3):
            await raised(producer.send("t", b"x" * 1000))
            await raised(producer.send_batch(batch, "t", partition=0))
        assert producer._native.statistics().buffer_bytes_used == 0  # noqa: SLF001


async def test_futures_of_an_aborted_transaction_are_not_logged(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Futures that fail because of an abort are not logged if no task awaits them."""
    cluster.create_topic("t")
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id="x", linger_ms=60_000
    )
    async with producer:
        await producer.begin_transaction()
        futures = [await producer.send("t", b"x") for _ in range(5)]
        await producer._inside.intake.enqueue("t", b"native")  # noqa: SLF001
        await producer.abort_transaction()
        assert all(isinstance(each.exception(), errors.TransactionAborted) for each in futures[:1])
        del futures
        gc.collect()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("client", CLASSES)
async def test_all_records_of_a_failed_transaction_say_what_it_failed_of(client: Any) -> None:
    def hook(seen: RequestSeen) -> Action | None:
        if seen.api_key != 0:
            return None
        if any(batch.partition == 0 for batch in seen.batches):
            return Refuse(ErrorCode.topic_authorization_failed)
        return Drop(silent=False)

    async with EmbeddedCluster(brokers=2, transport="tcp") as cluster:
        cluster.create_topic("t", partitions=2)
        assert cluster.leader("t", 0) != cluster.leader("t", 1)
        cluster.intercept(hook)
        async with client(
            bootstrap_servers=cluster.bootstrap_servers,
            transactional_id="x",
            request_timeout_ms=1000,
            max_block_ms=20_000,
        ) as producer:
            await producer.begin_transaction()
            silent = await producer.send("t", b"x", partition=1)
            refused = await producer.send("t", b"x", partition=0)
            for each, status in (
                (refused, DeliveryStatus.NOT_WRITTEN),
                (silent, DeliveryStatus.UNKNOWN),
            ):
                error: Any = await raised(each)
                assert type(error).__name__ == "TopicAuthorizationFailedError"
                assert error.status is status
            for call in (producer.commit_transaction(), producer.send("t", b"x", partition=1)):
                named = type(await raised(call)).__name__
                assert named == "TopicAuthorizationFailedError"
            cluster.intercept(None)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send("t", b"fine", partition=0)


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_transactions_work_on_trio(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    with anyio.fail_after(20):
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="x"
        ) as producer:
            async with producer.transaction():
                future = await producer.send("t", b"x")
            assert (await future).offset == 0
            with pytest.raises(LookupError):
                async with producer.transaction():
                    raise LookupError
            with anyio.move_on_after(0.05):
                async with producer.transaction():
                    await producer.send("t", b"y")
                    await anyio.sleep_forever()
            async with producer.transaction():
                await producer.send("t", b"z")
    assert cluster.last_stable_offset("t") == cluster.log_end_offset("t")


async def test_several_tasks_may_commit_and_one_transaction_is_committed(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t")
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id="x"
    ) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"x")
        await asyncio.gather(*[producer.commit_transaction() for _ in range(3)])
        assert isinstance(await raised(producer.commit_transaction()), errors.IllegalStateError)


@pytest.mark.parametrize("call", ["send", "send_batch"])
async def test_a_send_that_waits_for_metadata_does_not_enter_the_next_transaction(
    call: str,
) -> None:
    async with EmbeddedCluster(transport="tcp") as cluster:
        cluster.create_topic("t")
        held = asyncio.Event()

        def hold(seen: RequestSeen) -> Action | None:
            if seen.api_key != 3 or held.is_set():
                return None
            held.set()
            return Drop(silent=False)

        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            transactional_id="x",
            request_timeout_ms=300,
            max_block_ms=20_000,
        )
        async with producer:
            await producer.begin_transaction()
            cluster.intercept(hold)
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=b"of the first")
            first: Any = (
                producer.send("t", b"of the first")
                if call == "send"
                else producer.send_batch(batch, "t", partition=0)
            )
            waiting = asyncio.ensure_future(first)
            await held.wait()
            await producer.abort_transaction()
            await producer.begin_transaction()
            assert isinstance(await raised(waiting), errors.TransactionAborted)
            await producer.commit_transaction()
        assert cluster.log_end_offset("t", 0) == 0
