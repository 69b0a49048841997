"""What follows if another client uses a partition's producer id: no partition uses it any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.partition import PartitionState
from aioidem.errors import NotEnoughReplicasError

from .comparing import unequal

__all__ = ["SharedId"]


class SharedId:
    """An answer that shows another client, and what all partitions knew before it came.

    Attributes:
        error: what the answer means.
        identity: the producer's identities.
    """

    def __init__(self, dice: Random, state: PartitionState, ever: Sequence[PartitionState]) -> None:
        self.error = NotEnoughReplicasError("no")
        self.identity = IdentityLedger()
        if dice.random() < 0.8:
            self.identity.renew(dice.choice((7, 8)), 0)
        self._before = self.identity.current
        self._state = state
        shared = state.ledger.identity
        # The id that another client uses, too; and with which error each partition had given it up.
        self._used = None if shared is None else shared.producer_id
        self._had = {each: each.ledger.disowned for each in ever}

    def wrong(self, told: str | None, known: Collection[PartitionState]) -> str | None:
        """Return the first thing that does not follow from the answer; None if all follows.

        Args:
            told: the message for the operator.
            known: the partitions that are live or retired.
        """
        wrong = [self._wrong_of(state, known) for state in self._had]
        used, before = self._used, self._before
        asks = used is not None and before is not None and before.producer_id == used
        # If the producer itself has this id, it gives it up, and the operator is told.
        pairs: dict[str, tuple[object, object]] = {
            "an operator is told": (told is not None, asks),
            "the producer's identity": (self.identity.current, None if asks else before),
        }
        differs = unequal(pairs)
        if differs is not None:
            wrong.append(f"{differs}, after {self._state} was refused under the id {used}")
        if told is not None and (
            f"id, {used}." not in told or not told.startswith(self._state.where)
        ):
            wrong.append(f"the line {told!r} does not name the id {used} and {self._state.where}")
        if used is not None and asks and not self.identity.is_shared(used, 0):
            wrong.append(f"the id {used} is shared, and may be granted again")
        return next((each for each in wrong if each is not None), None)

    def _wrong_of(self, state: PartitionState, known: Collection[PartitionState]) -> str | None:
        held, error, had = state.ledger.identity, state.ledger.disowned, self._had[state]
        if state not in known or held is None or held.producer_id != self._used:
            return None if error is had else f"{state} gives up {held}, not the id {self._used}"
        if not isinstance(error, type(self.error)) or error is had or state.batches.in_doubt:
            doubts = f"{state.batches.in_doubt} in doubt"
            return f"{state} has {held} and {doubts}, given up with {error!r}, not {self.error!r}"
        return None
