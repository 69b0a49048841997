"""The rules by which a partition sends: which batch may go now, if any.

The rules are derived from what a batch, the first-ack gate, the window and so on tell. What these
tell is judged by drills of their own; here it is taken for granted.
"""

from __future__ import annotations

from typing import Final

from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.partition import PartitionState
from aioidem._engine.recovery import Rung

__all__ = ["may_be_new", "may_be_resent", "room_for_records"]

_APART: Final = 2**30
"""Two sequences must be less than this apart, so that it is certain which is the later one."""


def may_be_resent(state: PartitionState, now: float, *, resend: bool) -> Batch | None:
    """Return the batch that is resent next, if one may be resent now.

    Args:
        state: the partition.
        now: seconds.
        resend: whether a batch in doubt may be sent again although it may be stored twice
            (`in_doubt="resend"`).
    """
    rung, owed = state.recovery.rung, state.batches.outstanding
    backs_off = now < state.setbacks.retry_at
    reads = state.read_back.offset is not None
    if backs_off or reads or not state.batches.unresolved:
        return None
    if rung is Rung.CLEAR:
        return _next_in_order(state)
    if rung is Rung.PROBING and not (owed and state.gate.questioned):
        return state.recovery.next_probe(state.batches.unresolved, now)
    if rung is Rung.SALVAGE and not owed and not state.suspicion.forbids_resend:
        return state.recovery.next_salvage(oldest=resend)
    return None


def _next_in_order(state: PartitionState) -> Batch | None:
    """Return the oldest batch that waits, unless something forbids to send it now."""
    batches = state.batches.unresolved
    # If numbers were given up, the other batches must get new ones first.
    numbered = [each for each in batches if each.keeps_numbers or not state.ledger.bump_wanted]
    waiting = [each for each in numbered if _waits(each)]
    if not waiting:
        return None
    oldest = waiting[0]
    later = batches[batches.index(oldest) :]
    overtakes = any(each.state is BatchState.IN_FLIGHT for each in later)
    doubted = any(each.in_doubt and _waits(each) for each in batches)
    obstacles = {
        "a batch in doubt could be stored twice": state.suspicion.forbids_resend and doubted,
        "only the oldest is in flight": state.batches.outstanding and not _open(state),
        "a later one is in flight": state.batches.outstanding and overtakes,
        "the leader would forget the oldest": (
            _windowed(state) and oldest.ordinal - numbered[0].ordinal >= state.window.limit
        ),
    }
    return None if any(obstacles.values()) else oldest


def may_be_new(state: PartitionState) -> bool:
    """Return whether a batch may be made of queued records, and sent."""
    batches, cap = state.batches.unresolved, state.window.sequence_cap
    if not state.idempotent:
        return not any(map(_waits, batches)) and not (not batches and state.ledger.bump_wanted)
    obstacles = {"numbers were given up": state.ledger.bump_wanted}
    if batches:
        # An unresolved batch and the new one are both among those that the leader recognises.
        behind = state.batches.next_ordinal - batches[0].ordinal
        taken = _sequences(state)
        obstacles |= {
            "an earlier one waits": any(map(_waits, batches)),
            "only the oldest is in flight": not _open(state),
            "too many records": taken >= (_APART // 2 if cap is None else cap),
            "too many batches": _windowed(state) and behind >= state.window.limit,
        }
    return not any(obstacles.values())


def room_for_records(state: PartitionState) -> int:
    """Return the largest number of records of the next batch."""
    cap = state.window.sequence_cap
    return _APART if cap is None else max(1, cap - _sequences(state))


def _waits(batch: Batch) -> bool:
    return batch.state in {BatchState.SEALED, BatchState.WAITING}


def _sequences(state: PartitionState) -> int:
    """Return how many sequences there are from the oldest unresolved batch on."""
    batches = state.batches.unresolved
    return state.ledger.next - batches[0].base if batches else 0


def _open(state: PartitionState) -> bool:
    return state.gate.is_open((state.ledger.identity, state.leadership.route))


def _windowed(state: PartitionState) -> bool:
    return state.idempotent and state.window.sequence_cap is None
