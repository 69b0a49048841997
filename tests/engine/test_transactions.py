"""Transactions: requests to coordinators, the meaning of the answers, and outcomes of records.

Most tests run in both protocols, v1 (KIP-98) and v2 (KIP-890): `BOTH`. `Rig` checks in every test
that there is one call to a coordinator at a time, and that EndTxn is sent only when no batch is
outstanding.
"""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.coordinator_refusals import coordinator_error
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity
from aioidem.structs import DeliveryStatus

from .driver import (
    ACKED,
    CALLS,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    LOADING,
    NONE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    TRANSACTION_ABORTABLE,
    UNKNOWN,
    UNKNOWN_TOPIC_OR_PARTITION,
    Rig,
    T,
    refuse_until,
    topic_id,
    wait_until,
)

V1, V2 = 0, 2
BOTH = pytest.mark.parametrize("version", [V1, V2])
READY, OPEN = TransactionState.READY, TransactionState.OPEN
ABORTABLE, FATAL = TransactionState.ABORTABLE, TransactionState.FATAL
DECIDING, ABORTING = TransactionState.DECIDING, TransactionState.ABORTING
SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}
OPERATION_NOT_ATTEMPTED = ErrorCode.operation_not_attempted
GROUP_AUTHORIZATION_FAILED = ErrorCode.group_authorization_failed
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = ErrorCode.transactional_id_authorization_failed
UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error
INVALID_PRODUCER_ID_MAPPING = ErrorCode.invalid_producer_id_mapping

END, INIT, FIND = steps.EndTransaction, steps.InitTransactions, steps.FindCoordinator
ADD, ADD_GROUP, COMMIT_OFFSETS = steps.AddPartitions, steps.AddOffsets, steps.CommitOffsets


def transactional(version: int, /, **options: Any) -> Rig:
    """Make a transactional producer that has its producer id and is ready to begin."""
    options.setdefault("transactional_id", "x")
    rig = Rig(transaction_version=version, **options).start()
    assert rig.txn is READY
    return rig


def starting(version: int, /, hold: type[Any], **options: Any) -> Rig:
    """Make a transactional producer without a producer id; calls of type `hold` stay unanswered."""
    rig = Rig(transaction_version=version, transactional_id="x", **options)
    rig.hold = (hold,)
    return rig.start()


def opened(version: int, /, records: int = 0, **options: Any) -> Rig:
    """Make a producer inside a transaction in which `records` records are acknowledged."""
    rig = transactional(version, **options).begin()
    for _ in range(records):
        rig.send()
        rig.ack_all()
    return rig


def deciding(version: int, /, **options: Any) -> Rig:
    """Make a producer that has sent EndTxn(commit) for one record and has no answer yet."""
    rig = opened(version, 1, **options)
    rig.hold = (END,)
    rig.commit()
    assert rig.called(END).commit
    assert rig.txn is DECIDING
    return rig


def calls(rig: Rig, since: int = 0) -> list[str]:
    """List the types of all calls to coordinators and of all Produce requests, in order."""
    kinds = (*CALLS, steps.SendProduce)
    return [type(step).__name__ for step in rig.asked[since:] if isinstance(step, kinds)]


def a_whole_transaction(rig: Rig) -> None:
    """Check that the producer works: it commits another transaction of one record."""
    rig.hold = ()
    wait_until(rig, lambda: rig.txn is READY) if rig.txn is not READY else None
    rig.begin()
    (record,) = rig.send()
    wait_until(rig, lambda: bool(rig.outstanding()), 30.0) if not rig.outstanding() else None
    rig.ack_all()
    assert record.status is ACKED
    outcome = rig.commit()
    wait_until(rig, lambda: outcome.committed is not None) if outcome.committed is None else None
    assert outcome.committed is True
    rig.assert_drained()


# -- the way of a transaction


@BOTH
def test_a_transaction_is_begun_delivered_and_committed(version: int) -> None:
    """A transaction is begun, delivered and committed (KIP-890).

    In v2 the Produce request (v12 or later) adds its partition to the transaction, and each EndTxn
    raises the epoch. In v1 AddPartitionsToTxn adds it first, and Produce v11 is sent, which adds
    none.
    """
    rig = transactional(version, version=14)
    before = len(rig.asked)
    identity = rig.identity
    rig.begin()
    rig.send()
    (request,) = rig.outstanding()
    assert (request.version >= 12) is (version == V2)
    assert request.version == (14 if version == V2 else 11)
    assert request.only.batch.transactional
    rig.ack_all()
    outcome = rig.commit()
    assert outcome.committed is True
    added = ["AddPartitions"] if version == V1 else []
    assert calls(rig, before) == [*added, "SendProduce", "EndTransaction"]
    assert rig.identity == (identity if version == V1 else (identity[0], identity[1] + 1))
    a_whole_transaction(rig)


@BOTH
def test_the_next_transaction_goes_on_in_v1_and_starts_at_zero_in_v2(version: int) -> None:
    rig = opened(version, 2)
    rig.commit()
    rig.begin().send()
    (request,) = rig.outstanding()
    assert (request.epoch, request.sequence) == ((0, 2) if version == V1 else (1, 0))


@BOTH
def test_a_transaction_of_nothing_asks_nothing(version: int) -> None:
    rig = transactional(version)
    before = len(rig.asked)
    assert rig.begin().commit().committed is True
    assert rig.begin().abort().committed is False
    assert not calls(rig, before)
    a_whole_transaction(rig)


@BOTH
def test_offsets_alone_are_a_transaction(version: int) -> None:
    rig = opened(version)
    before = len(rig.asked)
    pending = rig.offsets(7, partitions=2)
    assert not pending.left
    assert rig.commit().committed is True
    added = ["AddOffsets"] if version == V1 else []
    assert calls(rig, before) == [
        *added,
        "FindCoordinator",
        "CommitOffsets",
        "EndTransaction",
    ]
    (sent,) = [step for step in rig.asked if isinstance(step, COMMIT_OFFSETS)]
    assert {each.offset for each in sent.offsets.values()} == {7}
    assert sent.v2 is (version == V2)


@BOTH
def test_a_record_outside_of_a_transaction_is_refused(version: int) -> None:
    rig = transactional(version)
    with pytest.raises(errors.IllegalOperation):
        rig.send()
    rig = deciding(version)
    with pytest.raises(errors.IllegalOperation):
        rig.send()


@BOTH
def test_calls_that_do_not_fit_the_state_change_nothing(version: int) -> None:
    rig = transactional(version)
    for call in (rig.commit, rig.abort, rig.offsets):
        with pytest.raises(errors.IllegalStateError):
            call()
    rig.begin()
    with pytest.raises(errors.IllegalStateError):
        rig.begin()
    assert rig.txn is OPEN
    rig.send()
    rig.ack_all()
    rig.hold = (END,)
    rig.commit()
    with pytest.raises(errors.IllegalStateError, match="may have taken place"):
        rig.abort()
    with pytest.raises(errors.IllegalStateError):
        rig.begin()
    assert rig.txn is DECIDING


@BOTH
def test_the_cluster_s_version_counts_when_a_transaction_begins(version: int) -> None:
    """If the cluster changes its transaction version, an open transaction keeps to the old one."""
    rig = opened(version, 1)
    other = V2 - version
    rig.transaction_version = other
    rig.lose()
    rig.tick(1.0)
    rig.send()
    (request,) = rig.outstanding()
    assert (request.version >= 12) is (version == V2)
    rig.ack_all()
    rig.commit()
    identity = rig.identity
    rig.begin().send()
    (request,) = rig.outstanding()
    assert (request.version >= 12) is (other == V2)
    rig.ack_all()
    rig.commit()
    assert (rig.identity > identity) is (other == V2)


# -- partitions and groups


def test_partitions_are_added_together_and_once() -> None:
    rig = opened(V1, partitions=3)
    rig.hold = (ADD,)
    rig.send(partition=0)
    rig.send(partition=1)
    assert rig.called(ADD).partitions == ((T, 0),)  # the next call waits for the answer to this one
    rig.send(partition=2)
    rig.answer_call(rig.called(ADD))
    assert rig.called(ADD).partitions == ((T, 1), (T, 2))
    rig.answer_call(rig.called(ADD))
    before = len(rig.asked)
    rig.ack_all()
    rig.send(partition=1)
    assert calls(rig, before) == ["SendProduce"]


def test_what_an_answer_leaves_out_is_asked_again_and_what_it_invents_is_dropped() -> None:
    """A partition that an AddPartitionsToTxn answer leaves out is added again by another call.

    Partitions that the answer invents are ignored.
    """
    rig = opened(V1, partitions=2)
    rig.hold = (ADD, END)
    rig.send(partition=0, poll=False)
    rig.send(partition=1)
    first = rig.called(ADD)
    rig.answer_call(first, codes={(T, 0): NONE, ("other", 0): NONE, (T, 9): 53})
    assert [request.only.partition for request in rig.outstanding()] == [0]
    rig.ack_all()
    rig.tick(1.0)
    assert rig.called(ADD).partitions == ((T, 1),)
    rig.answer_call(rig.called(ADD))
    rig.ack_all()
    rig.commit()
    rig.answer_call(rig.called(END))
    assert rig.transactions.outcome.committed is True
    assert rig.statuses == [ACKED, ACKED]


@BOTH
def test_a_partial_offset_commit_goes_on_with_the_rest(version: int) -> None:
    """Offsets that TxnOffsetCommit refused are sent again, and EndTxn waits for them."""
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS, END)
    pending = rig.offsets(partitions=3)
    first = rig.called(COMMIT_OFFSETS)
    rig.commit()
    rig.answer_call(
        first, codes={("in", 0): NONE, ("in", 1): UNKNOWN_TOPIC_OR_PARTITION, ("no", 0): NONE}
    )
    rig.tick(1.0)
    again = rig.called(COMMIT_OFFSETS)
    assert sorted(again.offsets) == [("in", 1), ("in", 2)]
    rig.answer_call(again, UNKNOWN_TOPIC_OR_PARTITION)
    refusal = str(rig.transactions.last_refusal)
    assert "TxnOffsetCommit of group 'g' for in-1, in-2, refused by broker" in refusal
    rig.tick(1.0)
    rig.answer_call(rig.called(COMMIT_OFFSETS))
    assert not pending.left
    assert rig.called(END).commit


def test_what_was_not_attempted_for_another_partition_s_sake_does_not_decide() -> None:
    """The code of the refused partition decides whether AddPartitionsToTxn is tried again.

    AddPartitionsToTxn adds all of its partitions or none. So if one partition is refused, each of
    the others has the code OPERATION_NOT_ATTEMPTED, which decides nothing.
    """
    rig = opened(V1, partitions=2)
    rig.hold = (ADD,)
    rig.send(partition=0, poll=False)
    rig.send(partition=1)
    for refused, state in ((UNKNOWN_TOPIC_OR_PARTITION, OPEN), (29, ABORTABLE)):
        rig.tick(1.0)
        codes = {(T, 0): OPERATION_NOT_ATTEMPTED, (T, 1): refused}
        rig.answer_call(rig.called(ADD), codes=codes)
        assert rig.txn is state
    assert isinstance(rig.transactions.cause, errors.TopicAuthorizationFailedError)


@BOTH
def test_a_group_that_is_not_ours_to_use_is_abortable(version: int) -> None:
    for kind in (FIND, COMMIT_OFFSETS):
        rig = opened(version)
        rig.hold = (kind,)
        rig.offsets()
        rig.answer_call(rig.called(kind), GROUP_AUTHORIZATION_FAILED)
        assert rig.txn is ABORTABLE
        assert isinstance(rig.transactions.cause, errors.GroupAuthorizationFailedError)
        rig.abort()
        a_whole_transaction(rig)


@BOTH
def test_an_abort_lets_go_of_offsets_that_were_not_taken(version: int) -> None:
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS, END)
    pending = rig.offsets()
    rig.abort()
    assert pending not in rig.transactions.offsets
    assert pending.left
    rig.answer_call(rig.called(COMMIT_OFFSETS), LOADING)
    rig.tick(1.0)
    assert not rig.called(END).commit
    rig.answer_call(rig.called(END))
    a_whole_transaction(rig)


@BOTH
def test_the_same_offsets_are_one_commit_and_others_of_that_group_not_after_a_stray(
    version: int,
) -> None:
    """After a lost TxnOffsetCommit a transaction takes no other offsets of the same group.

    The lost request may be carried out later, and would overwrite newer offsets. The same offsets
    are permitted, and mean the commit that was already requested.
    """
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS,)
    first = rig.offsets(1)
    assert rig.offsets(1) is first
    rig.lose_call()
    rig.tick(2.0)
    assert rig.offsets(1) is first
    rig.answer_call(rig.called(COMMIT_OFFSETS))
    assert not first.left
    rig.hold = ()
    assert not rig.offsets(5, group="another").left
    with pytest.raises(errors.AbortableTransactionError):
        rig.offsets(2)
    assert rig.txn is ABORTABLE
    rig.abort()
    rig.tick(1.0)
    rig.begin()
    assert not rig.offsets(2).left  # another transaction, another epoch
    sent = [step for step in rig.asked if isinstance(step, COMMIT_OFFSETS)]
    assert sent[-1].who.producer_epoch == sent[0].who.producer_epoch + 1


@BOTH
def test_offsets_that_waited_behind_a_stray_of_their_group_are_not_committed(version: int) -> None:
    """Offsets that waited behind a lost TxnOffsetCommit of their group are not committed.

    The lost request could overwrite them later, and records would be consumed again (simulation
    seed 1952).
    """
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS,)
    rig.offsets(1)
    rig.offsets(2)
    rig.commit()
    rig.lose_call()
    assert rig.txn is ABORTABLE
    with pytest.raises(errors.AbortableTransactionError):
        rig.commit()
    rig.abort()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
def test_offsets_that_were_never_written_are_not_astray(version: int) -> None:
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS,)
    rig.offsets(1)
    rig.lose_call(written=False)
    rig.hold = ()
    rig.tick(2.0)
    assert not rig.offsets(2).left
    assert rig.commit().committed is True
    assert rig.identity[1] == (0 if version == V1 else 1)


# -- what other producers test


@BOTH
def test_an_old_epoch_is_abortable_from_produce(version: int) -> None:
    """INVALID_PRODUCER_EPOCH from Produce makes the transaction abortable (KIP-588)."""
    rig = opened(version, 1)
    (record,) = rig.send()
    rig.fail(rig.outstanding()[0], INVALID_PRODUCER_EPOCH)
    assert rig.txn is ABORTABLE
    assert record.status is NOT_WRITTEN
    assert isinstance(rig.transactions.cause, errors.InvalidProducerEpoch)
    with pytest.raises(errors.AbortableTransactionError) as raised:
        rig.commit()
    assert raised.value.__cause__ is rig.transactions.cause
    with pytest.raises(errors.AbortableTransactionError):
        rig.send()
    assert rig.abort().committed is False
    a_whole_transaction(rig)


@BOTH
def test_producer_fenced_is_fatal_from_produce(version: int) -> None:
    """PRODUCER_FENCED from Produce is fatal, and every later call raises ProducerFenced."""
    rig = opened(version, 1)
    rig.send(2)
    rig.fail(rig.outstanding()[0], PRODUCER_FENCED)
    assert rig.txn is FATAL
    for call in (rig.commit, rig.abort, rig.begin, rig.send):
        with pytest.raises(errors.ProducerFenced):
            call()
    rig.ack_all()
    assert PENDING not in rig.statuses


@BOTH
@pytest.mark.parametrize("kind", [ADD, ADD_GROUP, COMMIT_OFFSETS, END, INIT])
def test_a_new_instance_fences_the_old_one(version: int, kind: type[Any]) -> None:
    """After PRODUCER_FENCED a producer sends nothing more, and its calls raise ProducerFenced."""
    if kind in (ADD, ADD_GROUP, INIT) and version == V2:
        kind = END
    rig = opened(version)
    rig.hold = (kind,)
    if kind is INIT:
        rig.send()
        rig.lose()
        rig.abort()
    elif kind in (ADD, END):
        rig.send()
        rig.ack_all()
    else:
        rig.offsets()
    if kind is END:
        rig.commit()
    if not rig.held:
        wait_until(rig, lambda: bool(rig.held), 5.0)
    rig.answer_call(rig.called(kind), PRODUCER_FENCED)
    assert rig.txn is FATAL
    before = len(rig.asked)
    with pytest.raises(errors.ProducerFenced):
        rig.send()
    with pytest.raises(errors.ProducerFenced):
        rig.begin()
    rig.tick(60.0)
    assert not calls(rig, before)
    assert PENDING not in rig.statuses


@BOTH
@pytest.mark.parametrize("kind", [INIT, ADD, ADD_GROUP, COMMIT_OFFSETS, END])
@pytest.mark.parametrize(
    "trouble", [LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, "lost", "unwritten"]
)
def test_a_coordinator_that_is_away_moved_loading_or_lost_is_asked_again(
    version: int, kind: type[Any], trouble: int | str
) -> None:
    """A call that the coordinator cannot serve, or whose connection is lost, is sent again.

    The coordinator is looked up again, unless it is only loading; no other call is made meanwhile.
    """
    if kind in (ADD, ADD_GROUP) and version == V2:
        kind = COMMIT_OFFSETS
    rig = starting(version, kind, brokers=2, coordinator=2)
    if kind is not INIT:
        rig.begin().send()
        rig.ack_all()
        rig.offsets()
    if kind is END:
        rig.commit()
    call = rig.called(kind)
    before = len(rig.asked)
    rig.coordinator = 1
    if isinstance(trouble, int):
        rig.answer_call(call, trouble)
    else:
        rig.lose_call(written=trouble == "lost")
    assert not calls(rig, before) or calls(rig, before) == ["FindCoordinator"]
    rig.tick(2.0)
    assert ("FindCoordinator" in calls(rig, before)) is (trouble != LOADING)
    again = rig.called(kind)
    moved = rig.links[again.link_id].host == "b1"
    assert moved is (trouble != LOADING)
    assert (again.who if kind is not INIT else again.existing) == (
        call.who if kind is not INIT else call.existing
    )
    rig.hold = ()
    rig.answer_call(again)
    if kind is INIT:
        rig.begin()
    elif kind is not END:
        rig.ack_all()
        rig.commit()
        rig.tick(1.0)
    if kind is not INIT:
        assert rig.transactions.outcome.committed is True
        a_whole_transaction(rig)


@BOTH
def test_a_coordinator_without_an_id_is_sought_again(version: int) -> None:
    """An answer without an error may still name no broker; and broker 0 is one."""
    rig = starting(version, FIND)
    step = rig.called(FIND)
    rig.forget_call(step.link_id)
    rig.core.on_answer(step, CoordinatorAnswer(0, -1, "", -1), rig.now)
    rig.poll()
    assert rig.transactions.coordinator.node_id is None
    rig.tick(2.0)
    again = rig.called(FIND)
    rig.forget_call(again.link_id)
    rig.core.on_answer(again, CoordinatorAnswer(0, 0, "b1", 9092), rig.now)
    assert rig.transactions.coordinator.node_id == 0


@BOTH
def test_a_coordinator_is_sought_until_it_is_found(version: int) -> None:
    """FindCoordinator is repeated until it names a coordinator."""
    rig = starting(version, FIND)
    for code in (
        COORDINATOR_NOT_AVAILABLE,
        LOADING,
        UNKNOWN_SERVER_ERROR,
        ErrorCode.network_exception,
    ):
        rig.answer_call(rig.called(FIND), code)
        rig.tick(2.0)
    rig.lose_call()
    rig.tick(2.0)
    rig.hold = ()
    rig.answer_call(rig.called(FIND))
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
def test_the_end_waits_for_what_is_in_flight(version: int) -> None:
    """EndTxn is sent when every batch of the transaction is settled."""
    rig = opened(version, 1)
    rig.send(3)
    outcome = rig.commit()
    assert rig.outstanding()
    while rig.outstanding():
        assert not [step for step in rig.asked if isinstance(step, END)]
        rig.ack(rig.outstanding()[0])
    assert outcome.committed is True
    assert set(rig.statuses) == {ACKED}


@BOTH
def test_a_commit_waits_for_a_batch_in_doubt(version: int) -> None:
    """A commit waits until the batches in doubt are resent and acknowledged."""
    rig = opened(version, 1)
    rig.send(2)
    rig.hold = (END,)
    rig.commit()
    rig.lose()
    rig.tick(2.0)
    assert not rig.held
    rig.ack_all()
    assert rig.called(END).commit
    assert set(rig.statuses) == {ACKED}


@BOTH
def test_a_commit_waits_for_metadata_and_for_what_lingers(version: int) -> None:
    """A commit ends the linger of its records and waits for metadata of their topics."""
    rig = opened(version, linger=60.0)
    (record,) = rig.send(size=10)
    rig.leaders["new", 0] = (1, 0)
    (other,) = rig.send(topic="new", size=10)
    assert not rig.outstanding()
    rig.commit()
    rig.ack_all()
    rig.tick(3.0)
    rig.ack_all()
    assert (record.status, other.status) == (ACKED, ACKED)
    assert rig.transactions.outcome.committed is True


@BOTH
def test_an_abort_waits_for_what_is_outstanding_only(version: int) -> None:
    """An abort waits only for answers to requests in flight; no batch is resent (KIP-654).

    A batch that arrived after the abort markers would begin another transaction.
    """
    rig = opened(version, 1)
    rig.send(2)
    (first, *_) = rig.outstanding()
    rig.hold = (END,)
    rig.abort()
    assert not rig.held
    while rig.outstanding():
        assert not rig.held
        rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    assert first.done
    assert not rig.called(END).commit
    rig.answer_call(rig.called(END))
    assert rig.statuses == [ACKED, NOT_WRITTEN, NOT_WRITTEN]
    a_whole_transaction(rig)


@BOTH
@pytest.mark.parametrize("sent", [True, False])
def test_a_record_that_expires_makes_the_transaction_abortable_and_drops_the_commit(
    version: int, *, sent: bool
) -> None:
    """A record that expires makes the transaction abortable, and EndTxn(commit) is not sent."""
    rig = opened(version, 1, **SHORT)
    if not sent:
        rig.leaders[T, 0] = (-1, 1)
        rig.refresh()
    (record,) = rig.send()
    outcome = rig.commit()
    if sent:
        refuse_until(rig, lambda: record.status is not PENDING, NOT_ENOUGH_REPLICAS)
    else:
        rig.tick(25.0)
    assert record.status is NOT_WRITTEN
    assert isinstance(record.error, errors.DeliveryTimeoutError)
    assert rig.txn is ABORTABLE
    assert outcome.committed is None
    assert not [step for step in rig.asked if isinstance(step, END)]
    rig.leaders[T, 0] = (1, 2)
    rig.refresh()
    assert rig.abort().committed is False
    a_whole_transaction(rig)


@BOTH
def test_out_of_order_in_a_transaction_is_abortable_and_bumps_nothing_before_its_end(
    version: int,
) -> None:
    """OUT_OF_ORDER makes a transaction abortable, and the epoch is bumped only after its end.

    A bump inside a transaction would split it (librdkafka #3575): the rest, under another epoch,
    would be another transaction, whose commit succeeds without the first part.
    """
    rig = opened(version, 1)
    (first, second) = rig.send(2)
    identity = rig.identity
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.txn is ABORTABLE
    rig.ack(rig.outstanding()[0]) if rig.outstanding() else None
    rig.tick(5.0)
    assert rig.identity == identity
    assert not rig.outstanding()
    assert first.status is NOT_WRITTEN
    assert second.status is not PENDING
    assert {request.epoch for request in rig.everything} == {0}
    with pytest.raises(errors.AbortableTransactionError):
        rig.commit()
    rig.abort()
    rig.tick(1.0)
    assert rig.identity == (identity[0], 1)
    rig.begin().send()
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])


@BOTH
def test_out_of_order_behind_a_refused_batch_is_no_news(version: int) -> None:
    rig = opened(version, 1)
    rig.send(3)
    for request, code in zip(
        rig.outstanding(), (NOT_LEADER, OUT_OF_ORDER, OUT_OF_ORDER), strict=True
    ):
        rig.fail(request, code)
    assert rig.txn is OPEN
    rig.tick(5.0)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.commit().committed is True


@BOTH
@pytest.mark.parametrize(
    "trouble", ["lost", UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, NOT_COORDINATOR, 13]
)
def test_an_end_of_unknown_outcome_is_not_reported_as_a_commit(
    version: int, trouble: int | str
) -> None:
    """A commit is not reported while its outcome is unknown, and EndTxn is repeated."""
    rig = deciding(version)
    outcome = rig.transactions.outcome
    for _ in range(3):
        call = rig.called(END)
        if isinstance(trouble, int):
            rig.answer_call(call, trouble)
        else:
            rig.lose_call()
        assert (rig.txn, outcome.committed) == (DECIDING, None)
        wait_until(rig, lambda: bool(rig.held), 10.0)
        assert rig.called(END).who == call.who
        assert rig.called(END).commit
    rig.answer_call(rig.called(END))
    assert outcome.committed is True


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_answered_by_an_unknown_code_is_fatal_and_not_guessed(
    version: int, commit: bool
) -> None:
    """EndTxn that is answered with an unknown code is fatal and is not repeated, as in Java.

    Whether the end was carried out is unknown; the next producer with this transactional id ends
    the transaction.
    """
    rig = opened(version, 1)
    rig.hold = (END,)
    if commit:
        rig.commit()
    else:
        rig.abort()
    rig.answer_call(rig.called(END), 9999)
    assert rig.txn is FATAL
    with pytest.raises(errors.UnknownError, match=r"EndTxn.* no error code 9999") as raised:
        rig.transactions.check()
    assert raised.value.errno == 9999
    assert raised.value.status is (UNKNOWN if commit else None)
    rig.tick(30.0)
    assert not rig.held


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.invalid_request, 9999])
def test_a_coordinator_refused_by_an_unknown_code_is_an_error_at_once(
    version: int, code: int
) -> None:
    rig = starting(version, FIND)
    rig.answer_call(rig.called(FIND), code)
    rig.tick(10.0)
    assert not rig.held
    cause = rig.transactions.cause
    assert isinstance(cause, errors.BrokerResponseError)
    assert (cause.errno, "FindCoordinator" in str(cause)) == (code, True)
    rig.hold = ()
    rig.transactions.init()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
def test_an_abort_of_unknown_outcome_is_sent_again(version: int) -> None:
    """An abort whose answer is lost is sent again."""
    rig = opened(version, 1)
    rig.hold = (END,)
    outcome = rig.abort()
    rig.lose_call()
    assert rig.txn is ABORTING
    rig.tick(2.0)
    assert not rig.called(END).commit
    rig.answer_call(rig.called(END))
    assert outcome.committed is False
    a_whole_transaction(rig)


@BOTH
def test_an_end_that_is_taken_up_again_is_the_same(version: int) -> None:
    """A second call of commit() or abort() continues the end that the first one began.

    A caller whose timeout passed calls again; the end may have happened meanwhile.
    """
    rig = deciding(version)
    outcome = rig.transactions.outcome
    assert rig.commit() is outcome
    rig.answer_call(rig.called(END))
    assert rig.commit() is outcome
    with pytest.raises(errors.IllegalStateError, match="may have taken place"):
        rig.abort()
    outcome.told = True
    with pytest.raises(errors.IllegalStateError):
        rig.commit()
    rig.begin().send()
    rig.ack_all()
    ending = rig.abort()
    assert rig.abort() is ending
    rig.answer_call(rig.called(END))
    assert rig.abort() is ending
    with pytest.raises(errors.IllegalStateError):
        rig.commit()
    assert outcome.committed is True
    assert ending.committed is False


# -- ends whose outcome is unknown, and producers that are fenced


@BOTH
@pytest.mark.parametrize(
    ("before", "status"),
    [
        (None, NOT_WRITTEN),
        ("unwritten", NOT_WRITTEN),
        (CONCURRENT_TRANSACTIONS, NOT_WRITTEN),
        ("lost", UNKNOWN),
        (UNKNOWN_SERVER_ERROR, UNKNOWN),
        (REQUEST_TIMED_OUT, UNKNOWN),
        # The coordinator may have written the commit to its log before it stopped being the
        # coordinator and answered with one of these codes.
        (LOADING, UNKNOWN),
        (COORDINATOR_NOT_AVAILABLE, UNKNOWN),
        (NOT_COORDINATOR, UNKNOWN),
    ],
)
def test_a_producer_fenced_at_its_commit_says_whether_it_may_have_been_committed(
    version: int, before: int | str | None, status: Any
) -> None:
    rig = deciding(version)
    if isinstance(before, int):
        rig.answer_call(rig.called(END), before)
    elif before is not None:
        rig.lose_call(written=before == "lost")
    if before is not None:
        wait_until(rig, lambda: bool(rig.held), 10.0)
    rig.answer_call(rig.called(END), PRODUCER_FENCED)
    assert rig.txn is FATAL
    with pytest.raises(errors.ProducerFenced) as raised:
        rig.transactions.check()
    assert raised.value.status is status
    with pytest.raises(errors.ProducerFenced) as raised:
        rig.send()
    assert raised.value.status is NOT_WRITTEN  # the status of this record, not of the commit


@BOTH
def test_a_producer_that_dies_of_something_else_at_its_commit_says_so_too(version: int) -> None:
    rig = opened(version, 1)
    rig.send()
    rig.commit()
    rig.core.fatal(errors.AuthenticationFailedError("no"))
    with pytest.raises(errors.AuthenticationFailedError) as raised:
        rig.transactions.check()
    assert raised.value.status is NOT_WRITTEN
    for code in (NONE, INVALID_TXN_STATE, TRANSACTION_ABORTABLE, PRODUCER_FENCED):
        rig = deciding(version)
        rig.core.fatal(errors.AuthenticationFailedError("no"))
        rig.poll()
        rig.answer_call(rig.called(END), code)  # this answer comes too late
        assert rig.txn is FATAL
        with pytest.raises(errors.AuthenticationFailedError) as raised:
            rig.transactions.check()
        assert raised.value.status is UNKNOWN


def test_a_transaction_that_timed_out_before_its_commit_is_aborted_and_the_next_one_goes_on() -> (
    None
):
    """INVALID_TXN_STATE for a repeated commit means in v2 that the transaction timed out (KIP-588).

    If the first EndTxn had committed it, the second one would have been answered with success.
    """
    rig = deciding(V2)
    rig.lose_call()
    rig.tick(2.0)
    rig.answer_call(rig.called(END), INVALID_TXN_STATE)
    assert rig.txn is ABORTABLE
    assert rig.transactions.outcome.committed is None
    with pytest.raises(errors.AbortableTransactionError):
        rig.commit()
    outcome = rig.abort()
    assert not rig.called(END).commit
    rig.answer_call(rig.called(END))
    assert outcome.committed is False
    a_whole_transaction(rig)


def test_a_transaction_that_timed_out_fences_its_producer_in_v1() -> None:
    """In v1 a producer is fenced if its transaction has timed out.

    The coordinator then answers PRODUCER_FENCED, as it does if a newer producer uses the
    transactional id (KIP-588).
    """
    rig = opened(V1, 1)
    rig.send()
    rig.fail(rig.outstanding()[0], INVALID_PRODUCER_EPOCH)
    rig.hold = (END,)
    rig.abort()
    rig.answer_call(rig.called(END), PRODUCER_FENCED)
    assert rig.txn is FATAL


@BOTH
def test_a_state_that_does_not_fit_the_commit_is_no_commit(version: int) -> None:
    """A commit answered with INVALID_TXN_STATE is not reported as done.

    The code is fatal in v1 and makes the transaction abortable in v2.
    """
    rig = deciding(version)
    outcome = rig.transactions.outcome
    rig.answer_call(rig.called(END), INVALID_TXN_STATE)
    assert rig.txn is (FATAL if version == V1 else ABORTABLE)
    assert isinstance(rig.transactions.cause, errors.InvalidTxnState)
    assert outcome.committed is None


@BOTH
def test_an_abort_of_what_never_began_is_an_abort(version: int) -> None:
    """INVALID_TXN_STATE for an abort whose transaction never began counts as an abort.

    The call that would have begun the transaction has not arrived. It may arrive yet, so the next
    transaction has another epoch.
    """
    rig = opened(version)
    rig.hold = (COMMIT_OFFSETS, ADD, END)
    if version == V1:
        rig.send()
    else:
        rig.offsets()
    rig.lose_call()
    outcome = rig.abort()
    rig.tick(2.0)
    rig.answer_call(rig.called(END), INVALID_TXN_STATE)
    assert outcome.committed is False
    rig.tick(1.0)
    assert rig.identity[1] == 1
    a_whole_transaction(rig)


@BOTH
def test_an_abort_that_was_carried_out_and_overtaken_is_an_abort(version: int) -> None:
    """INVALID_TXN_STATE for a repeated abort counts as an abort.

    The first EndTxn(abort) was carried out. Then a late InitProducerId emptied the coordinator's
    state, so the second EndTxn(abort) is refused.
    """
    rig = opened(version, 1)
    rig.offsets()
    rig.hold = (END,)
    outcome = rig.abort()
    rig.answer_call(rig.called(END), UNKNOWN_SERVER_ERROR)
    rig.tick(1.0)
    rig.answer_call(rig.called(END), INVALID_TXN_STATE)
    assert outcome.committed is False
    assert rig.identity == (4001, 1)
    a_whole_transaction(rig)


def test_an_abort_that_v2_fences_because_the_last_end_is_not_finished_is_an_abort() -> None:
    """In transactions v2 an EndTxn(abort) that is answered PRODUCER_FENCED counts as an abort.

    The coordinator may know nothing of a transaction whose records were lost. If the markers of the
    previous transaction are not yet written, it then answers PRODUCER_FENCED to EndTxn, and there
    is nothing to abort. InitProducerId then shows whether another producer has really fenced this
    one.
    """
    for fenced in (False, True):
        rig = opened(V2)
        (record,) = rig.send()
        rig.lose()
        rig.hold = (END, INIT)
        outcome = rig.abort()
        rig.tick(2.0)
        rig.answer_call(rig.called(END), PRODUCER_FENCED)
        assert outcome.committed is False
        assert record.status is NOT_WRITTEN
        rig.answer_call(rig.called(INIT), CONCURRENT_TRANSACTIONS)
        rig.tick(1.0)
        assert rig.called(INIT).existing == TransactionalIdentity("x", 4001, 0)
        rig.answer_call(rig.called(INIT), PRODUCER_FENCED if fenced else NONE)
        if fenced:
            assert rig.txn is FATAL
        else:
            a_whole_transaction(rig)


@pytest.mark.parametrize("code", [NONE, INVALID_PRODUCER_EPOCH])
def test_a_producer_that_v2_has_fenced_does_not_ask_for_a_new_epoch(code: int) -> None:
    """After a write that was accepted, or refused for its epoch, PRODUCER_FENCED can be believed.

    The last transaction is completed then. InitProducerId would abort the transaction that the
    other producer has open: while one is open, the coordinator does not look at the epoch.
    """
    rig = opened(V2)
    rig.send()
    rig.hold = (END, INIT)
    rig.answer(
        rig.outstanding()[0],
        [rig.entry(rig.outstanding()[0], part, code) for part in rig.outstanding()[0].parts],
    )
    rig.abort()
    rig.answer_call(rig.called(END), PRODUCER_FENCED)
    assert rig.txn is FATAL
    assert rig.calling is None


def test_a_recreated_topic_costs_no_epoch_in_v2_if_nothing_was_numbered_for_it() -> None:
    """Right after the epochs of a producer id are used up, InitProducerId would fence the producer.

    The coordinator does not know the new id before the last end is finished.
    """
    rig = deciding(V2)
    rig.answer_call(rig.called(END), identity=(9000, 0))
    rig.begin()
    rig.hold = (END, INIT)
    rig.transactions.on_topic_recreated("t", numbered=False)
    outcome = rig.commit()
    rig.poll()
    assert outcome.committed
    assert rig.txn is READY
    assert rig.calling is None


@BOTH
@pytest.mark.parametrize("kind", [steps.SendProduce, ADD, ADD_GROUP, COMMIT_OFFSETS])
def test_a_producer_id_that_is_not_known_any_more_is_asked_for_anew(
    version: int, kind: type[Any]
) -> None:
    """INVALID_PRODUCER_ID_MAPPING is abortable, and a new producer id is requested (KIP-360).

    The id expired, or its epochs were used up by a transaction that timed out (KIP-588). If another
    producer has the transactional id, InitProducerId says so.
    """
    if kind in (ADD, ADD_GROUP) and version == V2:
        kind = COMMIT_OFFSETS
    rig = opened(version)
    if kind is steps.SendProduce:
        rig.send()
        rig.fail(rig.outstanding()[0], INVALID_PRODUCER_ID_MAPPING)
    else:
        rig.hold = (kind,)
        rig.send()
        rig.offsets()
        rig.ack_all()
        rig.answer_call(rig.called(kind), INVALID_PRODUCER_ID_MAPPING)
    assert rig.txn is ABORTABLE
    rig.hold = (END, INIT)
    outcome = rig.abort()
    rig.answer_call(rig.called(END), INVALID_PRODUCER_ID_MAPPING)
    assert outcome.committed is False
    assert rig.called(INIT).existing == TransactionalIdentity("x", 4001, 0)
    rig.answer_call(rig.called(INIT))
    a_whole_transaction(rig)


@BOTH
def test_a_commit_of_a_producer_id_that_is_not_known_is_fatal(version: int) -> None:
    rig = deciding(version)
    rig.lose_call()
    rig.tick(2.0)
    rig.answer_call(rig.called(END), INVALID_PRODUCER_ID_MAPPING)
    with pytest.raises(errors.InvalidProducerIdMapping) as raised:
        rig.transactions.check()
    assert raised.value.status is UNKNOWN


def test_a_new_producer_id_is_not_known_before_the_last_end_is_finished() -> None:
    """Calls under a new producer id are repeated until the coordinator knows that id (KIP-890).

    EndTxn names a new id when the epochs are used up, and the coordinator knows it only once the
    markers of that end are written. The producer is not fenced meanwhile.
    """
    rig = deciding(V2)
    rig.answer_call(rig.called(END), identity=(9000, 0))
    rig.begin()
    rig.hold = (COMMIT_OFFSETS, END)
    (record,) = rig.send()
    pending = rig.offsets()
    for _ in range(3):
        rig.answer_call(rig.called(COMMIT_OFFSETS), INVALID_PRODUCER_ID_MAPPING)
        rig.fail(rig.outstanding()[0], INVALID_PRODUCER_ID_MAPPING)
        rig.tick(2.0)
        assert rig.txn is OPEN
    rig.answer_call(rig.called(COMMIT_OFFSETS))
    rig.ack_all()
    assert record.status is ACKED
    assert not pending.left
    rig.abort()
    rig.answer_call(rig.called(END), INVALID_PRODUCER_ID_MAPPING)
    rig.tick(1.0)
    rig.answer_call(rig.called(END))
    assert rig.identity == (9000, 1)
    a_whole_transaction(rig)


def test_an_abort_under_a_new_producer_id_waits_for_the_last_end() -> None:
    """An abort under a new producer id is repeated until the last EndTxn is carried out.

    If the producer sent InitProducerId instead, the coordinator would answer PRODUCER_FENCED until
    then (simulation seed 21329).
    """
    rig = deciding(V2)
    rig.answer_call(rig.called(END), identity=(9000, 0))
    rig.begin().send()
    rig.fail(rig.outstanding()[0], CONCURRENT_TRANSACTIONS)
    rig.hold = (END, INIT)
    rig.abort()
    for _ in range(2):
        rig.answer_call(rig.called(END), INVALID_PRODUCER_ID_MAPPING)
        rig.tick(2.0)
    rig.answer_call(rig.called(END))
    assert rig.identity == (9000, 1)
    a_whole_transaction(rig)


@BOTH
def test_an_abort_after_a_commit_in_doubt_is_not_taken_for_one(version: int) -> None:
    """After a lost commit, INVALID_TXN_STATE for an abort is fatal, and the outcome is UNKNOWN.

    The producer has repeated the commit, and was refused. But the lost EndTxn(commit) may have been
    carried out after that refusal.
    """
    rig = deciding(version)
    rig.lose_call()
    rig.tick(2.0)
    rig.answer_call(rig.called(END), TRANSACTION_ABORTABLE)
    assert rig.txn is ABORTABLE
    with pytest.raises(errors.AbortableTransactionError, match="TransactionAbortable"):
        rig.transactions.check()
    outcome = rig.abort()
    rig.answer_call(rig.called(END), INVALID_TXN_STATE)
    assert outcome.committed is None
    assert rig.txn is FATAL
    assert rig.core.fatal_error is not None
    assert rig.core.fatal_error.status is DeliveryStatus.UNKNOWN


# -- KAFKA-17754 and other late copies


@pytest.mark.parametrize("kind", [ADD, ADD_GROUP, COMMIT_OFFSETS, END])
def test_a_lost_call_of_v1_cannot_reach_the_next_transaction(kind: type[Any]) -> None:
    """A lost call of v1 gives the next transaction a new epoch (KAFKA-17754, KAFKA-12671).

    A request that was written to the connection may be carried out after its retry; InitProducerId
    raises the epoch and so fences the request (KIP-360). A request that was not written needs no
    new epoch.
    """
    for written in (True, False):
        rig = opened(V1)
        rig.hold = (kind,)
        rig.send()
        rig.ack_all()
        if kind is not ADD:
            rig.offsets()
        outcome = rig.commit()
        rig.lose_call(written=written)
        rig.hold = (INIT,)
        rig.tick(2.0)
        rig.ack_all()
        rig.tick(2.0)
        assert outcome.committed is True
        assert bool(rig.held) is written
        if not written:
            assert rig.identity == (4001, 0)
            continue
        with pytest.raises(errors.IllegalStateError):
            rig.begin()  # not before the new epoch is here
        assert rig.called(INIT).existing == TransactionalIdentity("x", 4001, 0)
        rig.answer_call(rig.called(INIT))
        assert rig.identity == (4001, 1)
        a_whole_transaction(rig)


@pytest.mark.parametrize("kind", [COMMIT_OFFSETS, END])
def test_a_lost_call_of_v2_needs_no_more_than_the_end(kind: type[Any]) -> None:
    """In transactions v2 no InitProducerId is sent between a lost call and the next transaction.

    EndTxn gives the producer a new epoch, which fences any late copy of the lost call
    (KAFKA-17754).
    """
    rig = opened(V2, 1)
    rig.hold = (kind,)
    rig.offsets()
    outcome = rig.commit()
    rig.lose_call()
    rig.hold = (INIT,)
    rig.tick(2.0)
    assert outcome.committed is True
    assert not rig.held
    assert rig.identity == (4001, 1)


@BOTH
@pytest.mark.parametrize("ended_by", ["event", "time"])
def test_what_an_abort_left_in_doubt_cannot_reach_the_next_transaction(
    version: int, ended_by: str
) -> None:
    """A batch that an abort left in doubt cannot reach the next transaction, which has a new epoch.

    Under the old epoch a late copy would join that transaction although its record is NOT_WRITTEN.
    The sequence numbers of the batch are given up, so under the old epoch the leader would refuse
    the records of the next transaction until their deadline.
    """
    rig = opened(version, 1, brokers=2, coordinator=2)
    (record,) = rig.send()
    if ended_by == "event":
        rig.lose()
    outcome = rig.abort()
    if ended_by == "time":
        rig.tick(rig.config.request_timeout + 1.0)  # the abort was waiting for the answer
    rig.tick(3.0)
    assert outcome.committed is False
    assert record.status is NOT_WRITTEN
    assert isinstance(record.error, errors.TransactionAborted)
    assert rig.identity == (4001, 1)
    rig.begin()
    rig.send()
    rig.tick(1.0)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    assert rig.commit().committed is True


# -- failures inside a transaction


@BOTH
def test_an_abort_with_unsent_records_is_no_error(version: int) -> None:
    """An abort with unsent records is no error, and these records end NOT_WRITTEN (KIP-654)."""
    rig = opened(version, linger=60.0)
    records = rig.send(3, size=10)
    rig.leaders["later", 0] = (-1, 0)
    records += rig.send(topic="later")
    records += rig.send(topic="nowhere")
    assert rig.abort().committed is False
    assert {record.status for record in records} == {NOT_WRITTEN}
    assert all(isinstance(record.error, errors.TransactionAborted) for record in records)
    a_whole_transaction(rig)


@BOTH
def test_a_failed_record_settles_the_rest_at_once(version: int) -> None:
    """After a refused record no other record of the transaction waits for a retry.

    Batches in flight may still be answered; a record in doubt ends UNKNOWN.
    """
    rig = opened(version, 1, partitions=2)
    lost, queued = rig.send(2, partition=1)[:1], rig.send(20, partition=1)
    rig.lose()
    rig.tick(0.01)
    (bad,) = rig.send(partition=0)
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    for request in rig.outstanding():
        if request.only.partition == 0:
            rig.fail(request, ErrorCode.invalid_record)
    assert bad.status is NOT_WRITTEN
    assert rig.txn is ABORTABLE
    for request in rig.outstanding():
        rig.fail(request, NOT_ENOUGH_REPLICAS)
    assert lost[0].status is UNKNOWN
    assert {record.status for record in queued} <= {NOT_WRITTEN, UNKNOWN}
    assert isinstance(queued[-1].error, errors.AbortableTransactionError)
    rig.abort()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
def test_after_a_failed_batch_the_next_transaction_has_another_epoch(version: int) -> None:
    """After a failed batch the next transaction has another epoch (KIP-360).

    The failed batch leaves a gap in the sequence numbers. In v1 InitProducerId is repeated until it
    succeeds, and its answer names the epoch.
    """
    rig = opened(version, 1)
    rig.send()
    rig.fail(rig.outstanding()[0], ErrorCode.invalid_record)
    rig.hold = (INIT,)
    outcome = rig.abort()
    assert outcome.committed is False
    if version == V1:
        for trouble in (CONCURRENT_TRANSACTIONS, LOADING, NOT_COORDINATOR, None):
            call = rig.called(INIT)
            assert call.existing == TransactionalIdentity("x", 4001, 0)
            if trouble is None:
                rig.lose_call()
            else:
                rig.answer_call(call, trouble)
            rig.tick(2.0)
        rig.answer_call(rig.called(INIT))
    assert not rig.held
    assert rig.identity == (4001, 1)
    a_whole_transaction(rig)


def test_a_success_without_an_identity_is_asked_for_again() -> None:
    rig = starting(V1, INIT)
    call = rig.called(INIT)
    rig.forget_call(call.link_id)
    rig.core.on_answer(call, ProducerIdAnswer(0, -1, -1), rig.now)
    rig.tick(2.0)
    rig.answer_call(rig.called(INIT))
    a_whole_transaction(rig)


def test_an_end_of_v2_without_an_identity_is_followed_by_asking_for_one() -> None:
    rig = deciding(V2)
    rig.hold = (END, INIT)
    rig.answer_call(rig.called(END), identity=(-1, -1))
    assert rig.transactions.outcome.committed is True
    assert rig.called(INIT).existing == TransactionalIdentity("x", 4001, 0)
    rig.answer_call(rig.called(INIT))
    a_whole_transaction(rig)


def test_the_end_of_v2_names_another_producer_id_when_its_epochs_are_used_up() -> None:
    """The answer to EndTxn names another producer id when the epochs are used up (v2, KIP-890).

    Here the first answer is lost, and the answer to the repeated EndTxn names the new id.
    """
    rig = deciding(V2)
    who = rig.called(END).who
    rig.lose_call()
    rig.tick(2.0)
    assert rig.called(END).who == who
    rig.answer_call(rig.called(END), identity=(9000, 0))
    assert rig.identity == (9000, 0)
    rig.begin().send()
    assert (rig.outstanding()[0].only.identity, rig.sequences) == ((9000, 0), [0])


@BOTH
def test_a_topic_made_anew_takes_the_transaction_with_it(version: int) -> None:
    """A recreated topic makes a transaction abortable if the transaction has written to it."""
    rig = opened(version, 1)
    rig.leaders["other", 0] = (1, 0)
    rig.core.accumulator.topic("other")
    rig.refresh()
    rig.ids["other"] = topic_id("other", 1)
    rig.refresh()
    assert rig.txn is OPEN
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    assert rig.txn is ABORTABLE
    rig.abort()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
def test_a_topic_made_anew_dooms_a_transaction_in_the_epoch_of_an_earlier_one(version: int) -> None:
    """A transaction before may have written to the new topic, by its name, at sequence 0.

    Records of the open transaction would begin at sequence 0 of the same epoch again, and be taken
    for copies of those. With transactions v2 each transaction has its own epoch.
    """
    rig = opened(version, 1)
    assert rig.commit().committed
    before = rig.begin().identity
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    if version == V2:
        assert rig.txn is OPEN
    else:
        assert rig.txn is ABORTABLE
        rig.abort()
        rig.tick(1.0)
        assert rig.begin().identity > before
    rig.send()
    assert rig.sequences == [0]


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_a_topic_made_anew_between_transactions_gives_the_next_one_another_epoch(
    version: int, committed: bool
) -> None:
    """The last transaction may have written to the new topic, by its name, at sequence 0."""
    rig = opened(version, 1)
    before = rig.identity
    ended = rig.commit() if committed else rig.abort()
    assert ended.committed is committed
    rig.hold = (INIT,)
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    if version == V1:
        assert rig.txn is TransactionState.RENEWING
        assert rig.called(INIT).existing.producer_epoch == before[1]
        rig.answer_call(rig.called(INIT))
    else:
        assert rig.held == []
    assert rig.txn is READY
    assert rig.begin().identity > before
    rig.send()
    assert rig.sequences == [0]
    rig.ack_all()
    assert rig.commit().committed


def test_a_topic_made_anew_that_the_epoch_did_not_write_to_costs_no_request() -> None:
    rig = opened(V1)
    assert rig.commit().committed
    before = rig.identity
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    assert rig.txn is READY
    assert rig.identity == before


@BOTH
def test_lost_data_is_not_committed_in_part(version: int) -> None:
    """A second batch acknowledged at the same offset makes the transaction abortable.

    The first batch may be gone: after an unclean election a new leader assigns its offset again.
    """
    rig = opened(version)
    rig.send()
    rig.ack(rig.outstanding()[0], 10)
    rig.send()
    rig.ack(rig.outstanding()[0], 10)
    assert rig.core.counters.data_loss_events == 1
    assert rig.txn is ABORTABLE
    rig.abort()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
@pytest.mark.parametrize(
    "code",
    [
        TRANSACTION_ABORTABLE,
        INVALID_TXN_STATE,
        ErrorCode.invalid_record,
        ErrorCode.topic_authorization_failed,
    ],
)
def test_a_refused_batch_makes_the_transaction_abortable(version: int, code: int) -> None:
    rig = opened(version, 1)
    (record,) = rig.send()
    rig.fail(rig.outstanding()[0], code)
    assert (rig.txn, record.status) == (ABORTABLE, NOT_WRITTEN)
    rig.abort()
    rig.tick(1.0)
    a_whole_transaction(rig)


@BOTH
@pytest.mark.parametrize("code", [CONCURRENT_TRANSACTIONS, LOADING, NOT_COORDINATOR])
def test_a_leader_that_cannot_ask_the_coordinator_is_asked_again(version: int, code: int) -> None:
    """A batch is resent if its leader could not ask the transaction coordinator (KIP-890).

    The leader asks the coordinator before it appends, so the batch is not in doubt.
    """
    rig = opened(version)
    (record,) = rig.send()
    rig.fail(rig.outstanding()[0], code)
    assert rig.txn is OPEN
    rig.tick(1.0)
    rig.ack_all()
    assert record.status is ACKED
    assert rig.commit().committed is True


# -- the gate


def test_there_is_no_first_ack_gate_in_v2() -> None:
    """v2 has no first-ack gate (one batch in flight until an ack): five are sent at once.

    A leader without the producer's state refuses a first sequence other than 0 in v2, so a gate
    would only cost each transaction a round trip.
    """
    rig = transactional(V2)
    for epoch in range(3):
        rig.begin().send(5)
        assert rig.sequences == [0, 1, 2, 3, 4]
        assert {request.epoch for request in rig.outstanding()} == {epoch}
        rig.ack_all()
        assert rig.commit().committed is True


def test_there_is_one_in_each_transaction_of_v1() -> None:
    """Each transaction of v1 has a first-ack gate: one batch is in flight until the first ack.

    The epoch stays the same in v1, and the leader may have lost the producer's state since the last
    transaction.
    """
    rig = transactional(V1)
    for first in (0, 5, 10):
        rig.begin().send(5)
        assert rig.sequences == [first]
        rig.ack(rig.outstanding()[0])
        assert rig.sequences == [first + each for each in (1, 2, 3, 4)]
        rig.ack_all()
        assert rig.commit().committed is True


def test_in_v1_nothing_is_sent_above_a_batch_before_the_leader_was_heard() -> None:
    """In v1 the oldest batch is sent and resent alone until the leader has acknowledged it.

    So no batch can be acknowledged above (with a later sequence than) a batch in doubt.
    """
    rig = opened(V1)
    first, second = rig.send(2)
    assert rig.sequences == [0]
    rig.lose()
    rig.tick(1.0)
    assert rig.sequences == [0]
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    rig.tick(1.0)
    assert rig.sequences == [0]
    assert (first.status, second.status) == (PENDING, PENDING)
    rig.ack(rig.outstanding()[0])
    assert first.status is ACKED
    assert rig.sequences == [1]
    rig.ack_all()
    assert rig.commit().committed is True


def test_in_v2_a_success_proves_nothing_below_it_before_the_leader_was_heard() -> None:
    """In v2 the first batch that a leader acknowledges proves nothing about earlier batches.

    Brokers of Kafka 4.0 have transactions v2 and yet accept any first sequence (KAFKA-18202). An
    earlier batch that was in doubt and then refused may be missing from the log.
    """
    rig = opened(V2)
    first, second = rig.send(2)
    rig.lose()
    rig.tick(1.0)
    assert rig.sequences == [0, 1]
    refused, accepted = rig.outstanding()
    rig.fail(refused, NOT_ENOUGH_REPLICAS)
    rig.ack(accepted, 0)
    assert (first.status, second.status) == (PENDING, ACKED)
    rig.hold = (END,)
    rig.commit()
    rig.tick(1.0)
    assert not rig.held
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.txn is ABORTABLE
    assert first.status is UNKNOWN


@BOTH
def test_in_a_pipeline_that_was_heard_a_success_proves_what_is_below_it(version: int) -> None:
    rig = opened(version, 1)
    first, second = rig.send(2)
    refused, accepted = rig.outstanding()
    rig.fail(refused, REQUEST_TIMED_OUT, poll=False)
    rig.ack(accepted)
    assert (first.status, second.status) == (ACKED, ACKED)
    assert rig.commit().committed is True


# -- initialising the producer


@BOTH
def test_a_transactional_id_that_is_not_ours_is_an_error_and_may_be_tried_again(
    version: int,
) -> None:
    for kind in (FIND, INIT):
        rig = starting(version, kind)
        rig.answer_call(rig.called(kind), TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        assert rig.txn is TransactionState.UNINITIALISED
        assert isinstance(rig.core.identity_error, errors.TransactionalIdAuthorizationFailed)
        before = len(rig.asked)
        rig.tick(60.0)
        assert not calls(rig, before)
        rig.hold = ()
        rig.transactions.init()
        rig.core.coordination.init()
        rig.tick(1.0)
        a_whole_transaction(rig)


@BOTH
def test_an_api_that_the_broker_does_not_offer_is_an_error(version: int) -> None:
    rig = starting(version, INIT)
    call = rig.called(INIT)
    rig.forget_call(call.link_id)
    error = errors.IncompatibleBrokerVersion("no")
    rig.core.on_unsupported(call, error, rig.now)
    assert rig.core.identity_error is error
    rig = deciding(version)
    call = rig.called(END)
    rig.forget_call(call.link_id)
    rig.core.on_unsupported(call, error, rig.now)
    with pytest.raises(errors.IncompatibleBrokerVersion) as raised:
        rig.transactions.check()
    assert raised.value.status is NOT_WRITTEN


@BOTH
def test_a_late_answer_of_a_closed_connection_is_ignored(version: int) -> None:
    rig = deciding(version)
    call = rig.called(END)
    rig.lose_call()
    rig.core.on_answer(call, EndTxnAnswer(NONE, 9, 9), rig.now)
    assert (rig.txn, rig.transactions.outcome.committed) == (DECIDING, None)
    assert rig.identity == (4001, 0)


@BOTH
def test_a_coordinator_that_never_answers_is_given_up_and_asked_again(version: int) -> None:
    rig = deciding(version, brokers=2, coordinator=2)
    for _ in range(3):
        call = rig.called(END)
        rig.tick(rig.config.request_timeout + 5.0)
        assert rig.links[call.link_id].closed
        assert rig.called(END) is not call
    rig.answer_call(rig.called(END))
    assert rig.transactions.outcome.committed is True


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.transactional_id_authorization_failed, "Grant this client's principal WRITE"),
        (ErrorCode.invalid_transaction_timeout, "transaction.max.timeout.ms"),
        (ErrorCode.unknown_server_error, "The log of that broker"),
    ],
)
def test_a_refusal_names_the_broker_and_what_to_do(code: ErrorCode, advice: str) -> None:
    error = coordinator_error(code, "EndTxn of transactional id 'payments'", 2)
    assert "EndTxn of transactional id 'payments', refused by broker 2. " in str(error)
    assert advice in str(error)


# -- another transactional id


@BOTH
def test_another_transactional_id_is_taken_as_by_a_new_producer(version: int) -> None:
    """InitProducerId has the other id and no identity; what follows is under the other id only."""
    rig = opened(version, 2)
    rig.offsets()
    assert rig.commit().committed is True
    before = len(rig.asked)
    rig.change_id("y")
    assert calls(rig, before) == ["FindCoordinator", "InitTransactions"]
    (find,) = [step for step in rig.asked[before:] if isinstance(step, FIND)]
    (init,) = [step for step in rig.asked[before:] if isinstance(step, INIT)]
    assert (find.key, init.transactional_id, init.existing) == ("y", "y", None)
    assert rig.identity == (4002, 0)
    rig.begin()
    rig.hold = (END,)
    rig.send()
    (request,) = rig.outstanding()
    assert (request.step.transactional_id, request.epoch, request.sequence) == ("y", 0, 0)
    rig.ack_all()
    rig.offsets()
    rig.commit()
    assert rig.called(END).who == TransactionalIdentity("y", 4002, 0)
    assert [step.key for step in rig.asked[before:] if isinstance(step, FIND)] == ["y", "g"]
    (sent,) = [step for step in rig.asked[before:] if isinstance(step, COMMIT_OFFSETS)]
    assert sent.who == TransactionalIdentity("y", 4002, 0)
    rig.answer_call(rig.called(END))
    a_whole_transaction(rig)


@BOTH
def test_the_transactional_id_is_not_changed_before_the_transaction_is_over(version: int) -> None:
    """A producer that owes its transactional id something keeps it, and its transaction goes on."""
    rigs = [starting(version, hold=INIT), opened(version, 1), deciding(version), opened(version)]
    rigs[3].transactions.fail(errors.KafkaError("failed"))
    for rig in rigs:
        state = rig.txn
        assert not rig.transactions.may_change_id
        with pytest.raises(
            (errors.IllegalStateError, errors.AbortableTransactionError),
            match=r"is being requested|transaction (is|can only)",
        ):
            rig.change_id("y")
        assert (rig.txn, rig.transactions.transactional_id) == (state, "x")
        rig.answer_call(rig.called(rig.hold[0])) if rig.hold else None
    assert rigs[2].transactions.may_change_id


@BOTH
def test_the_transactional_id_is_not_changed_while_an_epoch_is_due(version: int) -> None:
    """A producer that is to request another epoch of its transactional id keeps that id."""
    rig = opened(version, 1)
    rig.commit()
    rig.transactions.renew()
    assert not rig.transactions.may_change_id
    with pytest.raises(errors.IllegalStateError, match="an epoch is due"):
        rig.change_id("y")
    assert rig.identity == (4001, 0 if version == V1 else 1)


@BOTH
def test_a_refused_change_of_the_transactional_id_can_be_repeated(version: int) -> None:
    """A producer that is refused the other id has no identity, and may ask for it again."""
    rig = opened(version, 1)
    rig.commit()
    rig.hold = (INIT,)
    rig.change_id("y")
    held = rig.called(INIT)
    assert held.existing is None
    rig.answer_call(held, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert rig.txn is TransactionState.UNINITIALISED
    assert isinstance(rig.transactions.cause, errors.TransactionalIdAuthorizationFailed)
    with pytest.raises(errors.IllegalStateError):
        rig.begin()
    rig.hold = ()
    rig.core.coordination.init()
    rig.poll()
    assert rig.txn is READY
    a_whole_transaction(rig)


@BOTH
def test_a_coordinator_that_was_told_is_not_asked_for(version: int) -> None:
    """Offsets go to the broker that was named; if that is not the coordinator, it is sought."""
    rig = opened(version)
    rig.core.coordination.learn_coordinator("g", rig.brokers[rig.coordinator])
    before = len(rig.asked)
    assert not rig.offsets(7).left
    assert "FindCoordinator" not in calls(rig, before)
    rig.hold = (COMMIT_OFFSETS,)
    pending = rig.offsets(8)
    rig.hold = ()
    rig.answer_call(rig.called(COMMIT_OFFSETS), NOT_COORDINATOR)
    wait_until(rig, lambda: not pending.left, 5.0)
    assert calls(rig, before).count("FindCoordinator") == 1
    assert rig.commit().committed is True
    a_whole_transaction(rig)


def test_a_coordinator_that_metadata_does_not_name_is_reached_at_the_address_told() -> None:
    """A coordinator that was told need not be a broker that Metadata has named."""
    rig = opened(V2)
    rig.core.coordination.learn_coordinator("g", BrokerAddress(9, "b9", 9092))
    before = len(rig.asked)
    rig.hold = (COMMIT_OFFSETS,)
    rig.offsets(7)
    assert "FindCoordinator" not in calls(rig, before)
    assert rig.links[rig.called(COMMIT_OFFSETS).link_id].host == "b9"


def test_a_refusal_under_the_former_id_is_not_told_of_the_other_one() -> None:
    """Who waits in vain for the other id hears of no refusal that came before."""
    rig = opened(V2)
    rig.hold = (FIND,)
    rig.offsets()
    rig.answer_call(rig.called(FIND), GROUP_AUTHORIZATION_FAILED)
    rig.abort()
    assert rig.txn is READY
    assert rig.transactions.last_refusal is not None
    rig.hold = (INIT, FIND)
    rig.change_id("y")
    assert rig.transactions.last_refusal is None
