"""Tests of the model of a transaction coordinator, by the rules of the protocol."""

from __future__ import annotations

import pytest

from .coordinator import (
    CONCURRENT,
    FENCED,
    INVALID_TXN_STATE,
    Granted,
    TransactionalLog,
    TransactionCoordinator,
)
from .model import NONE, OUT_OF_ORDER, Answer, Sent


def _coordinator(*, v2: bool) -> TransactionCoordinator:
    made = TransactionCoordinator(7, v2=v2)
    assert made.init() == Granted(NONE, 7, 0)
    return made


def test_a_decision_is_final_and_may_be_asked_for_again() -> None:
    known = _coordinator(v2=False)
    assert known.add(7, 0, (0,)) == NONE
    assert known.end(7, 0, commit=True).code == NONE
    assert known.end(7, 0, commit=True).code == CONCURRENT
    known.marked(0)
    assert known.end(7, 0, commit=True).code == NONE
    assert known.end(7, 0, commit=False).code == INVALID_TXN_STATE


def test_in_v2_a_decision_raises_the_epoch_and_its_repetition_names_it() -> None:
    known = _coordinator(v2=True)
    known.add(7, 0, (0,))
    assert known.end(7, 0, commit=True) == Granted(NONE, 7, 1)
    assert known.end(7, 0, commit=True).code == CONCURRENT
    assert known.end(7, 1, commit=False).code == FENCED
    known.marked(0)
    assert known.end(7, 0, commit=True) == Granted(NONE, 7, 1)
    assert known.end(7, 1, commit=False) == Granted(NONE, 7, 2)


@pytest.mark.parametrize("v2", [False, True])
def test_a_new_producer_aborts_what_is_open_and_fences_its_owner(v2: bool) -> None:
    known = _coordinator(v2=v2)
    known.add(7, 0, (0,))
    assert known.init().code == CONCURRENT
    assert known.unmarked == {0}
    known.marked(0)
    assert known.init() == Granted(NONE, 7, 2)
    assert known.add(7, 0, (0,)) == FENCED
    assert known.end(7, 0, commit=True).code == FENCED
    assert known.init(7, 0).code == FENCED


def test_the_next_epoch_is_granted_once_to_whoever_has_the_present_one() -> None:
    known = _coordinator(v2=False)
    assert known.init(7, 0) == Granted(NONE, 7, 1)
    assert known.init(7, 0) == Granted(NONE, 7, 1)
    assert known.init(7, 1) == Granted(NONE, 7, 2)
    assert known.init(7, 0).code == FENCED


def test_nothing_is_added_while_markers_are_written() -> None:
    known = _coordinator(v2=False)
    known.add(7, 0, (0, 1))
    known.end(7, 0, commit=True)
    known.marked(0)
    assert known.add(7, 0, (0,)) == CONCURRENT
    known.marked(1)
    assert known.add(7, 0, (0,)) == NONE


def test_a_marker_ends_what_is_open_and_its_epoch_begins_at_0() -> None:
    log = TransactionalLog(5, strict=True)
    assert log.append(Sent(7, 0, 1, (1,))).code == OUT_OF_ORDER
    assert log.append(Sent(7, 0, 0, (1,))) == Answer(NONE, 0)
    assert log.open
    log.mark(7, 1, "commit")
    assert log.fates == {0: "commit"}
    assert log.append(Sent(7, 1, 1, (2,))).code == OUT_OF_ORDER
    assert log.append(Sent(7, 1, 0, (2,))) == Answer(NONE, 2)
