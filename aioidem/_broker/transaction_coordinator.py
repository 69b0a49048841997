"""The transaction coordinator: who may use a transactional id, and how its transactions end.

Kafka keeps this state in ``__transaction_state``. In this simulation it belongs to the whole
cluster, so nothing is lost when a coordinator stops or moves. `Topology.coordinator_of` says which
broker coordinates a transactional id; the API handlers refuse requests that are sent to other
brokers.

As in Kafka, EndTxn is answered when the outcome is decided, before the markers are written. Until
the last marker is committed, requests for the transactional id are answered
CONCURRENT_TRANSACTIONS. Markers are committed at once, unless a partition has no leader, its high
watermark does not rise, or `hold_markers` or ``marker_delay`` (seconds) delays them.

Invariants
    A marker is written once to each partition. It is written again only if the partition's leader
    epoch rises before the marker is committed.
    A check for transactions that have timed out is made only at multiples of
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. The end of a transaction does
    not cancel the check; but a check that finds no open transaction schedules no further one.

Rejected
    An internal topic for the state: only a client that reads that topic would notice a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError, parse_single_batch
from aioidem._broker.group_coordinator import GroupCoordinator
from aioidem._broker.markers import end_marker
from aioidem._broker.partition import Partition
from aioidem._broker.schedule import Schedule
from aioidem._broker.topology import Broker, Topology
from aioidem._broker.transaction import (
    LAST_EPOCH,
    Identity,
    Target,
    Transaction,
    TransactionState,
)

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
    """The transaction coordinator of the whole cluster.

    Args:
        topology: Brokers, producer ids, configs, and which broker coordinates a transactional id.
        schedule: The cluster's schedule, for time-outs and delays.
        groups: The groups whose offsets take part in transactions.
        appended: Called with each partition that a marker was appended to.
        version: Finalised level of the feature ``transaction.version`` (KIP-890).
    """

    __slots__ = (
        "_appended",
        "_ending",
        "_groups",
        "_held",
        "_known",
        "_next_check",
        "_schedule",
        "_topology",
        "marker_delay",
        "version",
    )

    def __init__(
        self,
        topology: Topology,
        schedule: Schedule,
        groups: GroupCoordinator,
        version: int,
        appended: Callable[[Partition], None],
    ) -> None:
        self._topology = topology
        self._schedule = schedule
        self._groups = groups
        self._appended = appended
        self._known: dict[str, Transaction] = {}
        self._ending: dict[str, Transaction] = {}
        self._held = False
        self._next_check: float | None = None
        self.version = version
        self.marker_delay = 0.0

    def __repr__(self) -> str:
        return f"<TransactionCoordinator v{self.version} {list(self._known.values())}>"

    def find(self, name: str) -> Transaction | None:
        """Return a transactional id's transaction; None if the id is unknown."""
        return self._known.get(name)

    def transactions(self) -> list[Transaction]:
        """Return the transactions of all known ids."""
        return list(self._known.values())

    # -- what producers ask ------------------------------------------------------------------------

    def check_timeout(self, broker: Broker, timeout_ms: int) -> None:
        """Check that a transaction timeout is positive and not above the broker's limit.

        Raises:
            RefusedError: INVALID_TRANSACTION_TIMEOUT, because it is not.
        """
        longest = int(self._topology.broker_config(broker, _LONGEST))
        if not 0 < timeout_ms <= longest:
            raise RefusedError(ErrorCode.invalid_transaction_timeout, f"at most {longest} ms")

    def init(
        self, broker: Broker, name: str, timeout_ms: int, claimed: Identity | None
    ) -> Identity:
        """Serve InitProducerId: return a new identity, which fences the earlier producer.

        ``name`` is the transactional id, ``claimed`` the identity in the request (KIP-360; None: a
        new producer). An open transaction is aborted first, and until its end the producer has
        to repeat the request.

        Raises:
            RefusedError: PRODUCER_FENCED; or CONCURRENT_TRANSACTIONS while a transaction of the id
                is ending, or if the id is unusable (see `_need_v2`).
        """
        transaction = self._known.get(name)
        if transaction is None:
            producer_id = self._topology.allocate_producer_id(broker)
            transaction = self._known[name] = Transaction(name, producer_id, timeout_ms)
        if claimed is not None and not transaction.may_claim(claimed):
            raise _fenced(transaction, claimed)
        if transaction.ongoing and not transaction.wedged:
            self._fence(broker, transaction)
            raise _concurrent(transaction)
        if transaction.ending or transaction.wedged:
            raise _concurrent(transaction)
        if transaction.exhausted and claimed in (None, transaction.identity):
            transaction.rotate(self._topology.allocate_producer_id(broker), claimed)
        elif not transaction.renew(claimed):
            raise _fenced(transaction, claimed)
        transaction.reset()
        transaction.timeout_ms = timeout_ms
        return transaction.identity

    def add(
        self, name: str, identity: Identity, targets: set[Target], *, implicit: bool = False
    ) -> None:
        """Add targets (partitions or groups) to the transaction of a transactional id.

        A client adds targets by AddPartitionsToTxn or AddOffsetsToTxn. With transactions v2 the
        client's first write to a target adds the target too (``implicit``).

        Raises:
            RefusedError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_REQUEST or
                CONCURRENT_TRANSACTIONS; UNSUPPORTED_VERSION if ``implicit`` is true and the
                cluster has transactions v1.
        """
        transaction = self._of(name, identity)
        if transaction.ending:
            raise _concurrent(transaction)
        if transaction.ongoing and targets <= transaction.targets:
            return
        broker = self._topology.coordinator_of(name)
        now_ms = broker.wall_ms(self._schedule.wall_now_ms) if broker is not None else 0
        if implicit:
            self._need_v2(transaction)
        transaction.begin(targets, now_ms)
        self._watch(transaction)

    def verify(self, name: str, identity: Identity, target: Target) -> None:
        """Check that a target takes part in the transaction (KIP-890, first part).

        Raises:
            RefusedError: The same codes as in `add`, and TRANSACTION_ABORTABLE if the target does
                not take part.
        """
        transaction = self._of(name, identity)
        if transaction.ending:
            raise _concurrent(transaction)
        if target not in transaction.targets:
            raise RefusedError(ErrorCode.transaction_abortable, "it takes no part")

    def end(
        self, broker: Broker, name: str, identity: Identity, *, commit: bool, raises: bool
    ) -> Identity:
        """Serve EndTxn: decide whether the transaction is committed or aborted.

        ``raises`` says whether the decision raises the epoch, as with transactions v2.

        Returns:
            The identity that the producer must use in its next transaction.

        Raises:
            RefusedError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
                CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, or UNSUPPORTED_VERSION if the request
                is one of transactions v2 and the cluster is not at v2.
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
        """Stop writing markers, so that decided transactions do not end."""
        self._held = True

    def release_markers(self) -> None:
        """End `hold_markers`, and write the markers."""
        self._held = False
        self.write_markers()

    @property
    def waits_for_partitions(self) -> bool:
        """Return whether some decided transaction lacks a committed marker in a partition."""
        return bool(self._ending)

    def write_markers(self) -> None:
        """Write the markers that can be written, and end the transactions that have all markers."""
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
        """Refuse a request of transactions v2 if the cluster is not at transactions v2.

        The transactional id is unusable from then on, as in Kafka 4.3.1. So a client that makes
        this mistake fails in a test as it would with Kafka.

        Raises:
            RefusedError: UNSUPPORTED_VERSION.
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
        """Abort an ongoing transaction, and raise the epoch so that its producer is fenced."""
        raises = self.version >= _FIRST_RAISING
        if not raises:
            transaction.epoch += 1
            transaction.last_epoch = -1
        self._prepare(broker, transaction, commit=False, raises=raises)

    def _prepare(
        self, broker: Broker, transaction: Transaction, *, commit: bool, raises: bool
    ) -> None:
        if raises and transaction.exhausted:
            transaction.next_producer_id = self._topology.allocate_producer_id(broker)
        transaction.prepare(commit=commit, raise_epoch=raises)
        self._ending[transaction.name] = transaction
        if self.marker_delay > 0:
            self._schedule.later(self.marker_delay, lambda _now: self.write_markers())
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
            self._groups.end_transaction(target, producer_id, commit=commit)
            return True
        leader = self._topology.brokers.get(target.leader)
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
        stamp_ms = leader.wall_ms(self._schedule.wall_now_ms)
        data = end_marker(
            transaction.producer_id, transaction.epoch, commit=commit, stamp_ms=stamp_ms
        )
        batch = partition.append(data, parse_single_batch(data), stamp_ms)
        written = transaction.marked[partition] = partition.leader_epoch, batch.base_offset
        self._appended(partition)
        return written

    def _watch(self, transaction: Transaction) -> None:
        """Schedule a check after the transaction's timeout, unless an earlier one is scheduled."""
        interval = int(self._topology.broker_config(None, _INTERVAL)) / 1000
        now = self._schedule.now
        due = next_look(now, self._seconds_left(transaction), interval)
        if self._next_check is None or due < self._next_check:
            self._next_check = due
            self._schedule.later(due - now, self._check(due))

    def _seconds_left(self, transaction: Transaction) -> float:
        broker = self._topology.coordinator_of(transaction.name)
        if broker is None:
            return 0.0
        ends_ms = transaction.started_ms + transaction.timeout_ms
        return max(0, ends_ms - broker.wall_ms(self._schedule.wall_now_ms)) / 1000

    def _check(self, due: float) -> Callable[[float], None]:
        def check(_now: float) -> None:
            # `_watch` may have replaced this check by one with an earlier time. Then `_next_check`
            # differs from `due`, and this check does nothing.
            if self._next_check == due:
                self._next_check = None
                self._abort_timed_out()

        return check

    def _abort_timed_out(self) -> None:
        for transaction in [t for t in self._known.values() if t.ongoing and not t.wedged]:
            broker = self._topology.coordinator_of(transaction.name)
            if (
                broker is not None
                and transaction.started_ms + transaction.timeout_ms
                < broker.wall_ms(self._schedule.wall_now_ms)
            ):
                self._fence(broker, transaction)
            else:
                self._watch(transaction)


def next_look(now: float, left: float, interval: float) -> float:
    """Return the first multiple of ``interval`` after the time ``now + left``, all in seconds.

    A multiple that equals that time, up to rounding, is not returned: with ``left`` 0, on a virtual
    clock, the check would otherwise be repeated at the same time for ever.
    """
    return (int((now + left) / interval + _ROUNDING) + 1) * interval


def _asks_again(transaction: Transaction, identity: Identity) -> bool:
    """Return whether an EndTxn (of transactions v2) repeats the one that was decided last.

    The decision has raised the epoch, so the repeated EndTxn has the producer id and epoch from
    before the decision. The producer sends it again if the answer was lost.
    """
    if identity.producer_id == transaction.producer_id:
        return transaction.epoch == identity.epoch + 1
    return (
        identity == Identity(transaction.previous_producer_id, LAST_EPOCH) and not transaction.epoch
    )


def _may_end(transaction: Transaction, identity: Identity, *, raises: bool, again: bool) -> bool:
    """Return whether an EndTxn with this identity may end the transaction.

    ``raises``: the EndTxn belongs to transactions v2, in which a decision raises the epoch.
    ``again``: the EndTxn repeats an earlier one (`_asks_again`).
    """
    if not raises or not (again or transaction.ending):
        return identity == transaction.identity
    # If the transaction is decided, the decision has raised the epoch, so that only a repeated
    # EndTxn still has the previous epoch.
    return again and (transaction.ending or transaction.state in _ENDED)


def _may_abort_nothing(
    transaction: Transaction, *, commit: bool, raises: bool, again: bool
) -> bool:
    """Return whether an EndTxn is an abort that may be carried out although no transaction is open.

    Such an abort exists only in transactions v2, and only raises the epoch.

    ``raises`` and ``again`` are those of `_may_end`.

    Returns:
        True for such an abort. False for an EndTxn that repeats the one that ended the last
        transaction, in the same way (commit or abort): it is answered, and changes nothing.

    Raises:
        RefusedError: INVALID_TXN_STATE for any other EndTxn.
    """
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
