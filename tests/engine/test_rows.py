"""Rows of the engine's tables that hardly any seed takes, and the proof that every row is taken.

The engine's life cycles are tables of transitions, and the error codes of answers are rows of two
more tables. The corpus of seeds (`tests.simulated.corpus`) takes most of the rows. Each of the
others is taken here, by answers that a broker can give. A row that nothing takes is one that
nobody has seen to be right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.batch import BatchState
from aioidem._engine.classify import _TABLE as PRODUCE_CODES
from aioidem._engine.classify import Action
from aioidem._engine.coordinator import _BY_KIND, _COMMON, CallKind, Verdict
from aioidem._engine.recovery import Rung
from aioidem._engine.transactions import TransactionState
from tests.simulated.corpus import rows_of_corpus
from tests.simulated.rows import Rows, all_rows

from .driver import (
    ACKED,
    INVALID_RECORD,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    Rig,
    T,
    pipelined,
    refuse_until,
    refuse_until_bumped,
    topic_id,
    wait_until,
)
from .test_kip_854 import HOUR, dated

TAKEN_HERE: set[str] = set()
BY_COORDINATORS = [(CallKind.ADD_PARTITIONS, code) for code in _COMMON] + list(_BY_KIND)


def takes(*rows: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Say which rows a test takes; the test fails if it does not take one of them."""
    TAKEN_HERE.update(rows)

    def decorated(test: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def counted() -> None:
            found = Rows()
            with found.counted():
                test()
            assert set(rows) <= found.taken.keys()

        return counted

    return decorated


def row_of(kind: CallKind, code: int) -> str:
    own = f"{kind.value} " if (kind, code) in _BY_KIND else ""
    return f"coordinator code: {own}{ErrorCode(code).name}"


def test_every_row_of_every_table_is_taken() -> None:
    here = TAKEN_HERE | {f"produce code: {ErrorCode(code).name}" for code in PRODUCE_CODES}
    here |= {row_of(kind, code) for kind, code in BY_COORDINATORS}
    every = {f"{table}: {row}" for table, rows in all_rows().items() for row in rows}
    assert every - here - rows_of_corpus().keys() == set()
    assert here | rows_of_corpus().keys() <= every


# -- the ladder, and what is known of a batch


@takes("ladder: asking + resolved")
def test_batches_that_end_while_the_leader_is_asked_are_not_probed() -> None:
    """What DescribeProducers would say is of no use once the batches in doubt have ended UNKNOWN.

    The leader refuses for now until the batches' deadline, and then answers OUT_OF_ORDER. So they
    have only the grace time of a batch in doubt left, which ends before DescribeProducers must be
    answered.
    """
    rig, _ = pipelined(2, delivery_timeout=60.0, request_timeout=10.0)
    began = rig.now
    rig.lose()
    refuse_until(rig, lambda: rig.now > began + 62.0, NOT_LEADER, seconds=70.0)
    rig.hold = (steps.AskProducers,)
    wait_until(rig, lambda: bool(rig.outstanding()))
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: UNKNOWN in rig.statuses)
    assert rig.statuses == [ACKED, UNKNOWN, UNKNOWN]
    assert rig.state().recovery.rung is Rung.ASKING
    rig.send()
    assert rig.state().recovery.rung is Rung.CLEAR
    assert [request.epoch for request in rig.outstanding()] == [1]
    rig.ack_all()
    rig.assert_drained()


@takes("ladder: asking + restart")
def test_a_leader_that_is_deposed_while_it_is_asked_is_left_for_the_next_one() -> None:
    rig, _ = pipelined(2, brokers=2)
    rig.lose()
    rig.tick(2.0)
    rig.hold = (steps.AskProducers,)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.ASKING
    rig.move_leader(2, 1)
    assert rig.state().recovery.rung is Rung.CLEAR
    assert rig.sequences == [1]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    rig.assert_drained()


@takes("ladder: clear + state lost", "ladder: salvage + state lost")
def test_a_leader_may_be_seen_to_have_lost_its_state_twice() -> None:
    """A batch is accepted after a refused one twice: the second time proves no more than the first.

    b1 is in doubt. b2 and b4 are refused for now, and yet b3 and b5 are appended.
    """
    rig, (first, second, third, fourth, fifth) = pipelined(5)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, NOT_LEADER, poll=False)
    rig.ack(third, 9, poll=False)
    assert rig.state().recovery.rung is Rung.SALVAGE
    rig.fail(fourth, NOT_LEADER, poll=False)
    rig.ack(fifth, 10, poll=False)
    rig.tick(2.0)
    assert rig.sequences == [1], "the batch in doubt is resent by itself"
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses == [ACKED, UNKNOWN, NOT_WRITTEN, ACKED, NOT_WRITTEN, ACKED]
    rig.send()
    rig.ack_all()
    rig.assert_drained()


@takes("ladder: refused + restart")
def test_a_leader_that_may_have_forgotten_the_producer_meanwhile_is_not_probed() -> None:
    """Records grow old between a refusal and the probes that would follow it (KIP-854)."""
    rig, _ = dated(2, age=0.0)
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER, poll=False)
    assert rig.state().recovery.rung is Rung.REFUSED
    rig.core.age = 13 * HOUR
    rig.poll()
    assert rig.state().recovery.rung is Rung.CLEAR
    assert not rig.outstanding()
    assert rig.held, "the log is read instead"


@takes("ladder: probing + state lost")
def test_a_probe_that_succeeds_after_an_unknown_code_proves_no_earlier_batch() -> None:
    rig, _ = pipelined(3)
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    third, second, first = rig.outstanding()
    assert rig.state().recovery.rung is Rung.PROBING
    rig.fail(third, 999)
    rig.ack(second)
    assert rig.state().recovery.rung is Rung.SALVAGE
    rig.fail(first, OUT_OF_ORDER)
    rig.settle_down()
    assert rig.statuses == [ACKED, UNKNOWN, ACKED, UNKNOWN]
    rig.assert_drained()


@takes("persistence: in doubt + forsaken", "batch: sealed + give up")
def test_a_batch_that_is_sealed_again_may_still_be_in_the_log() -> None:
    """With in_doubt="resend" a batch gets another epoch, and expires before it is sent in it."""
    rig, requests = pipelined(3, in_doubt="resend", delivery_timeout=60.0, request_timeout=5.0)
    rig.lose()
    refuse_until_bumped(rig)
    rig.down = {1}
    rig.lose(unwritten=rig.outstanding())
    rig.tick(70.0)
    assert rig.statuses[1:] == [UNKNOWN] * len(requests)
    rig.assert_drained()


@takes("persistence: rejected + unsent")
def test_a_refused_batch_whose_resend_is_not_written_is_not_in_doubt() -> None:
    rig, (only,) = pipelined(1)
    rig.fail(only, NOT_LEADER)
    rig.tick(1.0)
    rig.down = {1}
    rig.lose(unwritten=rig.outstanding())
    rig.tick(130.0)
    assert rig.statuses == [ACKED, NOT_WRITTEN]
    rig.assert_drained()


@takes("persistence: in doubt + unsent")
def test_a_batch_in_doubt_whose_resend_is_not_written_stays_in_doubt() -> None:
    rig, _ = pipelined(1)
    rig.lose()
    rig.tick(1.0)
    rig.down = {1}
    rig.lose(unwritten=rig.outstanding())
    rig.tick(200.0)
    assert rig.statuses == [ACKED, UNKNOWN]
    rig.assert_drained()


def sealed_again() -> Rig:
    """Make a rig whose second batch got another epoch, and has no connection to be sent on.

    The first batch was refused for good, and of the second no byte was written.
    """
    rig, (first, second) = pipelined(2, brokers=2)
    rig.fail(first, INVALID_RECORD, poll=False)
    rig.down = {1}
    rig.lose(unwritten=[second])
    (batch,) = rig.state().batches.unresolved
    assert batch.state is BatchState.SEALED
    assert batch.wire_base == 0
    return rig


@takes("batch: sealed + reject")
def test_a_batch_that_is_sealed_again_and_expires_was_not_written() -> None:
    rig = sealed_again()
    rig.tick(130.0)
    assert rig.statuses == [ACKED, NOT_WRITTEN, NOT_WRITTEN]
    rig.assert_drained()


@takes("batch: sealed + split")
def test_a_batch_that_is_sealed_again_is_written_to_the_recreated_topic() -> None:
    rig = sealed_again()
    rig.ids[T] = topic_id(T, 1)
    rig.leaders[T, 0] = (2, 0)
    rig.refresh()
    rig.ack_all()
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED]
    rig.assert_drained()


# -- discovery


@takes("discovery: being asked + not named")
def test_a_broker_with_v14_and_without_the_config_gets_v13() -> None:
    rig = Rig(version=14)
    rig.names_config = False
    rig.start().send()
    assert rig.outstanding()[0].version == 13


@takes("discovery: being asked again + not named")
def test_a_broker_that_names_no_config_when_asked_again_is_not_asked_a_third_time() -> None:
    """The permission is granted, and the answer then shows that the topic lacks the config."""
    rig = Rig(version=14)
    rig.config_error = TOPIC_AUTHORIZATION_FAILED
    rig.names_config = False
    rig.start().send()
    rig.config_error = ErrorCode.none
    for _ in range(60):
        rig.ack_all()
        rig.tick(1.0)
        rig.send()
        assert rig.outstanding()[0].version == 13
    assert sum(isinstance(step, steps.DescribeTopicConfig) for step in rig.asked) == 2


# -- transactions


def refused(rig: Rig) -> None:
    """Refuse the password on each connection, until the producer ends."""
    rig.hold = (steps.OpenLink,)
    for end in [end for end in rig.links.values() if not end.closed]:
        rig.lose(end, poll=False)
    rig.poll()
    for _ in range(20):
        if rig.core.fatal_error is not None:
            return
        rig.tick(2.0)
        for step in [step for step in rig.held if isinstance(step, steps.OpenLink)]:
            rig.held.remove(step)
            error = errors.AuthenticationFailedError("the password is wrong")
            rig.core.on_link_lost(step.link_id, error, rig.now)


def has_ended(rig: Rig) -> bool:
    return rig.txn is TransactionState.FATAL


def transactional(**options: Any) -> Rig:
    return Rig(
        transactional_id="x",
        transaction_version=2,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="user",
        sasl_password="password",
        **options,
    )


@takes("transaction: initialising + die")
def test_a_wrong_password_ends_a_producer_that_has_no_identity_yet() -> None:
    rig = transactional()
    rig.core.accumulator.topic(T)
    rig.hold = (steps.OpenLink,)
    assert rig.txn is TransactionState.INITIALISING
    refused(rig)
    assert has_ended(rig)
    with pytest.raises(errors.AuthenticationFailedError):
        rig.transactions.check()


@takes("transaction: uninitialised + die")
def test_a_password_that_is_refused_later_ends_a_producer_that_was_refused_its_identity() -> None:
    rig = transactional()
    rig.hold = (steps.InitTransactions,)
    rig.start()
    rig.answer_call(rig.calling, ErrorCode.transactional_id_authorization_failed)
    assert rig.txn is TransactionState.UNINITIALISED
    refused(rig)
    assert has_ended(rig)


@takes("transaction: ready + die")
def test_another_cluster_ends_a_producer_between_two_transactions() -> None:
    rig = transactional().start()
    rig.begin().send()
    rig.ack_all()
    rig.commit()
    assert rig.txn is TransactionState.READY
    rig.cluster_id = "another"
    rig.ids[T] = topic_id(T, 7)
    for end in [end for end in rig.links.values() if end.open and not end.closed]:
        rig.lose(end, poll=False)
    wait_until(rig, lambda: has_ended(rig))
    with pytest.raises(errors.ClusterChangedError):
        rig.transactions.check()


@takes("transaction: ready + change id")
def test_a_producer_takes_another_transactional_id_between_two_transactions() -> None:
    rig = transactional().start()
    before = rig.identity
    rig.change_id("y")
    rig.tick(1.0)
    assert rig.txn is TransactionState.READY
    assert rig.identity[0] != before[0]


# -- error codes

ENDS = {Action.SPLIT: NOT_WRITTEN, Action.FAIL: NOT_WRITTEN, Action.FATAL: NOT_WRITTEN}


@pytest.mark.parametrize("code", PRODUCE_CODES, ids=lambda code: ErrorCode(code).name)
def test_a_leader_that_gives_a_code_once(code: int) -> None:
    """A record that was refused once is sent again, or ends NOT_WRITTEN where that is of no use."""
    found = Rows()
    with found.counted():
        rig, (only,) = pipelined(1)
        rig.fail(only, code)
        rig.settle_down()
    assert rig.statuses == [ACKED, ENDS.get(PRODUCE_CODES[code].action, ACKED)]
    assert f"produce code: {ErrorCode(code).name}" in found.taken
    rig.assert_drained()


def asked(kind: CallKind, code: int) -> Rig:
    """Make a producer that waits for a coordinator's answer to a call of this kind."""
    version = 0 if kind in (CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS) else 2
    rig = Rig(transactional_id="x", transaction_version=version)
    first = kind is CallKind.INIT or code == ErrorCode.transactional_id_authorization_failed
    if kind in (CallKind.FIND, CallKind.INIT) and first:
        rig.hold = (STEPS[kind],)
        return rig.start()
    rig.start().begin()
    rig.hold = (STEPS[kind],)
    match kind:
        case CallKind.ADD_PARTITIONS:
            rig.send()
        case CallKind.END:
            rig.send()
            rig.ack_all()
            rig.commit()
        case _:
            rig.offsets()
    return rig


STEPS: dict[CallKind, type[Any]] = {
    CallKind.FIND: steps.FindCoordinator,
    CallKind.INIT: steps.InitTransactions,
    CallKind.ADD_PARTITIONS: steps.AddPartitions,
    CallKind.ADD_OFFSETS: steps.AddOffsets,
    CallKind.COMMIT_OFFSETS: steps.CommitOffsets,
    CallKind.END: steps.EndTransaction,
}
LEADS_TO = {
    Verdict.REFUSED: TransactionState.UNINITIALISED,
    Verdict.ABORTABLE: TransactionState.ABORTABLE,
    Verdict.WRONG_STATE: TransactionState.ABORTABLE,
    Verdict.FATAL: TransactionState.FATAL,
}


@pytest.mark.parametrize(
    ("kind", "code"), BY_COORDINATORS, ids=lambda v: getattr(v, "value", None) or str(v)
)
def test_a_coordinator_that_gives_a_code_once(kind: CallKind, code: int) -> None:
    """A call is made again if its code permits it, else the transaction's state says what follows.

    The codes that are the same for all calls are given to AddPartitionsToTxn.
    """
    verdict = _BY_KIND.get((kind, code)) or _COMMON[code]
    found = Rows()
    with found.counted():
        rig = asked(kind, code)
        before = rig.txn
        call = rig.called(STEPS[kind])
        rig.answer_call(call, code)
        rig.tick(2.0)
    assert row_of(kind, code) in found.taken
    if verdict in (Verdict.RETRY, Verdict.MOVED):
        assert rig.called(STEPS[kind]) is not call
        assert rig.txn is before
    else:
        assert rig.txn is LEADS_TO[verdict]
