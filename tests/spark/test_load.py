"""`aioidem perf --spark`: the tasks' counts, their ledgers and the topic agree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._cli import main
from aioidem._load.measure import RunLabel, Tally
from aioidem._load.plan import plan_perf
from aioidem._load.usage import UsageError
from aioidem._spark.ledger import LEDGER_COLUMNS
from aioidem._spark.load import plan_spark, share
from aioidem.broker import EmbeddedCluster
from aioidem.structs import DeliveryStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABEL = RunLabel(client="aioidem", version="0", in_flight=5, record_size=100)


def test_tasks_ledgers_and_topic_agree(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The counts of the tasks, their ledgers and the topic's log agree."""
    out, folder = tmp_path / "result.json", tmp_path / "ledger"
    status = main(
        [
            "perf", "--spark", "--tasks", "3", "--bootstrap-server", cluster.bootstrap_servers,
            "--topic", topic, "--num-records", "10000", "--record-size", "120",
            "--in-flight", "1,5", "--ledger", str(folder), "--json", str(out),
        ]
    )  # fmt: skip
    assert status == 0
    results = json.loads(out.read_text())
    assert [(row["in_flight"], row["records"], row["acked"]) for row in results] == [
        (1, 10_000, 10_000),
        (5, 10_000, 10_000),
    ]
    ledger = spark.read.parquet(str(folder))
    assert set(ledger.columns) == set(LEDGER_COLUMNS)
    assert ledger.count() == 20_000
    assert ledger.select("producer", "call").distinct().count() == 20_000
    assert ledger.select("producer").distinct().count() == 6
    assert ledger.filter("status != 'acked'").count() == 0
    assert sum(cluster.log_end_offset(topic, index) for index in range(2)) == 20_000
    # No unfinished file is left.
    assert not [
        path for path in folder.iterdir() if ".parquet" in path.name and path.name[0] == "."
    ]

    for row in results:
        single = single_pass(ledger, row["in_flight"])
        for name, percentile in (("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p999", 99.9)):
            exact = single[math.ceil(percentile / 100 * len(single)) - 1]
            # The histogram is exact to three digits, the ledger to microseconds.
            assert row["latency_ms"][name] == pytest.approx(exact, rel=1.1e-3, abs=2e-3)
        # Result and ledger use the same two readings of the clock; the ledger rounds each reading.
        assert row["latency_ms"]["max"] == pytest.approx(single[-1], abs=2e-3)


def single_pass(ledger: object, in_flight: int) -> list[float]:
    """Return all latencies of a run in ms, sorted."""
    frame = ledger.filter(f"in_flight = {in_flight}")  # type: ignore[attr-defined]
    rows = frame.selectExpr("unix_micros(ended_at) - unix_micros(sent_at) AS took").collect()
    return sorted(row.took / 1000 for row in rows)


def test_a_run_that_fails_is_one_line(
    spark: SparkSession,  # noqa: ARG001 - the command uses this session
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(
        [
            "perf", "--spark", "--tasks", "1", "--bootstrap-server", "127.0.0.1:1",
            "--topic", "t", "--num-records", "10", "--producer-props", "max.block.ms=200",
        ]
    )  # fmt: skip
    assert status == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioidem perf: ")


SPARK = "--spark --tasks 1 --bootstrap-server h:1 --topic t --num-records 8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--spark --tasks 2", "--bootstrap-server"),
        ("--spark --bootstrap-server h:1 --topic t --num-records 9", "--tasks: needed"),
        ("--tasks 2 --bootstrap-server h:1 --topic t --num-records 9", "only with --spark"),
        ("--spark --tasks 0 --bootstrap-server h:1 --topic t --num-records 9", "--tasks: 0"),
        ("--spark --tasks 9 --bootstrap-server h:1 --topic t --num-records 8", "--num-records: 8"),
        (
            f"{SPARK} --record-size 9 --ledger x",
            "--record-size: 9",
        ),
        (
            f"{SPARK} --in-flight 5,5 --ledger x",
            "--in-flight: a number is given twice",
        ),
        (
            f"{SPARK} --payload-file {__file__} --ledger x",
            "--payload-file: not with --ledger",
        ),
    ],
)
def test_bad_usage_is_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["perf", *words.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@given(records=st.integers(1, 10_000), tasks=st.integers(1, 50))
def test_the_shares_are_the_whole(records: int, tasks: int) -> None:
    """The tasks' shares of a load add up to the whole load."""
    plan = plan_perf(bootstrap_server="h:1", topic="t", num_records=records, throughput=100.0)
    if records < tasks:
        with pytest.raises(UsageError, match="too few"):
            plan_spark(plan, tasks=tasks, ledger=None, master=None)
        return
    load = plan_spark(plan, tasks=tasks, ledger=None, master=None)
    shares = [share(load, task) for task in range(tasks)]
    counts = [part.num_records or 0 for part in shares]
    assert sum(counts) == records
    assert max(counts) - min(counts) <= 1
    assert sum(part.throughput for part in shares) == pytest.approx(100.0)


@given(
    parts=st.lists(
        st.tuples(
            st.floats(0, 50),
            st.lists(st.tuples(st.floats(0, 9), st.floats(1e-6, 9)), min_size=1, max_size=30),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_merged_tallies_are_one_tally_of_all(
    parts: list[tuple[float, list[tuple[float, float]]]],
) -> None:
    tallies = []
    whole = Tally(min(started for started, _ in parts))
    for started, records in parts:
        tally = Tally(started)
        for sent, took in sorted(records, key=sum):
            for each in (tally, whole):
                each.queued()
                each.acknowledged(10, started + sent, started + sent + took)
        tally.queued()
        tally.failed(DeliveryStatus.NOT_WRITTEN, None, started)
        whole.queued()
        whole.failed(DeliveryStatus.NOT_WRITTEN, None, started)
        tallies.append(json.loads(json.dumps(tally.state())))
    merged, single = Tally.merged(tallies).result(LABEL), whole.result(LABEL)
    assert (merged.records, merged.acked, merged.not_written, merged.unknown) == (
        single.records, single.acked, single.not_written, single.unknown,
    )  # fmt: skip
    assert merged.curve == single.curve
    assert merged.latency is not None
    assert single.latency is not None
    assert merged.latency.avg == pytest.approx(single.latency.avg)
    assert sum(merged.timeline) == sum(single.timeline)


def test_the_merged_rates_span_all_tasks() -> None:
    """Merged rates count all tasks' records, from the first task's start to the last one's end.

    Here these are 200 records in 3 s. The steady rate leaves out each task's first batch: 180
    records in 2.85 s.
    """
    states = []
    for started in (100.0, 101.0):
        tally = Tally(started)
        for _ in range(100):
            tally.queued()
        for number in range(1, 11):
            at = started + 2.0 * number / 10 if number > 1 else started + 0.15
            for _ in range(10):
                tally.acknowledged(1, started, at)
            tally.first_batch_over()
        states.append(tally.state())
    result = Tally.merged(states).result(LABEL)
    assert result.seconds == pytest.approx(3.0)
    assert result.records_per_sec == pytest.approx(200 / 3)
    assert result.steady_records_per_sec == pytest.approx(180 / 2.85)
    assert result.timeline[1] == 10
    assert result.timeline[11] == 10


def test_nothing_to_merge_is_an_error() -> None:
    """Merging the results of no task is an error."""
    with pytest.raises(ValueError, match="nothing"):
        Tally.merged([])
