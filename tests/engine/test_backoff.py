"""Back-off: how long to wait after failures (KIP-580)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.backoff import Backoff


def test_backoff_doubles_up_to_its_cap() -> None:
    """The delay doubles with each failure up to its maximum (KIP-580)."""
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    delays = [backoff.next_delay() for _ in range(6)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_backoff_starts_again_after_a_success() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


def test_the_last_delay_again_is_no_further_failure() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    assert backoff.last_delay() == pytest.approx(0.1)
    assert [backoff.next_delay() for _ in range(2)] == pytest.approx([0.1, 0.2])
    assert [backoff.last_delay() for _ in range(2)] == pytest.approx([0.2, 0.2])
    assert backoff.next_delay() == pytest.approx(0.4)


@given(failures=st.integers(0, 5000), draw=st.floats(0, 1, exclude_max=True))
def test_backoff_stays_within_its_jitter_whatever_the_failures(failures: int, draw: float) -> None:
    backoff = Backoff(0.05, 2.0, lambda: draw)
    backoff.failures = failures
    plain = min(0.05 * 2 ** min(failures, 30), 2.0)
    assert plain * 0.8 - 1e-9 <= backoff.next_delay() <= plain * 1.2 + 1e-9
