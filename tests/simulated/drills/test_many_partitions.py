"""The drill of a producer's partitions finds nothing wrong, and notices broken ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from aioidem import errors
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions

from .many_partitions import drill_many_partitions

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_many_partitions(Random(f"many {seed}"))]


def test_partitions_are_looked_after() -> None:
    assert not wrong()


def wakes_what_is_busy_anew(self: Partitions, state: PartitionState) -> None:
    self.busy.pop(state, None)
    wake(self, state)


def forgets_what_retired_ones_owe(self: Partitions) -> bool:
    return not any(state.batches.outstanding for state in self.live.values())


def holds_by_name(self: Partitions, state: PartitionState) -> bool:
    return (state.topic, state.partition) in self.live


def disowns_one_partition_only(
    _self: Partitions, partition: PartitionState, error: errors.KafkaError, identity: IdentityLedger
) -> str | None:
    partition.ledger.disown(error)
    identity.disown(shared=True)
    return None


def says_that_a_broker_leads(self: Partitions, state: PartitionState, now: float) -> LeaderStatus:
    return leader_status(self, state, now)._replace(leads=True)


def limits_no_present_partition(self: Partitions, _sequence_cap: int) -> None:
    self.flush()


def drops_the_retired(self: Partitions, old: PartitionState, error: errors.KafkaError) -> None:
    retire(self, old, error)
    self.retired.clear()


def sees_the_first_partition_only(self: Partitions, now: float) -> errors.KafkaError | None:
    busy = self.busy
    self.busy = dict.fromkeys(list(busy)[:1])
    found = obstacle(self, now)
    self.busy = busy
    return found


def includes_the_finished(self: Partitions) -> list[PartitionState]:
    return list(self.busy)


wake, retire, obstacle = Partitions.wake, Partitions.retire, Partitions.obstacle
leader_status = Partitions.leader_status


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("wake", wakes_what_is_busy_anew),
        ("quiet", property(forgets_what_retired_ones_owe)),
        ("holds", holds_by_name),
        ("disown", disowns_one_partition_only),
        ("leader_status", says_that_a_broker_leads),
        ("limit_span", limits_no_present_partition),
        ("retire", drops_the_retired),
        ("obstacle", sees_the_first_partition_only),
        ("active", includes_the_finished),
    ],
)
def test_broken_partitions_are_noticed(
    name: str, broken: Callable[..., object] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partitions, name, broken)
    assert wrong()
