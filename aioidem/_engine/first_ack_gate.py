"""FirstAckGate: one batch in flight until the leader has shown that it holds the producer's state.

A leader without state for a producer id accepts *any* first sequence (KAFKA-15591). So while
nothing shows that the present leader knows the producer id and epoch, only the oldest unresolved
batch of a partition is in flight: a second one could be accepted although the first was refused.
Error NONE for a batch opens the gate for the identity (producer id and epoch) and the route
(connection, leader and leader epoch) that the batch was sent under.

What closes the gate
- another route or another identity: the proof was for the previous one;
- any other answer, and a lost connection;
- the beginning of a transaction, and a leader that may have forgotten the producer (KIP-854).

In transactions v2 a leader without state refuses a first sequence other than 0, so no batch can
overtake a refused one, and there is no gate (KIP-890). Without idempotence there is none either.
"""

from __future__ import annotations

from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.route import Route

__all__ = ["FirstAckGate", "SentAs"]

SentAs = tuple[ProducerIdentity | None, Route | None]
"""What a batch is sent under: producer id and epoch; connection, leader and leader epoch."""

_FRESH = 1.0
"""How many seconds the gate stays open after error NONE if records have old timestamps.

With timestamps that old, the leader may soon drop the producer's state (KIP-854), so error NONE
proves only for a short time that the leader holds the state.
"""


class FirstAckGate:
    """Whether the leader of one partition has shown that it holds the producer's state.

    The gate is open once the leader has shown this. While it is closed, only the partition's oldest
    unresolved batch is in flight.
    """

    __slots__ = ("_heard", "_heard_at", "_transaction", "applies", "opened_for", "questioned")

    def __init__(self, *, applies: bool) -> None:
        self.applies = applies
        # The (identity, route) for which the gate is open; None while it is closed.
        self.opened_for: SentAs | None = None
        # The (identity, route) of the batch that was last answered with NONE. Other errors that
        # came after that answer do not reset it.
        self._heard: SentAs | None = None
        self._heard_at = 0.0
        self._transaction = 0
        # Whether an error code that `classify` does not know has come since the last error NONE. If
        # so, the leader may have lost the producer's state after it answered that NONE.
        self.questioned = False

    def begin(self, transaction: int, *, applies: bool) -> None:
        """Close the gate when a transaction begins; a second call for the same one does nothing.

        Args:
            transaction: the number of the transaction.
            applies: whether there is a gate in this transaction; in transactions v2 there is none.
        """
        if self._transaction != transaction:
            self._transaction = transaction
            self.applies = applies
            self.opened_for = None

    def is_open(self, sent_as: SentAs) -> bool:
        """Return whether more than the oldest unresolved batch may be in flight.

        Args:
            sent_as: the identity and the route under which the batches are sent.
        """
        return not self.applies or self.opened_for == sent_as

    def passed(self, sent_as: SentAs) -> bool:
        """Return whether the leader has shown that it holds the producer's state for `sent_as`."""
        return self.opened_for == sent_as

    def close(self) -> None:
        """Close the gate: it is not certain any more that the leader holds the producer's state."""
        self.opened_for = None

    def close_unless_fresh(self, now: float) -> None:
        """Close the gate if the last error NONE is more than a second old."""
        if now - self._heard_at > _FRESH:
            self.opened_for = None

    def restart(self) -> None:
        """Close the gate and clear `questioned`: the leader, connection or identity has changed."""
        self.opened_for = None
        self.questioned = False

    def hear_none(self, sent_as: SentAs, now: float) -> None:
        """Open the gate: error NONE came for a batch sent under this identity and route."""
        self.opened_for = self._heard = sent_as
        self.questioned = False
        self._heard_at = now

    def hear_of_state(self) -> None:
        """Note OUT_OF_ORDER or DUPLICATE: only a leader with the producer's state sends them."""
        self.questioned = False

    def question(self) -> None:
        """Note an error code that `classify` does not list: the leader may have lost the state."""
        self.questioned = True

    def has_heard(self, sent_as: SentAs) -> bool:
        """Return whether the last error NONE came under this identity and route.

        If it did, the leader holds the producer's state, and so would recognise a second copy of a
        batch.
        """
        return self._heard == sent_as
