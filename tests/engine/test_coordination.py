"""`Coordination`: how calls to coordinators are sent, and what their answers change at once."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.find_coordinator import CoordinatorAnswer

from .driver import LOADING, NOT_WRITTEN, PENDING, Rig

V1, V2 = 0, 2
FIND, INIT, END = steps.FindCoordinator, steps.InitTransactions, steps.EndTransaction
ADD, ADD_GROUP, COMMIT_OFFSETS = steps.AddPartitions, steps.AddOffsets, steps.CommitOffsets
DENIED = ErrorCode.topic_authorization_failed


def waiting(kind: type[Any], version: int = V1, **options: Any) -> tuple[Rig, Any]:
    """Bring a producer to where a call waits, behind a record that was acknowledged."""
    rig = Rig(transaction_version=version, transactional_id="x", **options)
    rig.hold = (kind,)
    rig.start()
    if kind not in (FIND, INIT):
        rig.begin().send()
        rig.ack_all()
    if kind in (ADD_GROUP, COMMIT_OFFSETS):
        rig.offsets()
    elif kind is END:
        rig.commit()
    return rig, rig.called(kind)


@pytest.mark.parametrize("kind", [FIND, INIT, ADD, ADD_GROUP, COMMIT_OFFSETS, END])
def test_a_throttle_in_a_coordinator_s_answer_holds_its_connection(kind: type[Any]) -> None:
    """The client waits as long as the answer says (KIP-219)."""
    rig, call = waiting(kind)
    link = rig.core.connections.links[call.link_id]
    rig.answer_call(call, throttle_ms=2500, poll=False)
    assert link.throttled_until == rig.now + 2.5
    assert not link.admits(rig.now + 2.4)


@pytest.mark.parametrize(("seconds", "ms"), [(60.0, 60_000), (12.345, 12_345), (1.0, 1000)])
def test_the_timeout_of_transactions_is_told_in_milliseconds(seconds: float, ms: int) -> None:
    _, call = waiting(INIT, transaction_timeout=seconds, delivery_timeout=1.0, request_timeout=0.5)
    assert call.timeout_ms == ms


def test_a_refused_producer_may_ask_again_and_is_not_told_of_the_first_refusal() -> None:
    rig, call = waiting(INIT)
    rig.answer_call(call, ErrorCode.transactional_id_authorization_failed, poll=False)
    assert isinstance(rig.core.identity_error, errors.TransactionalIdAuthorizationFailed)
    rig.core.coordination.init()
    assert rig.core.identity_error is None


def test_another_transactional_id_is_not_told_of_the_refusal_of_the_last_one() -> None:
    rig, call = waiting(INIT)
    rig.answer_call(call)
    rig.core._identity_request.report(errors.KafkaTimeoutError("before"))  # noqa: SLF001
    rig.core.coordination.change_id("y")
    assert rig.core.identity_error is None


def test_the_coordinator_is_reached_at_the_address_that_the_answer_names() -> None:
    """Metadata may not name that broker yet."""
    rig, call = waiting(FIND)
    rig.hold = (INIT,)
    rig.forget_call(call.link_id)
    rig.core.on_answer(call, CoordinatorAnswer(0, 9, "b9", 9192), rig.now)
    rig.poll()
    link = rig.links[rig.called(INIT).link_id]
    assert (link.host, link.port) == ("b9", 9192)


@pytest.mark.parametrize("answer", [(0, -1), (LOADING, 9), (LOADING, -1)])
def test_an_answer_that_names_no_coordinator_teaches_no_address(answer: tuple[int, int]) -> None:
    rig, call = waiting(FIND)
    rig.forget_call(call.link_id)
    rig.core.on_answer(call, CoordinatorAnswer(*answer, "b9", 9192), rig.now)
    assert "b9" not in {node.host for node in rig.core.connections.nodes.values()}


def test_broker_0_can_be_named_as_the_coordinator() -> None:
    rig, call = waiting(FIND)
    rig.forget_call(call.link_id)
    rig.core.on_answer(call, CoordinatorAnswer(0, 0, "b8", 9092), rig.now)
    assert rig.core.connections.nodes[0].host == "b8"


def test_a_call_waits_until_its_broker_has_named_its_cluster() -> None:
    """A broker at the coordinator's address may belong to another cluster by now."""
    rig, call = waiting(FIND, brokers=2, coordinator=2)
    rig.hold = (steps.AskCluster, INIT)
    rig.answer_call(call)
    (question,) = (step for step in rig.held if isinstance(step, steps.AskCluster))
    assert rig.calling is None
    rig.held.remove(question)
    rig.core.on_answer(question, rig.cluster_id, rig.now)
    rig.poll()
    assert rig.called(INIT).link_id == question.link_id


def test_a_call_waits_for_the_end_of_its_broker_s_throttle() -> None:
    rig, call = waiting(END)
    rig.answer_call(call, LOADING, throttle_ms=20_000)
    rig.tick(19.0)
    assert rig.calling is None
    rig.tick(1.5)
    assert rig.called(END).commit


@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, DENIED])
@pytest.mark.parametrize("kind", [ADD_GROUP, COMMIT_OFFSETS])
def test_a_refusal_that_dooms_the_transaction_settles_its_records_at_once(
    kind: type[Any], code: int
) -> None:
    rig, call = waiting(kind)
    rig.send(7)
    rig.answer_call(call, code, poll=False)
    assert rig.txn is TransactionState.ABORTABLE
    assert (rig.statuses[1], rig.statuses[-1]) == (PENDING, NOT_WRITTEN), "some are in flight"
    with pytest.raises(errors.AbortableTransactionError) as raised:
        raise rig.outcomes[-1].error or AssertionError
    assert raised.value.__cause__ is rig.transactions.cause


def test_a_partition_that_is_refused_settles_its_records_at_once() -> None:
    rig = Rig(transaction_version=V1, transactional_id="x")
    rig.hold = (ADD,)
    rig.start().begin().send()
    rig.answer_call(rig.called(ADD), DENIED, poll=False)
    assert rig.statuses == [NOT_WRITTEN]


@pytest.mark.parametrize("kind", [ADD, ADD_GROUP, COMMIT_OFFSETS, END])
def test_a_refusal_that_ends_the_producer_ends_it_at_once(kind: type[Any]) -> None:
    rig, call = waiting(kind)
    rig.answer_call(call, ErrorCode.producer_fenced, poll=False)
    assert isinstance(rig.core.fatal_error, errors.ProducerFenced)


@pytest.mark.parametrize("kind", [FIND, INIT])
def test_a_refused_identity_is_told_at_once(kind: type[Any]) -> None:
    rig, call = waiting(kind)
    rig.answer_call(call, ErrorCode.transactional_id_authorization_failed, poll=False)
    assert rig.core.identity_error is not None


@pytest.mark.parametrize("version", [V1, V2])
def test_an_abort_settles_what_was_not_sent_at_once(version: int) -> None:
    rig = Rig(transaction_version=version, transactional_id="x").start().begin()
    rig.send()
    rig.ack_all()
    rig.send(7)
    rig.core.coordination.abort()
    rig.collect()
    assert rig.statuses[1:] == [PENDING] * 5 + [NOT_WRITTEN] * 2, "five are in flight"
