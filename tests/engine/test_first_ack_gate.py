"""`FirstAckGate` alone: when more than one batch of a partition may be in flight."""

from __future__ import annotations

from aioidem._engine.first_ack_gate import FirstAckGate, SentAs
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.route import Route

HERE: SentAs = (ProducerIdentity(7, 0), Route(1, 5, 9))
NEXT_EPOCH: SentAs = (ProducerIdentity(7, 1), Route(1, 5, 9))
NEXT_LINK: SentAs = (ProducerIdentity(7, 0), Route(2, 5, 9))


def heard(now: float = 0.0) -> FirstAckGate:
    gate = FirstAckGate(applies=True)
    gate.hear_none(HERE, now)
    return gate


def test_a_new_gate_is_closed_and_nothing_is_in_question() -> None:
    gate = FirstAckGate(applies=True)
    assert not gate.is_open(HERE)
    assert not gate.passed(HERE)
    assert not gate.has_heard(HERE)
    assert gate.questioned is False
    assert gate.opened_for is None


def test_it_opens_for_what_was_heard_and_for_nothing_else() -> None:
    gate = heard()
    for sent_as in (HERE, NEXT_EPOCH, NEXT_LINK):
        assert gate.is_open(sent_as) is (sent_as == HERE)
        assert gate.passed(sent_as) is (sent_as == HERE)
        assert gate.has_heard(sent_as) is (sent_as == HERE)


def test_where_it_does_not_apply_it_is_open_but_not_passed() -> None:
    gate = FirstAckGate(applies=False)
    assert gate.is_open(HERE)
    assert not gate.passed(HERE)


def test_a_closed_gate_remembers_whom_it_heard() -> None:
    for close in (FirstAckGate.close, FirstAckGate.restart):
        gate = heard()
        close(gate)
        assert not gate.is_open(HERE)
        assert gate.has_heard(HERE)


def test_old_timestamps_close_it_a_second_after_the_last_success() -> None:
    gate = heard(10.0)
    gate.close_unless_fresh(11.0)
    assert gate.is_open(HERE)
    gate.close_unless_fresh(11.01)
    assert not gate.is_open(HERE)


def test_a_transaction_closes_it_once() -> None:
    gate = heard()
    gate.begin(1, applies=True)
    assert not gate.is_open(HERE)
    gate.hear_none(HERE, 0.0)
    gate.begin(1, applies=False)
    assert gate.applies
    assert gate.passed(HERE)
    gate.begin(2, applies=False)
    assert not gate.passed(HERE)
    assert gate.is_open(HERE), "there is no gate in transactions v2"


def test_a_new_gate_is_that_of_no_transaction() -> None:
    gate = heard()
    gate.begin(0, applies=False)
    assert gate.passed(HERE)


def test_a_question_lasts_until_the_leader_shows_the_state_or_is_another_one() -> None:
    def success(gate: FirstAckGate) -> None:
        gate.hear_none(HERE, 0.0)

    for answer in (FirstAckGate.hear_of_state, FirstAckGate.restart, success):
        gate = heard()
        gate.question()
        assert gate.questioned is True
        answer(gate)
        assert gate.questioned is False


def test_closing_the_gate_answers_no_question() -> None:
    gate = heard()
    gate.question()
    gate.close()
    assert gate.questioned is True
