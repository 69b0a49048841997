"""The model of a transaction coordinator, and of a log whose records belong to transactions.

As `model`, it is written from the protocol alone (KIP-98, KIP-360, KIP-890), with plain values, and
shares no code with the engine and with the embedded broker.

What the coordinator does, as Kafka does:

- InitProducerId raises the epoch. Without an id it takes over. With an id and epoch it serves only
  whoever has that epoch, and anybody else is PRODUCER_FENCED; repeated, it grants the same epoch.
  In both cases an open transaction is aborted first, under an epoch in between that nobody gets
  (CONCURRENT_TRANSACTIONS until then).
- A partition is added by AddPartitionsToTxn (v1), or by the leader of the partition when the first
  batch comes (v2). While the markers of the last transaction are written that is answered with
  CONCURRENT_TRANSACTIONS.
- EndTxn is decided once and for all when it is answered; markers are written after that, one
  partition at a time. In v2 the decision raises the epoch, and the answer to the same EndTxn again
  names that epoch. In v2 a transaction of which the coordinator knows nothing can be aborted.

In v1 a leader asks the coordinator whether the partition belongs to the transaction, before it
appends the first batch of one (Kafka 3.6 and later).
"""

from __future__ import annotations

from typing import NamedTuple

from . import model
from .model import Answer, PartitionLog, Sent

__all__ = [
    "CONCURRENT",
    "COORDINATOR_GONE",
    "INVALID_TXN_STATE",
    "NOT_COORDINATOR",
    "UNKNOWN_SERVER_ERROR",
    "Call",
    "Granted",
    "TransactionCoordinator",
    "TransactionalLog",
]

UNKNOWN_SERVER_ERROR = -1
COORDINATOR_GONE = 15
NOT_COORDINATOR = 16
INVALID_TXN_STATE = 48
INVALID_MAPPING = 49
CONCURRENT = 51
FENCED = 90


class Call(NamedTuple):
    """A request to the coordinator: "init", "add" or "end", and who makes it.

    The producer id of "init" is -1 if it takes over.
    """

    token: int
    kind: str
    producer_id: int
    epoch: int
    partitions: tuple[int, ...] = ()
    commit: bool = False


class Granted(NamedTuple):
    """What a coordinator answers: an error code, and the producer id and epoch to go on with."""

    code: int
    producer_id: int = -1
    epoch: int = -1


class TransactionCoordinator:
    """What the coordinator of one transactional id knows.

    Args:
        producer_id: the id that it grants.
        v2: whether the cluster has transactions v2 (KIP-890).
    """

    def __init__(self, producer_id: int, *, v2: bool) -> None:
        self.broker = 2
        self.v2 = v2
        self.producer_id = producer_id
        self.epoch = -1
        # The epoch before the present one, if the same producer had it; else -1.
        self.last_epoch = -1
        # "none", "ongoing", "commit" and "abort".
        self.state = "none"
        self.partitions: frozenset[int] = frozenset()
        # The partitions that have no marker yet of the transaction that was decided last.
        self.unmarked: frozenset[int] = frozenset()

    @property
    def marking(self) -> bool:
        """Whether a transaction is decided, and not all of its markers are written."""
        return bool(self.unmarked)

    def do(self, call: Call) -> Granted:
        """Carry out a call."""
        match call.kind:
            case "init":
                return self.init(call.producer_id, call.epoch)
            case "add":
                return Granted(self.add(call.producer_id, call.epoch, call.partitions))
        return self.end(call.producer_id, call.epoch, commit=call.commit)

    def init(self, producer_id: int = -1, epoch: int = -1) -> Granted:
        """Grant the next epoch, to a new producer or to the one that names its id and epoch."""
        if producer_id not in (-1, self.producer_id):
            return Granted(FENCED)
        if self.marking:
            return Granted(CONCURRENT)
        if self.state == "ongoing":
            self.fence()
            return Granted(CONCURRENT)
        if producer_id < 0:
            self.epoch, self.last_epoch = self.epoch + 1, -1
        elif epoch == self.epoch:
            self.epoch, self.last_epoch = epoch + 1, epoch
        elif epoch != self.last_epoch:
            return Granted(FENCED)
        self.state = "none"
        return Granted(0, self.producer_id, self.epoch)

    def add(self, producer_id: int, epoch: int, partitions: tuple[int, ...]) -> int:
        """Add partitions to the transaction, which begins with them; return an error code."""
        if producer_id != self.producer_id:
            return INVALID_MAPPING
        if epoch != self.epoch:
            return FENCED
        if self.marking:
            return CONCURRENT
        if self.state != "ongoing":
            self.state, self.partitions = "ongoing", frozenset()
        self.partitions |= set(partitions)
        return model.NONE

    def holds(self, producer_id: int, epoch: int, partition: int) -> bool:
        """Return whether a partition belongs to the open transaction of a producer."""
        mine = (producer_id, epoch) == (self.producer_id, self.epoch)
        return mine and self.state == "ongoing" and partition in self.partitions

    def end(self, producer_id: int, epoch: int, *, commit: bool) -> Granted:
        """Decide the open transaction, or repeat the last decision."""
        if producer_id != self.producer_id:
            return Granted(INVALID_MAPPING)
        again = self.v2 and self.state in ("commit", "abort") and self.epoch == epoch + 1
        if not again and (epoch != self.epoch or (self.v2 and self.marking)):
            return Granted(FENCED)
        if self.state == "ongoing":
            self._decide("commit" if commit else "abort", raises=self.v2)
            return self._ended()
        if self.state == ("commit" if commit else "abort") and (again or not self.v2):
            return Granted(CONCURRENT) if self.marking else self._ended()
        if self.v2 and not commit and not again:
            self.partitions = frozenset()
            self._decide("abort", raises=True)
            return self._ended()
        return Granted(INVALID_TXN_STATE)

    def _ended(self) -> Granted:
        return Granted(0, self.producer_id, self.epoch) if self.v2 else Granted(0)

    def fence(self) -> None:
        """Abort the open transaction under the next epoch, so that its producer is fenced."""
        self._decide("abort", raises=True)
        self.last_epoch = -1

    def _decide(self, state: str, *, raises: bool) -> None:
        self.state = state
        self.unmarked = self.partitions
        if raises:
            self.epoch, self.last_epoch = self.epoch + 1, self.epoch

    def marked(self, partition: int) -> None:
        """Note that the marker of a partition is written."""
        self.unmarked -= {partition}


class TransactionalLog(PartitionLog):
    """A partition's log whose batches are open until a marker commits or aborts them.

    Args:
        retains: the number of batches that a leader remembers of each producer.
        strict: whether a producer that the leader does not know must begin with sequence 0, as in
        transactions v2 since Kafka 4.1.
    """

    def __init__(self, retains: int, *, strict: bool) -> None:
        super().__init__(retains)
        self.strict = strict
        # By offset of a batch: "open", "commit" or "abort".
        self.fates: dict[int, str] = {}

    def append(self, batch: Sent, *, replicated: bool = True) -> Answer:
        """Append a batch, which is open then, or recognise or refuse it."""
        if self.strict and batch.sequence and batch.producer_id not in self.remembered:
            return Answer(model.OUT_OF_ORDER)
        answer = super().append(batch, replicated=replicated)
        if answer.code == model.NONE:
            self.fates.setdefault(answer.offset, "open")
        return answer

    def holds_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether a batch of a producer's epoch has no marker yet."""
        return any(
            self.fates[offset] == "open" and batch[:2] == (producer_id, epoch)
            for offset, batch in self.entries
        )

    @property
    def open(self) -> bool:
        """Whether a batch has no marker yet."""
        return "open" in self.fates.values()

    def mark(self, producer_id: int, epoch: int, fate: str) -> None:
        """Append the marker that commits or aborts the open batches of a producer."""
        for offset, batch in self.entries:
            if self.fates[offset] == "open" and batch.producer_id == producer_id:
                self.fates[offset] = fate
        self.raise_epoch(producer_id, epoch)
        self.fill(1)

    def state(self) -> tuple[object, ...]:
        """Return everything that the future depends on, as plain values."""
        return (*super().state(), tuple(self.fates.items()))
