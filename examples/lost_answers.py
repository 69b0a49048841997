"""A broker whose answers get lost, and proof that no record does: a test of a kind you may want.

    pip install 'aioidem[kafka]'    # and a Java of version 17 or newer
    python examples/lost_answers.py

It starts a real broker behind a proxy that drops every tenth answer to a Produce request together
with the connection, produces through that, and holds what the producer said of each record against
the broker's log, as Kafka's own tool prints it.
"""

from __future__ import annotations

import anyio

from aioidem import Producer
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
    """A hook of the proxy: what it returns befalls the frame it was asked about."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen = 0

    def __call__(self, frame: FrameSeen) -> Action | None:
        """Lose it, or (None) let it pass."""
        if frame.api_key != PRODUCE:
            return None
        self.seen += 1
        return Cut(after=0) if self.seen % self.every == 0 else None


async def produce(producer: Producer, count: int) -> list[Row]:
    """Send records that carry their own identity, and note what became of each."""
    rows = []
    for call in range(count):
        value = ValueId("example", TOPIC, 0, call)
        row = Row(value, TOPIC, 0, started=anyio.current_time())
        sent = await producer.send(TOPIC, make_value(value).hex().encode(), partition=0)
        row.outcome, row.offset, row.settled = Outcome.ACKED, sent.offset, anyio.current_time()
        rows.append(row)
    return rows


async def main(count: int = 200) -> int:
    """Returns how many answers were lost."""
    hook = LoseAnswers(every=10)
    async with KafkaCluster() as cluster:
        await cluster.create_topic(TOPIC)
        cluster.proxy.on_answer = hook
        async with Producer(cluster.bootstrap_servers, retry_backoff=0.01) as producer:
            rows = await produce(producer, count)
        log = [
            LogRecord(TOPIC, 0, record.offset, bytes.fromhex(record.payload or ""))
            for batch in await cluster.dump_log(TOPIC)
            for record in batch.records
        ]
    violations = check_history(rows, log)
    lost = hook.seen // hook.every
    told = f"{len(rows)} records, {len(log)} in the log, {lost} answers lost"
    print("\n".join([*map(str, violations), f"{told}, {len(violations)} violations"]))  # noqa: T201
    if violations:
        raise SystemExit(1)
    return lost


if __name__ == "__main__":
    anyio.run(main)
