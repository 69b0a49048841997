"""The embedded transaction coordinator is held against Apache Kafka's, in both protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .differential_transactions import (
    SCRIPTS,
    TRANSACTIONAL_WORLDS,
    TransactionalWorld,
    Transactions,
    transactional_bench,
)
from .differential_transactions_allowed import ALLOWED
from .tools import bounded

_SHOWN = 100

pytestmark = pytest.mark.anyio


@pytest.fixture(
    scope="module", params=TRANSACTIONAL_WORLDS, ids=[w.world.name for w in TRANSACTIONAL_WORLDS]
)
def world(request: pytest.FixtureRequest) -> TransactionalWorld:
    asked: TransactionalWorld = request.param
    return asked


@pytest.fixture(scope="module")
async def transactions(
    world: TransactionalWorld,
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[Transactions]:
    async with transactional_bench(world, ALLOWED) as running:
        yield running


@bounded(280)
async def test_both_answer_transactions_alike(transactions: Transactions) -> None:
    pair = transactions.b.pair
    wrong = []
    for script in SCRIPTS:
        await script(transactions)
        lines, pair.unexpected = [str(each) for each in pair.unexpected], []
        if lines:
            wrong.append("\n".join([script.__name__, *lines[:_SHOWN]]))
    print(f"{pair.world}: {pair.steps} steps, allowed: {pair.seen}")  # noqa: T201
    print(f"Kafka's codes: {sorted(transactions.codes)}")  # noqa: T201
    assert not wrong, "\n".join(wrong)
    assert pair.unused() == [], "these do not differ any more: strike them off the table"


@bounded(200)
async def test_javas_producer_and_consumer_speak_transactions_with_it(
    transactions: Transactions,
) -> None:
    kafka, embedded = transactions.b.kafka, transactions.b.embedded
    assert kafka is not None
    embedded.create_topic("java")
    await kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "java", "--num-records", "300", "--record-size", "100"),
        *("--throughput", "1000", "--transactional-id", "java", "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={embedded.bootstrap_servers}"),
    )
    printed = await kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", embedded.bootstrap_servers),
        *("--topic", "java", "--partition", "0", "--offset", "earliest"),
        *("--isolation-level", "read_committed", "--max-messages", "300", "--timeout-ms", "20000"),
    )
    assert len(printed.splitlines()) == 300
    markers = sum(batch.control for batch in embedded.batches("java"))
    known = embedded.state.transactions.find("java")
    assert known is not None
    assert markers > 1
    assert known.epoch == (markers if transactions.modern else 0)
