"""The drill of identities and sequences: granted, raised, shared and given up, in any order.

What may not happen raises; what is told is derived from the list of what has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from aioidem._engine.idempotence import (
    IdentityLedger,
    IdentityState,
    ProducerIdentity,
    SequenceLedger,
    wire_sequence,
)
from aioidem.errors import InternalError, KafkaError

__all__ = ["drill_identities", "raises_internal"]

_STEPS: Final = 25
_LAST_EPOCH: Final = 32_767
_SEQUENCES: Final = 2**31


def drill_identities(dice: Random) -> Iterator[str]:
    """Yield what is told of an identity or of sequences against what has happened."""
    for wrong in _IdentityDrill(dice).run():
        yield f"identity: {wrong}"
        return
    yield from _sequences(dice)


def raises_internal(call: Callable[[], object]) -> bool:
    """Return whether a call raises an `InternalError`, and nothing else."""
    try:
        call()
    except InternalError:
        return True
    return False


# -- an identity -----------------------------------------------------------------------------------


class _IdentityDrill:
    """An `IdentityLedger`, and the identities that were granted and given up."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._ledger = IdentityLedger()
        self._present: ProducerIdentity | None = None
        self._requested = False
        self._shared: ProducerIdentity | None = None
        self._given_up = 0

    def run(self) -> Iterator[str]:
        """Grant identities and give them up, and yield what is wrong."""
        for _ in range(_STEPS):
            for wrong in (self._act(), *self._differences()):
                if wrong is not None:
                    yield wrong
                    return

    def _act(self) -> str | None:
        absent = self._present is None and not self._requested
        granted = self._dice.choice((1, 2)), self._dice.choice((0, 1, _LAST_EPOCH))
        ledger = self._ledger
        match self._dice.randrange(7):
            case 0 | 1:
                if raises_internal(ledger.ask) is absent:
                    return f"an identity is requested, or not, with {self._present}"
                self._requested |= absent
            case 2:
                if raises_internal(lambda: ledger.grant(*granted)) is self._requested:
                    return f"an identity is granted, or not, where requested: {self._requested}"
                if self._requested:
                    self._requested, self._present = False, ProducerIdentity(*granted)
            case 3:
                if raises_internal(ledger.refuse) is self._requested:
                    return f"an identity is refused, or not, where requested: {self._requested}"
                self._requested = False
            case 4 if not self._requested:
                self._given_up += self._present is not None
                ledger.renew(*granted)
                self._present = ProducerIdentity(*granted)
            case 5 if not self._requested:
                self._given_up += self._present is not None
                shared = self._dice.random() < 0.5
                ledger.disown(shared=shared)
                self._shared = self._present if shared else None
                self._present = None
            case 6:
                self._bump()
            case _:
                pass
        return None

    def _bump(self) -> None:
        self._ledger.bump()
        if self._present is None:
            return
        self._given_up += 1
        producer_id, epoch = self._present
        more = epoch < _LAST_EPOCH
        self._present = ProducerIdentity(producer_id, epoch + 1) if more else None

    def _differences(self) -> Iterator[str]:
        ledger, present = self._ledger, self._present
        state = IdentityState.REQUESTED if self._requested else IdentityState.ABSENT
        told = ledger.current, ledger.state, ledger.bumps
        due = present, state if present is None else IdentityState.READY, self._given_up
        if told != due:
            yield f"{told}, not {due}"
        other = self._dice.choice((1, 2)), self._dice.choice((0, 1, 2))
        newer = present is None or other[0] != present[0] or other[1] > present[1]
        if ledger.is_newer(*other) is not newer:
            yield f"{other} is newer than {present}, or not"
        seen = other if self._shared is None else self._dice.choice((other, self._shared))
        if ledger.is_shared(*seen) is not (seen == self._shared):
            yield f"{seen} is {self._shared}, which another producer uses, or not"


# -- sequences -------------------------------------------------------------------------------------


def _sequences(dice: Random) -> Iterator[str]:
    """Yield which sequence is given twice, left out, or not begun anew."""
    ledger, taken = SequenceLedger(), 0
    skipped: list[int] = []
    identity: ProducerIdentity | None = None
    error: KafkaError | None = None
    wanted = False
    for number in range(12):
        match dice.randrange(6):
            case 0 | 1:
                count = dice.randrange(1, 5)
                if ledger.take(count) != taken:
                    yield f"sequences: another one than {taken} is next"
                taken += count
            case 2:
                skipped.append(dice.randrange(10))
                ledger.skip(skipped[-1])
            case 3:
                error, wanted = KafkaError("shared"), True
                ledger.disown(error)
            case 4:
                ledger.bump_wanted = wanted = True
            case _:
                identity = ProducerIdentity(1, number)
                ledger.adopt(identity)
                taken, error, wanted = 0, None, False
                skipped.clear()
        told = ledger.next, ledger.identity, ledger.skipped, ledger.disowned, ledger.bump_wanted
        due = taken, identity, min(skipped, default=None), error, wanted
        if told != due:
            yield f"sequences: {told}, not {due}"
            return
    for number in (0, 1, _SEQUENCES - 1, _SEQUENCES, 2 * _SEQUENCES + 3):
        if wire_sequence(number) != number % _SEQUENCES:
            yield f"sequences: {number} is {wire_sequence(number)} on the wire"
