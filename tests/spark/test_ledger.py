"""A task's ledger (a row per record) and tally (counts and latencies) agree, without Spark."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aioidem import Producer
from aioidem._load.load import Workload, run_load
from aioidem._load.measure import RunLabel, Tally
from aioidem._spark.ledger import Ledger, NumberedRecords
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio

LABEL = RunLabel(client="aioidem", version="0", in_flight=5, record_size=100)


class TickingClock:
    """A clock that advances 10 ms at each reading, so that no two readings are equal."""

    def __init__(self) -> None:
        self._now = 1_700_000_000.0

    def __call__(self) -> float:
        self._now += 0.01
        return self._now


async def test_the_ledger_and_the_tally_have_the_same_latencies(tmp_path: Path) -> None:
    """The ledger's rows give the same average and maximum latency as the tally.

    A record's timestamp in the log is the `sent_at` of its row, truncated to milliseconds.
    """
    clock = TickingClock()
    ledger = Ledger(str(tmp_path), "p", "t", 5)
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=2)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, connector=cluster.connector
        ) as producer:
            tally = Tally(clock())
            work = Workload(
                topic="t",
                values=(b"",),
                num_records=100,
                duration=None,
                throughput=math.inf,
                flush_timeout=60,
            )
            failure = await run_load(producer, work, tally, clock, NumberedRecords(ledger, 100))
        records = cluster.records("t")
    assert failure is None
    await ledger.close()
    rows = pq.read_table(tmp_path).to_pylist()
    took = [(row["ended_at"] - row["sent_at"]).total_seconds() * 1000 for row in rows]
    counted = tally.result(LABEL).latency
    assert len(took) == 100
    assert counted is not None
    assert counted.max == pytest.approx(max(took), abs=0.001)
    assert counted.avg == pytest.approx(sum(took) / len(took), abs=0.001)
    stamps = {(record.partition, record.offset): record.timestamp for record in records}
    for row in rows:
        truncated = row["sent_at"].replace(microsecond=row["sent_at"].microsecond // 1000 * 1000)
        assert stamps[row["partition"], row["offset"]] == round(truncated.timestamp() * 1000)
