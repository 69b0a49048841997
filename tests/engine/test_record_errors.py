"""Records that a broker blames for a refusal (KIP-467), and when the engine fails only these."""

from __future__ import annotations

import pytest

from aioidem._engine.refusals import culprits
from aioidem._protocol.produce import PartitionAnswer

from .driver import (
    ACKED,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    Request,
    Rig,
)

Named = tuple[tuple[int, str | None], ...]


def three_in_a_batch(behind: int = 0, **options: object) -> tuple[Rig, Request]:
    """Send records 1 to 3 in one batch, and `behind` more batches of three after it.

    Record 0 is acknowledged before, so that several batches may be in flight.
    """
    rig = Rig(batch_size=1000, linger=0.1, **options).start()  # type: ignore[arg-type]
    rig.send()
    rig.tick(0.2)
    rig.ack(rig.outstanding()[0])
    for _ in range(1 + behind):
        rig.send(3)
        rig.tick(0.2)
    assert len(rig.outstanding()) == 1 + behind
    return rig, rig.outstanding()[0]


@pytest.mark.parametrize("code", [INVALID_RECORD, INVALID_TIMESTAMP])
def test_the_culprit_fails_with_its_own_message_and_the_others_are_delivered(code: int) -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, code, record_errors=((1, "it is blue"),), error_message="something")
    assert rig.statuses[2] is NOT_WRITTEN
    told = str(rig.outcomes[2].error)
    assert "broker 1 (" in told
    assert " refused record 1 of its batch of 3 in attempt 1: it is blue. Check " in told
    again = rig.outstanding()[0].only
    assert (again.epoch, again.sequence, len(again.values)) == (1, 0, 2)
    rig.ack_all()
    assert rig.statuses == [ACKED, ACKED, NOT_WRITTEN, ACKED]
    rig.assert_drained()


@pytest.mark.parametrize(
    "named",
    [(), ((3, "beyond"),), ((-1, "before"),), ((2**31 - 1, None), (-(2**31), None))],
)
def test_where_no_record_of_the_batch_is_named_all_of_it_fails(named: Named) -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, INVALID_RECORD, record_errors=named)
    assert rig.statuses == [ACKED] + [NOT_WRITTEN] * 3
    rig.send()
    rig.tick(0.2)
    rig.ack_all()
    rig.assert_drained()


def test_what_is_no_place_in_the_batch_is_ignored_beside_what_is() -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, INVALID_RECORD, record_errors=((7, "x"), (0, None), (0, "twice"), (-2, "y")))
    rig.ack_all()
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]


def test_where_all_are_named_all_fail() -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, INVALID_RECORD, record_errors=tuple((n, f"bad {n}") for n in range(3)))
    assert rig.statuses == [ACKED] + [NOT_WRITTEN] * 3
    assert "bad 2" in str(rig.outcomes[3].error)


def test_a_code_that_is_not_about_records_fails_them_all() -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, TOPIC_AUTHORIZATION_FAILED, record_errors=((1, "only this one"),))
    assert rig.statuses == [ACKED] + [NOT_WRITTEN] * 3


def test_innocent_records_stay_in_front_of_what_was_sent_behind_them() -> None:
    rig, batch = three_in_a_batch(behind=3)
    followers = rig.outstanding()[1:]
    rig.fail(batch, INVALID_RECORD, record_errors=((0, "bad"),))
    for request in followers:
        rig.fail(request, OUT_OF_ORDER)
    rig.settle_down()
    assert rig.statuses == [ACKED, NOT_WRITTEN] + [ACKED] * 11
    offsets = [outcome.offset for outcome in rig.outcomes if outcome.status is ACKED]
    assert offsets == sorted(offsets)
    assert rig.core.epoch_bumps == 1
    assert rig.core.counters.data_loss_events == 0


def test_nothing_is_believed_of_a_batch_in_doubt() -> None:
    rig, batch = three_in_a_batch()
    rig.fail(batch, REQUEST_TIMED_OUT, 1)
    rig.tick(1.0)
    rig.lose()
    rig.tick(1.0)
    for _ in range(20):
        for request in rig.outstanding():
            rig.fail(request, INVALID_RECORD, record_errors=((1, "bad"),))
        rig.tick(40.0)
    assert rig.statuses == [ACKED] + [UNKNOWN] * 3


def test_a_broker_that_names_one_record_at_a_time_comes_to_an_end() -> None:
    rig, _ = three_in_a_batch()
    rounds = 0
    while rig.outstanding():
        rig.fail(rig.outstanding()[0], INVALID_RECORD, record_errors=((0, "the next"),))
        rounds += 1
    assert rounds == 3
    assert rig.statuses == [ACKED] + [NOT_WRITTEN] * 3
    rig.assert_drained()


def test_culprits_are_in_the_order_of_the_records_whatever_order_they_are_named_in() -> None:
    """Their callbacks are called in this order."""
    named = ((2, "a"), (0, None), (1, "z"))
    answer = PartitionAnswer("t", None, 0, INVALID_RECORD, -1, record_errors=named)
    assert list(culprits("t-0", answer, 3, 1, "broker 1")) == [0, 1, 2]
