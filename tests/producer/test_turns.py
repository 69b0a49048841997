"""A long `send_many` or `send_table` lets other tasks run between two pieces of its records.

Another task notes in each of its turns how many records the producer has accepted. The tests count
turns and records; `pieces` says how long a piece takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from aioidem import Producer, Record, errors
from aioidem._hot import WHY_PURE
from aioidem._producer.pieces import FEW_ROWS, HASHED_ROWS, MOST_ROWS
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import REAL_LOOPS, bounded, numbered, producer_for, stored_values

pytestmark = [pytest.mark.anyio, REAL_LOOPS]

WITH_KEYS = MOST_ROWS if WHY_PURE is None else HASHED_ROWS
LONG = 4 * MOST_ROWS
ROWS = numbered(LONG)


def accepted(producer: Producer) -> int:
    """Return how many records the producer has queued since its start."""
    now = producer.statistics()
    return now.records_queued + now.records_acked


async def watch(producer: Producer, seen: list[int]) -> None:
    """Note in each turn how many records were accepted so far, until cancelled."""
    while True:
        seen.append(accepted(producer))
        await anyio.lowlevel.checkpoint()


def most_at_once(seen: list[int]) -> int:
    """Return how many records were accepted between two turns of `watch`.

    These are at most two pieces: trio runs the tasks of each turn in an order of its own.
    """
    return max(after - before for before, after in pairwise(seen))


def values(producer: Producer) -> Awaitable[object]:
    return producer.send_many("t", ROWS)


def made_values(producer: Producer) -> Awaitable[object]:
    return producer.send_many("t", iter(ROWS))


def records_with_keys(producer: Producer) -> Awaitable[object]:
    return producer.send_many("t", [Record(row, row) for row in ROWS])


def records_with_headers(producer: Producer) -> Awaitable[object]:
    return producer.send_many("t", [Record(row, headers=[("h", row)]) for row in ROWS[: LONG // 4]])


def converted_values(producer: Producer) -> Awaitable[object]:
    rows: Any = [bytearray(row) for row in ROWS[: LONG // 4]]
    return producer.send_many("t", rows)


def table(producer: Producer) -> Awaitable[object]:
    return producer.send_table("t", pa.table({"value": ROWS}))


def table_with_keys(producer: Producer) -> Awaitable[object]:
    return producer.send_table("t", pa.table({"value": ROWS, "key": ROWS}), key="key")


def table_with_headers(producer: Producer) -> Awaitable[object]:
    headers = pa.array([[("h", b"")]] * len(ROWS[: LONG // 4]), pa.map_(pa.string(), pa.binary()))
    rows = pa.table({"value": ROWS[: LONG // 4], "h": headers})
    return producer.send_table("t", rows, headers="h")


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (values, MOST_ROWS),
        (made_values, MOST_ROWS),
        (records_with_keys, WITH_KEYS),
        (records_with_headers, FEW_ROWS),
        (converted_values, FEW_ROWS),
        (table, MOST_ROWS),
        (table_with_keys, WITH_KEYS),
        (table_with_headers, FEW_ROWS),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
@bounded(60)
async def test_other_tasks_run_between_two_pieces_of_a_call(
    call: Callable[[Producer], Awaitable[object]], most: int
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("t")
            seen: list[int] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, producer, seen)
                await until(lambda: bool(seen))
                await call(producer)
                await until(lambda: seen[-1] == accepted(producer))
                tasks.cancel_scope.cancel()
    assert most_at_once(seen) <= 2 * most


@bounded(60)
async def test_other_tasks_run_while_a_partitioner_of_the_users_is_asked() -> None:
    """A piece has fewer records then, because the partitioner is called for each of them."""

    def choose(key: bytes | None, everything: Sequence[int], _: Sequence[int], /) -> int:
        del key
        return everything[0]

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, partitioner=choose) as producer:
            await producer.partitions_for("t")
            seen: list[int] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, producer, seen)
                await until(lambda: bool(seen))
                await producer.send_many("t", ROWS[: 5 * FEW_ROWS])
                tasks.cancel_scope.cancel()
        assert stored_values(cluster) == ROWS[: 5 * FEW_ROWS]
    assert most_at_once(seen) <= 2 * FEW_ROWS


@bounded(60)
async def test_a_call_that_is_cancelled_between_two_pieces_sends_those_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The records that were queued before are sent, and failures among them are logged."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with producer_for(cluster) as producer:
            await producer.partitions_for("t")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "t", ROWS)
                await until(lambda: accepted(producer) > 0)
                tasks.cancel_scope.cancel()
            queued = accepted(producer)
            await anyio.lowlevel.checkpoint()
            assert accepted(producer) == queued < LONG
            assert queued % MOST_ROWS == 0
            cluster.release_high_watermark("t")
            assert (await producer.flush()).acked == queued
            assert stored_values(cluster) == ROWS[:queued]
            cluster.hold_high_watermark("t")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "t", ROWS)
                await until(lambda: accepted(producer) > queued)
                tasks.cancel_scope.cancel()
            failing = accepted(producer) - queued
            assert failing < LONG
            await producer.close(timeout=0)
    assert f"{failing} failed deliveries were never looked at" in caplog.text


@bounded(60)
async def test_a_producer_that_is_closed_between_two_pieces_ends_the_call_there() -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            await producer.partitions_for("t")

            async def close() -> None:
                await until(lambda: accepted(producer) > 0)
                await producer.close()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close)
                with pytest.raises(errors.PartialDeliveryError, match="stopped after") as caught:
                    await producer.send_many("t", ROWS)
        assert isinstance(caught.value.__cause__, errors.ProducerClosed)
        stored = stored_values(cluster)
        assert len(stored) == len(caught.value.deliveries)
        assert stored == ROWS[: len(stored)] != ROWS


@bounded(60)
async def test_calls_that_take_turns_keep_the_order_of_their_records() -> None:
    """Pieces of two long calls alternate, and each call's records keep their order by key."""
    mine, others = ([b"%d-%b" % (call, row) for row in ROWS] for call in range(2))
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("t")
            async with anyio.create_task_group() as tasks:
                for rows in (mine, others):
                    records = [Record(row, b"%d" % (at % 7)) for at, row in enumerate(rows)]
                    tasks.start_soon(producer.send_many, "t", records)
        stored = [stored_values(cluster, "t", partition) for partition in range(3)]
    for values in stored:
        for prefix in (b"0-", b"1-"):
            numbers = [int(value[2:]) for value in values if value.startswith(prefix)]
            assert numbers == sorted(numbers)
    assert sum(map(len, stored)) == 2 * LONG
