"""Producer identity (id, epoch) and the sequence ledger of one partition.

Sequences are an unbounded counter here and become Kafka's int32 only on the wire (modulo 2^31:
after 2147483647 comes 0). Ordering and arithmetic on the wrapped value is where other clients break
at the wrap, so nothing in the engine ever compares wire values.

The identity life cycle is a table: ABSENT -> REQUESTED -> READY, back to ABSENT when the epochs of
a producer id are used up (a plain idempotent producer bumps its epoch by itself, KIP-360; past
32767 it needs a new id) or when the id turns out to be somebody else's: INVALID_PRODUCER_EPOCH says
so, because nobody but us raises the epoch of an id that is ours, and so does another cluster. A
transactional producer has each of its identities from the coordinator, and never bumps one by
itself.

Rejected: a "transaction manager" that owns both ideas; there are no transactions in a plain
idempotent producer, and peers end up testing `txn_manager is not None` to ask whether idempotence
is on.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from aioidem._engine.lifecycle import transition

__all__ = [
    "IDENTITY_TRANSITIONS",
    "MAX_EPOCH",
    "SEQUENCE_MODULUS",
    "IdentityEvent",
    "IdentityLedger",
    "IdentityState",
    "ProducerIdentity",
    "SequenceLedger",
    "wire_sequence",
]

MAX_EPOCH = 32767
SEQUENCE_MODULUS = 1 << 31


def wire_sequence(counter: int) -> int:
    """Return the int32 that goes on the wire for an unbounded counter (KIP-98); it wraps to 0."""
    return counter % SEQUENCE_MODULUS


class ProducerIdentity(NamedTuple):
    """What a broker deduplicates by, together with the partition and the sequence."""

    producer_id: int
    epoch: int


class IdentityState(enum.Enum):
    """Whether we have a producer id."""

    ABSENT = "absent"
    REQUESTED = "requested"
    READY = "ready"


class IdentityEvent(enum.Enum):
    """What happens to it."""

    ASK = "ask"
    GRANT = "grant"
    REFUSE = "refuse"
    BUMP = "bump"
    EXHAUST = "exhaust"
    DISOWN = "disown"
    RENEW = "renew"


IDENTITY_TRANSITIONS: dict[tuple[IdentityState, IdentityEvent], IdentityState] = {
    (IdentityState.ABSENT, IdentityEvent.ASK): IdentityState.REQUESTED,
    (IdentityState.REQUESTED, IdentityEvent.GRANT): IdentityState.READY,
    (IdentityState.REQUESTED, IdentityEvent.REFUSE): IdentityState.ABSENT,
    (IdentityState.READY, IdentityEvent.BUMP): IdentityState.READY,
    (IdentityState.READY, IdentityEvent.EXHAUST): IdentityState.ABSENT,
    (IdentityState.READY, IdentityEvent.DISOWN): IdentityState.ABSENT,
    (IdentityState.ABSENT, IdentityEvent.DISOWN): IdentityState.ABSENT,
    (IdentityState.ABSENT, IdentityEvent.RENEW): IdentityState.READY,
    (IdentityState.READY, IdentityEvent.RENEW): IdentityState.READY,
}


class IdentityLedger:
    """The producer's current identity and how it came by it. One per producer.

    Partitions keep the identity they last adopted in their own `SequenceLedger`; a bump here
    reaches each of them only when nothing of it is outstanding or in doubt, because the first
    append under e+1 fences e.
    """

    __slots__ = ("bumps", "current", "state")

    def __init__(self) -> None:
        self.state = IdentityState.ABSENT
        self.current: ProducerIdentity | None = None
        self.bumps = 0

    def _move(self, event: IdentityEvent) -> None:
        self.state = transition(IDENTITY_TRANSITIONS, self.state, event, "producer identity")

    def ask(self) -> None:
        """Note that an InitProducerId request is on its way."""
        self._move(IdentityEvent.ASK)

    def refuse(self) -> None:
        """Note that it was answered with a retriable error, or that its connection was lost."""
        self._move(IdentityEvent.REFUSE)

    def grant(self, producer_id: int, epoch: int) -> ProducerIdentity:
        """Record the identity that the broker granted."""
        self._move(IdentityEvent.GRANT)
        self.current = ProducerIdentity(producer_id, epoch)
        return self.current

    def renew(self, producer_id: int, epoch: int) -> None:
        """Record the identity that the transaction coordinator granted, be it the first one."""
        self.bumps += self.current is not None
        self._move(IdentityEvent.RENEW)
        self.current = ProducerIdentity(producer_id, epoch)

    def disown(self) -> None:
        """Give the producer id up: it is another producer's, in this cluster at least."""
        self.bumps += self.current is not None
        self._move(IdentityEvent.DISOWN)
        self.current = None

    def bump(self) -> None:
        """Raise the epoch by one, or drop the id when its epochs are used up.

        KIP-360: a producer without a transactional id may do so by itself.
        """
        identity = self.current
        if identity is None:
            # An exhausted id is being replaced already; its successor serves this incident too.
            return
        self.bumps += 1
        if identity.epoch >= MAX_EPOCH:
            self._move(IdentityEvent.EXHAUST)
            self.current = None
            return
        self._move(IdentityEvent.BUMP)
        self.current = ProducerIdentity(identity.producer_id, identity.epoch + 1)


class SequenceLedger:
    """Which identity a partition writes under, and its next sequence.

    Numbers are taken at drain, never at append.
    """

    __slots__ = ("identity", "next")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.next = 0

    def take(self, count: int) -> int:
        """Reserve `count` consecutive numbers; the first of them, unbounded."""
        base = self.next
        self.next += count
        return base

    def adopt(self, identity: ProducerIdentity) -> None:
        """Start again at 0 under another identity."""
        self.identity = identity
        self.next = 0
