"""The table of error codes: every code, twice-faced ones both ways, unknown ones in doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.classify import _TABLE, Action, Disposition, classify
from aioidem._engine.unlisted import may_pass

TWO_FACED = {3, 6, 100}
ALWAYS_IN_DOUBT = {-1, 7, 20, 46, 56}
RETRIED = {-1, 2, 3, 5, 6, 7, 14, 15, 16, 19, 20, 51, 56, 74, 75, 89, 100, 103, 129}
EXPECTED: dict[int, Action] = {
    0: Action.ACK,
    **dict.fromkeys(RETRIED, Action.RETRY),
    10: Action.SPLIT,
    18: Action.SPLIT,
    45: Action.OUT_OF_ORDER,
    46: Action.DUPLICATE,
    **dict.fromkeys((47, 49), Action.FENCED),
    59: Action.NO_STATE,
    **dict.fromkeys((31, 53, 90), Action.FATAL),
    **dict.fromkeys((17, 21, 29, 32, 35, 42, 43, 44, 48, 76, 87, 120), Action.FAIL),
}


def test_the_expectation_here_names_every_row_of_the_table() -> None:
    assert set(EXPECTED) == set(_TABLE)


@pytest.mark.parametrize("code", sorted(_TABLE))
def test_each_code_has_its_action(code: int) -> None:
    assert classify(code, -1).action is EXPECTED[code]


@pytest.mark.parametrize("code", sorted(set(_TABLE) - {0}))
def test_each_code_precedes_the_append_or_leaves_doubt(code: int) -> None:
    """attack.md finding 1 and addendum b."""
    assert classify(code, -1).precedes_append is (code not in ALWAYS_IN_DOUBT)


@pytest.mark.parametrize("code", sorted(_TABLE))
def test_a_base_offset_beside_an_error_always_means_doubt(code: int) -> None:
    assert classify(code, 0).precedes_append is False
    assert classify(code, 2**60).precedes_append is False


@pytest.mark.parametrize("code", sorted(TWO_FACED))
def test_two_faced_codes_are_decided_by_the_base_offset(code: int) -> None:
    """NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID: ran both ways."""
    assert classify(code, -1).precedes_append is True
    assert classify(code, 10).precedes_append is False
    assert classify(code, -1, trust_base_offset=False).precedes_append is False


@pytest.mark.parametrize("code", sorted(set(_TABLE) - TWO_FACED))
def test_distrust_of_base_offsets_touches_only_the_two_faced(code: int) -> None:
    assert classify(code, -1, trust_base_offset=False) == classify(code, -1)


@given(st.integers(-(2**15), 2**15 - 1).filter(lambda code: code not in _TABLE), st.booleans())
def test_an_unknown_code_leaves_doubt_and_is_retried_if_it_may_pass(code: int, trust: bool) -> None:
    """Documented as retriable, or called so by the broker; see `test_unlisted_codes.py`."""
    for message in (None, "retriable"):
        found = classify(code, -1, trust_base_offset=trust, message=message)
        action = Action.RETRY if may_pass(code, message) else Action.FAIL
        assert found == Disposition(action, precedes_append=False, refresh_metadata=True)


@pytest.mark.parametrize("code", [3, 5, 6, 56, 74, 75, 100, 103])
def test_a_stale_view_asks_for_metadata(code: int) -> None:
    assert classify(code, -1).refresh_metadata


@pytest.mark.parametrize("code", [2, 7, 10, 19, 20, 45, 87])
def test_other_errors_leave_metadata_alone(code: int) -> None:
    assert not classify(code, -1).refresh_metadata
