"""One transactional id: the producer that owns it, and the state of its transaction.

The model is Kafka 4.3.1, for both transaction protocols. In v1 (KIP-98) only InitProducerId
raises the epoch. In v2 (KIP-890) every end of a transaction raises it too, so that a late request
of one transaction cannot become part of the next.

Invariants
    The state changes only through `Transaction.step`, as the table ``_NEXT`` allows.
    ``producer_id`` and ``epoch`` are what a producer may use now. An epoch above 32766 is never
    given to a producer, because fencing the producer takes one more.
    ``last_epoch`` is the epoch that the *same* producer had before the present one, so that it may
    repeat a request whose answer was lost; -1 if a new producer got the present epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from aioidem._broker.partition import Partition

__all__ = ["LAST_EPOCH", "Identity", "Target", "Transaction", "TransactionState"]

LAST_EPOCH: Final = 32766
"""The highest epoch that a producer is given."""

Target: TypeAlias = "Partition | str"
"""What a transaction writes to: a partition, or the offsets of a consumer group (its name)."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class TransactionState(Enum):
    """The state of a transaction; each value is its name in DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_S = TransactionState
_AFTER_THE_END: Final = frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT})
_NEXT: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    # With transactions v2 an empty transaction can be aborted too; the abort raises the epoch.
    _S.EMPTY: _AFTER_THE_END,
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: _AFTER_THE_END,
    _S.COMPLETE_ABORT: _AFTER_THE_END,
}


class Transaction:
    """The state of one transactional id at its coordinator; times are in ms since the epoch."""

    __slots__ = (
        "epoch",
        "last_epoch",
        "marked",
        "name",
        "next_producer_id",
        "previous_producer_id",
        "producer_id",
        "started_ms",
        "state",
        "targets",
        "timeout_ms",
        "wedged",
    )

    def __init__(self, name: str, producer_id: int, timeout_ms: int) -> None:
        self.name = name
        self.producer_id = producer_id
        self.previous_producer_id = -1
        # The producer id that replaces the present one when a decided transaction ends, because the
        # epochs of the present one are used up; else -1.
        self.next_producer_id = -1
        self.epoch = -1
        self.last_epoch = -1
        self.timeout_ms = timeout_ms
        self.state = TransactionState.EMPTY
        self.started_ms = -1
        # Whether the transactional id can no longer be used: see `TransactionCoordinator._need_v2`.
        self.wedged = False
        self.targets: set[Target] = set()
        # Leader epoch and offset of the marker, for each target whose marker was written.
        self.marked: dict[Target, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return (
            f"<Transaction {self.name!r} {self.state.value} pid={self.producer_id} "
            f"epoch={self.epoch} targets={len(self.targets)}>"
        )

    @property
    def identity(self) -> Identity:
        """Return the producer id and epoch that the producer may use now."""
        return Identity(self.producer_id, self.epoch)

    @property
    def following(self) -> Identity:
        """Return the producer id and epoch that the producer may use after the transaction."""
        if self.next_producer_id >= 0:
            return Identity(self.next_producer_id, 0)
        return self.identity

    @property
    def ending(self) -> bool:
        """Return whether the transaction is decided and some of its markers are missing."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def ongoing(self) -> bool:
        """Return whether the transaction has begun and is neither committed nor aborted yet."""
        return self.state is TransactionState.ONGOING

    @property
    def exhausted(self) -> bool:
        """Return whether the producer id has reached the last epoch that a producer may use."""
        return self.epoch >= LAST_EPOCH

    def step(self, state: TransactionState) -> None:
        """Go to another state.

        Raises:
            RuntimeError: The table `_NEXT` has no such transition.
        """
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state

    def may_claim(self, claimed: Identity) -> bool:
        """Return whether a producer that names ``claimed`` may ask for the next epoch (KIP-360).

        A producer may ask if it names the present producer id (`renew` then checks its epoch), or
        the previous id with the last epoch of that id. While a transactional id has no producer,
        any may ask.
        """
        if self.epoch < 0 or claimed.producer_id == self.producer_id:
            return True
        return claimed.producer_id == self.previous_producer_id and claimed.epoch >= LAST_EPOCH

    def renew(self, claimed: Identity | None) -> bool:
        """Raise the epoch for InitProducerId; return False if the producer is fenced.

        ``claimed`` is the identity in the request; None: the producer is new. A producer that
        repeats a request, with the epoch before the present one, keeps the present epoch.
        """
        if claimed is None:
            self.last_epoch = -1
        elif claimed.epoch == self.epoch or self.epoch < 0:
            self.last_epoch = self.epoch
        else:
            return claimed.epoch == self.last_epoch
        self.epoch += 1
        self.previous_producer_id = self.producer_id
        return True

    def rotate(self, producer_id: int, claimed: Identity | None) -> None:
        """Replace the producer id, whose epochs are used up, with ``producer_id`` at epoch 0.

        ``claimed`` is the identity in the producer's request; None: the producer is new.
        """
        self.previous_producer_id = self.producer_id
        self.last_epoch = -1 if claimed is None else self.epoch
        self.producer_id, self.epoch = producer_id, 0

    def begin(self, targets: set[Target], now_ms: int) -> None:
        """Add targets (partitions or groups); the first targets begin the transaction."""
        if not self.ongoing:
            self.started_ms = now_ms
        self.step(TransactionState.ONGOING)
        self.targets |= targets

    def reset(self) -> None:
        """Go back to EMPTY for a producer that was just initialised; no targets may be left."""
        self.step(TransactionState.EMPTY)
        self.started_ms = -1

    def prepare(self, *, commit: bool, raise_epoch: bool) -> None:
        """Decide to commit or abort; with ``raise_epoch`` the markers carry the raised epoch."""
        if raise_epoch:
            self.last_epoch = self.epoch
            self.epoch += 1
        self.step(TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)

    def complete(self) -> None:
        """End the transaction, because the markers in all its partitions are committed."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        self.step(
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        )
        self.previous_producer_id = self.producer_id
        self.producer_id, self.epoch = self.following
        self.next_producer_id = -1
        self.marked.clear()
