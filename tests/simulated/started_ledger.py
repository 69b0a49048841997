"""A ledger of sequences that does not begin at 0."""

from __future__ import annotations

from aioidem._engine.idempotence import ProducerIdentity, SequenceLedger

__all__ = ["StartedLedger"]


class StartedLedger(SequenceLedger):
    """A ledger that starts at a chosen sequence, so that a run reaches the wrap to 0 early."""

    __slots__ = ("_first",)

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def adopt(self, identity: ProducerIdentity) -> None:
        super().adopt(identity)
        self.next = self._first

    def take(self, count: int) -> int:
        self._first = 0
        return super().take(count)
