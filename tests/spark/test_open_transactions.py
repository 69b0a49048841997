"""Open transactions of a killed query are found at the coordinators and ended, and no others."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from aioidem import Producer
from aioidem._broker import versions
from aioidem._broker.intercept import RequestSeen
from aioidem._spark.marker import PREFIX
from aioidem._spark.open_transactions import end_transactions_of, query_id
from aioidem.broker import EmbeddedCluster
from aioidem.errors import ConfigError, IncompatibleBrokerVersion, ProducerFenced
from aioidem.spark import end_open_transactions, register

from .tools import Query, streaming_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST_TRANSACTIONS, LOADING = 66, 14


@asynccontextmanager
async def writing(cluster: EmbeddedCluster, topic: str, name: str) -> AsyncIterator[Producer]:
    """Yield a producer with one record in an open transaction."""
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send(topic, name.encode(), partition=0)
        yield producer


def open_in(cluster: EmbeddedCluster, topic: str) -> int:
    """Count the records that readers of committed data cannot see yet."""
    return cluster.log_end_offset(topic, 0) - cluster.last_stable_offset(topic, 0)


async def left_open(*, loads: bool) -> None:
    topic, query, other = "t", secrets.token_hex(4), secrets.token_hex(4)
    names = [f"{PREFIX}.{query}.{task}" for task in (0, 1, 11)]
    async with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic(topic, replication=3)
        asked: list[int] = []

        def seen(request: RequestSeen) -> None:
            if request.api_key == LIST_TRANSACTIONS:
                asked.append(request.broker_id)
                if loads and len(asked) == 3:
                    cluster.fail_coordinator(names[1], None)

        async with (
            writing(cluster, topic, f"{PREFIX}.{other}.0") as stranger,
            writing(cluster, topic, "42") as numbered,  # as a service that numbers its producers
            writing(cluster, topic, names[0]),
            writing(cluster, topic, names[1]) as twin,
            writing(cluster, topic, names[2]) as done,
        ):
            await done.commit_transaction()
            cluster.intercept(seen)
            if loads:
                cluster.fail_coordinator(names[1], LOADING)
            ended = await end_transactions_of(streaming_sink(cluster, topic), query)
            assert ended == tuple(names[:2])
            assert set(asked) == {0, 1, 2}
            with pytest.raises(ProducerFenced):
                await twin.commit_transaction()
            # The transaction of another program is the oldest one, and holds back all others.
            assert open_in(cluster, topic) > 0
            await stranger.commit_transaction()
            await numbered.commit_transaction()
            assert open_in(cluster, topic) == 0
            assert await end_transactions_of(streaming_sink(cluster, topic), query) == ()


@pytest.mark.parametrize("loads", [False, True], ids=["at-once", "while-a-coordinator-loads"])
def test_what_is_open_is_ended(loads: bool) -> None:
    """Open transactions of a query are ended, and those of other programs are not."""

    async def run() -> None:
        with anyio.fail_after(60):
            await left_open(loads=loads)

    anyio.run(run)


def test_a_broker_that_cannot_tell_is_named(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names ListTransactions if the broker is older than Kafka 3.0 and lacks it."""
    older = {key: each for key, each in versions.VERSIONS.items() if key != LIST_TRANSACTIONS}
    monkeypatch.setattr(versions, "VERSIONS", older)
    with pytest.raises(IncompatibleBrokerVersion, match="LIST_TRANSACTIONS"):
        anyio.run(end_transactions_of, streaming_sink(cluster, topic), "q")


def test_a_mode_without_transactions_is_refused(spark: SparkSession) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", "mode": "at-least-once"}
    with pytest.raises(ConfigError, match="at-least-once has no transactions"):
        end_open_transactions(spark, "anywhere", given)


def test_the_query_is_the_one_of_the_checkpoint(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    portal: BlockingPortal,
    tmp_path: Path,
) -> None:
    """The query whose transactions are ended is the one that the checkpoint's metadata names."""
    register(spark)
    query = Query(spark, cluster.bootstrap_servers, topic, tmp_path)
    checkpoint = str(query.checkpoint)
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    assert end_open_transactions(spark, checkpoint, given) == ()  # the query never ran
    query.feed()
    query.run()
    found = json.loads((query.checkpoint / "metadata").read_text())["id"]
    assert query_id(spark, checkpoint + "/") == found
    assert end_open_transactions(spark, checkpoint, given) == ()

    # Task 7 left a transaction open, and no later batch has a task 7 whose producer would end it.
    name = f"{PREFIX}.{found}.7"
    with portal.wrap_async_context_manager(writing(cluster, topic, name)):
        assert open_in(cluster, topic) > 0
        assert end_open_transactions(spark, checkpoint, given) == (name,)
        assert open_in(cluster, topic) == 0


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"id": 1}', "what?"])
def test_what_is_no_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, text: str) -> None:
    """A folder without the metadata of a query's checkpoint is refused."""
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(ConfigError, match="not the metadata of a query's checkpoint"):
        query_id(spark, str(tmp_path))
