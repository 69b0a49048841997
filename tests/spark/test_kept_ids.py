"""Workers whose kept producers take each other's transactional ids, and lose their brokers."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from anyio.from_thread import BlockingPortal
from kio.schema.errors import ErrorCode

from aioidem._broker.intercept import RequestSeen, Rewrite
from aioidem._spark.marker import TaskIdentity
from aioidem._spark.options import SinkOptions
from aioidem._spark.task_loop import ProducerKind, TaskLoop
from aioidem._spark.writing import Written, write_rows
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import KafkaError

from .test_exactly_once import committed, numbered
from .tools import streaming_sink

InLoop = Callable[..., Any]
BROKERS = 3
INIT_PRODUCER_ID = 22


@pytest.fixture(scope="module")
def three(portal: BlockingPortal) -> Iterator[EmbeddedCluster]:
    """Start three embedded brokers, so that ids have different coordinators."""
    with portal.wrap_async_context_manager(EmbeddedCluster(brokers=BROKERS)) as running:
        yield running


@pytest.fixture
def sink(three: EmbeddedCluster) -> SinkOptions:
    """Return options for writing to a topic of the test's own."""
    name = f"t-{secrets.token_hex(4)}"
    three.create_topic(name, partitions=1, replication=BROKERS)
    return streaming_sink(three, name)


def rows(sink: SinkOptions, first: int) -> pa.RecordBatch:
    return numbered(str(sink.topic), 5, first)


@pytest.fixture
def workers() -> Iterator[list[TaskLoop]]:
    """Start the event loops of two Python workers."""
    running = [TaskLoop(), TaskLoop()]
    yield running
    for each in running:
        each.stop()


def test_two_workers_that_fence_each_other_write_each_batch_once(
    three: EmbeddedCluster, sink: SinkOptions, workers: list[TaskLoop]
) -> None:
    """Each worker takes the id that the other one's producer has kept, in the middle of its task.

    The ids change hands crosswise: neither worker's kept producer is used with the identity that it
    has lost, and neither is disturbed by losing an id that it has left.
    """
    one, two = workers
    query = secrets.token_hex(4)
    write_rows(sink, [rows(sink, 0)], TaskIdentity(query, 0, 0), one)
    write_rows(sink, [rows(sink, 5)], TaskIdentity(query, 0, 1), two)

    def crossing() -> Iterator[pa.RecordBatch]:
        yield rows(sink, 10)
        assert write_rows(sink, [rows(sink, 20)], TaskIdentity(query, 1, 0), two) == Written(5)
        yield rows(sink, 15)

    assert write_rows(sink, crossing(), TaskIdentity(query, 1, 1), one) == Written(10)
    assert sorted(committed(three, str(sink.topic))) == list(range(25))


def test_a_worker_that_is_fenced_in_its_task_commits_nothing_and_the_next_attempt_skips(
    three: EmbeddedCluster, sink: SinkOptions, workers: list[TaskLoop]
) -> None:
    """A kept producer whose id is taken during its transaction cannot commit, and is not kept."""
    one, two = workers
    query = secrets.token_hex(4)
    task = TaskIdentity(query, 1, 0)
    write_rows(sink, [rows(sink, 0)], TaskIdentity(query, 0, 0), one)
    write_rows(sink, [rows(sink, 5)], TaskIdentity(query, 0, 1), two)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(sink, 10)
        assert write_rows(sink, [rows(sink, 10)], task, two) == Written(5)

    with pytest.raises(KafkaError):
        write_rows(sink, overtaken(), task, one)
    assert write_rows(sink, [rows(sink, 10)], task, one) == Written(5, skipped=True)
    assert write_rows(sink, [rows(sink, 15)], TaskIdentity(query, 2, 0), one) == Written(5)
    assert write_rows(sink, [rows(sink, 20)], TaskIdentity(query, 1, 1), two) == Written(5)
    assert sorted(committed(three, str(sink.topic))) == list(range(25))


def test_a_kept_producer_whose_connections_have_ended_writes_the_next_task(
    three: EmbeddedCluster, sink: SinkOptions, workers: list[TaskLoop], in_loop: InLoop
) -> None:
    """Every broker is started anew while the producer is idle; then the task opens connections."""
    one, query = workers[0], secrets.token_hex(4)
    for number in range(3):
        written = write_rows(sink, [rows(sink, 5 * number)], TaskIdentity(query, number, 0), one)
        assert written == Written(5)
        for broker in range(BROKERS):
            in_loop(three.stop_broker, broker)
            in_loop(three.start_broker, broker)
    assert committed(three, str(sink.topic)) == list(range(15))


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_kept_producer_that_loses_the_race_for_the_id_does_not_fail_the_task(
    three: EmbeddedCluster, sink: SinkOptions, workers: list[TaskLoop], code: ErrorCode
) -> None:
    """A coordinator that two attempts ask at once fences one of them; a new producer asks again."""
    one, query, left = workers[0], secrets.token_hex(4), [0]
    write_rows(sink, [rows(sink, 0)], TaskIdentity(query, 0, 0), one)

    def fenced(answer: Any) -> Any:
        return dataclasses.replace(answer, error_code=code, producer_id=-1, producer_epoch=-1)

    def refuse(each: RequestSeen) -> Rewrite | None:
        if each.api_key == INIT_PRODUCER_ID and left:
            left.pop()
            return Rewrite(fenced)
        return None

    three.intercept(refuse)
    try:
        assert write_rows(sink, [rows(sink, 5)], TaskIdentity(query, 1, 0), one) == Written(5)
    finally:
        three.intercept(None)
    assert not left
    assert committed(three, str(sink.topic)) == list(range(10))


def test_what_is_kept_of_a_producer_shows_no_password() -> None:
    """Properties may contain passwords, so they are in no repr."""
    kind = ProducerKind({"kafka.sasl.password": "hunter2"}, transactional=True)
    assert "hunter2" not in repr(kind)
    assert kind == ProducerKind({"kafka.sasl.password": "hunter2"}, transactional=True)
    assert kind != ProducerKind({"kafka.sasl.password": "hunter3"}, transactional=True)


def test_a_coordinator_that_moves_while_the_id_is_taken_is_found_again(
    three: EmbeddedCluster, sink: SinkOptions, workers: list[TaskLoop]
) -> None:
    """The id's coordinator moves between the tasks, and again between finding and asking it."""
    one, query = workers[0], secrets.token_hex(4)
    name, asked = TaskIdentity(query, 0, 0).name, list[int]()

    def move(each: RequestSeen | None = None) -> None:
        if each is not None and each.api_key == INIT_PRODUCER_ID:
            asked.append(each.broker_id)
        if each is None or (each.api_key == INIT_PRODUCER_ID and len(asked) % 2):
            three.state.coordinators[name] = (three.coordinator(name) + 1) % BROKERS

    three.intercept(move)
    try:
        for number in range(3):
            task = TaskIdentity(query, number, 0)
            assert write_rows(sink, [rows(sink, 5 * number)], task, one) == Written(5)
            move()
    finally:
        three.intercept(None)
    refused, granted = asked[::2], asked[1::2]
    assert len(refused) == len(granted) == 3
    assert [(broker + 1) % BROKERS for broker in refused] == granted
    assert committed(three, str(sink.topic)) == list(range(15))


def test_a_task_with_other_credentials_does_not_use_the_kept_producer(
    portal: BlockingPortal, workers: list[TaskLoop]
) -> None:
    """A task with another user has connections of its own; with a wrong password it fails."""
    security = BrokerSecurity(
        mechanisms=("SCRAM-SHA-256",), users={"me": "one-pw", "you": "two-pw"}
    )
    made = EmbeddedCluster(brokers=1, security=security)
    one, query = workers[0], secrets.token_hex(4)
    asked: list[int] = []

    def note(each: RequestSeen) -> None:
        if each.api_key == INIT_PRODUCER_ID:
            asked.append(each.connection_id)

    def of(user: str, password: str) -> SinkOptions:
        given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        given |= {"sasl.username": user, "sasl.password": password}
        return streaming_sink(
            running, "t", **{f"kafka.{name}": each for name, each in given.items()}
        )

    with portal.wrap_async_context_manager(made) as running:
        running.create_topic("t")
        running.intercept(note)
        five = numbered("t", 5, 0)
        for number, user in enumerate((of("me", "one-pw"), of("you", "two-pw"))):
            task = TaskIdentity(query, number, 0)
            assert write_rows(user, [five], task, one) == Written(5)
        before = len(asked)
        with pytest.raises(KafkaError):
            write_rows(of("you", "wrong"), [five], TaskIdentity(query, 2, 0), one)
        assert len(asked) == before
        assert len(set(asked)) == 2
        one.stop()
