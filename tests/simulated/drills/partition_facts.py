"""What the steps of a partition change in its parts; a drill compares it before and after."""

from __future__ import annotations

from typing import NamedTuple

from aioidem._engine.first_ack_gate import SentAs
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route

__all__ = ["PartitionFacts", "facts_of"]


class PartitionFacts(NamedTuple):
    """What is known of a partition and its leader at one moment."""

    route: Route | None
    identity: ProducerIdentity | None
    rung: Rung
    retry_at: float
    reads: int | None
    """The offset at which the log is read back."""
    window: tuple[int, bool, int]
    """The limit, whether the leader has named it, and the largest span so far."""
    opened_for: SentAs | None
    applies: bool
    questioned: bool
    suspect: bool
    exempt: bool
    outstanding: int
    newest: int
    """The ordinal of the newest batch that is known to be stored."""


def facts_of(state: PartitionState) -> PartitionFacts:
    """Return what is known now."""
    return PartitionFacts(
        state.leadership.route,
        state.ledger.identity,
        state.recovery.rung,
        state.setbacks.retry_at,
        state.read_back.offset,
        (state.window.limit, state.window.heard, state.window.max_span),
        state.gate.opened_for,
        state.gate.applies,
        state.gate.questioned,
        state.suspicion.suspect,
        state.suspicion.exempt,
        state.batches.outstanding,
        state.log.ordinal,
    )
