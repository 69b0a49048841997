"""The exactly-once tests of the Spark sink, with a real broker and a driver that is killed.

They are the tests of `tests/spark` with Kafka's broker instead of the embedded one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import BlockingPortal

from aioidem.testing import Action, Cut, FrameSeen, KafkaCluster
from tests.kafka.tools import STOCK
from tests.spark.conftest import PYSPARK_FORGETS, event_log, in_loop, portal, spark
from tests.spark.test_exactly_once import (
    query,
    test_a_group_of_somebody_else_is_left_alone,
    test_a_task_that_fails_halfway_leaves_nothing,
    test_a_task_that_takes_too_long_says_what_to_do,
    test_a_task_tried_again_after_its_commit_skips,
    test_a_task_without_rows_has_a_marker,
    test_a_timeout_that_the_cluster_does_not_allow_is_named,
    test_a_twin_that_wakes_up_after_it_read_the_marker_is_fenced,
    test_a_twin_that_wakes_up_before_it_reads_the_marker_skips,
    test_an_identity_is_used_once,
    test_other_rows_for_a_written_batch_fail,
    test_what_is_missing_or_ahead_fails_loudly,
    write_rows,
)
from tests.spark.test_killed_driver import END_TXN, kill, restart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "event_log",
    "in_loop",
    "portal",
    "query",
    "spark",
    "test_a_group_of_somebody_else_is_left_alone",
    "test_a_task_that_fails_halfway_leaves_nothing",
    "test_a_task_that_takes_too_long_says_what_to_do",
    "test_a_task_tried_again_after_its_commit_skips",
    "test_a_task_without_rows_has_a_marker",
    "test_a_timeout_that_the_cluster_does_not_allow_is_named",
    "test_a_twin_that_wakes_up_after_it_read_the_marker_is_fenced",
    "test_a_twin_that_wakes_up_before_it_reads_the_marker_skips",
    "test_an_identity_is_used_once",
    "test_other_rows_for_a_written_batch_fail",
    "test_what_is_missing_or_ahead_fails_loudly",
    "write_rows",
]

pytestmark = pytest.mark.filterwarnings(*PYSPARK_FORGETS)


@pytest.fixture(scope="module")
def cluster(portal: BlockingPortal) -> Iterator[KafkaCluster]:
    with portal.wrap_async_context_manager(KafkaCluster(STOCK[0])) as running:
        yield running


@pytest.fixture
def topic(portal: BlockingPortal, cluster: KafkaCluster) -> str:
    """Make a topic of two partitions for one test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    portal.call(cluster.create_topic, name, 2)
    return name


def test_a_killed_driver_is_restarted_from_its_checkpoint(
    spark: SparkSession,
    cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committed = 0

    def lose_the_answer(seen: FrameSeen) -> Action | None:
        nonlocal committed
        if seen.api_key != END_TXN:
            return None
        committed += 1
        return Cut()

    cluster.proxy.on_answer = lose_the_answer
    try:
        kill(cluster.bootstrap_servers, topic, tmp_path, lambda: committed)
    finally:
        cluster.proxy.on_answer = None
    restart(spark, cluster.bootstrap_servers, topic, tmp_path, monkeypatch)
