"""The line about each finished write, tested without Spark."""

from __future__ import annotations

import logging
import secrets

import pytest

from aioidem._spark.marker import TaskIdentity
from aioidem._spark.options import SinkOptions
from aioidem._spark.sink import AioidemStreamWriter, TaskDone
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import Effort, write_rows
from aioidem.broker import EmbeddedCluster

from .tools import record_batch


def test_a_line_tells_what_a_batch_has_done(caplog: pytest.LogCaptureFixture) -> None:
    """The line adds up rows, bytes and batches of all tasks, and names the slowest task."""
    writer = AioidemStreamWriter(SinkOptions(properties={}, topic="t"))
    with caplog.at_level(logging.INFO, "aioidem.spark.report"):
        writer.commit(
            [
                TaskDone(10, effort=Effort(1.5, 1000, 3, 1)),
                TaskDone(5, skipped=True),
                TaskDone(7, effort=Effort(0.25, 500, 2, 0)),
            ],
            4,
        )
    [told] = caplog.messages
    assert told == (
        "batch 4: 22 rows acknowledged by 3 tasks, 1 of them skipped because they were written"
        " before; 1500 bytes in 5 batches, 1 of them sent again; the slowest task took 1.500 s"
    )


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
def test_each_task_counts_only_its_own_batches(
    cluster: EmbeddedCluster, topic: str, mode: str
) -> None:
    """The second task of a worker does not count what the first one has sent."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "mode": mode}
    sink, query, loop = SinkOptions.read(given, streaming=True), secrets.token_hex(4), TaskLoop()
    rows = record_batch(topic, [b"x" * 50] * 10)
    try:
        efforts = [
            write_rows(
                sink, [rows], TaskIdentity(query, 0, each) if mode == "exactly-once" else None, loop
            ).effort
            for each in range(2)
        ]
    finally:
        loop.stop()
    assert [(each.batches, each.retried) for each in efforts] == [(1, 0)] * 2
    assert all(each.bytes > 0 and each.seconds > 0 for each in efforts)
