"""The embedded transaction coordinator gives Apache Kafka's answers, in both protocols.

For longer random sequences, set ``DIFFERENTIAL_SEED=7 DIFFERENTIAL_STEPS=5000`` before running
pytest on this file.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity, Target
from aioidem._broker.transaction_coordinator import TransactionCoordinator
from aioidem.broker import EmbeddedCluster
from tests.kafka.tools import bounded

from .differential import Pair, Side
from .differential_steps import HOST, Bench
from .differential_transactions import (
    SCRIPTS,
    TRANSACTIONAL_WORLDS,
    TransactionalWorld,
    Transactions,
    transactional_bench,
)
from .differential_transactions_allowed import ALLOWED
from .differential_transactions_random import TransactionalChaos

SEED = int(os.environ.get("DIFFERENTIAL_SEED", "1"))
STEPS = int(os.environ.get("DIFFERENTIAL_STEPS", "500"))
# The error codes that Kafka gives with every seed, if a run has 500 random steps or more.
_ALWAYS = {
    "invalid_producer_epoch",
    "invalid_producer_id_mapping",
    "invalid_txn_state",
    "none",
    "operation_not_attempted",
    "out_of_order_sequence_number",
    "producer_fenced",
    "transaction_abortable",
    "transactional_id_authorization_failed",
    "unknown_topic_or_partition",
}
_BY_SCRIPTS = _ALWAYS | {
    "invalid_request",
    "invalid_transaction_timeout",
    "unknown_member_id",
    "unstable_offset_commit",
}
_BY_SCRIPTS_IN = {
    "4.3.1": {"invalid_regular_expression"},
    "4.3.1-v1": {
        "concurrent_transactions",
        "invalid_regular_expression",
        "unsupported_version",
    },
    "3.9.1": set[str](),
}

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
    anyio_backend: object,  # noqa: ARG001 - the cluster needs the module's event loop
) -> AsyncIterator[Transactions]:
    async with transactional_bench(world, ALLOWED) as running:
        yield running


@bounded(280)
async def test_both_answer_transactions_alike(transactions: Transactions) -> None:
    """Both transaction coordinators answer the scripts alike, but for allowed differences."""
    pair = transactions.b.pair
    wrong = await pair.play(SCRIPTS, transactions)
    print(f"{pair.world}: {pair.steps} steps, allowed: {pair.seen}")  # noqa: T201
    print(f"Kafka's codes: {sorted(pair.codes)}")  # noqa: T201
    assert not wrong, wrong
    assert pair.unused() == [], "these allowed differences were not seen: remove them"
    assert (_BY_SCRIPTS | _BY_SCRIPTS_IN[pair.world]) - pair.codes == set()


@bounded(280)
async def test_both_answer_any_transactions_alike(transactions: Transactions) -> None:
    """Both transaction coordinators answer random requests alike, but for allowed differences."""
    print(f"DIFFERENTIAL_SEED={SEED} DIFFERENTIAL_STEPS={STEPS}")  # noqa: T201
    pair = transactions.b.pair
    pair.start_over()
    chaos = TransactionalChaos(transactions, SEED)
    await chaos.begin()
    await chaos.run(STEPS)
    print(f"{pair.world}: {pair.steps} steps, Kafka's codes: {sorted(pair.codes)}")  # noqa: T201
    assert pair.found() == ""
    assert STEPS < 500 or _ALWAYS - pair.codes == set()


class Careless(TransactionCoordinator):
    """A coordinator that commits when asked to abort, which only readers of the records notice."""

    __slots__ = ()

    def end(
        self, broker: Broker, name: str, identity: Identity, *, commit: bool, raises: bool
    ) -> Identity:
        known = self.find(name)
        commit = commit or (known is not None and known.ongoing)
        return super().end(broker, name, identity, commit=commit, raises=raises)


class Trusting(TransactionCoordinator):
    """A coordinator that does not check whether a partition takes part in the transaction."""

    __slots__ = ()

    def verify(self, name: str, identity: Identity, target: Target) -> None:
        if isinstance(target, str):
            super().verify(name, identity, target)


@pytest.mark.parametrize("planted", [TransactionCoordinator, Careless, Trusting])
@pytest.mark.parametrize("asked", TRANSACTIONAL_WORLDS[:2], ids=["v2", "v1"])
@bounded(60)
async def test_a_planted_difference_is_found_by_random_transactions(
    asked: TransactionalWorld, planted: type[TransactionCoordinator]
) -> None:
    """Random requests find that one of two embedded clusters has a defective coordinator."""
    level: Literal[0, 2] = 2 if asked.level == 2 else 0
    produce = asked.world.produce
    async with (
        EmbeddedCluster(produce_versions=produce, transaction_version=level) as one,
        EmbeddedCluster(produce_versions=produce, transaction_version=level) as other,
    ):
        state = other.state
        state.transactions = planted(
            state.topology, state.schedule, state.groups, level, appended=state.wake
        )
        pair = Pair(
            "planted",
            Side("real", lambda: (HOST, one.state.running[0].port)),
            Side("ours", lambda: (HOST, other.state.running[0].port)),
            (),
        )
        made = Bench(asked.world, pair, None, other)
        await made.get_ready()
        chaos = TransactionalChaos(Transactions(made, asked), SEED)
        try:
            await chaos.begin()
            await chaos.run(300)
        finally:
            await pair.hang_up()
        assert bool(pair.unexpected) is (planted is not TransactionCoordinator), pair.report()


@bounded(200)
async def test_javas_producer_and_consumer_speak_transactions_with_it(
    transactions: Transactions,
) -> None:
    """Java's transactional producer and consumer work with the embedded cluster."""
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
