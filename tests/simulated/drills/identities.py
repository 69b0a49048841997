"""The drill of identities and sequences: granted, raised, shared and given up, in any order.

What may not happen has to raise; what is told is derived from what has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.idempotence import (
    IdentityLedger,
    IdentityState,
    ProducerIdentity,
    SequenceLedger,
    wire_sequence,
)
from aioidem.errors import KafkaError

from .comparing import differs, misjudged

__all__ = ["drill_identities"]

_STEPS: Final = 25
_LAST_EPOCH: Final = 32_767
_SEQUENCES: Final = 2**31
"""The highest epoch, and how many sequences there are until they begin at 0 again."""


def drill_identities(dice: Random) -> Iterator[str]:
    """Yield what is told of an identity, or of sequences, against what has happened."""
    for wrong in _IdentityDrill(dice).run():
        yield f"identity: {wrong}"
        return
    yield from _sequences(dice)


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
        wrong: str | None = None
        granted = self._dice.choice((1, 2)), self._dice.choice((0, 1, _LAST_EPOCH))
        ledger = self._ledger
        match self._dice.randrange(7):
            case 0 | 1:
                wrong = misjudged(f"{self._state_words()}: asking", ledger.ask, allowed=absent)
                self._requested |= absent
            case 2:
                what = f"{self._state_words()}: a grant"
                wrong = misjudged(what, lambda: ledger.grant(*granted), allowed=self._requested)
                if self._requested:
                    self._requested, self._present = False, ProducerIdentity(*granted)
            case 3:
                what = f"{self._state_words()}: a refusal"
                wrong = misjudged(what, ledger.refuse, allowed=self._requested)
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
        return wrong

    def _state_words(self) -> str:
        """Return what the identity is, for a complaint."""
        requested = "requested" if self._requested else "not requested"
        return f"identity {self._present}, {requested}"

    def _bump(self) -> None:
        """Raise the epoch; after the last one there is no identity."""
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
            yield f"identity, state and how many were given up: told {told}, expected {due}"
        other = self._dice.choice((1, 2)), self._dice.choice((0, 1, 2))
        newer = present is None or other[0] != present[0] or other[1] > present[1]
        if ledger.is_newer(*other) is not newer:
            yield f"{other} is newer than {present}: told {not newer}, expected {newer}"
        seen = other if self._shared is None else self._dice.choice((other, self._shared))
        shared = seen == self._shared
        if ledger.is_shared(*seen) is not shared:
            yield f"another producer uses {seen}: told {not shared}, expected {shared}"


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
                wrong = differs("sequences: the first one of a batch", ledger.take(count), taken)
                if wrong is not None:
                    yield wrong
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
            what = "sequences: next, identity, first skipped, disowned for, new epoch wanted"
            yield f"{what}: told {told}, expected {due}"
            return
    for number in (0, 1, _SEQUENCES - 1, _SEQUENCES, 2 * _SEQUENCES + 3):
        wrong = differs(
            f"sequences: number {number} on the wire", wire_sequence(number), number % _SEQUENCES
        )
        if wrong is not None:
            yield wrong
