"""The producer's identity (producer id and epoch), and the sequence ledger of one partition.

Sequences are unbounded counters here and become Kafka's int32 only on the wire (modulo 2^31: 0
follows 2147483647). Other clients fail at the wrap because they order or compute with the wrapped
value, so the engine never orders wire values.

The life cycle of the identity is a table: ABSENT -> REQUESTED -> READY. Without a transactional id
the producer raises its epoch by itself (KIP-360). It goes back to ABSENT, and requests a new
producer id, in three cases:

- The epoch is 32767, the highest one, and would have to be raised.
- The broker answers INVALID_PRODUCER_EPOCH: it has seen a higher epoch of the id. This producer has
  not raised it, so another producer uses the same id.
- The producer moves to another cluster, where the id may belong to another producer.

A transactional producer gets each of its identities from the coordinator, and never raises an epoch
by itself. It goes back to ABSENT when it changes its transactional id.

Rejected: one "transaction manager" for transactions and idempotence. An idempotent producer without
transactions has no use for such a manager. Clients that have one find out whether idempotence is on
by testing `txn_manager is not None`.
"""

from __future__ import annotations

from typing import NamedTuple

from aioidem._engine.lifecycle import Named, transition
from aioidem.errors import KafkaError

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
    """A producer id and an epoch, by which a broker deduplicates each partition's sequences."""

    producer_id: int
    epoch: int


class IdentityState(Named):
    """Whether the producer has an identity."""

    ABSENT = "absent"
    REQUESTED = "requested"
    READY = "ready"


class IdentityEvent(Named):
    """An event that changes the `IdentityState`."""

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
    """The current identity of one producer, and the state of its life cycle.

    Each partition keeps the identity that it last adopted in its own `SequenceLedger`. It adopts a
    newer one only when none of its batches is outstanding or in doubt, because the first append
    under epoch e+1 fences epoch e.
    """

    __slots__ = ("_shared", "bumps", "current", "state")

    def __init__(self) -> None:
        self.state = IdentityState.ABSENT
        self.current: ProducerIdentity | None = None
        # The last identity that another producer was seen to use; None if none was.
        self._shared: ProducerIdentity | None = None
        self.bumps = 0

    def _move(self, event: IdentityEvent) -> None:
        self.state = transition(IDENTITY_TRANSITIONS, self.state, event, "producer identity")

    def ask(self) -> None:
        """Note that an InitProducerId request is being sent."""
        self._move(IdentityEvent.ASK)

    def refuse(self) -> None:
        """Note that InitProducerId was answered without an identity, or not answered."""
        self._move(IdentityEvent.REFUSE)

    def grant(self, producer_id: int, epoch: int) -> ProducerIdentity:
        """Record the identity that the broker granted, and return it."""
        self._move(IdentityEvent.GRANT)
        self.current = ProducerIdentity(producer_id, epoch)
        return self.current

    def renew(self, producer_id: int, epoch: int) -> None:
        """Record an identity that the transaction coordinator granted, the first or a later one."""
        self.bumps += self.current is not None
        self._move(IdentityEvent.RENEW)
        self.current = ProducerIdentity(producer_id, epoch)

    def is_newer(self, producer_id: int, epoch: int) -> bool:
        """Return whether an identity that is granted now is not the present one, or an older epoch.

        Partitions that gave up sequence numbers wait for a newer one.
        """
        current = self.current
        return current is None or producer_id != current.producer_id or epoch > current.epoch

    def is_shared(self, producer_id: int, epoch: int) -> bool:
        """Return whether another producer was seen to use an identity that is granted now.

        Sequences would begin anew under it, so the leader would take new batches for stored ones.
        """
        return self._shared == (producer_id, epoch)

    def disown(self, *, shared: bool = False) -> None:
        """Give up the producer id.

        Another producer uses it, or may use it in the new cluster; or this producer changes its
        transactional id.

        Args:
            shared: whether another producer was seen to use it.
        """
        self._shared = self.current if shared else None
        self.bumps += self.current is not None
        self._move(IdentityEvent.DISOWN)
        self.current = None

    def bump(self) -> None:
        """Raise the epoch by one, or give up the producer id if its epochs are used up.

        Only a producer without a transactional id may raise its epoch by itself (KIP-360).
        """
        identity = self.current
        if identity is None:
            # The producer has no id and will get a new one. Under a new id sequences begin anew, as
            # they would under the next epoch of an old id.
            return
        self.bumps += 1
        if identity.epoch >= MAX_EPOCH:
            self._move(IdentityEvent.EXHAUST)
            self.current = None
            return
        self._move(IdentityEvent.BUMP)
        self.current = ProducerIdentity(identity.producer_id, identity.epoch + 1)


class SequenceLedger:
    """The identity that one partition writes under, its next sequence number, and those given up.

    Numbers are taken when a batch is made, not when a record is appended to the queue.
    """

    __slots__ = ("bump_wanted", "disowned", "identity", "next", "skipped")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.next = 0
        # Whether numbers were given up, so that the partition needs another epoch.
        self.bump_wanted = False
        # The error that shows that another client uses the same producer id; None while no answer
        # shows that.
        self.disowned: KafkaError | None = None
        # The lowest base sequence of the batches that ended NOT_WRITTEN under this identity; None
        # if no batch did. A leader that holds the producer's state refuses every later sequence,
        # so one that appends a later batch had lost the state.
        self.skipped: int | None = None

    def take(self, count: int) -> int:
        """Reserve `count` sequence numbers, which do not wrap at 2^31, and return the first one."""
        base = self.next
        self.next += count
        return base

    def adopt(self, identity: ProducerIdentity) -> None:
        """Change to another identity, and start again at sequence 0."""
        self.identity = identity
        self.next = 0
        self.bump_wanted = False
        self.disowned = None
        self.skipped = None

    def skip(self, base: int) -> None:
        """Note that the batch of a base sequence was not appended, and never will be."""
        if self.skipped is None or base < self.skipped:
            self.skipped = base

    def disown(self, error: KafkaError) -> None:
        """Give the identity up: another client uses the same producer id, as `error` shows."""
        self.disowned = error
        self.bump_wanted = True
