"""Failed deliveries that no caller looks at are logged, at once and then at intervals.

A producer that is garbage collected without close() logs the records that it gave up. Time is
virtual, so the tests can assert "at most one line in ten seconds".
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Delivery, DeliveryCounts, DeliveryStatus, Producer, Record, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import ASYNCIO_LOOPS, PRODUCE, bounded, numbered, producer_for, virtual_time

pytestmark = pytest.mark.anyio

NEVER = "never looked at"
NOT_YET = "the outcome has not been looked at yet"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Run a producer that knows the topic "orders" of three partitions."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster, client_id="careless", **options) as producer:
            await producer.send("orders", b"connected", partition=0)
            yield cluster, producer


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the logged lines that contain this text."""
    return [r.getMessage() for r in caplog.records if text in r.getMessage()]


def refuse(seen: RequestSeen) -> Action | None:
    """Refuse every batch for good."""
    return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == PRODUCE else None


@bounded(200)
async def test_records_for_partitions_that_do_not_exist_are_reported_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as (_, producer):
        for number in range(45_000):
            producer.send_nowait("orders", b"x", partition=3 + number % 7)
        counts = await producer.flush()
        assert counts == DeliveryCounts(acked=0, not_written=45_000, unknown=0)
        [line] = lines(caplog, NOT_YET)
        assert line.startswith("careless: 45000 records failed")
        assert "45000 of 'orders' UnknownTopicOrPartitionError (not written)" in line
        assert "topic 'orders' has 3 partitions (0 to 2); there is no partition" in line
        assert caplog.records[-1].levelno == logging.WARNING
    [last] = lines(caplog, NEVER)
    assert "careless: 45000 failed deliveries were never looked at" in last


@bounded(400)
async def test_failures_that_go_on_are_counted_after_intervals_that_double(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Failures that go on are one warning, some lines at INFO, and a warning when they are over."""
    caplog.set_level(logging.INFO, "aioidem")
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        for second in range(25):
            producer.send_nowait("orders", b"x", partition=0)
            await virtual_time(1.0)
            if second == 0:
                assert len(lines(caplog, NOT_YET)) == 1, "the first failure is logged at once"
        told = lines(caplog, NOT_YET)
        assert len(told) == 2
        assert "1 of 'orders' InvalidTimestampError" in told[0]
        assert re.search(r"careless: (9|10) records failed", told[1])
        await virtual_time(100.0)
        told = lines(caplog, NOT_YET)
        assert len(told) == 3
        assert sum(int(re.findall(r"(\d+) records? failed", line)[0]) for line in told) == 25
        [over] = lines(caplog, "no record has failed for 40 s; 25 failed in the ")
        assert "and 25 have not been looked at yet [unseen-failures]" in over
        await virtual_time(100.0)
        assert len(lines(caplog, NOT_YET)) == 3, "no line is logged without a new failure"
        levels = [r.levelno for r in caplog.records if "[unseen-failures]" in r.getMessage()]
        assert levels == [logging.WARNING, logging.INFO, logging.INFO, logging.WARNING]
        cluster.intercept(None)


@bounded(200)
async def test_failures_that_were_looked_at_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        with pytest.raises(errors.InvalidTimestampError):
            await producer.send("orders", b"x", partition=0)
        with pytest.raises(errors.PartialDeliveryError):
            await producer.send_many("orders", numbered(5), partition=0)
        called: list[object] = []
        producer.send_nowait("orders", b"x", partition=0).add_done_callback(called.append)
        held = [producer.send_nowait("orders", value, partition=0) for value in numbered(5)]

        async def wait(delivery: Any) -> None:
            with pytest.raises(errors.InvalidTimestampError):
                await delivery

        async with anyio.create_task_group() as tasks:
            for delivery in held:
                tasks.start_soon(wait, delivery)
        assert len(called) == 1
        cluster.intercept(None)
    assert lines(caplog, NOT_YET) == lines(caplog, NEVER) == []


@bounded(200)
async def test_a_delivery_that_is_held_and_looked_at_later_is_counted_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failed delivery that the caller looks at after the first log line is not logged again.

    The first line says only that nobody has looked at the failures "yet".
    """
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        held = [producer.send_nowait("orders", value, partition=0) for value in numbered(9)]
        await producer.flush()
        [line] = lines(caplog, NOT_YET)
        assert "9 records failed" in line
        assert all(isinstance(d.exception(), errors.InvalidTimestampError) for d in held)
        # Deliveries that fail and are looked at before the next line is due are not logged at all.
        later = [producer.send_nowait("orders", value, partition=0) for value in numbered(9)]
        await producer.flush()
        for delivery in later:
            with pytest.raises(errors.InvalidTimestampError):
                await delivery
        await virtual_time(100.0)
        cluster.intercept(None)
    assert len(lines(caplog, NOT_YET)) == 1
    assert lines(caplog, NEVER) == []


@bounded(200)
async def test_the_failure_that_a_line_quotes_is_one_that_nobody_has_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An earlier one of another kind was looked at, before the line or before the end."""
    caplog.set_level(logging.INFO, "aioidem")
    seen, unseen = "there is no partition 7", "larger than"
    async with running() as (cluster, producer):
        cluster.intercept(
            lambda each: Refuse(ErrorCode.message_too_large) if each.api_key == PRODUCE else None
        )
        early = producer.send_nowait("orders", b"x", partition=7)
        await virtual_time(1.0)
        assert early.exception() is not None
        producer.send_nowait("orders", b"x", partition=0)
        late = producer.send_nowait("orders", b"x", partition=7)
        await virtual_time(5.0)
        assert late.exception() is not None
        await virtual_time(10.0)
    first, second = lines(caplog, NOT_YET)
    assert seen in first
    assert seen not in second
    assert unseen in second
    [last] = lines(caplog, NEVER)
    assert seen not in last
    assert unseen in last


@bounded(200)
async def test_a_record_that_failed_and_was_looked_at_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        producer.send_nowait("orders", b"x", partition=0)
        await virtual_time(5.0)
        looked = producer.send_nowait("orders", b"x", partition=8)
        await virtual_time(1.0)
        assert looked.exception() is not None
        await virtual_time(10.0)
        [over] = lines(caplog, "in the 0 s before")
    assert "no failure was left unseen for 10 s" in over


@bounded(200)
async def test_a_cancelled_caller_has_not_looked(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        cluster.set_rtt(2.0)
        for send in (
            producer.send("orders", b"x", partition=0),
            producer.send_many("orders", numbered(3), partition=0),
        ):
            with anyio.move_on_after(1.0):
                await send
        await producer.flush()
        [line] = lines(caplog, NOT_YET)
        assert "of 'orders' InvalidTimestampError" in line
        cluster.intercept(None)
    [last] = lines(caplog, NEVER)
    assert "careless: 4 failed" in last


@bounded(200)
async def test_a_wait_that_is_cancelled_does_not_hide_a_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A caller with a callback has looked at the failure, although its wait was cancelled."""
    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        cluster.set_rtt(2.0)
        delivery = producer.send_nowait("orders", b"x", partition=0)
        told: list[object] = []

        async def wait() -> None:
            await delivery

        with anyio.move_on_after(1.0):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await virtual_time(0.5)
                delivery.add_done_callback(told.append)
        await producer.flush()
        assert told == [delivery]
        cluster.intercept(None)
    assert lines(caplog, NOT_YET) == lines(caplog, NEVER) == []


@ASYNCIO_LOOPS
@bounded(200)
async def test_a_failure_in_the_turn_of_a_cancellation_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A wait that is cancelled just after its record failed raises the failure, or it is logged."""

    async def wait(delivery: Delivery) -> None:
        await delivery

    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        first = producer.send_nowait("orders", b"1", partition=0)
        second = producer.send_nowait("orders", b"2", partition=0)
        task = asyncio.create_task(wait(first))
        second.add_done_callback(lambda _: task.cancel())
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert first.done()
        cluster.intercept(None)
    told = isinstance(ended, errors.InvalidTimestampError)
    assert told + len(lines(caplog, NEVER)) == 1


@bounded(200)
async def test_several_topics_and_errors_are_counted_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as (cluster, producer):
        cluster.create_topic("small", configs={"max.message.bytes": "100"})
        await producer.partitions_for("small")
        for _ in range(3):
            producer.send_nowait("orders", b"x", partition=9)
        for _ in range(2):
            producer.send_nowait("small", bytes(200))
        assert await producer.flush() == DeliveryCounts(not_written=5)
    [last] = lines(caplog, NEVER)
    assert "3 of 'orders' UnknownTopicOrPartitionError" in last
    assert "2 of 'small' MessageSizeTooLargeError" in last


# --- what flush returns ---------------------------------------------------------------------------


@bounded(200)
async def test_flush_returns_what_became_of_the_records_it_waited_for() -> None:
    async with running(request_timeout=1.0, delivery_timeout=3.0) as (cluster, producer):
        assert await producer.flush() == DeliveryCounts()
        for value in numbered(4):
            producer.send_nowait("orders", value, partition=0)
        producer.send_nowait("orders", b"x", partition=3)
        assert await producer.flush() == DeliveryCounts(acked=4, not_written=1)
        cluster.intercept(lambda seen: Drop(processed=True) if seen.api_key == PRODUCE else None)
        for value in numbered(2):
            producer.send_nowait("orders", value, partition=0)
        counts = await producer.flush()
        assert counts == DeliveryCounts(unknown=2)
        assert counts.total == 2
        cluster.intercept(None)


@bounded(200)
async def test_two_flushes_count_apart_and_not_what_came_after_them() -> None:
    async with running() as (cluster, producer):
        cluster.set_rtt(1.0)
        producer.send_nowait("orders", b"1", partition=0)
        counted: dict[str, DeliveryCounts] = {}

        async def flush(name: str) -> None:
            counted[name] = await producer.flush()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush, "first")
            await virtual_time(0.1)
            producer.send_nowait("orders", b"2", partition=0)
            tasks.start_soon(flush, "second")
            await virtual_time(0.1)
            producer.send_nowait("orders", b"3", partition=0)
        assert counted == {"first": DeliveryCounts(acked=1), "second": DeliveryCounts(acked=2)}


@bounded(200)
async def test_a_flush_that_times_out_says_how_many_are_left() -> None:
    async with running() as (cluster, producer):
        cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
        for value in numbered(3):
            producer.send_nowait("orders", value, partition=0)
        with pytest.raises(errors.KafkaTimeoutError, match="flush: 3 records have no outcome"):
            await producer.flush(1.0)
        assert producer._core.outcomes.flushes == 0  # noqa: SLF001 - nothing is left behind
        cluster.intercept(None)


# --- never closed ---------------------------------------------------------------------------------


def forget(only: list[Producer]) -> None:
    """Drop the only reference to a producer, and collect it."""
    only.clear()
    gc.collect()


@bounded(200)
async def test_a_producer_that_is_collected_says_what_it_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("orders")
        only = [producer_for(cluster, client_id="lost", linger=60.0)]
        await only[0].start()
        await only[0].partitions_for("orders")
        held = [only[0].send_nowait("orders", value) for value in numbered(7)]
        held += [only[0].send_nowait("elsewhere", value) for value in numbered(2)]
        with pytest.warns(ResourceWarning, match="was not closed"):
            forget(only)
        [line] = lines(caplog, "was not closed")
        assert "9 records without an outcome are given up" in line
        assert "2 of 'elsewhere'" in line
        assert "7 of 'orders'" in line
        assert [r.levelno for r in caplog.records] == [logging.ERROR]
        await virtual_time(1.0)
        assert {d.status for d in held} == {DeliveryStatus.NOT_WRITTEN}
        assert len(caplog.records) == 1, "the collected producer logs one line"


@bounded(200)
async def test_a_producer_that_is_collected_with_nothing_queued_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A producer that is forgotten unclosed is logged, even if every record had its outcome."""
    async with EmbeddedCluster(transport="memory") as cluster:
        only = [producer_for(cluster)]
        await only[0].start()
        await only[0].send("t", b"x")
        with pytest.warns(ResourceWarning, match="was not closed"):
            forget(only)
        [line] = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert line.levelno == logging.WARNING
        assert line.getMessage().endswith("every record had its outcome [unclosed]")


@bounded(60)
async def test_a_cancelled_send_many_reports_the_records_that_had_failed_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its caller learns nothing of them, nor of those that fail later."""
    async with EmbeddedCluster(brokers=2, transport="memory") as cluster:
        cluster.create_topic("t", partitions=2)
        options: dict[str, Any] = {"delivery_timeout": 2.0, "request_timeout": 1.0}
        async with producer_for(
            cluster, partitioner=lambda key, *_: int(key), **options
        ) as producer:
            await producer.send("t", b"x", key=b"0")

            def refuse_one(seen: RequestSeen) -> Action | None:
                if seen.api_key != PRODUCE:
                    return None
                return Refuse(ErrorCode.invalid_timestamp, frozenset({("t", 0)}))

            cluster.intercept(refuse_one)
            cluster.hold_high_watermark("t", 1)
            records = [Record(b"fails", key=b"0"), Record(b"waits", key=b"1")]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "t", records)
                await until(lambda: producer.statistics().records_not_written == 1, pause=0.01)
                tasks.cancel_scope.cancel()
            await producer.flush()
            cluster.intercept(None)
    [line] = [each for each in caplog.records if getattr(each, "incident", "") == "never-looked-at"]
    assert "2 failed deliveries were never looked at" in line.getMessage()
