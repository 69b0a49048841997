"""The transaction coordinator: who may use a transactional id, what takes part, how it ends.

What Kafka keeps in ``__transaction_state`` is kept here for the whole cluster, replicated by
definition: a coordinator that stops or moves loses nothing. Which broker answers for an id is the
cluster's `ClusterState.coordinator_of`; who asks another one is told by the API handlers.

An EndTxn is answered once the outcome is decided, before the markers are written, as Kafka does.
Until the last marker is committed the id answers CONCURRENT_TRANSACTIONS. Here that takes no time,
unless a partition has no leader or does not commit, or `hold_markers` or ``marker_delay`` say so.

Invariants
    A marker is written once per target and leader epoch, again only if its leader was lost before
    it was committed.
    Transactions time out at multiples of
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. The event for it is not taken
    back when a transaction is ended: it finds nothing to do, and then there is none.

Rejected
    An internal topic for the state: only a client that reads it could tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError, parse_single_batch
from aioidem._broker.markers import end_marker
from aioidem._broker.transaction import (
    LAST_EPOCH,
    Identity,
    Target,
    Transaction,
    TransactionState,
)

if TYPE_CHECKING:
    from aioidem._broker.partition import Partition
    from aioidem._broker.state import ClusterState
    from aioidem._broker.topology import Broker

__all__ = ["TransactionCoordinator", "next_look"]

_INTERVAL: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
_FIRST_RAISING: Final = 2
_ROUNDING: Final = 1e-6
_ENDED: Final = {
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.COMPLETE_ABORT: False,
}
_LONGEST: Final = "transaction.max.timeout.ms"


class TransactionCoordinator:
    """Of the whole cluster.

    :param version: the finalised level of the feature ``transaction.version`` (KIP-890).
    """

    __slots__ = ("_cluster", "_ending", "_held", "_known", "_next_check", "marker_delay", "version")

    def __init__(self, cluster: ClusterState, version: int) -> None:
        self._cluster = cluster
        self._known: dict[str, Transaction] = {}
        self._ending: dict[str, Transaction] = {}
        self._held = False
        self._next_check: float | None = None
        self.version = version
        self.marker_delay = 0.0

    def __repr__(self) -> str:
        return f"<TransactionCoordinator v{self.version} {list(self._known.values())}>"

    def find(self, name: str) -> Transaction | None:
        """What is known of a transactional id."""
        return self._known.get(name)

    def transactions(self) -> list[Transaction]:
        """All that are known."""
        return list(self._known.values())

    # -- what producers ask ------------------------------------------------------------------------

    def check_timeout(self, broker: Broker, timeout_ms: int) -> None:
        """Raises `RefusedError` INVALID_TRANSACTION_TIMEOUT."""
        longest = int(self._cluster.broker_config(broker, _LONGEST))
        if not 0 < timeout_ms <= longest:
            raise RefusedError(ErrorCode.invalid_transaction_timeout, f"at most {longest} ms")

    def init(
        self, broker: Broker, name: str, timeout_ms: int, claimed: Identity | None
    ) -> Identity:
        """InitProducerId: fence whoever used the id before, end his transaction, give an epoch.

        Raises `RefusedError`: PRODUCER_FENCED, and CONCURRENT_TRANSACTIONS while a transaction of
        the id is being ended.
        """
        transaction = self._known.get(name)
        if transaction is None:
            producer_id = self._cluster.allocate_producer_id(broker)
            transaction = self._known[name] = Transaction(name, producer_id, timeout_ms)
        if claimed is not None and not transaction.may_claim(claimed):
            raise _fenced(transaction, claimed)
        if transaction.ongoing and not transaction.wedged:
            self._fence(broker, transaction)
            raise _concurrent(transaction)
        if transaction.ending or transaction.wedged:
            raise _concurrent(transaction)
        if transaction.exhausted and claimed in (None, transaction.identity):
            transaction.rotate(self._cluster.allocate_producer_id(broker), claimed)
        elif not transaction.renew(claimed):
            raise _fenced(transaction, claimed)
        transaction.reset()
        transaction.timeout_ms = timeout_ms
        return transaction.identity

    def add(
        self, name: str, identity: Identity, targets: set[Target], *, implicit: bool = False
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn, and (v2: ``implicit``) what a first write does.

        Raises `RefusedError`: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_REQUEST,
        CONCURRENT_TRANSACTIONS.
        """
        transaction = self._of(name, identity)
        if transaction.ending:
            raise _concurrent(transaction)
        if transaction.ongoing and targets <= transaction.targets:
            return
        broker = self._cluster.coordinator_of(name)
        now_ms = self._cluster.wall_ms(broker) if broker is not None else 0
        if implicit:
            self._need_v2(transaction)
        transaction.begin(targets, now_ms)
        self._watch(transaction)

    def verify(self, name: str, identity: Identity, target: Target) -> None:
        """Whether the target takes part (KIP-890, first part).

        Raises `RefusedError` as `add` does, and TRANSACTION_ABORTABLE if it does not.
        """
        transaction = self._of(name, identity)
        if transaction.ending:
            raise _concurrent(transaction)
        if target not in transaction.targets:
            raise RefusedError(ErrorCode.transaction_abortable, "it takes no part")

    def end(
        self, broker: Broker, name: str, identity: Identity, *, commit: bool, raises: bool
    ) -> Identity:
        """EndTxn: decide, and write the markers; what the producer may use next.

        ``raises``: in v2, where each end raises the epoch. Raises `RefusedError`:
        INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        transaction = self._named(name)
        again = raises and _asks_again(transaction, identity)
        if identity.producer_id != transaction.producer_id and not again:
            raise _not_mapped(name)
        if not _may_end(transaction, identity, raises=raises, again=again):
            raise _fenced(transaction, identity)
        if transaction.ending:
            if commit is not (transaction.state is TransactionState.PREPARE_COMMIT):
                raise _wrong_state(transaction)
            raise _concurrent(transaction)
        if transaction.ongoing or _may_abort_nothing(
            transaction, commit=commit, raises=raises, again=again
        ):
            if raises:
                self._need_v2(transaction)
            self._prepare(broker, transaction, commit=commit, raises=raises)
        return transaction.following

    # -- time and faults ---------------------------------------------------------------------------

    def hold_markers(self) -> None:
        """Write no marker: transactions stay decided and unfinished."""
        self._held = True

    def release_markers(self) -> None:
        """Write them."""
        self._held = False
        self.write_markers()

    @property
    def waits_for_partitions(self) -> bool:
        """Whether a marker is missing somewhere."""
        return bool(self._ending)

    def write_markers(self) -> None:
        """Write what can be written, and finish what has all its markers."""
        if self._held:
            return
        for transaction in list(self._ending.values()):
            self._write_markers(transaction)

    # -- inside ------------------------------------------------------------------------------------

    def _named(self, name: str) -> Transaction:
        if not name:
            raise RefusedError(ErrorCode.invalid_request, "empty transactional id")
        transaction = self._known.get(name)
        if transaction is None:
            raise _not_mapped(name)
        if transaction.wedged:
            raise _concurrent(transaction)
        return transaction

    def _need_v2(self, transaction: Transaction) -> None:
        """If a client speaks v2 to a cluster of v1, its id is of no use to anybody any more.

        So it is with Kafka 4.3.1, and whoever writes such a client shall notice it here. Raises
        `RefusedError` UNSUPPORTED_VERSION.
        """
        if self.version < _FIRST_RAISING:
            transaction.wedged = True
            raise RefusedError(ErrorCode.unsupported_version, "transactions v2, of a cluster of v1")

    def _of(self, name: str, identity: Identity) -> Transaction:
        transaction = self._named(name)
        if identity.producer_id != transaction.producer_id:
            raise _not_mapped(name)
        if identity.epoch != transaction.epoch:
            raise _fenced(transaction, identity)
        return transaction

    def _fence(self, broker: Broker, transaction: Transaction) -> None:
        """Abort what is ongoing, under an epoch its producer does not have."""
        raises = self.version >= _FIRST_RAISING
        if not raises:
            transaction.epoch += 1
            transaction.last_epoch = -1
        self._prepare(broker, transaction, commit=False, raises=raises)

    def _prepare(
        self, broker: Broker, transaction: Transaction, *, commit: bool, raises: bool
    ) -> None:
        if raises and transaction.exhausted:
            transaction.next_producer_id = self._cluster.allocate_producer_id(broker)
        transaction.prepare(commit=commit, raise_epoch=raises)
        self._ending[transaction.name] = transaction
        if self.marker_delay > 0:
            self._cluster.later(self.marker_delay, lambda _now: self.write_markers())
        else:
            self.write_markers()

    def _write_markers(self, transaction: Transaction) -> None:
        for target in list(transaction.targets):
            if self._marked(transaction, target):
                transaction.targets.discard(target)
        if not transaction.targets:
            del self._ending[transaction.name]
            transaction.complete()

    def _marked(self, transaction: Transaction, target: Target) -> bool:
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        if isinstance(target, str):
            producer_id = transaction.producer_id
            self._cluster.groups.end_transaction(target, producer_id, commit=commit)
            return True
        leader = self._cluster.brokers.get(target.leader)
        if target.deleted:
            return True
        if leader is None:
            return False
        written = transaction.marked.get(target)
        if written is None or written[0] != target.leader_epoch:
            written = self._append_marker(transaction, target, leader, commit=commit)
        return target.high_watermark > written[1]

    def _append_marker(
        self, transaction: Transaction, partition: Partition, leader: Broker, *, commit: bool
    ) -> tuple[int, int]:
        stamp_ms = self._cluster.wall_ms(leader)
        data = end_marker(
            transaction.producer_id, transaction.epoch, commit=commit, stamp_ms=stamp_ms
        )
        batch = partition.append(data, parse_single_batch(data), stamp_ms)
        written = transaction.marked[partition] = partition.leader_epoch, batch.base_offset
        self._cluster.wake(partition)
        return written

    def _watch(self, transaction: Transaction) -> None:
        """See to it that somebody looks when the transaction may have timed out."""
        interval = int(self._cluster.broker_config(None, _INTERVAL)) / 1000
        now = self._cluster.now
        due = next_look(now, self._seconds_left(transaction), interval)
        if self._next_check is None or due < self._next_check:
            self._next_check = due
            self._cluster.later(due - now, self._check(due))

    def _seconds_left(self, transaction: Transaction) -> float:
        broker = self._cluster.coordinator_of(transaction.name)
        if broker is None:
            return 0.0
        ends_ms = transaction.started_ms + transaction.timeout_ms
        return max(0, ends_ms - self._cluster.wall_ms(broker)) / 1000

    def _check(self, due: float) -> Callable[[float], None]:
        def check(_now: float) -> None:
            # A later look that was overtaken by an earlier one has been scheduled anew by it.
            if self._next_check == due:
                self._next_check = None
                self._abort_timed_out()

        return check

    def _abort_timed_out(self) -> None:
        for transaction in [t for t in self._known.values() if t.ongoing and not t.wedged]:
            broker = self._cluster.coordinator_of(transaction.name)
            if (
                broker is not None
                and transaction.started_ms + transaction.timeout_ms < self._cluster.wall_ms(broker)
            ):
                self._fence(broker, transaction)
            else:
                self._watch(transaction)


def next_look(now: float, left: float, interval: float) -> float:
    """The first multiple of `interval` after `left` more seconds.

    A multiple that is reached counts as past, however its quotient is rounded: at the same instant
    nothing would have changed, and on a virtual clock there would be no other one.
    """
    return (int((now + left) / interval + _ROUNDING) + 1) * interval


def _asks_again(transaction: Transaction, identity: Identity) -> bool:
    """Whether a producer of v2 has not heard that its transaction was ended."""
    if identity.producer_id == transaction.producer_id:
        return transaction.epoch == identity.epoch + 1
    return (
        identity == Identity(transaction.previous_producer_id, LAST_EPOCH) and not transaction.epoch
    )


def _may_end(transaction: Transaction, identity: Identity, *, raises: bool, again: bool) -> bool:
    """Whether the epoch is one that a producer may end the transaction with."""
    if not raises or not (again or transaction.ending):
        return identity == transaction.identity
    # In v2 the epoch was raised when the end was decided: now only who asks again has the old one.
    return again and (transaction.ending or transaction.state in _ENDED)


def _may_abort_nothing(
    transaction: Transaction, *, commit: bool, raises: bool, again: bool
) -> bool:
    """Nothing takes part: True to end it all the same, False if it was ended so already."""
    ended_alike = _ENDED.get(transaction.state) is commit
    if ended_alike and (again or not raises):
        return False
    if raises and not commit and not again:
        return True
    raise _wrong_state(transaction)


def _concurrent(transaction: Transaction) -> RefusedError:
    return RefusedError(ErrorCode.concurrent_transactions, repr(transaction))


def _fenced(transaction: Transaction, identity: Identity | None) -> RefusedError:
    return RefusedError(ErrorCode.producer_fenced, f"{transaction!r} is not {identity}'s")


def _not_mapped(name: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_producer_id_mapping, f"not the producer of {name!r}")


def _wrong_state(transaction: Transaction) -> RefusedError:
    return RefusedError(ErrorCode.invalid_txn_state, repr(transaction))
