"""Transactions: the life cycle of a transactional producer, and what to ask its coordinator next.

One table, for both protocols. In v1 (KIP-98) partitions and groups are added by requests of their
own and the epoch stays; in v2 (KIP-890) a first write adds by itself, and each end raises the
epoch. Which of them is spoken is decided when a transaction begins, by what the cluster has
finalised.

Invariants
- One call to a coordinator is outstanding at a time, and none is made while another's answer could
  still come: calls that overtake each other end the wrong transaction (KAFKA-17754).
- What was written and never answered may be carried out later, even after its retry. In v2 the
  next epoch fences it. In v1 nothing would, so a transaction in which that happened ends with a new
  epoch (KIP-360); and within the transaction no second commit of the same group's offsets is made
  after one that may still be on its way.
- EndTxn(commit) is asked only when every record is acknowledged, so never with a batch in doubt.
  Any record that fails before that, and any incident that needs another epoch, makes the
  transaction abortable: silently going on under another epoch would commit half of it
  (librdkafka #3575).
- Once EndTxn(commit) was written, nothing else is asked until its outcome is known. A fatal error
  meanwhile says UNKNOWN.
- An abort needs no answers: what is unsettled counts as aborted. It waits for what is outstanding
  only, because a batch that arrives after the markers would open a transaction that nothing ends
  (v1).

Rejected: queues of requests with priorities (Java): what is needed next follows from the state.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.backoff import Backoff
from aioidem._engine.coordinator import CallKind, Coordinator, Verdict, classify_call, is_listed
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
"""KIP-890's second part: the finalised level of `transaction.version`."""

_LAST_PRODUCE_OF_V1 = 11
"""The highest Produce version that does not add its partitions to the transaction (KIP-890)."""


class TransactionState(Named):
    """Where the producer is."""

    UNINITIALISED = "uninitialised"
    INITIALISING = "initialising"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    """Its records are being delivered; nothing was decided."""
    DECIDING = "deciding"
    """EndTxn(commit) is with the coordinator, or was."""
    ABORTABLE = "abortable"
    """Something failed: it can only be aborted."""
    ABORTING = "aborting"
    RENEWING = "renewing"
    """It is ended, and another epoch is asked for before the next one begins."""
    FATAL = "fatal"


class TransactionEvent(Named):
    """What happens to it."""

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
    **{(state, _E.DIE): _S.FATAL for state in _S if state is not _S.FATAL},
}


class Call(NamedTuple):
    """A request that is due. `coordinator`: whose broker it goes to; for FIND, whose is sought."""

    kind: CallKind
    coordinator: Coordinator
    partitions: tuple[tuple[str, int], ...] = ()
    offsets: OffsetCommit | None = None
    commit: bool = False


class Outcome:
    """How one transaction ended.

    It outlives the beginning of the next one, for callers that wait for it.
    """

    __slots__ = ("committed", "told")

    def __init__(self) -> None:
        self.committed: bool | None = None
        # Whether its caller knows: it may have left before the transaction ended.
        self.told = False


class OffsetCommit:
    """A group's offsets on their way into the transaction."""

    __slots__ = ("group", "left", "offsets")

    def __init__(self, group: GroupMember, offsets: Mapping[tuple[str, int], TxnOffset]) -> None:
        self.group = group
        self.offsets = dict(offsets)
        # What the group's coordinator has not taken yet.
        self.left = dict(offsets)

    def same_as(self, other: OffsetCommit) -> bool:
        """Whether both ask for the same."""
        return self.group == other.group and self.offsets == other.offsets


class Transactions:
    """The transactions of one producer, one after the other.

    Args:
        transactional_id: its name with the coordinator.
        identity: what the coordinator grants.
        backoff: between attempts of a call.
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
        "_rotated",
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
        # Why it can only be aborted, or why nothing can be done any more.
        self.cause: errors.KafkaError | None = None
        # Of the transaction that is open, or was last.
        self.outcome = Outcome()
        self.outcome.told = True
        self.retry_at = 0.0
        # What a coordinator said last: the reason when something takes too long.
        self.last_refusal: errors.KafkaError | None = None
        self._identity = identity
        self._backoff = backoff
        self._calling: Call | None = None
        # Whether the coordinator may have, and whether it surely has, a transaction of ours.
        self._begun = False
        self._confirmed = False
        self._wanted: list[tuple[str, int]] = []
        self._groups: set[str] = set()
        # By group, the TxnOffsetCommit that was written and never answered.
        self._stray_offsets: dict[str, OffsetCommit] = {}
        self._decision_in_doubt = False
        self._renew = False
        # Whether the last end named another producer id, the former one being out of epochs.
        self._rotated = False

    def _move(self, event: TransactionEvent) -> None:
        self.state = transition(TRANSACTION_TRANSITIONS, self.state, event, "transaction")

    # -- the caller's side -------------------------------------------------------------------------

    def init(self) -> None:
        """Ask for an identity, which fences the producer that had the transactional id before."""
        if self.state is TransactionState.UNINITIALISED:
            self.cause = None
            self._move(TransactionEvent.INIT)

    def begin(self, version: int) -> None:
        """Begin a transaction; `version`: what the cluster has finalised.

        Raises:
            IllegalStateError: one is open, or being ended. KafkaError: as `check`.
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
        """Commit when all is delivered.

        The outcome may be known already, if an earlier caller left before it was.

        Raises:
            IllegalStateError: no transaction is open.
            KafkaError: as `check`.
        """
        waited_for = (TransactionState.COMMITTING, TransactionState.DECIDING)
        if self.state not in waited_for and not self._untold(committed=True):
            self._need("commit", TransactionState.OPEN)
            self._move(TransactionEvent.COMMIT)
        return self.outcome

    def abort(self) -> Outcome:
        """Abort. What to wait for may have happened already, if nobody was told.

        Raises:
            IllegalStateError: no transaction is open, or its commit may have taken place.
        """
        if self.state is TransactionState.ABORTING or self._untold(committed=False):
            return self.outcome
        if self.state is TransactionState.DECIDING or self._untold(committed=True):
            raise errors.IllegalStateError(
                "cannot abort: the commit may have taken place; commit_transaction() tells"
            )
        if self.state is not TransactionState.ABORTABLE:
            self._need("abort", TransactionState.OPEN, TransactionState.COMMITTING)
        self._move(TransactionEvent.ABORT)
        self.offsets.clear()
        return self.outcome

    def _untold(self, *, committed: bool) -> bool:
        """Whether it ended so, and its caller does not know yet."""
        return self.outcome.committed is committed and not self.outcome.told

    def commit_offsets(self, commit: OffsetCommit) -> OffsetCommit:
        """Let a group's offsets be part of the transaction.

        Returns:
            The commit to wait for: an earlier one, if it asks for the same.

        Raises:
            IllegalStateError: no transaction is open.
            KafkaError: as `check`.
        """
        self._need("send offsets", TransactionState.OPEN)
        self._check_stray(commit)
        self.check()
        for earlier in self.offsets:
            if earlier.same_as(commit):
                return earlier
        self.offsets.append(commit)
        return commit

    def _check_stray(self, commit: OffsetCommit) -> None:
        """Fail if a lost TxnOffsetCommit of the group asked for other offsets.

        It may be carried out late, over the newer offsets.
        """
        stray = self._stray_offsets.get(commit.group.group_id)
        if stray is not None and not stray.same_as(commit):
            self.fail(errors.KafkaConnectionError("an earlier TxnOffsetCommit was never answered"))

    def need_open(self) -> None:
        """Check that a record may be sent.

        Raises:
            IllegalOperation: no transaction is open.
            KafkaError: as `check`.
        """
        if self.state is not TransactionState.OPEN:
            self.check()
            raise errors.IllegalOperation(
                f"a record needs an open transaction; this one is {self.state.value}"
                if self.in_transaction
                else "begin a transaction before sending"
            )

    def check(self) -> None:
        """Raise what keeps this transaction, or every one to come, from being committed.

        Raises:
            AbortableTransactionError: abort it, and all is well again.
            KafkaError: fatal; the producer is of no use any more.
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
            raise errors.IllegalStateError(f"cannot {what}: {self.state.value}")

    @property
    def in_transaction(self) -> bool:
        """Whether one was begun and is not ended."""
        return self.state in _IN_TRANSACTION

    @property
    def ending(self) -> bool:
        """Whether its end waits for batches."""
        return self.state in (TransactionState.COMMITTING, TransactionState.ABORTING)

    @property
    def may_send(self) -> bool:
        """Whether batches may be sent, new ones and again."""
        return self.state in (TransactionState.OPEN, TransactionState.COMMITTING)

    def admits(self, topic: str, partition: int) -> bool:
        """Whether a partition may be written to now; if not, it will be added."""
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

    @property
    def gated(self) -> bool:
        """Whether partitions need a first-ack gate: in v1, where a leader takes any sequence."""
        return self.version < V2

    def produce_version(self, offered: int) -> int:
        """Choose the Produce version to write in, of those up to the one offered (KIP-890)."""
        return offered if self.version >= V2 else min(offered, _LAST_PRODUCE_OF_V1)

    # -- what happens to it ------------------------------------------------------------------------

    def fail(self, error: errors.KafkaError | None) -> None:
        """Make the transaction abortable: something of it failed.

        The first cause is kept.
        """
        if self.may_send:
            self._move(TransactionEvent.FAIL)
            self.cause = error
            self.offsets.clear()

    def on_produced(self, error_code: int | None) -> None:
        """Note that a write of the transaction was answered, or (None) may never be.

        In v2 a first write begins the transaction at the coordinator. Exception: after
        CONCURRENT_TRANSACTIONS the previous markers are still being written, nothing was added, and
        EndTxn now would get us fenced.
        """
        self._begun = self._begun or error_code != _CONCURRENT

    def numbers_given_up(self) -> bool:
        """Take note that numbers were given up, so the transaction can only be aborted.

        Returns:
            True: the coordinator brings the next epoch, when the transaction has ended.
        """
        self.renew()
        self.fail(errors.OutOfOrderSequenceNumber("sequences were given up"))
        return True

    def topic_gone(self, topic: str) -> bool:
        """Take note that a topic was deleted and made anew: what was written to it is gone.

        Returns:
            True: the coordinator brings the next epoch, when the transaction has ended.
        """
        self.renew()
        if any(name == topic for name, _ in self.added):
            self.fail(errors.UnknownTopicId(f"topic {topic!r} was deleted and recreated"))
        return True

    def on_node_lost(self, node_id: int) -> None:
        """Note that a connection ended: its broker's coordinators may be elsewhere now."""
        for each in (self.coordinator, *self.coordinators.values()):
            if each.node_id == node_id:
                each.node_id = None

    def renew(self) -> None:
        """Ask for another epoch before the next transaction: numbers were given up."""
        self._renew = True

    def die(self, error: errors.KafkaError) -> None:
        """End the producer: nothing can be done any more.

        The cause's status says what became of a commit.
        """
        if self.state is TransactionState.FATAL:
            return
        self.cause = copy.copy(error)
        asked = self._calling is not None and self._calling.commit
        if self.in_transaction and (asked or self._decision_in_doubt):
            self.cause.status = DeliveryStatus.UNKNOWN  # an abort that failed tells no more
        elif self.state in (TransactionState.COMMITTING, TransactionState.DECIDING):
            self.cause.status = DeliveryStatus.NOT_WRITTEN
        self._move(TransactionEvent.DIE)
        self.offsets.clear()

    # -- what is asked -----------------------------------------------------------------------------

    def next_call(self, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        """Return what a coordinator is to be asked now.

        Args:
            now: seconds.
            delivered: whether every record has its outcome.
            quiet: whether no batch is outstanding anywhere.
        """
        if self._calling is not None or now < self.retry_at:
            return None
        call = self._wanted_call(delivered=delivered, quiet=quiet)
        if call is not None and call.coordinator.node_id is None:
            return Call(CallKind.FIND, call.coordinator)
        return call

    def _wanted_call(self, *, delivered: bool, quiet: bool) -> Call | None:
        match self.state:
            case TransactionState.INITIALISING | TransactionState.RENEWING:
                return Call(CallKind.INIT, self.coordinator)
            case TransactionState.OPEN | TransactionState.COMMITTING:
                return self._next_addition() or self._decision(delivered=delivered, quiet=quiet)
            case TransactionState.DECIDING:
                return Call(CallKind.END, self.coordinator, commit=True)
            case TransactionState.ABORTING if quiet:
                # A new producer id is fenced by InitProducerId until the last end is finished.
                if self._begun or (self._rotated and self._renew):
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
        """Note that a call is being written."""
        self._calling = call
        if call.kind is CallKind.END and self.state is TransactionState.COMMITTING:
            self._move(TransactionEvent.DECIDE)
        if call.kind in _BEGINNING and self.version < V2:
            self._begun = True

    @property
    def awaits(self) -> float | None:
        """When the next attempt is due; None if none waits for its time."""
        return self.retry_at if self._calling is None and self.state in _ASKING else None

    # -- what is heard -----------------------------------------------------------------------------

    def on_lost(self, now: float, *, written: bool) -> None:
        """Note that the connection of a call is lost.

        If the call was written it may be carried out, even later.
        """
        call, self._calling = self._calling, None
        if call is None:
            return
        call.coordinator.node_id = None
        self._wait(now)
        if written and call.kind not in (CallKind.FIND, CallKind.INIT):
            # In v2 the epoch rises with the end, which fences what comes late.
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
        """FindCoordinator was answered."""
        call, self._calling = self._calling, None
        if call is None:
            return
        if error_code == ErrorCode.none and node_id >= 0:
            call.coordinator.node_id = node_id
            self._heard()
        else:
            self._refused(call, error_code, now)

    def on_init(self, error_code: int, producer_id: int, epoch: int, now: float) -> None:
        """InitProducerId was answered; a success without an id is asked for again."""
        call, self._calling = self._calling, None
        if call is None or self.state not in (
            TransactionState.INITIALISING,
            TransactionState.RENEWING,
        ):
            return
        if error_code == ErrorCode.none and producer_id >= 0 and epoch >= 0:
            self._identity.renew(producer_id, epoch)
            self._renew = self._rotated = False
            self._heard()
            self._move(TransactionEvent.GRANT)
        elif error_code == ErrorCode.none:
            self._wait(now)
        else:
            self._refused(call, error_code, now)

    def on_partitions_added(self, codes: Mapping[tuple[str, int], int], now: float) -> None:
        """AddPartitionsToTxn was answered; what the answer leaves out is asked again."""
        call, self._calling = self._calling, None
        if call is None:
            return
        added = [which for which in call.partitions if codes.get(which) == ErrorCode.none]
        if added:
            self._confirmed = True
            self.added.update(added)
            self._wanted = [which for which in self._wanted if which not in self.added]
        self._take_codes(call, [codes.get(each, _LEFT_OUT) for each in call.partitions], now)

    def on_group_added(self, error_code: int, now: float) -> None:
        """AddOffsetsToTxn was answered."""
        call, self._calling = self._calling, None
        if call is None or call.offsets is None:
            return
        if error_code == ErrorCode.none:
            self._confirmed = True
            self._groups.add(call.offsets.group.group_id)
        self._take_codes(call, [error_code], now)

    def on_offsets_committed(self, codes: Mapping[tuple[str, int], int], now: float) -> None:
        """TxnOffsetCommit was answered; what the answer leaves out is asked again."""
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
        self._confirmed = self._confirmed or len(commit.left) < len(asked)
        for code in [codes.get(each) for each in asked]:
            self.on_produced(code)
        self._take_codes(call, [codes.get(each, _LEFT_OUT) for each in asked], now)

    def _take_codes(self, call: Call, codes: list[int], now: float) -> None:
        """Let the gravest of several error codes decide."""
        refused = [code for code in codes if code]
        if not refused:
            self._heard()
            return
        self._refused(call, max(refused, key=lambda c: _GRAVITY[classify_call(call.kind, c)]), now)

    def on_ended(self, error_code: int, producer_id: int, epoch: int, now: float) -> None:
        """EndTxn was answered; in v2 with what to go on with."""
        call, self._calling = self._calling, None
        if call is None or self.state is TransactionState.FATAL:
            return
        if error_code and not call.commit and self._has_nothing(error_code):
            # The next epoch fences a request that may begin it yet, and aborts it if one did. A
            # producer that was fenced itself hears of it when it asks for that epoch.
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
        if producer_id >= 0 and epoch >= 0:
            former = self._identity.current
            self._rotated = former is not None and former.producer_id != producer_id
            self._identity.renew(producer_id, epoch)
            self._renew = False
        elif self.version >= V2:
            self._renew = True
        self._finish(committed=call.commit)

    def _has_nothing(self, error_code: int) -> bool:
        """Whether the coordinator says that there is nothing of ours to be aborted.

        In v2 it fences a producer that aborts what it has not heard of, until the transaction
        before is finished.
        """
        if self._decision_in_doubt or self.finishing(error_code):
            return False
        if error_code == ErrorCode.invalid_txn_state:
            self._renew = self._renew or self._confirmed or self.version >= V2
            return True
        if error_code == ErrorCode.invalid_producer_id_mapping or (
            error_code == ErrorCode.producer_fenced and self.version >= V2
        ):
            self._renew = True
            return True
        return False

    def finishing(self, error_code: int) -> bool:
        """Whether an answer says only that the last transaction is not finished.

        Until then our new producer id is not known.
        """
        return self._rotated and error_code == ErrorCode.invalid_producer_id_mapping

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

    def _refused(self, call: Call, error_code: int, now: float) -> None:
        error = errors.broker_error(error_code, f"{call.kind.value} of {call.coordinator.key!r}")
        self.last_refusal = error
        match classify_call(call.kind, error_code):
            case _ if self.finishing(error_code):
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
        if call.kind is not CallKind.END:
            self.fail(error)
        elif call.commit:
            self._move(TransactionEvent.FAIL)
            self.cause = error
        else:
            self.die(error)

    def _wrong_state(self, call: Call, error: errors.KafkaError) -> None:
        """EndTxn found no transaction that may be ended so."""
        if call.commit and self.version >= V2:
            # Had it been committed, asking again would have been answered so: the coordinator has
            # aborted it, because it timed out (KIP-588).
            self._move(TransactionEvent.FAIL)
            self.cause = error
        else:
            self.die(error)

    def on_unsupported(self, error: errors.KafkaError) -> None:
        """Handle that the broker does not support the next request; nothing was written."""
        self._calling = None
        self._refuse(error)


_IN_TRANSACTION = frozenset(
    {
        TransactionState.OPEN,
        TransactionState.COMMITTING,
        TransactionState.DECIDING,
        TransactionState.ABORTABLE,
        TransactionState.ABORTING,
    }
)
_ASKING = _IN_TRANSACTION - {TransactionState.ABORTABLE} | {
    TransactionState.INITIALISING,
    TransactionState.RENEWING,
}
_BEGINNING = frozenset({CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS, CallKind.COMMIT_OFFSETS})
_CONCURRENT = ErrorCode.concurrent_transactions
"""EndTxn answered so was not carried out. A coordinator that is gone, is loading or does not reach
its replicas says so after its decision is in its log, too.
"""
_LEFT_OUT = ErrorCode.request_timed_out
"""What is taken for the code of a partition that an answer leaves out: it is asked again."""
_GRAVITY = {
    Verdict.RETRY: 0,
    Verdict.MOVED: 1,
    Verdict.REFUSED: 2,
    Verdict.WRONG_STATE: 2,
    Verdict.ABORTABLE: 3,
    Verdict.FATAL: 4,
}
