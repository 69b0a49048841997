"""Faults of Fetch, by which a producer reads a leader's log: each is drawn, and each happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.intercept import Action, RequestSeen
from aioidem._records import build_batch

from .read_draws import READ_FAULTS, READING, is_reading
from .read_faults import first_batches
from .schedule import Glitch, Schedule
from .soak import quiet
from .swarm import draw_swarm
from .test_written_schedules import calls, schedule
from .whole import Whole
from .world import World

OLD = {
    "producer.id.expiration.ms": "60000",
    "producer.id.expiration.check.interval.ms": "10",
}


def reading(*reads: Glitch, doubt: int = 3, **values: Any) -> Schedule:
    """Return a schedule in which a batch in doubt is old, so that its leader's log is read."""
    given: dict[str, Any] = {
        "profile": "forgetful",
        "broker_configs": OLD,
        "brokers": 2,
        "replication": 2,
        "retain": (20, 20),
        "versions": (14, 14),
        "calls": calls(20, every=0.2, age=40.0),
        "glitches": (Glitch(doubt, "after", (int(ErrorCode.request_timed_out), None)),),
        "reads": reads,
    }
    return schedule(**(given | values))


def happened(plan: Schedule) -> list[str]:
    """Run a schedule, and return the lines of its trace about faults of Fetch."""
    world = Whole(plan, trace=True) if plan.backend else World(plan, trace=True)
    with quiet():
        result = world.run()
    assert all(violation.anomaly.name != "CRASH" for violation in result.violations)
    return [line.split(maxsplit=1)[1] for line in result.trace if " fetch " in line]


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("code", (int(ErrorCode.kafka_storage_error),)),
        ("short", (1, 30)),
        ("empty", ()),
        ("behind", (1,)),
        ("absent", ()),
        ("drop", (False,)),
        ("drop", (True,)),
        ("late", (0.5,)),
        ("garbage", (9,)),
    ],
)
def test_a_fault_of_fetch_happens(kind: str, args: tuple[Any, ...], backend: str) -> None:
    lines = happened(reading(Glitch(0, kind, args), backend=backend))
    assert lines == [f"fetch 0: {kind} {args}"]


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("reset", ()),
        ("held", (0.5, True, 0)),
        ("held", (0.5, False, int(ErrorCode.not_leader_or_follower))),
        ("lost", (0.5, True)),
        ("parting", (0.5, True)),
    ],
)
def test_a_fault_of_fetch_happens_in_the_model_of_the_network(
    kind: str, args: tuple[Any, ...]
) -> None:
    lines = happened(reading(Glitch(0, kind, args)))
    assert lines == [f"fetch 0: {kind} {args}"]


def test_the_leader_moves_while_a_page_is_under_way() -> None:
    """The page comes from the old leader, when another broker leads the partition already."""
    world = World(reading(Glitch(0, "held", (0.5, True, 0))), trace=True)
    world.run()
    partition = world.cluster.topics["t"].partitions[0]
    assert partition.leader == 1
    assert partition.leader_epoch == 1


def test_a_page_ends_after_some_batches_or_within_the_next() -> None:
    class Record:
        key, headers, timestamp_ms, value = None, (), 0, b"v"

    batch = build_batch([Record()], producer_id=1, producer_epoch=0, base_sequence=0).data
    assert first_batches(batch * 3, 2) == batch * 2
    assert first_batches(batch * 3, 2, 30) == batch * 2 + batch[:30]
    assert first_batches(batch, 2, 30) == batch
    assert first_batches(b"", 1) == b""


def test_the_swarm_draws_every_fault_of_fetch() -> None:
    """One seed in eight is for reading; others with old records have such faults, too."""
    plans = [draw_swarm(seed) for seed in range(1500)]
    kinds: Counter[str] = Counter()
    for plan in plans:
        kinds.update({glitch.kind for glitch in plan.reads})
        assert not plan.reads or plan.forgetful
    assert kinds.keys() == READ_FAULTS
    assert min(kinds.values()) >= 20
    alone = sum(READING in plan.features for plan in plans)
    assert alone == sum(map(is_reading, range(1500)))
    assert 120 < alone < 260
    assert sum(bool(plan.reads) for plan in plans if READING not in plan.features) > 20


def test_a_schedule_names_its_faults_of_fetch() -> None:
    assert "fetch 2: code (56,)" in reading(Glitch(2, "code", (56,))).describe()


def test_brokers_look_for_expired_producers_between_two_requests_that_arrive_together() -> None:
    """The second of two requests is taken for a first one: its producer was forgotten in between.

    The check of the brokers' own comes too late for that.
    """
    known: list[int] = []

    class Looking(World):
        def _intercept(self, seen: RequestSeen) -> Action | None:
            action = super()._intercept(seen)
            if seen.api_key == 0:
                leader = self.cluster.topics["t"].partitions[0].leader_replica
                assert leader is not None
                known.append(len(leader.producers))
            return action

    plan = reading(
        broker_configs=OLD | {"producer.id.expiration.check.interval.ms": "10000"},
        calls=(*calls(3, every=0.3, age=70.0), *calls(4, first=2.0, every=0.0, age=70.0)),
        glitches=(Glitch(4, "forget"),),
    )
    result = Looking(plan).run()
    assert not result.violations
    assert known == [0, 1, 1, 1, 0, *[1] * (len(known) - 5)]
    assert len(known) > 5


def test_seeds_for_reading_mix_ages_within_one_partition_and_among_several() -> None:
    """Records are fresh, old for the producer, or older than the brokers' expiration."""
    plans = [draw_swarm(seed) for seed in range(1500) if is_reading(seed)]
    mixed = apart = short = 0
    for plan in plans:
        expiration = float(plan.broker_configs["producer.id.expiration.ms"]) / 1000
        ages: dict[tuple[str, int | None], set[float]] = {}
        for call in plan.calls:
            ages.setdefault((call.topic, call.partition), set()).add(call.age / expiration)
        mixed += any({0.0, 1.5} <= found for found in ages.values())
        apart += len(ages) > 1 and {0.0} in ages.values() and {0.0} != set().union(*ages.values())
        options = plan.options
        short += options["delivery_timeout"] < options["request_timeout"] + 0.5
        assert not plan.stamps_by_log
    assert min(mixed, apart, short) > len(plans) // 12
