"""Helpers of the tests on real Kafka: spans counted on the wire, and histories of records.

The spans (how many batches the broker must remember) are counted from the frames at the brokers'
proxies, by code of the embedded broker and not of the engine. A proxy sees an answer before the
client does, so a client that keeps to its window never seems to exceed it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import anyio
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._broker.batch import parse_single_batch
from aioidem._broker.spans import PartitionSpans, Verdict
from aioidem._producer.delivery import Delivery
from aioidem._producer.metrics import PartitionStatistics
from aioidem._protocol.messages import decode_request, decode_response, response_type
from aioidem._testing.kafka_dump import DumpedBatch
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Action,
    Expectations,
    FaultProxy,
    FrameSeen,
    Hold,
    Inspect,
    KafkaCluster,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    Violation,
    check_history,
    make_value,
    parse_value,
)

P = ParamSpec("P")
T = TypeVar("T")

STOCK = ("4.3.1", "3.9.1")
PRODUCE, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = 0, 32, 61
_CREATE_ACLS = (30, 3)
_PREFIXED, _ALLOW = 4, 3

# Seconds by which a record may be settled late on a busy machine.
_SLACK = 5.0

# How many times slower a machine may be than the one whose times the bounds of the tests are from.
_PATIENCE = 3

# Each record is a batch of its own, so spans count records and do not depend on their size.
ONE_EACH: Mapping[str, Any] = {"batch_size": 1, "late_sealing": False}


def bounded(
    seconds: float,
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Fail a test that takes `_PATIENCE` times as long as `seconds`.

    The bound is there so that nothing hangs, and says nothing about how fast anything is.
    """

    def decorate(test: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(test)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with anyio.fail_after(_PATIENCE * seconds):
                return await test(*args, **kwargs)

        return run

    return decorate


def partition_of(producer: Producer, topic: str, partition: int = 0) -> PartitionStatistics:
    """Return the producer's statistics of one partition."""
    [found] = [
        each
        for each in producer.statistics().partitions
        if (each.topic, each.partition) == (topic, partition)
    ]
    return found


class SpanCount:
    """Counts the span of each partition at one broker, from the frames that its proxy sees.

    It calls ``request`` for each Produce request, and ``answer`` for each answer to one. The proxy
    carries out the action that the call returns, if any, on the frame.
    """

    def __init__(self, proxy: FaultProxy) -> None:
        self.request: Callable[[], Action | None] = lambda: None
        self.answer: Callable[[], Action | None] = lambda: None
        self.requests = 0
        self.answers = 0
        self.codes: list[int] = []
        self.versions: set[int] = set()
        self._proxy = proxy
        self._spans: dict[tuple[Any, int], PartitionSpans] = {}
        self._asked: dict[tuple[int, int], list[tuple[Any, int, int, int, int]]] = {}
        proxy.on_request = self._on_request
        proxy.on_answer = self._on_answer

    def max_span(self, partition: int = 0) -> int:
        """Return the widest span of the partitions with this number, of all topics."""
        return max(
            (each.max_span() for (_, number), each in self._spans.items() if number == partition),
            default=0,
        )

    def forget(self) -> None:
        """Forget the spans and error codes counted so far."""
        self._spans.clear()
        self.codes.clear()

    def await_bursts(self, *sizes: int) -> None:
        """Hold the next requests until a burst of each of these sizes has come, one after another.

        A client fills its window only if it sends faster than the broker answers, which a busy
        machine does not promise. A client whose window is smaller than a burst waits for ever.
        """
        burst, left = Hold(), [*sizes]

        def hold() -> Hold | None:
            nonlocal burst
            if not left:
                return None
            held, left[0] = burst, left[0] - 1
            if not left[0]:
                held.release()
                burst = Hold()
                del left[0]
            return held

        self.request = hold

    def _on_request(self, seen: FrameSeen) -> Action | None:
        return Inspect(functools.partial(self._count, seen)) if seen.api_key == PRODUCE else None

    def _count(self, seen: FrameSeen, payload: bytes) -> Action | None:
        request: Any = decode_request(payload)[1]
        batches = []
        for topic in request.topic_data:
            for part in topic.partition_data:
                head = parse_single_batch(part.records)
                name = getattr(topic, "topic_id", None) or topic.name
                identity = (head.producer_id, head.producer_epoch, head.base_sequence)
                batches.append((name, part.index, *identity))
                self._spans.setdefault((name, part.index), PartitionSpans()).read(*identity)
        self._asked[seen.connection, seen.correlation_id] = batches
        self.versions.add(seen.api_version)
        self.requests += 1
        self._proxy.notify()
        return self.request()

    def _on_answer(self, seen: FrameSeen) -> Action | None:
        return Inspect(functools.partial(self._judge, seen)) if seen.api_key == PRODUCE else None

    def _judge(self, seen: FrameSeen, payload: bytes) -> Action | None:
        self.answers += 1
        self._proxy.notify()
        action = self.answer()
        asked = self._asked.pop((seen.connection, seen.correlation_id), [])
        if action is not None:
            return action  # the client gets this answer late or never
        schema = response_type(PRODUCE, seen.api_version)
        assert schema is not None
        response: Any = decode_response(schema, payload)[1]
        answers = {
            (getattr(topic, "topic_id", None) or topic.name, part.index): part
            for topic in response.responses
            for part in topic.partition_responses
        }
        for name, index, pid, epoch, sequence in asked:
            part = answers[name, index]
            self.codes.append(int(part.error_code))
            spans = self._spans.get((name, index))
            if spans is not None:
                spans.answered(pid, epoch, sequence, _verdict(part))
        return None


def _verdict(part: Any) -> Verdict:
    if part.error_code == ErrorCode.none:
        return Verdict.STORED
    return Verdict.REFUSED if part.base_offset < 0 else Verdict.UNSURE


class History:
    """The records that one producer sent to one partition, and their outcomes."""

    def __init__(self, producer: Producer, topic: str, partition: int = 0) -> None:
        self.rows: list[Row] = []
        self.deliveries: list[Delivery] = []
        self._producer = producer
        self._name = f"p{id(self)}"
        self._topic = topic
        self._partition = partition

    def send(self, count: int, *, size: int = 0, timestamp: float | None = None) -> list[Delivery]:
        """Queue `count` records of at least ``size`` bytes each; ``timestamp`` is in s."""
        sent = []
        for _ in range(count):
            value = ValueId(self._name, self._topic, self._partition, len(self.rows))
            row = Row(value, self._topic, self._partition, anyio.current_time())
            delivery = self._producer.send_nowait(
                self._topic,
                make_value(value, size // 2).hex().encode(),
                partition=self._partition,
                timestamp=timestamp,
            )
            delivery.add_done_callback(functools.partial(_settled_now, row))
            sent.append(delivery)
            self.rows.append(row)
        self.deliveries += sent
        return sent

    @property
    def deadline(self) -> float:
        """Return the seconds within which each record must be settled."""
        config = self._producer.config
        return config.delivery_timeout + config.request_timeout + _SLACK

    def offsets(self) -> list[int]:
        """Return the offsets of the records, which must be ACKED; -1 where the broker gave none."""
        return [each.metadata.offset for each in self.deliveries]

    def settle(self) -> list[Row]:
        """Return the rows with their outcomes; every delivery must be done."""
        for row, delivery in zip(self.rows, self.deliveries, strict=True):
            row.outcome = {
                DeliveryStatus.ACKED: Outcome.ACKED,
                DeliveryStatus.NOT_WRITTEN: Outcome.NOT_WRITTEN,
                DeliveryStatus.UNKNOWN: Outcome.UNKNOWN,
                DeliveryStatus.PENDING: Outcome.PENDING,
            }[delivery.status]
            if delivery.status is DeliveryStatus.ACKED:
                row.offset = delivery.metadata.offset
        return self.rows


def _settled_now(row: Row, delivery: Delivery) -> None:  # noqa: ARG001 - a callback
    row.settled = anyio.current_time()


async def allow(cluster: KafkaCluster, user: str, *rules: tuple[int, int, str]) -> None:
    """Permit a user these operations, each (resource type, operation, prefix of the names)."""
    creations = [
        {
            "resource_type": kind,
            "resource_name": prefix,
            "resource_pattern_type": _PREFIXED,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": _ALLOW,
        }
        for kind, operation, prefix in rules
    ]
    answer = await cluster.ask(*_CREATE_ACLS, creations=creations)
    assert {int(each.error_code) for each in answer.results} == {0}


async def outcomes(deliveries: Iterable[Delivery]) -> list[DeliveryStatus]:
    """Wait for all of these deliveries, and return their statuses."""
    found = []
    for each in deliveries:
        with contextlib.suppress(KafkaError):
            await each
        found.append(each.status)
    return found


def records_of(topic: str, partition: int, dump: Sequence[DumpedBatch]) -> list[LogRecord]:
    """Return a dumped log in the form that `check_history` takes."""
    return [
        LogRecord(topic, partition, record.offset, bytes.fromhex(record.payload or ""))
        for batch in dump
        if not batch.control
        for record in batch.records
    ]


def judge(
    histories: Iterable[History], log: Sequence[LogRecord], expect: Expectations | None = None
) -> list[Violation]:
    """Return where these histories and the log disagree, and which records were settled late."""
    histories = list(histories)
    deadline = max(each.deadline for each in histories)
    rows = [row for each in histories for row in each.settle()]
    return check_history(rows, log, replace(expect or Expectations(), deadline=deadline))


async def check(
    cluster: KafkaCluster,
    histories: Iterable[History],
    topic: str,
    partition: int = 0,
    expect: Expectations | None = None,
) -> list[int]:
    """Assert that the log, read by Kafka's dump tool, agrees with the outcomes of the records.

    Returns:
        The numbers of the send calls, in the order of the log.
    """
    log = records_of(topic, partition, await cluster.dump_log(topic, partition))
    assert judge(histories, log, expect) == []
    values = [parse_value(record.value) for record in log]
    return [value.call for value in values if value is not None]
