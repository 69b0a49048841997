"""The first-ack gate: one batch in flight until the leader has shown that it knows the producer."""

from __future__ import annotations

import pytest

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
