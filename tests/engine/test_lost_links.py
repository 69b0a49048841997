"""`LostLinks`: what becomes of each kind of request when its connection ends."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.recovery import Rung

from .driver import OUT_OF_ORDER, PENDING, Rig, pipelined

LOST = errors.KafkaConnectionError("lost")


def held(kind: type[Any], **options: Any) -> tuple[Rig, Any]:
    """Return a producer with a record, of which a request of this type waits for its answer."""
    rig = Rig(**options)
    rig.hold = (kind,)
    rig.start().send()
    (step,) = (step for step in rig.held if isinstance(step, kind))
    return rig, step


@pytest.mark.parametrize("kind", [steps.FetchMetadata, steps.InitProducerId])
@pytest.mark.parametrize("written", [False, True])
def test_a_question_that_was_lost_is_asked_again_after_a_delay(
    kind: type[Any], written: bool
) -> None:
    rig, step = held(kind)
    rig.held.clear()
    rig.lose(rig.links[step.link_id], unwritten=() if written else (step,), poll=False)
    rig.poll()
    assert rig.held == []
    rig.tick(2.0)
    (again,) = rig.held
    assert isinstance(again, kind)
    assert again.token != step.token


def test_a_coordinator_whose_connection_ended_is_sought_again() -> None:
    rig = Rig(transactional_id="x", transaction_version=2, brokers=2, coordinator=2).start()
    assert rig.transactions.coordinator.node_id == 2
    (link,) = (each for each in rig.links.values() if each.host == "b2" and not each.closed)
    rig.lose(link, poll=False)
    assert rig.transactions.coordinator.node_id is None


def test_a_question_about_producers_that_was_lost_is_answered_by_nobody() -> None:
    """The batches in doubt are probed without a hint."""
    rig, _ = pipelined()
    rig.lose()
    rig.tick(2.0)
    rig.hold = (steps.AskProducers,)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    (question,) = rig.held
    assert rig.state().recovery.rung is Rung.ASKING
    rig.held.clear()
    rig.hold = ()
    rig.lose(rig.links[question.link_id], poll=False)
    assert rig.state().recovery.rung is not Rung.ASKING
    assert PENDING in rig.statuses


def test_no_two_requests_have_the_same_token() -> None:
    rig, _ = pipelined()
    rig.ack_all()
    rig.refresh()
    made = (getattr(step, "token", None) for step in rig.asked)
    tokens = [token for token in made if token is not None]
    assert tokens == sorted(set(tokens))
    assert tokens[0] == 1
