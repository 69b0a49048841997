"""The embedded group coordinator gives Apache Kafka's answers, in the classic protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aioidem.broker import EmbeddedCluster
from tests.kafka.tools import bounded

from .differential_groups import (
    GROUP_WORLDS,
    OF_GROUPS,
    SCRIPTS,
    Groups,
    group_bench,
    groups_on,
    refusals,
)
from .differential_steps import HOST, World

pytestmark = pytest.mark.anyio

_BY_SCRIPTS = {
    "fenced_instance_id",
    "group_id_not_found",
    "group_max_size_reached",
    "group_subscribed_to_topic",
    "illegal_generation",
    "inconsistent_group_protocol",
    "invalid_group_id",
    "invalid_session_timeout",
    "member_id_required",
    "non_empty_group",
    "none",
    "rebalance_in_progress",
    "unknown_member_id",
    "unknown_topic_or_partition",
}


@pytest.fixture(scope="module", params=GROUP_WORLDS, ids=[each.name for each in GROUP_WORLDS])
def world(request: pytest.FixtureRequest) -> World:
    asked: World = request.param
    return asked


@pytest.fixture(scope="module")
async def groups(
    world: World,
    anyio_backend: object,  # noqa: ARG001 - the cluster needs the module's event loop
) -> AsyncIterator[Groups]:
    async with group_bench(world) as running:
        yield running


@bounded(120)
async def test_both_answer_groups_alike(groups: Groups) -> None:
    """Kafka's group coordinator and the embedded one give the same answers to the scripts."""
    pair = groups.b.pair
    wrong = await pair.play(SCRIPTS, groups)
    print(f"{pair.world}: {groups.steps} steps")  # noqa: T201
    print(f"Kafka's codes: {sorted(pair.codes)}")  # noqa: T201
    assert not wrong, wrong
    assert _BY_SCRIPTS - pair.codes == set()


@bounded(60)
async def test_a_planted_difference_is_found() -> None:
    """The comparison finds that one of two embedded clusters accepts shorter sessions."""
    async with (
        EmbeddedCluster(configs=OF_GROUPS) as one,
        EmbeddedCluster(configs=OF_GROUPS | {"group.min.session.timeout.ms": "50"}) as other,
        groups_on(
            GROUP_WORLDS[0], None, other, lambda: (HOST, one.state.running[0].port)
        ) as groups,
    ):
        await refusals(groups)
        assert "Kafka invalid_session_timeout, embedded member_id_required" in groups.b.pair.found()
