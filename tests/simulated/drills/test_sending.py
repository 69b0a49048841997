"""The drill of a partition finds nothing wrong, and notices one that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.recovery import RecoveryEvent
from aioidem._engine.route import Route

from .sending import drill_sending

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_sending(Random(f"sending {seed}"))]


def test_a_partition_sends_what_it_may() -> None:
    assert not wrong()


def sends_beyond_the_window(self: PartitionState) -> bool:
    waits = any(batch.due for batch in self.batches.unresolved)
    return not self.ledger.bump_wanted and self.leadership.gate_open and not waits


def resends_without_a_back_off(self: PartitionState, _now: float) -> Batch | None:
    return next_resend(self, 1e9)


def resends_any_that_waits(self: PartitionState, _now: float) -> Batch | None:
    return next((batch for batch in self.batches.unresolved if batch.due), None)


def follows_with_batches_outstanding(self: PartitionState, route: Route) -> bool:
    outstanding, self.batches.outstanding = self.batches.outstanding, 0
    followed = follow(self, route)
    self.batches.outstanding = outstanding
    return followed


def goes_on_probing(self: PartitionState, route: Route) -> bool:
    rung = self.recovery.rung
    followed = follow(self, route)
    self.recovery.rung = rung
    return followed


def adopts_without_new_numbers(self: PartitionState, identity: ProducerIdentity) -> None:
    if self.ledger.identity != identity and not self.batches.outstanding:
        self.ledger.adopt(identity)
        self.recovery.move(RecoveryEvent.RESOLVED)


def counts_each_attempt_as_known(self: PartitionState, batch: Batch, now: float) -> None:
    send(self, batch, now)
    if batch.attempt is not None:
        batch.attempt.knows_us = self.idempotent


def suspects_with_transactions_too(self: PartitionState, wall_ms: float, expiration: float) -> None:
    self.suspicion.assess(wall_ms, expiration, self.batches.unresolved)


def waits_only_with_a_queue(self: PartitionState) -> bool:
    return bool(self.queue.records)


def has_room_for_none(self: PartitionState) -> int:
    return (self.window.sequence_cap or 1 << 30) - self.batches.sequences


next_resend, follow, send = PartitionState.next_resend, PartitionState.follow, PartitionState.send


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("may_send_new", sends_beyond_the_window),
        ("next_resend", resends_without_a_back_off),
        ("next_resend", resends_any_that_waits),
        ("follow", follows_with_batches_outstanding),
        ("follow", goes_on_probing),
        ("adopt", adopts_without_new_numbers),
        ("send", counts_each_attempt_as_known),
        ("assess_memory", suspects_with_transactions_too),
        ("waits", waits_only_with_a_queue),
        ("sequence_room", has_room_for_none),
    ],
)
def test_a_broken_partition_is_noticed(
    name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionState, name, broken)
    assert wrong()
