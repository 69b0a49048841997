"""The transactional producer that a worker keeps for its tasks, tested without Spark."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.intercept import CloseConnection, RequestSeen, Rewrite
from aioidem._spark.marker import RowsChangedError, TaskIdentity
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import Written, write_rows
from aioidem.broker import EmbeddedCluster
from aioidem.errors import TransactionalIdAuthorizationFailed

from .tools import record_batch, streaming_sink

PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN = 0, 3, 22, 26
COORDINATION = {
    9: "OffsetFetch",
    10: "FindCoordinator",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}


class Asked(NamedTuple):
    """A request of a producer: its API, its connection, and the transactional id in it."""

    api: int
    connection: int
    transactional_id: str | None
    producer_id: int


@pytest.fixture
def asked(cluster: EmbeddedCluster) -> Iterator[list[Asked]]:
    """List what producers ask about transactions, and their Metadata and Produce requests."""
    seen: list[Asked] = []

    def note(each: RequestSeen) -> None:
        if each.api_key in (PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN):
            request: Any = each.request
            name = getattr(request, "transactional_id", None)
            number = getattr(request, "producer_id", -1)
            seen.append(Asked(each.api_key, each.connection_id, name, number))

    cluster.intercept(note)
    yield seen
    cluster.intercept(None)


def tasks(count: int) -> list[TaskIdentity]:
    query = secrets.token_hex(4)
    return [TaskIdentity(query, 0, number) for number in range(count)]


def refused(answer: Any) -> Any:
    """Change an answer to InitProducerId into a refusal."""
    code = ErrorCode.transactional_id_authorization_failed
    return dataclasses.replace(answer, error_code=code, producer_id=-1, producer_epoch=-1)


def test_a_producer_takes_the_transactional_id_of_one_task_after_another(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop, asked: list[Asked]
) -> None:
    """Each task's rows and commit are under the task's own id, which it has taken anew.

    InitProducerId names no producer id, so that the coordinator fences other attempts. The tasks
    share the producer's connections and metadata.
    """
    options, three = streaming_sink(cluster, topic), tasks(3)
    for task in three:
        assert write_rows(options, [record_batch(topic, [b"1"])], task, loop) == Written(1)
    for api in (INIT_PRODUCER_ID, PRODUCE, END_TXN):
        wanted = [task.name for task in three]
        assert [each.transactional_id for each in asked if each.api == api] == wanted
    assert {each.producer_id for each in asked if each.api == INIT_PRODUCER_ID} == {-1}
    assert len({each.producer_id for each in asked if each.api == END_TXN}) == 3
    assert len({each.connection for each in asked if each.api == PRODUCE}) == 1
    first = [each.api for each in asked].index(PRODUCE)
    assert METADATA not in [each.api for each in asked[first:]]


def counted(cluster: EmbeddedCluster, run: Callable[[], Written]) -> dict[str, int]:
    """Run a task, and return how often it has asked coordinators for what."""
    seen: Counter[str] = Counter()

    def note(each: RequestSeen) -> None:
        if each.api_key in COORDINATION:
            seen[COORDINATION[each.api_key]] += 1

    cluster.intercept(note)
    run()
    cluster.intercept(None)
    return dict(seen)


def test_a_task_asks_coordinators_as_often_as_the_page_says(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop
) -> None:
    """The table in docs/spark.md has the requests of each task, with transactions v2."""
    options, rows = streaming_sink(cluster, topic), [record_batch(topic, [b"1"])]
    first, second, third = tasks(3)
    written = {
        "FindCoordinator": 2,
        "InitProducerId": 1,
        "OffsetFetch": 1,
        "TxnOffsetCommit": 1,
        "EndTxn": 1,
    }
    for task in (first, second):
        assert counted(cluster, lambda: write_rows(options, rows, task, loop)) == written  # noqa: B023
    skipped = {"FindCoordinator": 2, "InitProducerId": 1, "OffsetFetch": 1}
    assert counted(cluster, lambda: write_rows(options, rows, first, loop)) == skipped
    later = TaskIdentity(first.query, 1, 0)
    assert counted(cluster, lambda: write_rows(options, rows, later, loop)) == written
    new = TaskIdentity(first.query, 1, third.task)
    more = {**written, "FindCoordinator": 3, "OffsetFetch": 2}
    assert counted(cluster, lambda: write_rows(options, rows, new, loop)) == more


def test_a_task_that_fails_and_other_properties_leave_no_producer(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop, asked: list[Asked]
) -> None:
    """A failed task's producer is closed, and so is one of other properties or of another mode."""
    rows, (first, *more) = [record_batch(topic, [b"1"])], tasks(4)
    once, linger = streaming_sink(cluster, topic), {"kafka.linger.ms": "1"}

    def connection() -> int:
        return asked[-1].connection

    used = []
    write_rows(once, rows, first, loop)
    used.append(connection())
    with pytest.raises(RowsChangedError):
        write_rows(once, [*rows, *rows], first, loop)
    write_rows(once, rows, more[0], loop)
    used.append(connection())
    write_rows(streaming_sink(cluster, topic, **linger), rows, more[1], loop)
    used.append(connection())
    write_rows(streaming_sink(cluster, topic, mode="at-least-once", **linger), rows, loop=loop)
    used.append(connection())
    write_rows(streaming_sink(cluster, topic, **linger), rows, more[2], loop)
    used.append(connection())
    assert len(set(used)) == 5


@pytest.mark.parametrize(
    "trouble",
    [CloseConnection(), Rewrite(refused)],
    ids=["the connection ends", "the id is refused"],
)
def test_a_kept_producer_that_gets_no_id_does_not_fail_the_task(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop, trouble: CloseConnection | Rewrite
) -> None:
    """It asks again, or a new producer does; what that one is refused fails the task."""
    options, three = streaming_sink(cluster, topic), tasks(3)
    rows = [record_batch(topic, [b"1"])]
    write_rows(options, rows, three[0], loop)
    left = [trouble]

    def refuse(each: RequestSeen) -> CloseConnection | Rewrite | None:
        return left.pop() if each.api_key == INIT_PRODUCER_ID and left else None

    cluster.intercept(refuse)
    try:
        assert write_rows(options, rows, three[1], loop) == Written(1)
        assert not left
        if isinstance(trouble, Rewrite):
            left += [trouble] * 2
            with pytest.raises(TransactionalIdAuthorizationFailed):
                write_rows(options, rows, three[2], loop)
            assert not left
    finally:
        cluster.intercept(None)
    assert write_rows(options, rows, three[2], loop) == Written(1)
    assert cluster.log_end_offset(topic) == 6  # a row and a control record of each task


def test_a_worker_that_takes_a_task_s_id_back_fences_the_one_that_had_it(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop
) -> None:
    """Two workers with kept producers take turns with one task; neither writes its rows twice."""
    options, other = streaming_sink(cluster, topic), TaskLoop()
    rows = [record_batch(topic, [b"1", b"2"])]
    [task, second, third] = tasks(3)
    try:
        write_rows(options, rows, second, loop)
        write_rows(options, rows, third, other)
        assert write_rows(options, rows, task, loop) == Written(2)
        assert write_rows(options, rows, task, other) == Written(2, skipped=True)
        following = TaskIdentity(task.query, 1, task.task)
        assert write_rows(options, rows, following, loop) == Written(2)
        assert write_rows(options, rows, following, other) == Written(2, skipped=True)
    finally:
        other.stop()
    assert cluster.log_end_offset(topic) == 12
