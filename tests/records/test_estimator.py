"""The estimator of compression ratios changes its estimates as Java's does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import ESTIMATION_FACTOR, Codec, CompressionRatioEstimator

ratios = st.floats(0.001, 5.0, allow_nan=False)


def test_estimates_start_at_1_and_callers_add_5_percent() -> None:
    assert CompressionRatioEstimator().estimate("t", Codec.ZSTD) == 1.0
    assert ESTIMATION_FACTOR == 1.05


def test_an_estimate_falls_by_at_most_0_005_and_stops_at_what_was_observed() -> None:
    estimator = CompressionRatioEstimator()
    assert estimator.observe("t", Codec.GZIP, 0.3) == 0.995
    assert estimator.observe("t", Codec.GZIP, 0.993) == 0.993
    assert estimator.observe("t", Codec.GZIP, 0.993) == 0.993


def test_an_estimate_rises_at_once_and_by_at_least_0_05() -> None:
    estimator = CompressionRatioEstimator()
    estimator.observe("t", Codec.LZ4, 0.995)
    assert estimator.observe("t", Codec.LZ4, 1.0) == pytest.approx(1.045)
    assert estimator.observe("t", Codec.LZ4, 1.5) == 1.5


def test_it_takes_140_batches_to_believe_in_a_ratio_of_0_3() -> None:
    """An estimate falls from 1.0 to an observed ratio of 0.3 within 141 batches."""
    estimator = CompressionRatioEstimator()
    batches = 0
    while estimator.estimate("t", Codec.ZSTD) > 0.3:
        estimator.observe("t", Codec.ZSTD, 0.3)
        batches += 1
    assert batches in {140, 141}
    assert estimator.estimate("t", Codec.ZSTD) == 0.3


@pytest.mark.parametrize(("actual", "after"), [(0.2, 1.0), (1.0, 1.0), (1.3, 1.3)])
def test_after_a_split_the_estimate_is_the_actual_ratio_but_at_least_1(
    actual: float, after: float
) -> None:
    estimator = CompressionRatioEstimator()
    for _ in range(50):
        estimator.observe("t", Codec.GZIP, 0.5)
    assert estimator.reset_after_split("t", Codec.GZIP, actual) == after
    assert estimator.estimate("t", Codec.GZIP) == after


def test_topics_and_codecs_do_not_know_of_each_other() -> None:
    """Each topic and codec has an estimate of its own."""
    estimator = CompressionRatioEstimator()
    estimator.observe("a", Codec.GZIP, 0.1)
    estimator.observe("b", Codec.GZIP, 2.0)
    assert estimator.estimate("a", Codec.ZSTD) == 1.0
    assert estimator.estimate("a", Codec.GZIP) == 0.995
    assert estimator.estimate("b", Codec.GZIP) == 2.0
    estimator.forget("b")
    assert estimator.estimate("b", Codec.GZIP) == 1.0
    assert estimator.estimate("a", Codec.GZIP) == 0.995


@given(st.lists(ratios, max_size=60))
def test_an_estimate_never_falls_below_the_last_ratio_nor_faster_than_it_may(
    observed: list[float],
) -> None:
    estimator = CompressionRatioEstimator()
    before = 1.0
    for ratio in observed:
        after = estimator.observe("t", Codec.SNAPPY, ratio)
        assert after == estimator.estimate("t", Codec.SNAPPY)
        assert after >= ratio
        assert after >= before - 0.005
        if ratio > before:
            assert after >= before + 0.05
        if ratio == before:
            assert after == before
        before = after
