"""Faults that only the swarm draws: each test shows by a small schedule that the fault happens.

In each of them the checks at the end of a run find nothing wrong.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from aioidem._broker.partition import Partition
from aioidem.testing import Outcome

from .broker_changes import INTERVAL
from .perform import perform
from .schedule import Call, Fault, Glitch, Schedule
from .soak import quiet
from .test_written_schedules import FIRST, RTT, calls, clean, schedule
from .whole import Whole
from .world import Result, World

_OFTEN = {INTERVAL: "10"}


def _ran(plan: Schedule, *looks: tuple[float, Any]) -> World:
    """Run a schedule, and call `look(world)` at the times that are named."""
    world = World(plan, trace=True)
    for at, look in looks:
        world.at(world.start + at, functools.partial(look, world))
    result = world.run()
    assert not result.violations, "\n".join([*result.trace[-60:], *map(str, result.violations)])
    return world


def _whole(plan: Schedule) -> tuple[Whole, Result]:
    whole = Whole(plan, trace=True)
    with quiet():
        result = whole.run()
    assert not result.violations, "\n".join([*result.trace[-60:], *map(str, result.violations)])
    return whole, result


def _first(world: World | Whole) -> Partition:
    return world.cluster.topics["t"].partitions[0]


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
def test_brokers_are_upgraded_and_downgraded_one_after_the_other(backend: str) -> None:
    plan = schedule(
        backend=backend,
        brokers=2,
        replication=2,
        retain=(20, 20),
        versions=(13, 13),
        all_acked=True,
        calls=calls(200, every=0.05),
        faults=tuple(
            Fault(2.0 + turn, "upgrade", (turn % 2, version, 0.2))
            for turn, version in enumerate((14, 14, 13, 13))
        ),
    )
    with quiet():
        result = perform(plan, trace=True)
    assert not result.violations, "\n".join(map(str, result.violations))
    said = [line.split()[6] for line in result.trace if "> link" in line]
    in_order = [one for one, other in zip(said, [*said[1:], ""], strict=True) if one != other]
    assert in_order == ["v13:", "v14:", "v13:"]
    assert set(result.outcomes) == {Outcome.ACKED}


@pytest.mark.parametrize(
    "fault",
    [Fault(1.5, "skew", (0, 100_000.0, 0.5)), Fault(1.5, "expire", (1, 0.5))],
    ids=["clock", "config"],
)
def test_a_broker_forgets_the_producer_earlier_than_it_said(fault: Fault) -> None:
    """The broker forgets, because its clock is ahead or because its config was lowered."""
    known: list[int] = []

    def look(world: World) -> None:
        leader = _first(world).leader_replica
        assert leader is not None
        known.append(len(leader.producers))

    plan = schedule(
        broker_configs=_OFTEN, calls=(*calls(20), *calls(20, first=3.0)), faults=(fault,)
    )
    _ran(plan, (1.4, look), (1.9, look), (4.5, look))
    assert known == [1, 0, 1]


def test_a_broker_whose_clock_is_behind_refuses_records() -> None:
    plan = schedule(
        calls=(*calls(20), *calls(20, first=2.1), *calls(20, first=4.0)),
        faults=(Fault(2.0, "skew", (0, -86_400.0, 1.8)),),
    )
    result = clean(plan)
    assert result.outcomes == {Outcome.ACKED: 40, Outcome.NOT_WRITTEN: 20}


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
@pytest.mark.parametrize(
    "fault", [Fault(1.0, "retention", ("t", 500, 0.5)), Fault(1.0, "purge", ("t", 0, 0.9))]
)
def test_old_records_are_removed_while_batches_are_in_flight(backend: str, fault: Fault) -> None:
    """The log's start rises, and the removed records are known to the judge."""
    plan = schedule(
        backend=backend,
        all_acked=True,
        calls=calls(60, every=0.02),
        faults=(fault, Fault(1.1, "cut", (0, 1.0, True, 0.0))),
    )
    world = Whole(plan) if backend else World(plan)
    with quiet():
        result = world.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.outcomes == {Outcome.ACKED: len(world.rows)}
    leader = _first(world).leader_replica
    assert leader is not None
    assert 0 < leader.log.start_offset < leader.log.end_offset


def test_a_broker_says_for_a_while_that_it_retains_more_than_it_does() -> None:
    plan = schedule(
        retain=(5,), calls=calls(80, every=0.05), faults=(Fault(1.5, "boast", (0, 20, 1.0)),)
    )
    result = clean(plan)
    retained = [line.split()[-1] for line in result.trace if " retained " in line]
    in_order = [
        one for one, other in zip(retained, [*retained[1:], ""], strict=True) if one != other
    ]
    assert in_order == ["None", "20", "None"]


_TORN = Fault(1.0, "partial", (0, 50, 8.0))


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
def test_a_record_of_a_frame_that_left_in_part_is_not_taken_for_unwritten(backend: str) -> None:
    """A record expires behind a partial write: its frame has begun to leave, so it is UNKNOWN."""
    plan = schedule(
        backend=backend,
        options={"request_timeout": 2.0, "delivery_timeout": 2.05},
        calls=(Call(0.0, "t", 0, None, 60), Call(1.5, "t", 0, None, 60)),
        faults=(_TORN,),
    )
    with quiet():
        result = perform(plan, trace=True)
    assert not result.violations, "\n".join([*result.trace, *map(str, result.violations)])
    assert result.unknown >= 1


def test_an_epoch_is_bumped_behind_a_partial_write() -> None:
    """A batch of the next epoch does not overtake the rest of a frame."""
    plan = schedule(
        options={"request_timeout": 2.0, "delivery_timeout": 30.0},
        calls=calls(200, every=0.01),
        faults=(
            Fault(1.4, "refuse_next", (87, "t", 0)),
            Fault(1.5, "partial", (0, 50, 1.0)),
        ),
    )
    result = clean(plan)
    assert result.bumps >= 1
    assert result.outcomes[Outcome.ACKED] > 150


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_answer_arrives_byte_by_byte(backend: str) -> None:
    """An answer whose bytes take 0.02 s each is read as a whole, and is late by their sum."""
    plan = schedule(
        backend=backend,
        all_acked=True,
        calls=(Call(0.0, "t", 0, None, 60), Call(2.0, "t", 0, None, 60)),
        faults=(Fault(1.9, "trickle", (0, 300, 0.02)),),
    )
    whole, result = _whole(plan)
    assert set(result.outcomes) == {Outcome.ACKED}
    late = max((row.settled or 0.0) - row.started for row in whole.rows.values())
    assert late > 50 * 0.02


@pytest.mark.parametrize("stays", [True, False])
def test_connections_lead_to_two_clusters_by_turns(stays: bool) -> None:
    """While names lead to two clusters, every connection gets what belongs to its cluster."""
    plan = schedule(
        brokers=2,
        retain=(20, 20),
        versions=(14, 14),
        topics=(("t", 2),),
        calls=tuple(Call(0.02 * i, "t", i % 2, None, 60) for i in range(400)),
        faults=(
            Fault(2.0, "split", (1.0, True, 3.0, stays)),
            *(Fault(2.0 + i, "cut", (i % 2, 1.0, True, 0.0)) for i in range(1, 3)),
        ),
    )
    world = _ran(plan)
    assert len(world.clusters) == 2
    assert world.cluster is world.clusters[0 if stays else 1]
    ours = [
        sum(
            record.value is not None and b"p" in record.value[:8] for record in world.standing(each)
        )
        for each in world.clusters
    ]
    assert all(ours)


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
def test_callers_are_cancelled_between_grant_and_claim(backend: str) -> None:
    """A caller that is cancelled after it was granted room gives the bytes back to the next one."""
    plan = schedule(
        backend=backend,
        impatient=True,
        options={"buffer_memory": 4000, "max_in_flight_requests_per_connection": 1},
        calls=tuple(Call(0.0, "t", 0, None, 60 + i % 2) for i in range(60)),
        glitches=(Glitch(3, "delay", (0.3,)),),
    )
    world = Whole(plan) if backend else World(plan)
    with quiet():
        result = world.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.outcomes[Outcome.ACKED] > 10
    if not backend:
        assert len(world.rows) < 50, "no caller was cancelled"


def test_the_times_of_these_schedules_leave_room_for_the_start() -> None:
    assert FIRST + 3 * RTT < 1.0
