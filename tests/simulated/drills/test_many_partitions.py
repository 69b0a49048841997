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


def goes_behind(self: Partitions, state: PartitionState) -> None:
    self.busy.pop(state, None)
    wake(self, state)


def of_live_ones(self: Partitions) -> bool:
    return not any(state.batches.outstanding for state in self.live.values())


def by_name(self: Partitions, state: PartitionState) -> bool:
    return (state.topic, state.partition) in self.live


def this_one_only(
    _self: Partitions, partition: PartitionState, error: errors.KafkaError, identity: IdentityLedger
) -> str | None:
    partition.ledger.disown(error)
    identity.disown(shared=True)
    return None


def as_if_led(self: Partitions, state: PartitionState, now: float) -> LeaderStatus:
    return leader_status(self, state, now)._replace(leads=True)


def not_yet(self: Partitions, _sequence_cap: int) -> None:
    self.flush()


def dropped(self: Partitions, old: PartitionState, error: errors.KafkaError) -> None:
    retire(self, old, error)
    self.retired.clear()


def without_the_others(self: Partitions, now: float) -> errors.KafkaError | None:
    busy = self.busy
    self.busy = dict.fromkeys(list(busy)[:1])
    found = obstacle(self, now)
    self.busy = busy
    return found


def even_if_finished(self: Partitions) -> list[PartitionState]:
    return list(self.busy)


wake, retire, obstacle = Partitions.wake, Partitions.retire, Partitions.obstacle
leader_status = Partitions.leader_status


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("wake", goes_behind),
        ("quiet", property(of_live_ones)),
        ("holds", by_name),
        ("disown", this_one_only),
        ("leader_status", as_if_led),
        ("limit_span", not_yet),
        ("retire", dropped),
        ("obstacle", without_the_others),
        ("active", even_if_finished),
    ],
)
def test_broken_partitions_are_noticed(
    name: str, broken: Callable[..., object] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partitions, name, broken)
    assert wrong()
