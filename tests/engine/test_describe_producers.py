"""What DescribeProducers says is a hint where to begin, and never a verdict (KIP-664)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._engine.idempotence import SEQUENCE_MODULUS
from aioidem._engine.recovery import Rung
from aioidem._protocol.producers import ProducersAnswer

from .driver import (
    ACKED,
    NOT_LEADER,
    OUT_OF_ORDER,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    Rig,
)


def asked(answer: ProducersAnswer, start: int = 1) -> Rig:
    """Five in doubt, the oldest was answered OUT_OF_ORDER, and the leader tells this."""
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    if start != 1:
        rig.jump(start)
    rig.send(5)
    rig.lose()
    rig.tick(2.0)
    rig.producers = answer
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    return rig


def told(epoch: int, last: int, producer_id: int = 4001) -> ProducersAnswer:
    return ProducersAnswer(0, {producer_id: (epoch, last)})


def test_a_hint_is_asked_first_and_alone_and_only_error_none_acknowledges() -> None:
    """DescribeProducers runs ahead of the high watermark."""
    rig = asked(told(0, 3))
    assert rig.sequences == [3]
    assert rig.statuses[1:] == [PENDING] * 5
    rig.ack(rig.outstanding()[0], 30)
    assert rig.statuses[1:4] == [ACKED] * 3
    assert [o.offset for o in rig.outcomes[1:4]] == [-1, -1, 30]
    assert rig.sequences == [4, 5]
    rig.ack_all()
    rig.assert_drained()


@pytest.mark.parametrize(
    "answer",
    [
        told(1, 3),
        told(-1, 3),
        told(0, 99),
        told(0, 0),
        told(0, -1),
        told(0, 3, producer_id=4002),
        ProducersAnswer(0, {}),
        ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}),
        ProducersAnswer(NOT_LEADER, {}),
    ],
    ids=["newer epoch", "no epoch", "higher", "lower", "-1", "another", "none", "denied", "moved"],
)
def test_whatever_names_no_batch_of_ours_is_ignored(answer: ProducersAnswer) -> None:
    """Ignore an answer that names none of the batches in doubt, and probe from the newest one."""
    rig = asked(answer)
    assert rig.state().recovery.rung is Rung.PROBING
    assert rig.sequences == [5, 4, 3, 2, 1]
    assert rig.statuses[1:] == [PENDING] * 5


def test_a_followers_lie_is_never_a_verdict() -> None:
    """Any replica answers, also one that has what the leader does not: the probes decide."""
    rig = asked(told(0, 5))
    assert rig.sequences == [5]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses[1:] == [PENDING] * 5
    assert rig.sequences == [4, 3, 2, 1]
    rig.ack(rig.outstanding()[2], 20)
    rig.tick(2.0)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 0


def test_a_hint_across_the_wrap_is_compared_as_the_wire_has_it() -> None:
    rig = asked(told(0, 0), start=SEQUENCE_MODULUS - 2)
    assert rig.sequences == [0]
    assert rig.state().unresolved[2].base == SEQUENCE_MODULUS


def test_a_denied_question_is_not_asked_again_on_that_connection() -> None:
    rig = asked(ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}))
    rig.ack(rig.outstanding()[0])
    rig.tick(1.0)
    rig.send(2)
    for request in rig.outstanding():
        rig.fail(request, ErrorCode.request_timed_out, poll=False)
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.PROBING
    assert sum(isinstance(step, steps.AskProducers) for step in rig.asked) == 1
