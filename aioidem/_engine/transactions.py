"""Transactions: the life cycle of a producer's transactions, and the next call to a coordinator.

A call is a request, such as EndTxn. One table serves both protocols. In v1 (KIP-98) partitions and
consumer groups are added to a transaction by requests of their own, and the epoch stays. In v2
(KIP-890) the first write to a partition adds it, and the end of each transaction raises the epoch.
The protocol is chosen when a transaction begins: v2 if the cluster has finalised the feature
`transaction.version` at level 2 or above.

Invariants
- One call to a coordinator is outstanding at a time, and no other is made while its answer may
  still come: calls that overtake each other end the wrong transaction (KAFKA-17754).
- A call that was written and not answered may be carried out later, even after its retry. In v2 the
  next epoch fences it. In v1 nothing would, so a transaction with such a call ends with a new epoch
  (KIP-360). Within the transaction, in v1 and v2, a TxnOffsetCommit whose answer was lost could
  overwrite later offsets of the same group. So committing other offsets of that group makes the
  transaction abortable.
- EndTxn(commit) is sent only when every record is acknowledged, so never with a batch in doubt.
  Before that, a record that fails or an incident that needs another epoch makes the transaction
  abortable: continuing silently under another epoch would commit half of the transaction
  (librdkafka #3575).
- Once EndTxn(commit) was written, nothing else is sent until its outcome is known. If a fatal error
  comes first, the error's status is UNKNOWN.
- An abort needs no acknowledgements: records without an outcome count as aborted. It waits only for
  outstanding batches, because a batch that arrives after the markers would open a transaction that
  no one ends (v1).

Rejected: a priority queue of requests, as in the Java client: the next call follows from the state.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.backoff import Backoff
from aioidem._engine.coordinator import CallKind, Coordinator, Verdict, classify_call, is_listed
from aioidem._engine.coordinator_refusals import coordinator_error
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.lifecycle import Named, transition
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem.structs import DeliveryStatus

__all__ = [
    "TRANSACTION_TRANSITIONS",
    "Call",
    "OffsetCommit",
    "Outcome",
    "TransactionEvent",
    "TransactionState",
    "Transactions",
]

V2 = 2
"""The finalised level of `transaction.version` from which on transactions v2 is used (KIP-890)."""

_COMPLETING = 3600.0
"""How many seconds a coordinator may take, by our estimate, to complete a transaction (its markers
wait for partitions without a leader).
"""

_LAST_PRODUCE_OF_V1 = 11
"""The highest Produce version that does not add its partitions to the transaction (KIP-890)."""


class TransactionState(Named):
    """The state of a transactional producer."""

    UNINITIALISED = "uninitialised"
    INITIALISING = "initialising"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    """The records are being delivered; EndTxn was not sent yet."""
    DECIDING = "deciding"
    """EndTxn(commit) was given to a connection, and the outcome is not known yet."""
    ABORTABLE = "abortable"
    """Something failed: the transaction can only be aborted."""
    ABORTING = "aborting"
    RENEWING = "renewing"
    """The transaction has ended; a new epoch is requested before the next transaction begins."""
    FATAL = "fatal"


class TransactionEvent(Named):
    """An event that changes the `TransactionState`."""

    INIT = "init"
    GRANT = "grant"
    REFUSE = "refuse"
    BEGIN = "begin"
    COMMIT = "commit"
    DECIDE = "decide"
    ABORT = "abort"
    FAIL = "fail"
    END = "end"
    RENEW = "renew"
    CHANGE_ID = "change id"
    DIE = "die"


_S, _E = TransactionState, TransactionEvent

TRANSACTION_TRANSITIONS: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (_S.UNINITIALISED, _E.INIT): _S.INITIALISING,
    (_S.INITIALISING, _E.GRANT): _S.READY,
    (_S.INITIALISING, _E.REFUSE): _S.UNINITIALISED,
    (_S.READY, _E.BEGIN): _S.OPEN,
    (_S.OPEN, _E.COMMIT): _S.COMMITTING,
    (_S.OPEN, _E.FAIL): _S.ABORTABLE,
    (_S.OPEN, _E.ABORT): _S.ABORTING,
    (_S.COMMITTING, _E.DECIDE): _S.DECIDING,
    (_S.COMMITTING, _E.END): _S.READY,
    (_S.COMMITTING, _E.FAIL): _S.ABORTABLE,
    (_S.COMMITTING, _E.ABORT): _S.ABORTING,
    (_S.DECIDING, _E.END): _S.READY,
    (_S.DECIDING, _E.FAIL): _S.ABORTABLE,
    (_S.ABORTABLE, _E.ABORT): _S.ABORTING,
    (_S.ABORTING, _E.END): _S.READY,
    (_S.READY, _E.RENEW): _S.RENEWING,
    (_S.RENEWING, _E.GRANT): _S.READY,
    (_S.READY, _E.CHANGE_ID): _S.INITIALISING,
    **{(state, _E.DIE): _S.FATAL for state in _S if state is not _S.FATAL},
}


class Call(NamedTuple):
    """A request that is due: one to a coordinator, or one that finds a coordinator.

    The request is sent to `coordinator`. Only FIND (FindCoordinator) is sent to any broker; then
    `coordinator` is the coordinator to be found.
    """

    kind: CallKind
    coordinator: Coordinator
    partitions: tuple[tuple[str, int], ...] = ()
    offsets: OffsetCommit | None = None
    commit: bool = False


class Outcome:
    """How one transaction ended.

    It is kept when the next transaction begins, for callers that still wait for it.
    """

    __slots__ = ("committed", "told")

    def __init__(self) -> None:
        self.committed: bool | None = None
        # Whether a caller has received the outcome. The caller that began the commit or abort may
        # have been cancelled before the transaction ended.
        self.told = False


class OffsetCommit:
    """The offsets of a group that are to become part of the transaction."""

    __slots__ = ("group", "left", "offsets")

    def __init__(self, group: GroupMember, offsets: Mapping[tuple[str, int], TxnOffset]) -> None:
        self.group = group
        self.offsets = dict(offsets)
        # The offsets that the group's coordinator has not accepted yet.
        self.left = dict(offsets)

    def same_as(self, other: OffsetCommit) -> bool:
        """Return whether both commit the same offsets for the same group member."""
        return self.group == other.group and self.offsets == other.offsets


class Transactions:
    """The transactions of one producer, one after the other.

    Args:
        transactional_id: the producer's transactional id.
        identity: receives the identities that the coordinator grants.
        backoff: the delays between attempts at a call (a request to a coordinator).
    """

    __slots__ = (
        "_backoff",
        "_begun",
        "_calling",
        "_confirmed",
        "_decision_in_doubt",
        "_groups",
        "_identity",
        "_renew",
        "_rotated_until",
        "_stray_offsets",
        "_wanted",
        "added",
        "cause",
        "coordinator",
        "coordinators",
        "last_refusal",
        "offsets",
        "outcome",
        "retry_at",
        "state",
        "transactional_id",
        "version",
    )

    def __init__(self, transactional_id: str, identity: IdentityLedger, backoff: Backoff) -> None:
        self.transactional_id = transactional_id
        self.state = TransactionState.UNINITIALISED
        self.version = 0
        self.coordinator = Coordinator(CoordinatorKey.TRANSACTION, transactional_id)
        self.coordinators: dict[str, Coordinator] = {}
        self.added: set[tuple[str, int]] = set()
        self.offsets: list[OffsetCommit] = []
        # The reason why the transaction can only be aborted, or the fatal error; None otherwise.
        self.cause: errors.KafkaError | None = None
        # The outcome of the open transaction, or of the last one.
        self.outcome = Outcome()
        self.outcome.told = True
        self.retry_at = 0.0
        # The last error code of a coordinator, as an error; None after a success. It is named as
        # the reason if a caller waits in vain.
        self.last_refusal: errors.KafkaError | None = None
        self._identity = identity
        self._backoff = backoff
        self._calling: Call | None = None
        # `_begun`: the coordinator may have a transaction of this producer. `_confirmed`: the
        # coordinator is known to have one, or at least to have completed the one before.
        self._begun = False
        self._confirmed = False
        self._wanted: list[tuple[str, int]] = []
        self._groups: set[str] = set()
        # By group, the TxnOffsetCommit that was written and whose answer was lost.
        self._stray_offsets: dict[str, OffsetCommit] = {}
        self._decision_in_doubt = False
        self._renew = False
        # The last answer to EndTxn named another producer id, because the epochs of the former one
        # were used up: until when the coordinator may not know it yet, in seconds.
        self._rotated_until = 0.0

    def _move(self, event: TransactionEvent) -> None:
        self.state = transition(TRANSACTION_TRANSITIONS, self.state, event, "transaction")

    # -- what the application asks for: an identity, begin, commit, abort --------------------------

    def init(self) -> None:
        """Request an identity, which fences the previous producer with this transactional id."""
        if self.state is TransactionState.UNINITIALISED:
            self.cause = None
            self._move(TransactionEvent.INIT)

    @property
    def may_change_id(self) -> bool:
        """Whether nothing of this transactional id is open or still to be sent."""
        return self.state is TransactionState.READY and not self._renew

    def change_id(self, transactional_id: str) -> None:
        """Request an identity under another transactional id, as a new producer would.

        It is requested without the present identity, so that the coordinator fences whoever has the
        id, and ends that producer's transaction. Nothing is said to the coordinator of the id that
        is left: the transaction is over, and whoever takes that id next fences this producer.

        Raises:
            IllegalStateError: a transaction is open or being ended, or there is no identity.
            KafkaError: the error that `check` raises.
        """
        self._need("change the transactional id", TransactionState.READY)
        if not self.may_change_id:
            raise errors.IllegalStateError("cannot change the transactional id: an epoch is due")
        self._move(TransactionEvent.CHANGE_ID)
        self._identity.disown()
        self.transactional_id = transactional_id
        self.coordinator = Coordinator(CoordinatorKey.TRANSACTION, transactional_id)
        self.coordinators.clear()
        self._rotated_until = 0.0
        self.last_refusal = None
        self._backoff.reset()

    def begin(self, version: int) -> None:
        """Begin a transaction.

        Args:
            version: the level of `transaction.version` that the cluster has finalised.

        Raises:
            IllegalStateError: a transaction is open or being ended, or there is no identity yet.
            KafkaError: the error that `check` raises.
        """
        self._need("begin a transaction", TransactionState.READY)
        self._move(TransactionEvent.BEGIN)
        self.version = V2 if version >= V2 else 1
        self.outcome = Outcome()
        self.added.clear()
        self.offsets.clear()
        self._wanted.clear()
        self._groups.clear()
        self._stray_offsets.clear()
        self._begun = self._confirmed = self._decision_in_doubt = False
        self._backoff.reset()

    def commit(self) -> Outcome:
        """Begin to commit: EndTxn is sent when every record is acknowledged.

        If an earlier caller began the commit and was cancelled, this caller takes its place.

        Returns:
            The outcome to wait for, which may be known already.

        Raises:
            IllegalStateError: no transaction is open.
            KafkaError: the error that `check` raises.
        """
        waited_for = (TransactionState.COMMITTING, TransactionState.DECIDING)
        if self.state not in waited_for and not self._untold(committed=True):
            self._need("commit", TransactionState.OPEN)
            self._move(TransactionEvent.COMMIT)
        return self.outcome

    def abort(self) -> Outcome:
        """Begin to abort the transaction.

        If an earlier caller began the abort and was cancelled, this caller takes its place.

        Returns:
            The outcome to wait for, which may be known already.

        Raises:
            IllegalStateError: no transaction is open, or its commit may have taken place.
            KafkaError: the fatal error with which the producer ended.
        """
        if self.state is TransactionState.ABORTING or self._untold(committed=False):
            return self.outcome
        if self.state is TransactionState.DECIDING or self._untold(committed=True):
            raise errors.IllegalStateError(
                "cannot abort: the commit was requested and may have taken place; call "
                "commit_transaction() again, which returns or raises its result"
            )
        if self.state is not TransactionState.ABORTABLE:
            self._need("abort", TransactionState.OPEN, TransactionState.COMMITTING)
        self._move(TransactionEvent.ABORT)
        self.offsets.clear()
        return self.outcome

    def _untold(self, *, committed: bool) -> bool:
        """Return whether the transaction was committed (or aborted), and no caller knows it yet.

        Args:
            committed: True asks about a commit, False about an abort.
        """
        return self.outcome.committed is committed and not self.outcome.told

    def commit_offsets(self, commit: OffsetCommit) -> OffsetCommit:
        """Make a group's offsets part of the transaction.

        Returns:
            The commit to wait for: the last one of the group, if that has the same offsets.

        Raises:
            IllegalStateError: no transaction is open.
            KafkaError: the error that `check` raises.
        """
        self._need("send offsets", TransactionState.OPEN)
        self._check_stray(commit)
        self.check()
        for earlier in reversed(self.offsets):
            if earlier.same_as(commit):
                return earlier
            if earlier.group.group_id == commit.group.group_id:
                break  # other offsets of the group were to be committed since
        self.offsets.append(commit)
        return commit

    def _check_stray(self, commit: OffsetCommit) -> None:
        """Make the transaction abortable if a TxnOffsetCommit with older offsets was not answered.

        The coordinator may carry out that request late, and so overwrite the group's new offsets.
        """
        stray = self._stray_offsets.get(commit.group.group_id)
        if stray is not None and not stray.same_as(commit):
            self.fail(
                errors.KafkaConnectionError(
                    f"group {commit.group.group_id!r}: no answer came to an earlier "
                    "TxnOffsetCommit, which could still replace these offsets with older ones"
                )
            )

    def learn_coordinator(self, group: str, node_id: int) -> None:
        """Note which broker coordinates a group, so that FindCoordinator is not sent for it."""
        coordinator = Coordinator(CoordinatorKey.GROUP, group)
        self.coordinators.setdefault(group, coordinator).node_id = node_id

    def need_open(self) -> None:
        """Check that a record may be appended.

        Raises:
            IllegalOperation: no transaction is open.
            KafkaError: the error that `check` raises.
        """
        if self.state is not TransactionState.OPEN:
            self.check()
            raise errors.IllegalOperation(
                f"a record needs an open transaction, but {_IN_WORDS[self.state]}"
                if self.in_transaction
                else "no transaction is open: begin a transaction before sending"
            )

    def check(self) -> None:
        """Raise the error that prevents this transaction, or every later one, from being committed.

        Raises:
            AbortableTransactionError: the transaction must be aborted; then the producer may go on.
            KafkaError: the fatal error with which the producer ended.
        """
        if self.state is TransactionState.ABORTABLE:
            raise errors.AbortableTransactionError(
                f"the transaction can only be aborted: {self.cause}"
            ) from self.cause
        if self.state is TransactionState.FATAL and self.cause is not None:
            raise copy.copy(self.cause)

    def _need(self, what: str, *states: TransactionState) -> None:
        if self.state not in states:
            self.check()
            raise errors.IllegalStateError(f"cannot {what}: {_IN_WORDS[self.state]}")

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and has not ended."""
        return self.state in _IN_TRANSACTION

    @property
    def ending(self) -> bool:
        """Whether an abort is under way, or a commit whose EndTxn has not been sent."""
        return self.state in (TransactionState.COMMITTING, TransactionState.ABORTING)

    @property
    def may_send(self) -> bool:
        """Whether batches of the transaction may be sent or resent."""
        return self.state in (TransactionState.OPEN, TransactionState.COMMITTING)

    def admits(self, topic: str, partition: int) -> bool:
        """Return whether a partition may be written to now.

        In v1 a partition must be part of the transaction first; if it is not, have it added.
        """
        if not self.may_send:
            return False
        which = topic, partition
        if self.version >= V2:
            self.added.add(which)
            return True
        if which in self.added:
            return True
        if which not in self._wanted:
            self._wanted.append(which)
        return False

    def not_added(self, topic: str, partition: int) -> str | None:
        """Return why a partition that is to be added to the transaction is not yet, in words.

        None if it has been added, or need not be.
        """
        if (topic, partition) not in self._wanted:
            return None
        refusal = "" if self.last_refusal is None else f"; the last answer: {self.last_refusal}"
        return (
            f"the coordinator of {self.coordinator.in_words} has not added the partition to the "
            f"transaction{refusal}"
        )

    @property
    def gated(self) -> bool:
        """Whether first-ack gates (one batch in flight until the first ack) apply: only in v1.

        In v1 a leader without the producer's state accepts any sequence.
        """
        return self.version < V2

    def produce_version(self, offered: int) -> int:
        """Return the Produce version to use.

        In transactions v1 the producer adds partitions to the transaction by AddPartitionsToTxn. So
        it avoids the later Produce versions, by which the broker adds them itself (KIP-890).

        Args:
            offered: the highest version that the connection supports.
        """
        return offered if self.version >= V2 else min(offered, _LAST_PRODUCE_OF_V1)

    # -- what happens to the records, outside of calls to coordinators -----------------------------

    def fail(self, error: errors.KafkaError | None) -> None:
        """Make the transaction abortable; a later error does not replace the first cause."""
        if self.may_send:
            self._move(TransactionEvent.FAIL)
            self.cause = error
            self.offsets.clear()

    def on_produced(self, error_code: int | None) -> None:
        """Note that the coordinator may know this transaction now: a write was answered or lost.

        In v2 the first write adds its partition and so begins the transaction at the coordinator.
        A write answered CONCURRENT_TRANSACTIONS does not: the markers of the previous transaction
        are still being written, and an EndTxn now would get this producer fenced. A write that is
        accepted, or refused for its epoch, shows that they are written.

        Args:
            error_code: the error code of the answer; None if no answer came.
        """
        self._begun = self._begun or error_code != _CONCURRENT
        if self.version >= V2 and error_code in _SHOWS_COMPLETED:
            self._confirmed = True

    @property
    def grants_epochs(self) -> bool:
        """Always True: each epoch comes from the coordinator (see `NoTransactions`).

        The next epoch is granted only once the transaction has ended.
        """
        return True

    def on_numbers_given_up(self, where: str, reason: str) -> None:
        """Make the transaction abortable, because sequence numbers can never be used again.

        Args:
            where: the partition, for the error's message.
            reason: why they cannot be used again, for the error's message.
        """
        self.renew()
        self.fail(
            errors.OutOfOrderSequenceNumber(
                f"{where}: sequences of the transaction cannot be used again, because {reason}"
            )
        )

    def on_topic_recreated(self, topic: str, *, numbered: bool) -> None:
        """Make the transaction abortable if it cannot go on in the new topic.

        It cannot if it wrote to the old one. It cannot either if the producer did so before, in the
        same epoch: below Produce v13 a request names its topic, so the new one may have those
        batches, and its leader would take records that begin at sequence 0 again for their copies.
        If no transaction is open, a new epoch is requested before the next one for that reason.
        With transactions v2 each transaction has an epoch of its own.

        Args:
            topic: the name of a topic that was deleted and recreated.
            numbered: whether batches for it have had sequences of the present epoch.
        """
        if numbered or self.version < V2:
            self.renew()
        # The new topic may have fewer partitions; those that are still needed are asked for again.
        self._wanted = [which for which in self._wanted if which[0] != topic]
        if self.state is TransactionState.READY:
            if numbered and self.version < V2:
                self._move(TransactionEvent.RENEW)
        elif numbered or any(name == topic for name, _ in self.added):
            self.fail(errors.UnknownTopicId(f"topic {topic!r} was deleted and recreated"))

    def on_node_lost(self, node_id: int) -> None:
        """Forget which coordinators are at a broker: its connection ended, so they may move."""
        for each in (self.coordinator, *self.coordinators.values()):
            if each.node_id == node_id:
                each.node_id = None

    def renew(self) -> None:
        """Make the producer request another epoch when its present transaction ends.

        If none is open, that is when the next one ends.
        """
        self._renew = True

    def die(self, error: errors.KafkaError) -> None:
        """End the producer with a fatal error.

        If a commit was begun, the status of `cause` is its outcome: UNKNOWN if EndTxn(commit) may
        have been carried out, otherwise NOT_WRITTEN.
        """
        if self.state is TransactionState.FATAL:
            return
        self.cause = copy.copy(error)
        asked = self._calling is not None and self._calling.commit
        if self.in_transaction and (asked or self._decision_in_doubt):
            # The coordinator may have carried out the commit, even if the fatal error was the
            # answer to a later abort.
            self.cause.status = DeliveryStatus.UNKNOWN
        elif self.state in (TransactionState.COMMITTING, TransactionState.DECIDING):
            self.cause.status = DeliveryStatus.NOT_WRITTEN
        self._move(TransactionEvent.DIE)
        self.offsets.clear()

    # -- calls to coordinators ---------------------------------------------------------------------

    def next_call(self, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        """Return the call to a coordinator that is due now; None if none is.

        Args:
            now: seconds.
            delivered: whether every record has its outcome.
            quiet: whether no batch of any partition is outstanding.
        """
        if self._calling is not None or now < self.retry_at:
            return None
        call = self._wanted_call(now, delivered=delivered, quiet=quiet)
        if call is not None and call.coordinator.node_id is None:
            return Call(CallKind.FIND, call.coordinator)
        return call

    def _wanted_call(self, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        match self.state:
            case TransactionState.INITIALISING | TransactionState.RENEWING:
                return Call(CallKind.INIT, self.coordinator)
            case TransactionState.OPEN | TransactionState.COMMITTING:
                return self._next_addition() or self._decision(delivered=delivered, quiet=quiet)
            case TransactionState.DECIDING:
                return Call(CallKind.END, self.coordinator, commit=True)
            case TransactionState.ABORTING if quiet:
                # After a change of the producer id, the coordinator answers InitProducerId with a
                # fencing error until the previous transaction is completed. So EndTxn is sent
                # before InitProducerId, even if the coordinator has no transaction to abort.
                if self._begun or (now < self._rotated_until and self._renew):
                    return Call(CallKind.END, self.coordinator, commit=False)
                self._finish(committed=False)
        return None

    def _next_addition(self) -> Call | None:
        if self._wanted:
            return Call(CallKind.ADD_PARTITIONS, self.coordinator, tuple(self._wanted))
        if not self.offsets:
            return None
        first = self.offsets[0]
        group = first.group.group_id
        if self.version < V2 and group not in self._groups:
            return Call(CallKind.ADD_OFFSETS, self.coordinator, offsets=first)
        place = self.coordinators.get(group)
        if place is None:
            place = self.coordinators[group] = Coordinator(CoordinatorKey.GROUP, group)
        return Call(CallKind.COMMIT_OFFSETS, place, offsets=first)

    def _decision(self, *, delivered: bool, quiet: bool) -> Call | None:
        if self.state is not TransactionState.COMMITTING or not (delivered and quiet):
            return None
        if not self._begun:
            self._finish(committed=True)
            return None
        return Call(CallKind.END, self.coordinator, commit=True)

    def sent(self, call: Call) -> None:
        """Note that a call is being sent."""
        self._calling = call
        if call.kind is CallKind.END and self.state is TransactionState.COMMITTING:
            self._move(TransactionEvent.DECIDE)
        if call.kind in _BEGINNING and self.version < V2:
            self._begun = True

    @property
    def awaits(self) -> float | None:
        """When the next attempt at a call is due, in seconds; None if no call is waiting."""
        return self.retry_at if self._calling is None and self.state in _ASKING else None

    # -- answers of coordinators -------------------------------------------------------------------

    def on_lost(self, now: float, *, written: bool) -> None:
        """Note that a call was not answered because its connection was lost.

        If the call was written, the coordinator may still carry it out.
        """
        call, self._calling = self._calling, None
        if call is None:
            return
        call.coordinator.node_id = None
        self._wait(now)
        if written and call.kind not in (CallKind.FIND, CallKind.INIT):
            # In v2 the end of each transaction raises the epoch, which fences the written call if
            # it arrives late. In v1 another epoch must be requested for that.
            self._renew = self._renew or self.version < V2
            self._decision_in_doubt = self._decision_in_doubt or call.commit
            if call.kind is CallKind.COMMIT_OFFSETS and call.offsets is not None:
                self.on_produced(None)
                self._stray_offsets[call.offsets.group.group_id] = call.offsets
                for queued in list(self.offsets):
                    self._check_stray(queued)

    def _wait(self, now: float) -> None:
        self.retry_at = now + self._backoff.next_delay()

    def on_found(self, error_code: int, node_id: int, now: float) -> None:
        """Handle the answer to FindCoordinator; after a success without a broker, ask again."""
        call, self._calling = self._calling, None
        if call is None:
            return
        if error_code == ErrorCode.none and node_id >= 0:
            call.coordinator.node_id = node_id
            self._heard()
        elif error_code == ErrorCode.none:
            self._wait(now)
        else:
            self._refused(call, error_code, now)

    def on_init(self, error_code: int, producer_id: int, epoch: int, now: float) -> None:
        """Handle the answer to InitProducerId.

        After a success without an id, or without a newer one than the present, request it again.
        """
        call, self._calling = self._calling, None
        if call is None or self.state not in (
            TransactionState.INITIALISING,
            TransactionState.RENEWING,
        ):
            return
        if error_code == ErrorCode.none and self._grants(producer_id, epoch):
            self._identity.renew(producer_id, epoch)
            self._renew = False
            self._rotated_until = 0.0
            self._heard()
            self._move(TransactionEvent.GRANT)
        elif error_code == ErrorCode.none:
            self._wait(now)
        else:
            self._refused(call, error_code, now)

    def on_partitions_added(self, codes: Mapping[tuple[str, int], int], now: float) -> None:
        """Handle the answer to AddPartitionsToTxn; partitions that it lacks are requested again."""
        call, self._calling = self._calling, None
        if call is None:
            return
        added = [which for which in call.partitions if codes.get(which) == ErrorCode.none]
        if added:
            self._confirmed = True
            self.added.update(added)
            self._wanted = [which for which in self._wanted if which not in self.added]
        self._take_codes(call, {each: codes.get(each, _LEFT_OUT) for each in call.partitions}, now)

    def on_group_added(self, error_code: int, now: float) -> None:
        """Handle the answer to AddOffsetsToTxn."""
        call, self._calling = self._calling, None
        if call is None or call.offsets is None:
            return
        if error_code == ErrorCode.none:
            self._confirmed = True
            self._groups.add(call.offsets.group.group_id)
        if error_code:
            self._refused(call, error_code, now)
        else:
            self._heard()

    def on_offsets_committed(self, codes: Mapping[tuple[str, int], int], now: float) -> None:
        """Handle the answer to TxnOffsetCommit; offsets that it lacks are sent again."""
        call, self._calling = self._calling, None
        if call is None or call.offsets is None:
            return
        commit = call.offsets
        asked = list(commit.left)
        commit.left = {
            which: each for which, each in commit.left.items() if codes.get(which) != ErrorCode.none
        }
        if not commit.left and commit in self.offsets:
            self.offsets.remove(commit)
        for code in [codes.get(each) for each in asked]:
            self.on_produced(code)
        self._take_codes(call, {each: codes.get(each, _LEFT_OUT) for each in asked}, now)

    def _take_codes(self, call: Call, codes: Mapping[tuple[str, int], int], now: float) -> None:
        """Act on the gravest of the error codes that an answer gives to partitions."""
        refused = [code for code in codes.values() if code]
        if not refused:
            self._heard()
            return
        gravest = max(refused, key=lambda c: _GRAVITY[classify_call(call.kind, c)])
        self._refused(call, gravest, now, [each for each in codes if codes[each] == gravest])

    def on_ended(self, error_code: int, producer_id: int, epoch: int, now: float) -> None:
        """Handle the answer to EndTxn, which in v2 names the next producer id and epoch."""
        call, self._calling = self._calling, None
        if call is None or self.state is TransactionState.FATAL:
            return
        if error_code and not call.commit and self._has_nothing(error_code, now):
            # The coordinator has no transaction to abort, so the abort is finished. If a late
            # request of this producer can still begin the transaction, InitProducerId is sent next:
            # its new epoch fences the late request, or it aborts the transaction that the late
            # request began. If another producer has fenced this one, InitProducerId fails, or
            # aborts the transaction that the other one has open.
            self._heard()
            self._finish(committed=False)
            return
        if error_code:
            open_ended = classify_call(call.kind, error_code) in (Verdict.RETRY, Verdict.MOVED)
            open_ended = open_ended or not is_listed(call.kind, error_code)
            if call.commit and open_ended and error_code != _CONCURRENT:
                self._decision_in_doubt = True
            self._refused(call, error_code, now)
            return
        self._heard()
        if self._grants(producer_id, epoch):
            former = self._identity.current
            rotated = former is not None and former.producer_id != producer_id
            self._rotated_until = now + _COMPLETING if rotated else 0.0
            self._identity.renew(producer_id, epoch)
            self._renew = False
        elif self.version >= V2:
            self._renew = True
        self._finish(committed=call.commit)

    def _grants(self, producer_id: int, epoch: int) -> bool:
        """Return whether an answer names an identity, and a newer one than the present."""
        return min(producer_id, epoch) >= 0 and self._identity.is_newer(producer_id, epoch)

    def _has_nothing(self, error_code: int, now: float) -> bool:
        """Return whether an error code means that the coordinator has no transaction to abort.

        In v2 the code may be PRODUCER_FENCED: if EndTxn is about a transaction that the coordinator
        does not know, it answers so while it is still completing the previous transaction. If that
        one is known to be completed, another producer has fenced this one, which must not send
        InitProducerId then: the coordinator would abort the other one's open transaction.
        """
        if self._decision_in_doubt or self.finishing(error_code, now):
            return False
        if error_code == ErrorCode.invalid_txn_state:
            self._renew = self._renew or self._confirmed or self.version >= V2
            return True
        if error_code == ErrorCode.invalid_producer_id_mapping or (
            error_code == ErrorCode.producer_fenced and self.version >= V2 and not self._confirmed
        ):
            self._renew = True
            return True
        return False

    def finishing(self, error_code: int, now: float) -> bool:
        """Return whether an error code means only that the previous transaction is not completed.

        If the end of that transaction changed the producer id, the coordinator does not know the
        new id until the transaction is completed. Much later, the code means that the coordinator
        has forgotten the transactional id (`transactional.id.expiration.ms`).
        """
        return now < self._rotated_until and error_code == ErrorCode.invalid_producer_id_mapping

    def _heard(self) -> None:
        self._backoff.reset()
        self.retry_at = 0.0
        self.last_refusal = None

    def _finish(self, *, committed: bool) -> None:
        self._move(TransactionEvent.END)
        self.outcome.committed = committed
        self.cause = None
        if self._renew:
            self._move(TransactionEvent.RENEW)

    def _refused(
        self,
        call: Call,
        error_code: int,
        now: float,
        partitions: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Act on an error code of a coordinator.

        Args:
            call: the request that was answered.
            error_code: the code.
            now: seconds.
            partitions: those that the answer gave this code; empty if it is about the request.
        """
        about = f"{call.kind.value} of {call.coordinator.in_words}"
        if partitions:
            about += f" for {_listed(partitions)}"
        error = coordinator_error(error_code, about, call.coordinator.node_id)
        self.last_refusal = error
        match classify_call(call.kind, error_code):
            case _ if self.finishing(error_code, now):
                self._wait(now)
            case Verdict.RETRY:
                self._wait(now)
            case Verdict.MOVED:
                call.coordinator.node_id = None
                self._wait(now)
            case Verdict.ABORTABLE:
                self._abortable(call, error)
            case Verdict.WRONG_STATE:
                self._wrong_state(call, error)
            case Verdict.REFUSED:
                self._refuse(error)
            case Verdict.FATAL:
                self.die(error)

    def _refuse(self, error: errors.KafkaError) -> None:
        if self.state is TransactionState.INITIALISING:
            self._move(TransactionEvent.REFUSE)
            self.cause = error
        else:
            self.die(error)

    def _abortable(self, call: Call, error: errors.KafkaError) -> None:
        if call.kind in _NEEDED_BY_ABORTS and call.coordinator is self.coordinator:
            # No abort would do without this call, and it would be repeated at once.
            self._refuse(error)
        elif call.kind is not CallKind.END:
            self.fail(error)
        elif call.commit:
            self._move(TransactionEvent.FAIL)
            self.cause = error
        else:
            self.die(error)

    def _wrong_state(self, call: Call, error: errors.KafkaError) -> None:
        """Handle INVALID_TXN_STATE from EndTxn: there is no transaction to commit or to abort."""
        if call.commit and self.version >= V2:
            # If the transaction had been committed, a repeated EndTxn would have been answered with
            # success. So the coordinator has aborted it, because it timed out (KIP-588).
            self._move(TransactionEvent.FAIL)
            self.cause = error
        else:
            self.die(error)

    def on_unsupported(self, error: errors.KafkaError) -> None:
        """Handle a call that was not sent, because the broker does not support the request."""
        self._calling = None
        self._refuse(error)


def _listed(partitions: Sequence[tuple[str, int]]) -> str:
    """Return the names of partitions for a message, at most ten of them."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


_MOST_NAMED = 10
_IN_TRANSACTION = frozenset(
    {
        TransactionState.OPEN,
        TransactionState.COMMITTING,
        TransactionState.DECIDING,
        TransactionState.ABORTABLE,
        TransactionState.ABORTING,
    }
)
_IN_WORDS = {
    TransactionState.UNINITIALISED: "no producer id was granted; call init_transactions()",
    TransactionState.INITIALISING: "the producer id is being requested",
    TransactionState.READY: "no transaction is open",
    TransactionState.OPEN: "a transaction is open",
    TransactionState.COMMITTING: "the transaction is being committed",
    TransactionState.DECIDING: "the transaction is being committed",
    # `Transactions.check` has raised before, if it can only be aborted.
    TransactionState.ABORTING: "the transaction is being aborted",
    TransactionState.RENEWING: "the next epoch is being requested; no transaction is open",
    TransactionState.FATAL: "the producer has ended",
}
_ASKING = _IN_TRANSACTION - {TransactionState.ABORTABLE} | {
    TransactionState.INITIALISING,
    TransactionState.RENEWING,
}
_NEEDED_BY_ABORTS = frozenset({CallKind.FIND, CallKind.INIT})
"""The calls that an abort needs as well, if they are about the transactional id."""
_BEGINNING = frozenset({CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS, CallKind.COMMIT_OFFSETS})
_SHOWS_COMPLETED = frozenset(
    {ErrorCode.none, ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
)
"""An answer to a write of transactions v2 with one of these codes shows that the coordinator has
completed the transaction before: until then it answers CONCURRENT_TRANSACTIONS to the right epoch.
"""
_CONCURRENT = ErrorCode.concurrent_transactions
"""An EndTxn with this answer was not carried out. With other retriable codes it may have been: a
coordinator that is stopping, is loading or cannot reach its replicas can answer with one of them
although it has already logged the commit.
"""
_LEFT_OUT = ErrorCode.request_timed_out
"""The code that is assumed for a partition that an answer leaves out; the call is repeated."""
_GRAVITY = {
    Verdict.RETRY: 0,
    Verdict.MOVED: 1,
    Verdict.REFUSED: 2,
    Verdict.WRONG_STATE: 2,
    Verdict.ABORTABLE: 3,
    Verdict.FATAL: 4,
}
