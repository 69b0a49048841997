"""Lose a broker's answers and prove that no record is lost: a kind of test you may want to write.

    pip install 'aioidem[kafka]'    # and Java 17 or newer
    python examples/lost_answers.py
    python examples/lost_answers.py --embedded    # on the embedded broker, which needs neither

The example starts a real broker behind a proxy that drops every tenth answer to a Produce request
together with the connection. It produces through that proxy, and compares what the producer
reported about each record with the broker's log, as Kafka's own tool prints it. The embedded broker
needs no proxy, because it drops the answers itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from aioidem import Producer
from aioidem.broker import CloseConnection, EmbeddedCluster, RequestSeen
from aioidem.testing import (
    Action,
    Cut,
    FrameSeen,
    KafkaCluster,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    check_history,
    make_value,
)

PRODUCE = 0
TOPIC = "events"


class LoseAnswers:
    """A hook that loses every n-th answer to a Produce request."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen = 0

    def __call__(self, frame: FrameSeen) -> Action | None:
        """Return an action that loses this answer, or None to let it pass; the proxy calls this."""
        return Cut(after=0) if self.is_lost(frame.api_key) else None

    def in_the_broker(self, request: RequestSeen) -> CloseConnection | None:
        """Return an action that loses this answer, or None; the embedded broker calls this."""
        return CloseConnection(processed=True) if self.is_lost(request.api_key) else None

    def is_lost(self, api_key: int) -> bool:
        """Count a Produce request, and return whether its answer is lost."""
        if api_key != PRODUCE:
            return False
        self.seen += 1
        return self.seen % self.every == 0


async def produce(producer: Producer, count: int) -> list[Row]:
    """Send records that contain their own identity, and note the outcome of each."""
    rows = []
    for call in range(count):
        value = ValueId("example", TOPIC, 0, call)
        row = Row(value, TOPIC, 0, started=anyio.current_time())
        sent = await producer.send(TOPIC, make_value(value).hex().encode(), partition=0)
        row.outcome, row.offset, row.settled = Outcome.ACKED, sent.offset, anyio.current_time()
        rows.append(row)
    return rows


ReadLog = Callable[[], Awaitable[list[LogRecord]]]


@asynccontextmanager
async def real(hook: LoseAnswers) -> AsyncIterator[tuple[str, ReadLog]]:
    """Start a real broker; yield its address, and a function that reads its log."""
    async with KafkaCluster() as cluster:
        await cluster.create_topic(TOPIC)
        cluster.proxy.on_answer = hook

        async def read() -> list[LogRecord]:
            return [
                LogRecord(TOPIC, 0, record.offset, bytes.fromhex(record.payload or ""))
                for batch in await cluster.dump_log(TOPIC)
                for record in batch.records
            ]

        yield cluster.bootstrap_servers, read


@asynccontextmanager
async def embedded(hook: LoseAnswers) -> AsyncIterator[tuple[str, ReadLog]]:
    """Start an embedded broker; yield its address, and a function that reads its log."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        cluster.intercept(hook.in_the_broker)

        async def read() -> list[LogRecord]:
            return [
                LogRecord(TOPIC, 0, record.offset, bytes.fromhex((record.value or b"").decode()))
                for record in cluster.records(TOPIC)
            ]

        yield cluster.bootstrap_servers, read


async def main(count: int = 200, *, without_kafka: bool = False) -> int:
    """Produce, compare with the log, print the result, and return how many answers were lost."""
    hook = LoseAnswers(every=10)
    async with (embedded if without_kafka else real)(hook) as (servers, read_log):
        async with Producer(servers, retry_backoff=0.01) as producer:
            rows = await produce(producer, count)
        log = await read_log()
    violations = check_history(rows, log)
    lost = hook.seen // hook.every
    told = f"{len(rows)} records, {len(log)} in the log, {lost} answers lost"
    print("\n".join([*map(str, violations), f"{told}, {len(violations)} violations"]))  # noqa: T201
    if violations:
        raise SystemExit(1)
    return lost


if __name__ == "__main__":
    anyio.run(functools.partial(main, without_kafka="--embedded" in sys.argv[1:]))
