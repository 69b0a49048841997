"""The first-ack gate: one batch in flight until the leader has shown that it knows the producer."""

from __future__ import annotations

import pytest

from aioidem._engine.first_ack_gate import FirstAckGate, SentAs
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.route import Route

from .driver import (
    ACKED,
    CORRUPT_MESSAGE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    OUT_OF_ORDER,
    Rig,
    pipelined,
)


def test_one_batch_is_in_flight_until_the_first_acknowledgement() -> None:
    """One batch is in flight until the first error NONE (KAFKA-15591).

    See also KAFKA-14312, KAFKA-14359, KAFKA-19880 and franz-go #223.
    """
    rig = Rig().start()
    rig.send(8)
    assert rig.sequences == [0]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS, CORRUPT_MESSAGE])
def test_the_gate_closes_after_any_error(code: int) -> None:
    """After an error the oldest batch is sent alone until it is acknowledged."""
    rig, requests = pipelined(5)
    rig.fail(requests[0], code, poll=False)
    for request in requests[1:]:
        rig.fail(request, OUT_OF_ORDER)
    rig.send(3)
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [2, 3, 4, 5, 6]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 9
    assert [o.offset for o in rig.outcomes] == sorted(o.offset for o in rig.outcomes)


def test_the_gate_is_closed_on_every_new_connection() -> None:
    rig, requests = pipelined(2)
    for request in requests:
        rig.ack(request)
    rig.lose()
    rig.tick(1.0)
    rig.send(4)
    assert rig.sequences == [3]


def test_the_gate_is_closed_under_every_new_leader_epoch() -> None:
    """A new leader epoch closes the gate, even without an error and on the same broker."""
    rig, requests = pipelined(2)
    for request in requests:
        rig.ack(request)
    rig.move_leader(1, 1)
    rig.send(4)
    assert rig.sequences == [3]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [4, 5, 6]


def test_without_idempotence_there_is_no_gate() -> None:
    rig = Rig(enable_idempotence=False, acks=1).start()
    rig.send(7)
    assert len(rig.outstanding()) == 5
    rig.ack_all()
    rig.assert_drained()


# -- the gate alone

HERE: SentAs = (ProducerIdentity(7, 0), Route(1, 1, 0))
THERE: SentAs = (ProducerIdentity(7, 0), Route(2, 1, 0))


def opened(now: float = 10.0) -> FirstAckGate:
    gate = FirstAckGate(applies=True)
    gate.hear_none(HERE, now)
    return gate


def test_a_gate_that_was_never_opened() -> None:
    gate = FirstAckGate(applies=True)
    assert gate.opened_for is None
    assert not gate.is_open(HERE)
    assert not gate.passed(HERE)
    assert not gate.has_heard(HERE)
    assert not gate.questioned


def test_error_none_opens_the_gate_for_one_identity_and_route() -> None:
    gate = opened()
    assert gate.opened_for == HERE
    assert (gate.is_open(HERE), gate.passed(HERE), gate.has_heard(HERE)) == (True, True, True)
    assert (gate.is_open(THERE), gate.passed(THERE), gate.has_heard(THERE)) == (False,) * 3


def test_a_gate_that_does_not_apply_is_open_and_proves_nothing() -> None:
    gate = FirstAckGate(applies=False)
    assert gate.is_open(HERE)
    assert not gate.passed(HERE)


def test_what_was_heard_last_outlives_a_closed_gate() -> None:
    gate = opened()
    gate.close()
    assert gate.opened_for is None
    assert not gate.is_open(HERE)
    assert gate.has_heard(HERE)


@pytest.mark.parametrize(("now", "open_still"), [(10.5, True), (11.0, True), (11.1, False)])
def test_with_old_timestamps_error_none_counts_for_a_second(now: float, open_still: bool) -> None:
    gate = opened(now=10.0)
    gate.close_unless_fresh(now)
    assert gate.is_open(HERE) is open_still


def test_another_leader_starts_without_proof_and_without_question() -> None:
    gate = opened()
    gate.question()
    gate.restart()
    assert gate.opened_for is None
    assert not gate.questioned


@pytest.mark.parametrize("proof", ["none", "of state"])
def test_only_a_proof_of_state_answers_a_question(proof: str) -> None:
    """After an unlisted error code only NONE, OUT_OF_ORDER and DUPLICATE show the state again."""
    gate = opened()
    gate.question()
    gate.close()
    assert gate.questioned
    if proof == "none":
        gate.hear_none(HERE, 11.0)
    else:
        gate.hear_of_state()
    assert not gate.questioned


def test_a_transaction_closes_the_gate_once_and_says_whether_there_is_one() -> None:
    gate = opened()
    applies = [gate.applies]
    gate.begin(1, applies=True)
    assert not gate.is_open(HERE)
    gate.hear_none(HERE, 11.0)
    gate.begin(1, applies=False)
    applies.append(gate.applies)
    assert gate.passed(HERE)
    gate.begin(2, applies=False)
    applies.append(gate.applies)
    assert gate.is_open(THERE)
    assert not gate.passed(HERE)
    assert applies == [True, True, False]
