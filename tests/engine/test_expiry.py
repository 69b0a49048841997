"""A record that expires is settled once, and its partition goes on.

Most of these tests check a rule that another Kafka client has broken; the docstring of the test
names that client's bug.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._protocol.produce import ProduceAnswer

from .driver import (
    ACKED,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    Rig,
    wait_until,
)

SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}


@pytest.mark.parametrize("appended", [True, False])
def test_the_second_of_four_expires_and_the_producer_goes_on(appended: bool) -> None:
    """A batch that expires in flight does not stop the producer (librdkafka dotnet#704, #2163).

    b1 is acknowledged, b2 expires unanswered, and b3 and b4 are in flight behind b2. Either the
    broker has b2, or b2 never arrived and b3 and b4 are refused.
    """
    rig = Rig(**SHORT).start()
    rig.send()
    rig.ack_all()
    rig.send(2)
    rig.tick(1.0)
    rig.send(2)
    # The batches are resent after this loss, so b2 expires before its latest request times out.
    rig.lose(unwritten=rig.outstanding())
    rig.tick(2.0)
    rig.ack(rig.outstanding()[0])
    second, *others = rig.outstanding()
    assert rig.sequences == [2, 3, 4]
    deadline = rig.state().batches.unresolved[0].deadline
    while rig.now < deadline + 0.01:
        # Bytes still move on the connection, as with a broker that is slow and not dead.
        rig.core.on_progress(second.link.link_id, rig.now)
        rig.tick(0.5)
    assert rig.statuses == [ACKED, ACKED, UNKNOWN, PENDING, PENDING]
    assert not any(request.done for request in (second, *others))
    for request in (second, *others):
        if appended:
            rig.ack(request)
        else:
            rig.fail(request, OUT_OF_ORDER)
    late = rig.send(3)
    rig.settle_down(30.0)
    assert rig.statuses[:5] == [ACKED, ACKED, UNKNOWN, ACKED, ACKED]
    assert [outcome.status for outcome in late] == [ACKED] * 3
    offsets = [outcome.offset for outcome in rig.outcomes if outcome.status is ACKED]
    assert offsets == sorted(offsets)
    # Under the old epoch no batch follows b4, because the expired b2 may be a gap.
    assert max(r.sequence for r in rig.everything if r.epoch == 0) == 4
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_an_expiry_that_reached_no_broker_holds_the_others_up_no_longer_than_a_request() -> None:
    """Batches behind one that expired unwritten are delivered within two seconds of the reconnect.

    With the old sequences they would be answered OUT_OF_ORDER until they expire as well.
    """
    rig = Rig(delivery_timeout=10.0, request_timeout=5.0).start()
    rig.send()
    rig.ack_all()
    rig.send()
    rig.tick(4.0)
    rig.send(2)
    rig.lose(unwritten=rig.outstanding())
    rig.down = {1}
    rig.tick(6.5)
    assert rig.statuses[1:] == [NOT_WRITTEN, PENDING, PENDING]
    rig.down = set()
    healed = rig.now
    rig.settle_down(5.0)
    assert rig.statuses[2:] == [ACKED, ACKED]
    assert all(o.at is not None and o.at - healed < 2.0 for o in rig.outcomes[2:])
    rig.assert_drained()


def test_before_sealing_each_record_has_its_own_deadline_and_after_it_the_oldest_ones() -> None:
    """An unsealed record expires at its own deadline, a sealed batch at that of its oldest record.

    One late-sealed batch can hold old and young records.
    """
    rig = Rig(late_sealing=True, batch_size=10_000, **SHORT).start()
    rig.down = {1}
    rig.lose()
    (old,) = rig.send()
    rig.tick(10.0)
    (young,) = rig.send()
    rig.tick(10.5)
    assert (old.status, young.status) == (NOT_WRITTEN, PENDING), (
        "unsealed records expire each at its own deadline"
    )
    (younger,) = rig.send()
    rig.down = set()
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    (request,) = rig.outstanding()
    assert request.only.batch.count == 2
    assert rig.state().batches.unresolved[0].deadline == pytest.approx(
        1001.0 + 10.0 + 20.0, abs=0.1
    )
    rig.down = {1}
    rig.lose()
    rig.tick(12.0)
    assert (young.status, younger.status) == (UNKNOWN, UNKNOWN), (
        "a sealed batch expires at its oldest record's deadline"
    )
    assert younger.at == young.at


@given(
    st.lists(
        st.sampled_from(
            [
                "send",
                "wait",
                "wait",
                "long wait",
                "ack",
                "split",
                "doubt",
                "refuse",
                "reject",
                "cut",
            ]
        ),
        min_size=5,
        max_size=40,
    ),
    st.booleans(),
)
def test_expiry_split_abort_and_answer_may_meet_in_any_order(acts: list[str], abort: bool) -> None:
    """In any order of expiry, split, close and answer, a record is settled once and freed once.

    KAFKA-5494, 6015, 5957, 5429, 7501, 8325, 9605, 7709 and 7311 were bugs in such orders.
    """
    rig = Rig(batch_size=700, delivery_timeout=4.0, request_timeout=3.0).start()
    rig.send(3)
    for act in acts:
        request = next(iter(rig.outstanding()), None)
        if act == "send":
            rig.send(4)
        elif act == "wait":
            rig.tick(0.9)
        elif act == "long wait":
            rig.tick(2.5)
        elif request is None:
            continue
        elif act == "ack":
            rig.ack(request)
        elif act == "cut":
            rig.lose(request.link)
        else:
            codes = {
                "split": MESSAGE_TOO_LARGE,
                "doubt": REQUEST_TIMED_OUT,
                "refuse": NOT_ENOUGH_REPLICAS,
                "reject": INVALID_RECORD,
            }
            rig.fail(request, codes[act])
    if abort:
        owed = rig.outstanding()
        rig.core.close(rig.now)
        rig.collect()
        for request in owed:
            answer = ProduceAnswer((rig.entry(request, request.only, NONE, 1),), 0, ())
            rig.core.on_answer(request.step, answer, rig.now)
        rig.requests.clear()
        rig.collect()
    else:
        rig.settle_down(30.0)
    assert PENDING not in rig.statuses
    rig.assert_drained()
