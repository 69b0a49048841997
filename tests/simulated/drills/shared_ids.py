"""What follows if another client uses a partition's producer id: no partition uses it any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.partition import PartitionState
from aioidem.errors import NotEnoughReplicasError

__all__ = ["SharedId"]


class SharedId:
    """An answer that shows another client, and what all partitions knew before it came."""

    def __init__(self, dice: Random, state: PartitionState, ever: Sequence[PartitionState]) -> None:
        self.error = NotEnoughReplicasError("no")
        self.identity = IdentityLedger()
        if dice.random() < 0.8:
            self.identity.renew(dice.choice((7, 8)), 0)
        self._before = self.identity.current
        self._state = state
        shared = state.ledger.identity
        self._used = None if shared is None else shared.producer_id
        self._had = {each: each.ledger.disowned for each in ever}

    def wrong(self, told: str | None, known: Collection[PartitionState]) -> str | None:
        """Return what does not follow from the answer.

        Args:
            told: the message for the operator.
            known: the partitions that are live or retired.
        """
        wrong = [self._wrong_of(state, known) for state in self._had]
        used, before = self._used, self._before
        asks = used is not None and before is not None and before.producer_id == used
        if (told is not None) is not asks or self.identity.current != (None if asks else before):
            wrong.append(f"{told} of {used}, and {self.identity.current} after {before}")
        if told is not None and (
            f"id, {used}." not in told or not told.startswith(self._state.where)
        ):
            wrong.append(f"{told} does not tell of {used} in {self._state.where}")
        if used is not None and asks and not self.identity.is_shared(used, 0):
            wrong.append("the id may be granted again")
        return next((each for each in wrong if each is not None), None)

    def _wrong_of(self, state: PartitionState, known: Collection[PartitionState]) -> str | None:
        held, error, had = state.ledger.identity, state.ledger.disowned, self._had[state]
        if state not in known or held is None or held.producer_id != self._used:
            return None if error is had else f"{state} uses {held} no longer"
        if not isinstance(error, type(self.error)) or error is had or state.batches.in_doubt:
            return f"{state} still uses {held}"
        return None
