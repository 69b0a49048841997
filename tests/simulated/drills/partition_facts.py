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
    """Until when nothing is sent after a failure, in seconds."""
    reads: int | None
    """The offset at which the log is read back."""
    window: tuple[int, bool, int]
    """The limit, whether the leader has named it, and the largest span so far."""
    opened_for: SentAs | None
    """The identity and route for which the first-ack gate is open."""
    applies: bool
    """Whether the first-ack gate applies."""
    questioned: bool
    """Whether an error came after which the leader may have lost the producer's state."""
    suspect: bool
    """Whether the leader may have forgotten the producer."""
    exempt: bool
    """Whether the only batch may be sent again all the same."""
    outstanding: int
    """How many batches the leader owes an answer to."""
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
