"""An exactly-once task, tested without Spark, survives repeated, concurrent and fenced attempts.

Each test that writes runs twice: every task in a new Python worker, with a new producer; and all
tasks in one worker, which has kept the producer of an earlier task.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.intercept import Refuse, RequestSeen
from aioidem._spark.marker import (
    IdentityUsedError,
    MarkerAheadError,
    MarkerError,
    MarkerMissingError,
    RowsChangedError,
    TaskIdentity,
)
from aioidem._spark.options import SinkOptions
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import (
    ExactlyOnceWriter,
    SinkTaskError,
    Written,
    check_identity,
)
from aioidem._spark.writing import write_rows as write_in_worker
from aioidem.broker import EmbeddedCluster
from aioidem.errors import ConfigError, InvalidTransactionTimeout, KafkaError

from .tools import record_batch

InLoop = Callable[..., Any]
Write = Callable[..., Written]
PRODUCE, FETCH_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 9, 26, 28


@pytest.fixture
def query() -> str:
    """Return a query id that no other test has."""
    return secrets.token_hex(4)


@pytest.fixture(autouse=True)
def _healthy(cluster: EmbeddedCluster) -> Iterator[None]:
    yield
    cluster.intercept(None)


def options(cluster: EmbeddedCluster, topic: str, **more: str) -> SinkOptions:
    return SinkOptions.read(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.transaction.timeout.ms": "30000",
            "topic": topic,
            **more,
        },
        streaming=True,
    )


@pytest.fixture(params=["a new worker", "a worker that has kept a producer"])
def write_rows(
    request: pytest.FixtureRequest, cluster: EmbeddedCluster, topic: str
) -> Iterator[Write]:
    """Return the function that runs a task, in a new Python worker or in one that was used."""
    if request.param == "a new worker":
        yield write_in_worker
        return
    loop = TaskLoop()
    earlier = TaskIdentity(secrets.token_hex(4), 0, 0)
    write_in_worker(options(cluster, topic), [], earlier, loop)
    yield partial(write_in_worker, loop=loop)
    loop.stop()


def numbered(topic: str, count: int, first: int = 0) -> pa.RecordBatch:
    return record_batch(topic, [b"%d" % (first + n) for n in range(count)])


def committed(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """Return the committed values in partition 0 of the topic, read with librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": secrets.token_hex(4),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    values: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        until = time.monotonic() + 20
        while time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001
                return values
            values.append(int(message.value() or b"-1"))
    finally:
        consumer.close()
    raise TimeoutError("no end of the partition")


def test_a_task_tried_again_after_its_commit_skips(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task that is tried again after its commit writes nothing."""
    sink = options(cluster, topic)
    rows = numbered(topic, 50)
    for batch in range(3):
        task = TaskIdentity(query, batch, 0)
        assert write_rows(sink, [rows[:20], rows[20:]], task) == Written(50)
        backwards = rows.take(pa.array(range(49, -1, -1)))
        assert write_rows(sink, [backwards], task) == Written(50, skipped=True)
    assert committed(cluster, topic) == list(range(50)) * 3


def test_the_marker_is_sent_while_rows_are_still_written(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """The marker joins the transaction without waiting for the answers about the last rows."""
    seen: list[int] = []

    def refuse_before_the_marker(each: RequestSeen) -> Refuse | None:
        seen.append(each.api_key)
        early = each.api_key == PRODUCE and TXN_OFFSET_COMMIT not in seen
        return Refuse(ErrorCode.not_leader_or_follower) if early else None

    cluster.intercept(refuse_before_the_marker)
    timeouts = {"kafka.delivery.timeout.ms": "10000", "kafka.request.timeout.ms": "5000"}
    quick = options(cluster, topic, **timeouts)
    task = TaskIdentity(query, 0, 0)
    assert write_rows(quick, [numbered(topic, 5)], task) == Written(5)
    assert committed(cluster, topic) == list(range(5))


def test_other_rows_for_a_written_batch_fail(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task fails if an earlier attempt has committed other rows for the same batch."""
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)
    write_rows(sink, [numbered(topic, 5)], task)
    for other in (
        numbered(topic, 4),
        numbered(topic, 6),
        numbered(topic, 5, 1),
        numbered(topic, 0),
    ):
        with pytest.raises(RowsChangedError, match="written with 5 rows"):
            write_rows(sink, [other], task)
    assert committed(cluster, topic) == list(range(5))


def test_a_task_that_fails_halfway_leaves_nothing(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """The rows of a task that fails are aborted."""
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)

    def broken() -> Iterator[pa.RecordBatch]:
        yield numbered(topic, 10)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(sink, broken(), task)
    assert committed(cluster, topic) == []
    assert write_rows(sink, [numbered(topic, 10)], task) == Written(10)
    assert committed(cluster, topic) == list(range(10))


def test_an_attempt_whose_rows_cannot_be_computed_fences_no_other(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """An attempt whose rows cannot be computed does not fence one that is writing meanwhile."""
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise ZeroDivisionError

    def twice() -> Iterator[pa.RecordBatch]:
        yield numbered(topic, 5)
        with pytest.raises(ZeroDivisionError):
            write_rows(sink, broken(), task)
        yield numbered(topic, 5, 5)

    assert write_rows(sink, twice(), task) == Written(10)
    assert committed(cluster, topic) == list(range(10))


def test_a_task_without_rows_has_a_marker(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task without rows commits a marker, too, so that the next attempt skips the task."""
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)
    assert write_rows(sink, [], task) == Written(0)
    assert write_rows(sink, [], task) == Written(0, skipped=True)


def test_a_twin_that_wakes_up_before_it_reads_the_marker_skips(
    cluster: EmbeddedCluster, topic: str, query: str, in_loop: InLoop, write_rows: Write
) -> None:
    """An attempt that reads the marker after another attempt has committed writes nothing."""
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)

    async def twin() -> bool:
        import anyio.to_thread

        writer = ExactlyOnceWriter(sink, task)
        await writer.open()
        await anyio.to_thread.run_sync(write_rows, sink, [numbered(topic, 5)], task)
        try:
            return await writer.begin()
        finally:
            await writer.close(failed=True)

    assert in_loop(twin) is False
    assert committed(cluster, topic) == list(range(5))


def test_a_twin_that_wakes_up_after_it_read_the_marker_is_fenced(
    cluster: EmbeddedCluster, topic: str, query: str, in_loop: InLoop, write_rows: Write
) -> None:
    """An attempt of a task cannot commit after another attempt has committed, and fails.

    The first attempt has read the marker, the number of the task's next batch, before the other one
    committed, so the marker does not stop it. But the other attempt has fenced its producer.
    """
    sink, task = options(cluster, topic), TaskIdentity(query, 0, 0)

    async def twin() -> None:
        import anyio.to_thread

        writer = ExactlyOnceWriter(sink, task)
        await writer.open()
        assert await writer.begin()
        await anyio.to_thread.run_sync(write_rows, sink, [numbered(topic, 5)], task)
        try:
            writer.look_at(numbered(topic, 5))
            await writer.write(numbered(topic, 5))
            await writer.finish()
        finally:
            await writer.close(failed=True)

    with pytest.raises(KafkaError):
        in_loop(twin)
    assert committed(cluster, topic) == list(range(5))


def test_a_commit_whose_answer_is_lost_is_found_by_the_next_attempt(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """If the answer to a commit is lost, the next attempt finds the marker and writes nothing.

    The marker is an offset that a task commits in the same transaction as its rows.
    """
    from aioidem._broker.intercept import Drop

    sink = options(cluster, topic, **{"kafka.max.block.ms": "1000"})
    task = TaskIdentity(query, 0, 0)
    cluster.intercept(lambda seen: Drop(processed=True) if seen.api_key == END_TXN else None)
    with pytest.raises(KafkaError):
        write_rows(sink, [numbered(topic, 5)], task)
    cluster.intercept(None)
    assert write_rows(sink, [numbered(topic, 5)], task).rows == 5
    assert committed(cluster, topic) == list(range(5))


def test_the_marker_is_read_after_the_twin_is_fenced_and_before_a_row_is_sent(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task first fences other attempts, then reads its marker, and then sends its rows."""
    seen: list[int] = []
    cluster.intercept(lambda each: seen.append(each.api_key))
    write_rows(options(cluster, topic), [numbered(topic, 5)], TaskIdentity(query, 0, 0))
    init, read, write, end = (seen.index(key) for key in (22, FETCH_OFFSETS, PRODUCE, END_TXN))
    assert init < read < write < end


def test_what_is_missing_or_ahead_fails_loudly(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task fails if its marker (the number of its next batch) is missing, or too high."""
    sink, rows = options(cluster, topic), [numbered(topic, 3)]
    with pytest.raises(MarkerMissingError):
        write_rows(sink, rows, TaskIdentity(query, 4, 0))
    careless = options(cluster, topic, marker="missing-ok")
    assert write_rows(careless, rows, TaskIdentity(query, 4, 0)) == Written(3)
    # Task 1 has no marker, but task 0's marker of batch 4 shows that markers have not expired.
    assert write_rows(sink, rows, TaskIdentity(query, 5, 1)) == Written(3)
    with pytest.raises(MarkerAheadError):
        write_rows(sink, rows, TaskIdentity(query, 3, 0))
    assert committed(cluster, topic) == [0, 1, 2] * 2


def test_a_group_of_somebody_else_is_left_alone(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A task fails if another program committed an offset in the group of the task's marker."""
    task = TaskIdentity(query, 0, 0)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": task.name}
    )
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    with pytest.raises(MarkerError, match="no marker"):
        write_rows(options(cluster, topic), [numbered(topic, 3)], task)


def test_an_identity_is_used_once(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A second batch write with the same identity fails."""
    sink = SinkOptions.read(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.transaction.timeout.ms": "30000",
            "topic": topic,
            "identity": query,
        }
    )
    check_identity(sink)
    task = TaskIdentity(query, 0, 0, "one run")
    write_rows(sink, [numbered(topic, 3)], task)
    assert write_rows(sink, [numbered(topic, 3)], task).skipped
    with pytest.raises(IdentityUsedError):
        check_identity(sink)
    with pytest.raises(IdentityUsedError):
        write_rows(sink, [numbered(topic, 3)], TaskIdentity(query, 0, 0, "another run"))
    assert committed(cluster, topic) == [0, 1, 2]


def test_a_task_that_takes_too_long_says_what_to_do(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A transaction that times out commits nothing, and the error names the option to raise."""
    sink = options(cluster, topic, **{"kafka.transaction.timeout.ms": "1500"})

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield numbered(topic, 10)

    with pytest.raises(SinkTaskError, match=r"raise kafka\.transaction"):
        write_rows(sink, endless(), TaskIdentity(query, 0, 0))
    assert committed(cluster, topic) == []


def test_a_timeout_that_the_cluster_does_not_allow_is_named(
    cluster: EmbeddedCluster, topic: str, query: str, write_rows: Write
) -> None:
    """A transaction timeout above the cluster's maximum raises InvalidTransactionTimeout."""
    sink = options(cluster, topic, **{"kafka.transaction.timeout.ms": "999000000"})
    with pytest.raises(InvalidTransactionTimeout):
        write_rows(sink, [], TaskIdentity(query, 0, 0))


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"topic": "t", "mode": "exactly-once"}, False, "identity: needed"),
        ({"topic": "t", "identity": "a b"}, False, "identity: 'a b'"),
        ({"topic": "t", "identity": "a"}, True, "identity: for batch writes"),
        ({}, True, "marker.topic: needed"),
        ({"topic": "t", "marker": "any"}, True, "marker: 'any'"),
        ({"topic": "t", "adaptive": "yes"}, True, "adaptive: 'yes'"),
        ({"topic": "t", "offsets.retention.minutes": "1w"}, True, "offsets.retention.minutes"),
        ({"topic": "t", "kafka.transactional.id": "x"}, True, "kafka.transactional.id"),
        ({"topic": "t", "kafka.enable.idempotence": "false"}, True, "idempotence"),
    ],
)
def test_a_bad_option_is_named(given: dict[str, str], streaming: bool, message: str) -> None:
    """The error for a bad option of the sink names the option."""
    with pytest.raises(ConfigError, match=message):
        SinkOptions.read({"kafka.bootstrap.servers": "h:1", **given}, streaming=streaming)


def test_the_mode_is_exactly_once_where_there_is_an_identity() -> None:
    """The default mode is exactly-once for streams and for batch writes with an identity."""
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    assert SinkOptions.read(given).mode == "at-least-once"
    assert SinkOptions.read(given, streaming=True).mode == "exactly-once"
    assert SinkOptions.read({**given, "identity": "a"}).mode == "exactly-once"
    careless = {**given, "mode": "at-least-once"}
    assert SinkOptions.read(careless, streaming=True).mode == "at-least-once"
    # The default transaction timeout is 15 minutes.
    assert SinkOptions.read(given, streaming=True).config("x").transaction_timeout == 900
