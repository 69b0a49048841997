"""FirstAckGate: one batch in flight until the leader has shown that it holds our state.

A leader without state for a producer id accepts *any* first sequence (KAFKA-15591). So while
nothing shows that the present leader knows our producer id and epoch, only the oldest unresolved
batch of a partition is in flight: a second one could be accepted although the first was refused.
Error NONE to a batch opens the gate for the identity and the route that the batch was sent under.

What closes it
- another route or another identity: what was shown belongs to the one before;
- any other answer, and a lost connection;
- a beginning transaction, and a leader that may have forgotten us (KIP-854).

In transactions v2 a leader without state refuses a first sequence other than 0, so nothing can
overtake what it refused, and there is no gate (KIP-890). Without idempotence there is none either.
"""

from __future__ import annotations

from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.route import Route

__all__ = ["FirstAckGate", "SentAs"]

SentAs = tuple[ProducerIdentity | None, Route | None]
"""Under which identity and over which route a batch is sent."""

_FRESH = 1.0
"""Seconds for which error NONE shows that the leader holds our state, though our stamps are old."""


class FirstAckGate:
    """What one partition's leader has shown to know of our producer id."""

    __slots__ = ("_heard", "_heard_at", "applies", "opened_for", "questioned")

    def __init__(self, *, applies: bool) -> None:
        self.applies = applies
        # Under which (identity, route) the last thing heard was error NONE; None: the gate is shut.
        self.opened_for: SentAs | None = None
        # Under which (identity, route) error NONE was heard at all, errors since notwithstanding.
        self._heard: SentAs | None = None
        self._heard_at = 0.0
        # Whether a code that no table names was heard since. It may say that the leader has lost
        # our state, so what was heard before shows nothing any more.
        self.questioned = False

    def need(self, *, applies: bool) -> None:
        """Say whether there is a gate: in transactions that depends on their version."""
        self.applies = applies

    def is_open(self, sent_as: SentAs) -> bool:
        """Whether more than the oldest unresolved batch may be in flight."""
        return not self.applies or self.opened_for == sent_as

    def passed(self, sent_as: SentAs) -> bool:
        """Whether the leader has shown that it holds our state, gate or no gate."""
        return self.opened_for == sent_as

    def close(self) -> None:
        """Shut the gate: what the leader knows is open again."""
        self.opened_for = None

    def close_unless_fresh(self, now: float) -> None:
        """Shut the gate if the last error NONE is older than a second."""
        if now - self._heard_at > _FRESH:
            self.opened_for = None

    def restart(self) -> None:
        """Begin anew, for another leader, connection or identity."""
        self.opened_for = None
        self.questioned = False

    def hear_none(self, sent_as: SentAs, now: float) -> None:
        """Open the gate: error NONE came for a batch that was sent so."""
        self.opened_for = self._heard = sent_as
        self.questioned = False
        self._heard_at = now

    def hear_of_state(self) -> None:
        """Take an answer that only a leader with our state gives (OUT_OF_ORDER, DUPLICATE)."""
        self.questioned = False

    def question(self) -> None:
        """Take an error code that no table names: it may say that our state is lost."""
        self.questioned = True

    def has_heard(self, sent_as: SentAs) -> bool:
        """Whether the leader has ever answered NONE so: it would recognise a copy."""
        return self._heard == sent_as
