"""DescribeProducers (KIP-664) says which batch to probe first, and its answer settles no batch.

A probe is a resend of a batch in doubt, to learn whether the leader has stored the batch.
"""

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
    T,
    pipelined,
    wait_until,
)


def asked(answer: ProducersAnswer, start: int = 1, *, written: int = 5) -> Rig:
    """Make a rig with five batches in doubt, whose leader then gives this answer.

    The oldest of the five was answered OUT_OF_ORDER, so the engine asks with DescribeProducers.
    Those behind the first `written` were never written to a socket, and so are not in doubt.
    """
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    if start != 1:
        rig.jump(start)
    rig.send(5)
    rig.lose(unwritten=rig.outstanding()[written:])
    rig.tick(2.0)
    rig.producers = answer
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    return rig


def told(epoch: int, last: int, producer_id: int = 4001) -> ProducersAnswer:
    return ProducersAnswer(0, {producer_id: (epoch, last)})


def test_a_batch_that_is_not_in_doubt_is_no_hint() -> None:
    """A batch that was never written to a socket is not probed, even if the leader names it."""
    rig = asked(told(0, 5), written=4)
    assert rig.sequences == [4, 3, 2, 1]


def test_a_hint_is_asked_first_and_alone_and_only_error_none_acknowledges() -> None:
    """The batch that DescribeProducers names is probed first and alone; only error NONE settles it.

    DescribeProducers proves nothing, because it also counts batches above the high watermark, which
    can still be lost.
    """
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
def test_an_answer_that_names_no_batch_in_doubt_is_ignored(answer: ProducersAnswer) -> None:
    """An answer that names no batch in doubt is ignored, and probes begin at the newest batch."""
    rig = asked(answer)
    assert rig.state().recovery.rung is Rung.PROBING
    assert rig.sequences == [5, 4, 3, 2, 1]
    assert rig.statuses[1:] == [PENDING] * 5


def test_a_followers_lie_is_never_a_verdict() -> None:
    """If the leader refuses the batch that DescribeProducers named, the older ones are probed.

    All of them stay in doubt meanwhile: any replica answers DescribeProducers, so the answer may
    name a batch that the leader lacks.
    """
    rig = asked(told(0, 5))
    assert rig.sequences == [5]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses[1:] == [PENDING] * 5
    assert rig.sequences == [4, 3, 2, 1]
    fourth, third, second, _ = rig.outstanding()
    rig.fail(fourth, OUT_OF_ORDER)
    rig.fail(third, OUT_OF_ORDER)
    rig.ack(second, 20)
    rig.tick(2.0)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 0


def test_a_hint_across_the_wrap_is_compared_as_the_wire_has_it() -> None:
    rig = asked(told(0, 0), start=SEQUENCE_MODULUS - 2)
    assert rig.sequences == [0]
    assert rig.state().batches.unresolved[2].base == SEQUENCE_MODULUS


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


def test_the_leader_is_asked_on_the_produce_connection_and_nothing_is_sent_beside() -> None:
    """DescribeProducers is sent on the Produce connection, and batches wait for its answer.

    The leader serves a connection in order, so its answer takes account of every earlier batch.
    """
    rig = Rig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start().send()
    rig.ack_all()
    rig.send(5)
    lost = rig.outstanding()[0].link
    rig.send(partition=1)
    rig.ack(rig.outstanding()[-1])
    rig.hold = (steps.AskProducers,)
    rig.lose(lost)
    rig.tick(1.0)
    (resend,) = rig.outstanding()
    assert len([end for end in rig.links.values() if end.open and not end.closed]) == 2
    rig.fail(resend, OUT_OF_ORDER)
    rig.send(2)
    rig.tick(1.0)
    (asked,) = rig.held
    assert asked.link_id == resend.link.link_id
    assert not rig.outstanding(), "no batch is sent beside the question"
    rig.core.on_answer(asked, told(0, 5), rig.now)
    rig.poll()
    assert rig.sequences == [5]


def test_the_leader_is_not_asked_while_an_answer_is_owed() -> None:
    """The leader is not asked about producers while a Produce request is unanswered.

    The batch of that request could be appended after the leader has answered.
    """
    rig, _ = pipelined(5)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    rig.tick(1.0)
    rig.ack(rig.outstanding()[0])
    second, *behind = rig.outstanding()
    assert rig.sequences == [2, 3, 4, 5]
    rig.fail(second, OUT_OF_ORDER)
    for request in behind:
        rig.tick(0.5)
        assert not rig.held
        rig.fail(request, OUT_OF_ORDER)
    rig.tick(0.1)
    assert len(rig.held) == 1


def test_an_answer_about_producers_that_kills_the_connection_is_no_answer() -> None:
    """DescribeProducers is not sent again if its connection is lost; probes begin without it.

    A probe is a batch that is resent to learn whether it is stored. The connection may have ended
    because the answer to DescribeProducers exceeds the largest frame that the client accepts.
    """
    rig, _ = pipelined(5)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    newest = 3  # batches 1 to 3 are stored, and the leader remembers only the last one
    for _ in range(100):
        rig.tick(0.2)
        for asked in rig.held:
            end = rig.links[asked.link_id]
            if not end.closed:
                rig.lose(end)
        rig.held.clear()
        for request in rig.outstanding():
            if newest <= request.sequence <= newest + 1:
                newest = request.sequence
                rig.ack(request)
            else:
                rig.fail(request, OUT_OF_ORDER)
    assert rig.statuses == [ACKED] * 6
    assert len([s for s in rig.asked if isinstance(s, steps.AskProducers)]) == 1
    rig.assert_drained()


@pytest.mark.parametrize(
    ("epoch", "last", "begins"),
    [(0, 3, [3]), (1, 3, [5, 4, 3, 2, 1]), (-1, 3, [5, 4, 3, 2, 1]), (0, 99, [5, 4, 3, 2, 1])],
)
def test_what_a_leader_tells_of_producers_is_where_to_begin_and_never_a_verdict(
    epoch: int, last: int, begins: list[int]
) -> None:
    """DescribeProducers acknowledges no batch; its answer only decides which batch is probed first.

    If the answer's epoch and last sequence are those of a batch in doubt, the probes begin at that
    batch, and otherwise at the newest batch.
    """
    rig, _ = pipelined(5)
    rig.producers = ProducersAnswer(0, {rig.next_pid: (epoch, last)})
    rig.lose()
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    assert rig.sequences == begins
    assert rig.statuses[1:] == [PENDING] * 5
    if begins == [3]:
        rig.ack(rig.outstanding()[0])
        assert rig.statuses[1:4] == [ACKED] * 3
        assert rig.sequences == [4, 5]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 6
    rig.assert_drained()
