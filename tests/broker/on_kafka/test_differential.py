"""The embedded broker gives the same answers as Apache Kafka to the same requests.

The scripts send chosen requests, and `Chaos` sends random ones. Every difference is a defect of the
embedded broker, unless the table in `differential_allowed` lists the difference. Every difference
that the table lists must still occur when the scripts run.

For longer random sequences, set ``DIFFERENTIAL_SEED=7 DIFFERENTIAL_STEPS=100000`` before running
pytest on this file.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from aioidem.broker import EmbeddedCluster
from tests.kafka.tools import bounded

from .differential import Pair, Side
from .differential_allowed import ALLOWED
from .differential_random import Chaos
from .differential_scripts import SCRIPTS, sequences
from .differential_steps import HOST, WORLDS, Bench, World, bench

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("DIFFERENTIAL_SEED", "1"))
STEPS = int(os.environ.get("DIFFERENTIAL_STEPS", "3000"))
# The error codes that Kafka answers with every seed, if a run has 3000 steps (the default) or more.
_ALWAYS = {
    "corrupt_message",
    "invalid_producer_epoch",
    "invalid_record",
    "invalid_required_acks",
    "invalid_timestamp",
    "message_too_large",
    "none",
    "offset_out_of_range",
    "out_of_order_sequence_number",
    "unknown_topic_or_partition",
}


@pytest.fixture(scope="module", params=WORLDS, ids=[world.name for world in WORLDS])
def world(request: pytest.FixtureRequest) -> World:
    asked: World = request.param
    return asked


@pytest.fixture(scope="module")
async def brokers(
    world: World,
    anyio_backend: object,  # noqa: ARG001 - the cluster needs the module's event loop
) -> AsyncIterator[Bench]:
    async with bench(world, ALLOWED) as running:
        yield running


@bounded(280)
async def test_both_answer_the_scripts_alike(brokers: Bench) -> None:
    """Kafka and the embedded broker answer the scripts alike, but for allowed differences."""
    pair = brokers.pair
    wrong = await pair.play(SCRIPTS, brokers)
    print(f"{pair.world}: {pair.steps} steps, allowed: {pair.seen}")  # noqa: T201
    assert not wrong, wrong
    assert pair.unused() == [], "these allowed differences were not seen: remove them"


@bounded(280)
async def test_both_answer_anything_alike(brokers: Bench) -> None:
    """Kafka and the embedded broker answer random requests alike, but for allowed differences."""
    print(f"DIFFERENTIAL_SEED={SEED} DIFFERENTIAL_STEPS={STEPS}")  # noqa: T201
    pair = brokers.pair
    pair.start_over()
    chaos = Chaos(brokers, SEED)
    await chaos.begin()
    await chaos.run(STEPS)
    print(f"{pair.world}: Kafka's codes: {sorted(pair.codes)}")  # noqa: T201
    assert pair.found() == ""
    by_id = {"unknown_topic_id"} if brokers.world.produce >= 13 else set()
    assert STEPS < 3000 or (_ALWAYS | by_id) - pair.codes == set()


async def any_sequences(made: Bench) -> None:
    """Send random requests."""
    chaos = Chaos(made, SEED)
    await chaos.begin()
    await chaos.run(1000)


@pytest.mark.parametrize("asked", [sequences, any_sequences])
@pytest.mark.parametrize(("retains", "alike"), [(5, True), (6, False)])
@bounded(30)
async def test_a_planted_difference_is_found(
    retains: int, alike: bool, asked: Callable[[Bench], Awaitable[None]]
) -> None:
    """The comparison finds a difference if, and only if, one cluster remembers one batch more."""
    async with (
        EmbeddedCluster(produce_versions=14) as one,
        EmbeddedCluster(produce_versions=14, retain=retains) as other,
    ):
        sides = [
            Side("real", lambda: (HOST, one.state.running[0].port)),
            Side("ours", lambda: (HOST, other.state.running[0].port)),
        ]
        pair = Pair("planted", sides[0], sides[1], ())
        made = Bench(WORLDS[0], pair, None, other)
        await made.get_ready()
        pair.unexpected.clear()
        await asked(made)
        codes = [each for each in pair.unexpected if each.path.endswith("error_code")]
        assert [bool(codes), bool(pair.unexpected)] == [not alike, not alike]
        # Of the random requests only the first difference is checked, because from then on the
        # brokers' states differ.
        first = codes[:1] if asked is any_sequences else codes
        assert all(each.real == "out_of_order_sequence_number" for each in first)
        await pair.hang_up()
