"""Tests of the model of brokers, by the rules of the protocol."""

from __future__ import annotations

import pytest

from .model import INVALID_EPOCH, NONE, OUT_OF_ORDER, Answer, PartitionLog, Sent

_LAST = 2**31 - 1


def _sent(sequence: int, *numbers: int, epoch: int = 0) -> Sent:
    return Sent(7, epoch, sequence, numbers or (sequence,))


def test_a_leader_without_state_accepts_any_sequence_and_then_only_what_follows() -> None:
    log = PartitionLog(5)
    assert log.append(_sent(3, 30, 31)) == Answer(NONE, 0)
    assert log.append(_sent(2)).code == OUT_OF_ORDER
    assert log.append(_sent(6)).code == OUT_OF_ORDER
    assert log.append(_sent(5)) == Answer(NONE, 2)


def test_a_batch_that_is_remembered_is_a_duplicate_and_an_older_one_is_out_of_order() -> None:
    log = PartitionLog(2)
    for sequence in range(3):
        log.append(_sent(sequence))
    assert log.append(_sent(1)) == Answer(NONE, 1)
    assert log.append(_sent(0)).code == OUT_OF_ORDER
    assert log.end == 3


def test_a_newer_epoch_begins_at_0_and_fences_the_older_one() -> None:
    log = PartitionLog(5)
    log.append(_sent(0))
    assert log.append(_sent(1, epoch=1)).code == OUT_OF_ORDER
    assert log.append(_sent(0, epoch=1)) == Answer(NONE, 1)
    assert log.append(_sent(1)).code == INVALID_EPOCH


@pytest.mark.parametrize(("sequence", "count"), [(_LAST, 1), (_LAST - 1, 2)])
def test_0_follows_the_last_sequence(sequence: int, count: int) -> None:
    log = PartitionLog(5)
    log.append(_sent(sequence, *range(count)))
    assert log.append(_sent(0)) == Answer(NONE, count)


def test_a_new_leader_may_lack_what_is_not_committed() -> None:
    log = PartitionLog(5)
    log.append(_sent(0))
    log.append(_sent(1), replicated=False)
    log.lead(2, losing=True)
    assert [batch.sequence for _, batch in log.entries] == [0]
    assert log.append(_sent(1)) == Answer(NONE, 1)
