"""The drill of answers finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from aioidem._engine.acknowledgements import Acknowledgements
from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.failed_attempts import FailedAttempts
from aioidem._engine.ladder import Ladder
from aioidem._engine.log_position import LogPosition
from aioidem._engine.recovery import Recovery
from aioidem._engine.setbacks import Setbacks
from aioidem.errors import KafkaError

from .answered import drill_answered

SEEDS = range(60)


def wrong() -> list[str]:
    """Return what the seeds find, of the first that finds something."""
    for seed in SEEDS:
        found = list(drill_answered(Random(f"answered {seed}")))
        if found:
            return found
    return []


def test_answers_do_to_a_partition_what_they_should() -> None:
    assert not wrong()


def counts_each_failure(self: Setbacks, now: float) -> None:
    self.retry_at = now + self._retry.next_delay()


def has_forgotten_nobody(
    _self: Acknowledgements, _acked: Batch, _below: Sequence[Batch], _out: Effects
) -> bool:
    return False


def has_room_for_all(_self: LogPosition, *_: object) -> bool:
    return True


def believes_the_last_refusal(
    self: Endings, batch: Batch, error: KafkaError, out: Effects, *, answered: bool = False
) -> None:
    if batch.state is BatchState.IN_FLIGHT and not answered:
        self.give_up(batch, error, out)
    else:
        self.drop(batch, error, out)


def wants_an_epoch_for_each_batch(
    self: Endings, out: Effects, what: str, error: KafkaError | None = None
) -> None:
    self._ledger.bump_wanted = False
    give_up_numbers(self, out, what, error)


def probes_on(_self: Recovery) -> None:
    pass


def ends_in_doubt(self: FailedAttempts, batch: Batch, error: KafkaError, out: Effects) -> None:
    end = self._endings.give_up if batch.in_doubt else self._endings.drop
    end(batch, error, out)


def after_one_pass(self: Recovery, _now: float, _pause: float) -> bool:
    return self.passes == 0


def names_any_epoch(self: Ladder, last_sequence: tuple[int, int] | None) -> None:
    identity = self._ledger.identity
    if last_sequence is not None and identity is not None:
        last_sequence = identity.epoch, last_sequence[1]
    on_producers(self, last_sequence)


give_up_numbers = Endings.give_up_numbers
on_producers = Ladder.on_producers


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Setbacks, "back_off", counts_each_failure),
        (Acknowledgements, "was_accepted_over_a_hole", has_forgotten_nobody),
        (LogPosition, "leaves_room", has_room_for_all),
        (Endings, "end", believes_the_last_refusal),
        (Endings, "give_up_numbers", wants_an_epoch_for_each_batch),
        (Recovery, "interrupt", probes_on),
        (FailedAttempts, "_on_permanent", ends_in_doubt),
        (Recovery, "end_pass", after_one_pass),
        (Ladder, "on_producers", names_any_epoch),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
