"""The connections that a worker keeps for its questions to brokers, tested without Spark."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from aioidem._broker.intercept import CloseConnection, RequestSeen
from aioidem._spark.marker import RowsChangedError, TaskIdentity
from aioidem._spark.options import SinkOptions
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import Written, check_identity, write_rows
from aioidem.broker import EmbeddedCluster

from .tools import record_batch, streaming_sink

OFFSET_FETCH = 9


@pytest.fixture
def asked(cluster: EmbeddedCluster) -> Iterator[list[int]]:
    """List the connection of each request for a marker."""
    seen: list[int] = []

    def note(each: RequestSeen) -> None:
        if each.api_key == OFFSET_FETCH:
            seen.append(each.connection_id)

    cluster.intercept(note)
    yield seen
    cluster.intercept(None)


def test_the_tasks_of_a_worker_share_the_connections_for_markers(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop, asked: list[int]
) -> None:
    """Tasks with the same properties read their markers on one connection, and others on another.

    A task that fails closes the connections.
    """
    query = secrets.token_hex(4)
    rows = record_batch(topic, [b"1", b"2"])
    for number in range(3):
        task = TaskIdentity(query, 0, number)
        assert write_rows(streaming_sink(cluster, topic), [rows], task, loop) == Written(2)
    assert len(asked) == 3
    assert len(set(asked)) == 1
    other = streaming_sink(cluster, topic, **{"kafka.linger.ms": "1"})
    write_rows(other, [rows], TaskIdentity(query, 0, 3), loop)
    assert len(set(asked)) == 2
    with pytest.raises(RowsChangedError):
        write_rows(other, [rows, rows], TaskIdentity(query, 0, 3), loop)
    assert len(set(asked)) == 2
    write_rows(other, [rows], TaskIdentity(query, 0, 4), loop)
    assert len(set(asked)) == 3


def test_a_lost_connection_is_opened_again(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop
) -> None:
    """A task that loses the kept connection reads its marker on another one."""
    query = secrets.token_hex(4)
    rows = record_batch(topic, [b"1", b"2"])
    used: list[int] = []

    def lose(each: RequestSeen) -> CloseConnection | None:
        if each.api_key == OFFSET_FETCH:
            used.append(each.connection_id)
            return CloseConnection() if len(used) == 2 else None
        return None

    cluster.intercept(lose)
    try:
        write_rows(streaming_sink(cluster, topic), [rows], TaskIdentity(query, 0, 0), loop)
        again = write_rows(streaming_sink(cluster, topic), [rows], TaskIdentity(query, 0, 0), loop)
    finally:
        cluster.intercept(None)
    assert again == Written(2, skipped=True)
    assert used[0] == used[1] != used[2]


def test_the_check_of_an_identity_keeps_its_connection(
    cluster: EmbeddedCluster, topic: str, loop: TaskLoop, asked: list[int]
) -> None:
    """Spark's planner asks for the markers of several writes on one connection."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    for identity in (secrets.token_hex(4), secrets.token_hex(4)):
        check_identity(SinkOptions.read({**given, "identity": identity}), loop)
    assert len(asked) == 2
    assert len(set(asked)) == 1
