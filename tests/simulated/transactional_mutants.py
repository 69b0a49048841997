"""Mutants of transactions: each breaks one rule; runs that `transactional` draws must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from kio.schema.errors import ErrorCode

from aioidem._engine import coordinator as coordinator_module
from aioidem._engine import transactions as transactions_module
from aioidem._engine.batch import Batch
from aioidem._engine.coordination import Coordination
from aioidem._engine.coordinator import CallKind, Coordinator, Verdict
from aioidem._engine.effects import Effects
from aioidem._engine.failed_attempts import FailedAttempts
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity, SequenceLedger
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.recovery import RecoveryEvent, Rung
from aioidem._engine.transactions import (
    Call,
    OffsetCommit,
    Transactions,
    TransactionState,
)
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem.errors import KafkaError

from .mutation import Patch, mutant
from .perform import perform
from .schedule import Call as Send
from .schedule import Fault, Schedule, Work
from .soak import run_transactional
from .transactional import draw_transactional
from .transactional_swarm import draw_transactional_swarm
from .world import Result

__all__ = ["noticed_late", "recreated", "rule"]


def rule(text: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a mutant, which breaks the rule `text` of the engine.

    At least one seed's run of random transactions must report a violation.
    """
    return mutant(text, run_transactional)


# -- commit or abort ----------------------------------------------------------------------------


@rule("EndTxn(commit) waits for every record (KIP-98; never with a batch in doubt)")
def committed_before_all_is_delivered(patch: Patch) -> None:
    decision = Transactions._decision

    def naive(self: Transactions, *, delivered: bool, quiet: bool) -> Call | None:
        del delivered, quiet
        return decision(self, delivered=True, quiet=True)

    patch(Transactions, "_decision", naive)


@rule("a record that fails makes the transaction abortable (librdkafka #3575)")
def failures_do_not_doom(patch: Patch) -> None:
    patch(Transactions, "fail", lambda _self, _error: None)


@rule("a commit that was lost may not have taken place")
def lost_commit_taken_for_done(patch: Patch) -> None:
    on_lost = Transactions.on_lost

    def naive(self: Transactions, now: float, *, written: bool) -> None:
        call = self._calling
        on_lost(self, now, written=written)
        if call is not None and call.commit and self.state is TransactionState.DECIDING:
            self._finish(committed=True)

    patch(Transactions, "on_lost", naive)


@rule("a commit that was lost may have taken place")
def lost_commit_taken_for_failed(patch: Patch) -> None:
    on_lost = Transactions.on_lost

    def naive(self: Transactions, now: float, *, written: bool) -> None:
        call = self._calling
        on_lost(self, now, written=written)
        if call is not None and call.commit and self.state is TransactionState.DECIDING:
            self._finish(committed=False)

    patch(Transactions, "on_lost", naive)


@rule("INVALID_TXN_STATE to a commit says that it was aborted (KIP-588)")
def wrong_state_taken_for_committed(patch: Patch) -> None:
    wrong_state = Transactions._wrong_state

    def naive(self: Transactions, call: Call, error: Any) -> None:
        if call.commit:
            self._finish(committed=True)
        else:
            wrong_state(self, call, error)

    patch(Transactions, "_wrong_state", naive)


@rule("offsets are part of the transaction before it is decided")
def committed_without_its_offsets(patch: Patch) -> None:
    next_addition = Transactions._next_addition

    def naive(self: Transactions) -> Call | None:
        if self.state is TransactionState.COMMITTING and not self._wanted:
            self.offsets.clear()
        return next_addition(self)

    patch(Transactions, "_next_addition", naive)


@rule("who calls again after a timeout hears how it ended")
def an_outcome_is_told_to_nobody(patch: Patch) -> None:
    patch(Transactions, "_untold", lambda _self, *, committed: committed is None)


@rule("the end of a transaction is never guessed: REQUEST_TIMED_OUT is asked again")
def end_refused_taken_for_done(patch: Patch) -> None:
    on_ended = Transactions.on_ended

    def naive(self: Transactions, code: int, producer_id: int, epoch: int, now: float) -> None:
        on_ended(
            self,
            0 if code in (ErrorCode.request_timed_out, ErrorCode.unknown_server_error) else code,
            producer_id,
            epoch,
            now,
        )

    patch(Transactions, "on_ended", naive)


# -- epochs -------------------------------------------------------------------------------------


@rule("v1: after a lost call the next transaction has another epoch (KAFKA-17754)")
def no_new_epoch_after_a_lost_call(patch: Patch) -> None:
    on_lost = Transactions.on_lost

    def naive(self: Transactions, now: float, *, written: bool) -> None:
        before = self._renew
        on_lost(self, now, written=written)
        self._renew = before

    patch(Transactions, "on_lost", naive)


@rule("v2: each end brings an epoch, which is the next one's (KIP-890)")
def epoch_of_the_end_ignored(patch: Patch) -> None:
    on_ended = Transactions.on_ended

    def naive(self: Transactions, code: int, _producer_id: int, _epoch: int, now: float) -> None:
        before = self._renew
        on_ended(self, code, -1, -1, now)
        if self.state is TransactionState.RENEWING and not before:
            self._renew = False
            self.state = TransactionState.READY

    patch(Transactions, "on_ended", naive)


@rule("numbers that were given up need another epoch (KIP-360)")
def no_new_epoch_after_a_gap(patch: Patch) -> None:
    patch(Transactions, "renew", lambda _self: None)


@rule("a new epoch is asked for as whoever has the old one (KIP-360)")
def renewed_as_a_stranger(patch: Patch) -> None:
    renew = IdentityLedger.renew

    def naive(self: IdentityLedger, producer_id: int, epoch: int) -> None:
        renew(self, producer_id, max(0, epoch - 1))

    patch(IdentityLedger, "renew", naive)


# -- taking part --------------------------------------------------------------------------------


@rule("v1: a partition is added before it is written to (KIP-98)")
def written_before_it_is_added(patch: Patch) -> None:
    def naive(self: Transactions, topic: str, partition: int) -> bool:
        self.added.add((topic, partition))
        self._begun = True
        return self.may_send

    patch(Transactions, "admits", naive)


@rule("what may have begun at the coordinator is ended there")
def nothing_to_end(patch: Patch) -> None:
    wanted = Transactions._wanted_call

    def naive(self: Transactions, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        if self.state is TransactionState.ABORTING and quiet:
            self._finish(committed=False)
        return wanted(self, now, delivered=delivered, quiet=quiet)

    patch(Transactions, "_wanted_call", naive)


@rule("v1: an abort waits for batches under way: one after the markers opens a transaction")
def abort_overtakes_its_batches(patch: Patch) -> None:
    wanted = Transactions._wanted_call

    def naive(self: Transactions, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        quiet = quiet or self.state is TransactionState.ABORTING
        return wanted(self, now, delivered=delivered, quiet=quiet)

    patch(Transactions, "_wanted_call", naive)


@rule("what is queued when a transaction is aborted is not in the next one (KIP-654)")
def aborted_records_are_kept(patch: Patch) -> None:
    patch(Coordination, "_abort_records", lambda _self, _error, _doubt: None)


@rule("v1: no other offsets of a group after a commit of them that may be under way")
def stray_offsets_are_forgotten(patch: Patch) -> None:
    commit_offsets = Transactions.commit_offsets

    def naive(self: Transactions, commit: OffsetCommit) -> OffsetCommit:
        self._stray_offsets.clear()
        return commit_offsets(self, commit)

    patch(Transactions, "commit_offsets", naive)


# -- coordinators -------------------------------------------------------------------------------


@rule("NOT_COORDINATOR: it is sought anew")
def a_moved_coordinator_is_asked_again(patch: Patch) -> None:
    codes: tuple[Any, ...] = (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
    for code in codes:
        patch(coordinator_module._COMMON, code, Verdict.RETRY)


@rule("PRODUCER_FENCED ends the producer")
def fenced_taken_for_a_hiccup(patch: Patch) -> None:
    code: Any = ErrorCode.producer_fenced
    patch(coordinator_module._COMMON, code, Verdict.RETRY)


@rule("CONCURRENT_TRANSACTIONS passes")
def concurrent_taken_for_fatal(patch: Patch) -> None:
    code: Any = ErrorCode.concurrent_transactions
    patch(coordinator_module._COMMON, code, Verdict.FATAL)


@rule("an end answered by a code that nobody knows may have been carried out")
def unlisted_end_taken_for_refused(patch: Patch) -> None:
    patch(transactions_module, "is_listed", lambda _kind, _code: True)


@rule("records that an abort ends while a thread compresses them are in no later batch")
def drafts_outlive_an_abort(patch: Patch) -> None:
    empty = PartitionQueue.empty

    def naive(self: PartitionQueue) -> list[PendingRecord]:
        draft, taken = self.draft, empty(self)
        self.draft = draft
        return taken

    patch(PartitionQueue, "empty", naive)


@rule("one call to a coordinator at a time (KAFKA-17754)")
def calls_overtake_each_other(patch: Patch) -> None:
    next_call = Transactions.next_call

    def naive(self: Transactions, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        calling = self._calling
        if calling is not None and calling.kind is CallKind.ADD_PARTITIONS:
            self._calling = None
        call = next_call(self, now, delivered=delivered, quiet=quiet)
        if call is None:
            self._calling = calling
        return call

    patch(Transactions, "next_call", naive)


# -- recreated topics -----------------------------------------------------------------------------


def _recreating(seed: int) -> Result:
    """Run a seed of the swarm, if a topic is recreated in it; most seeds have no such fault."""
    schedule = draw_transactional_swarm(seed)
    if any(fault.kind == "recreate" for fault in schedule.faults):
        return perform(schedule)
    return Result(schedule)


@mutant("a transaction that wrote to a topic that was recreated is not committed", _recreating)
def recreated_topics_doom_no_transaction(patch: Patch) -> None:
    patch(Transactions, "on_topic_recreated", lambda self, _topic, **_: self.renew())


def recreated(
    seed: int,
    version: Literal[0, 2],
    age: float,
    topics: tuple[tuple[str, int], ...],
    *work: Work,
) -> Schedule:
    """Return transactions in which the topic "t" is recreated after a second.

    Args:
        seed: draws what is not named here.
        version: the level of `transaction.version`.
        age: `metadata_max_age`, in seconds.
        topics: the topics, and how many partitions each has.
        work: the transactions.
    """
    base = draw_transactional(seed, "quiet")
    return dataclasses.replace(
        base,
        topics=topics,
        transaction_version=version,
        all_acked=False,
        broker_configs=base.broker_configs | {"auto.create.topics.enable": "false"},
        options=base.options | {"metadata_max_age": age},
        work=work,
        faults=(Fault(1.0, "recreate", ("t",)),),
    )


def noticed_late(seed: int) -> Schedule:
    """Return three transactions: one before a topic is recreated, one before that is noticed.

    Requests name their topic (transactions v1), so the second one's record is in the new topic.
    """
    return recreated(
        seed,
        0,
        3.0,
        (("t", 2),),
        Work((Send(0.0, "t", 1, None, 60),), block=False, dawdle=1.5),
        Work((Send(0.0, "t", 0, None, 60),), block=False),
        Work((Send(3.0, "t", 0, None, 60),), block=False),
    )


def _noticed_late(seed: int) -> Result:
    return perform(noticed_late(seed))


@mutant("records for a topic that was recreated do not begin at sequence 0 again", _noticed_late)
def recreated_topics_begin_again_in_the_same_epoch(patch: Patch) -> None:
    patch(RecordAccumulator, "numbered", lambda _self, _name, _identity: False)


# -- brokers of KIP-758 -------------------------------------------------------------------------


def _doubtful(seed: int) -> Result:
    """Run a seed of the swarm in which brokers of KIP-758 answer, and answers are lost."""
    return perform(draw_transactional_swarm(seed, doubts=True))


@mutant("a duplicate of the oldest batch in doubt has the newest one resent", _doubtful)
def duplicates_are_resent_in_order_for_ever(patch: Patch) -> None:
    on_duplicate = FailedAttempts._on_duplicate

    def naive(self: FailedAttempts, batch: Batch, now: float, out: Effects) -> None:
        on_duplicate(self, batch, now, out)
        if self._recovery.rung is Rung.REFUSED:
            self._recovery.move(RecoveryEvent.RESTART)

    patch(FailedAttempts, "_on_duplicate", naive)


@mutant("with KIP-758 one batch is in flight until the leader has acknowledged one", _doubtful)
def no_gate_with_a_range(patch: Patch) -> None:
    begin = FirstAckGate.begin

    def naive(self: FirstAckGate, transaction: int, *, applies: bool) -> None:
        del applies
        begin(self, transaction, applies=False)

    patch(FirstAckGate, "begin", naive)


# -- other transactional ids --------------------------------------------------------------------


def _changing(seed: int) -> Result:
    """Run a seed of the swarm in which the producer changes its transactional id."""
    return perform(draw_transactional_swarm(seed, other_ids=True))


@mutant("another id is taken without the identity of the former one", _changing)
def another_id_asked_for_with_the_old_identity(patch: Patch) -> None:
    change_id = Transactions.change_id

    def naive(self: Transactions, transactional_id: str) -> None:
        before = self._identity.current
        change_id(self, transactional_id)
        self._identity.current = before

    patch(Transactions, "change_id", naive)


@mutant("another id has another coordinator", _changing)
def another_id_with_the_old_coordinator(patch: Patch) -> None:
    change_id = Transactions.change_id

    def naive(self: Transactions, transactional_id: str) -> None:
        before = self.coordinator
        change_id(self, transactional_id)
        self.coordinator = before

    patch(Transactions, "change_id", naive)


@mutant("another id is not taken while an epoch of the former one is requested", _changing)
def another_id_before_the_epoch_of_the_old_one(patch: Patch) -> None:
    change_id = Transactions.change_id

    def naive(self: Transactions, transactional_id: str) -> None:
        if self.state is TransactionState.RENEWING:
            self.state, self._renew, self._calling = TransactionState.READY, False, None
        change_id(self, transactional_id)

    may = (TransactionState.READY, TransactionState.RENEWING)
    patch(Transactions, "change_id", naive)
    patch(Transactions, "may_change_id", property(lambda self: self.state in may))


@mutant("an id that the producer has had before is taken anew, too", _changing)
def former_id_without_a_fence(patch: Patch) -> None:
    change_id = Transactions.change_id
    had: dict[tuple[Transactions, str], Any] = {}

    def naive(self: Transactions, transactional_id: str) -> None:
        had[self, self.transactional_id] = self._identity.current
        change_id(self, transactional_id)
        former = had.get((self, transactional_id))
        if former is not None:
            self._identity.renew(*former)
            self.state = TransactionState.READY

    patch(Transactions, "change_id", naive)


@mutant("sequences begin at 0 under another producer id", _changing)
def sequences_of_the_old_producer_id_go_on(patch: Patch) -> None:
    adopt = SequenceLedger.adopt

    def naive(self: SequenceLedger, identity: ProducerIdentity) -> None:
        before, number = self.identity, self.next
        adopt(self, identity)
        if before is not None and before.producer_id != identity.producer_id:
            self.next = number

    patch(SequenceLedger, "adopt", naive)


@mutant("the records of a transaction go under its id", _changing)
def records_under_the_first_id(patch: Patch) -> None:
    send = Transactions.admits
    change_id = Transactions.change_id
    first: dict[Transactions, str] = {}

    def renamed(self: Transactions, transactional_id: str) -> None:
        first.setdefault(self, self.transactional_id)
        change_id(self, transactional_id)

    def naive(self: Transactions, topic: str, partition: int) -> bool:
        self.transactional_id = first.get(self, self.transactional_id)
        return send(self, topic, partition)

    patch(Transactions, "change_id", renamed)
    patch(Transactions, "admits", naive)


# -- what few applications and coordinators do --------------------------------------------------


def _with_oddities(seed: int) -> Result:
    return perform(draw_transactional_swarm(seed, oddities=True))


@mutant("the coordinator of a group is found by the name of the group", _with_oddities)
def groups_looked_for_as_transactional_ids(patch: Patch) -> None:
    def learn(self: Transactions, group: str, node_id: int) -> None:
        coordinator = Coordinator(CoordinatorKey.TRANSACTION, group)
        self.coordinators.setdefault(group, coordinator).node_id = node_id

    patch(Transactions, "learn_coordinator", learn)


@mutant("a commit that is refused for good is no commit", _with_oddities)
def refused_commit_taken_for_done(patch: Patch) -> None:
    abortable = Transactions._abortable

    def naive(self: Transactions, call: Call, error: KafkaError) -> None:
        if call.kind is CallKind.END and call.commit:
            self._finish(committed=True)
        else:
            abortable(self, call, error)

    patch(Transactions, "_abortable", naive)


@mutant("an answer without an identity grants none", _with_oddities)
def identity_taken_from_an_empty_answer(patch: Patch) -> None:
    patch(Transactions, "_grants", lambda _self, _producer_id, _epoch: True)


def _dense(seed: int) -> Result:
    return perform(draw_transactional_swarm(seed, dense=True))


@mutant("another epoch is requested only where there is a reason", _dense)
def epoch_requested_after_each_transaction(patch: Patch) -> None:
    finish = Transactions._finish

    def eager(self: Transactions, *, committed: bool) -> None:
        self._renew = True
        finish(self, committed=committed)

    patch(Transactions, "_finish", eager)


@mutant("a call to a coordinator that is lost in v1 is fenced by another epoch", _dense)
def lost_call_not_fenced(patch: Patch) -> None:
    on_lost = Transactions.on_lost

    def careless(self: Transactions, now: float, *, written: bool) -> None:
        before = self._renew
        on_lost(self, now, written=written)
        self._renew = before

    patch(Transactions, "on_lost", careless)


@mutant("a transaction is not begun within another", _dense)
def begun_within_another(patch: Patch) -> None:
    begin = Transactions.begin

    def naive(self: Transactions, version: int) -> None:
        if self.state is not TransactionState.OPEN:
            begin(self, version)

    patch(Transactions, "begin", naive)
