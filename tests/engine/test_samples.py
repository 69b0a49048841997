"""Sensors: sums over all time, and Java's sample windows (two samples of 30 s)."""

from __future__ import annotations

import math
import random

import pytest

from aioidem._engine.samples import Distribution, Sensor


def test_a_rate_is_per_second_of_at_least_one_sample() -> None:
    """Right after the first number a rate is its share of 30 s, and not of an instant."""
    sensor = Sensor()
    sensor.record(60, 100.0)
    assert sensor.rate(100.0) == 60 / 30
    assert sensor.rate(110.0) == 60 / 40
    assert sensor.rate(130.0) == 60 / 30


def test_a_second_sample_begins_with_the_first_number_after_30_seconds() -> None:
    """Both samples count; the rate is over the time since the first of them began."""
    sensor = Sensor()
    sensor.record(30, 100.0)
    sensor.record(30, 131.0)
    assert sensor.rate(140.0) == pytest.approx(60 / 40)
    assert sensor.frequency(140.0) == pytest.approx(2 / 40)
    assert sensor.average(140.0) == 30


def test_after_a_minute_without_a_number_a_sample_is_empty() -> None:
    """A sample counts until a minute after its last number, and the totals stay."""
    sensor = Sensor()
    sensor.record(30, 100.0)
    sensor.record(10, 129.0)
    assert sensor.largest(188.9) == 30
    assert math.isnan(sensor.largest(189.0))
    assert math.isnan(sensor.average(189.0))
    assert sensor.rate(189.0) == 0
    assert (sensor.count, sensor.total) == (2, 40)


def test_a_sample_that_reaches_into_the_last_minute_still_counts() -> None:
    """Three samples are kept: an old one counts as long as it had a number in the last minute."""
    sensor = Sensor()
    for at in (100.0, 129.0, 130.0, 159.0, 160.0, 188.0):
        sensor.record(1, at)
    assert sensor.rate(188.0) == pytest.approx(6 / 88)
    assert sensor.rate(189.0) == pytest.approx(4 / 59)


def test_samples_are_used_again() -> None:
    """However long a sensor is used, it keeps three samples."""
    sensor = Sensor()
    for at in range(1000):
        sensor.record(1, float(at))
    assert sensor.frequency(999.0) == pytest.approx(1, abs=0.05)
    assert sensor.count == 1000


def test_many_numbers_at_once_are_like_each_by_itself() -> None:
    """`record_all` has the sums of as many calls of `record`; no number is nothing."""
    one, many, plain = Sensor(), Distribution(), Sensor()
    for number in (3.0, 1.0, 2.0):
        one.record(number, 5.0)
    for each in (many, plain):
        each.record_all([3.0, 1.0, 2.0], 5.0)
        each.record_all([], 50.0)
    for sensor in (one, many, plain):
        assert (sensor.count, sensor.total) == (3, 6.0)
        assert (sensor.average(6.0), sensor.largest(6.0)) == (2.0, 3.0)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 0.99, 0.999, 1.0])
def test_a_percentile_is_off_by_one_percent_at_most(share: float) -> None:
    """Percentiles of durations from 20 us to minutes are within 1 % of the exact ones."""
    draw = random.Random(20)
    numbers = [2e-5 * math.exp(draw.random() * 15) for _ in range(5000)]
    distribution = Distribution()
    distribution.record_all(numbers, 1.0)
    exact = sorted(numbers)[max(0, math.ceil(share * len(numbers)) - 1)]
    if share:
        assert distribution.percentile(share, 1.0) == pytest.approx(exact, rel=0.0101)


@pytest.mark.parametrize("seconds", [1.1e-5, 60.0, 3950.0])
def test_the_classes_reach_from_ten_microseconds_to_more_than_an_hour(seconds: float) -> None:
    distribution = Distribution()
    distribution.record_all([seconds] * 2, 0.0)
    assert distribution.percentile(0.5, 0.0) == pytest.approx(seconds, rel=0.0101)


def test_percentiles_are_of_the_last_minute() -> None:
    """After a minute there is no percentile; durations beyond the classes are the last class."""
    distribution = Distribution()
    assert math.isnan(distribution.percentile(0.5, 0.0))
    distribution.record_all([1e-9, 1e9], 0.0)
    assert distribution.percentile(0.5, 1.0) < 1.1e-5
    assert distribution.percentile(1.0, 1.0) > 3600
    assert math.isnan(distribution.percentile(0.5, 60.0))


def test_the_largest_of_two_samples_is_the_larger_one_until_its_minute_is_over() -> None:
    sensor = Sensor()
    assert math.isnan(sensor.largest(0.0))
    sensor.record(9, 100.0)
    sensor.record(5, 131.0)
    assert sensor.largest(140.0) == 9
    assert sensor.largest(161.0) == 5
    assert math.isnan(sensor.largest(191.0))


def test_a_sample_that_is_used_again_begins_empty() -> None:
    """Three samples are kept, of which two count; the fourth 30 s use the first one again."""
    sensor = Sensor()
    for turn in range(4):
        sensor.record(100 if turn == 0 else 1, 100.0 + 31.0 * turn)
    assert sensor.largest(194.0) == 1
    assert sensor.average(194.0) == 1


def test_the_highest_percentile_is_the_largest_duration() -> None:
    durations = Distribution()
    assert math.isnan(durations.percentile(0.99, 0.0))
    durations.record_all([0.1] * 99 + [2.0], 0.0)
    assert durations.percentile(0.99, 0.0) == pytest.approx(0.1, rel=0.011)
    assert durations.percentile(1.0, 0.0) == pytest.approx(2.0, rel=0.011)
    assert durations.percentile(1.0, 0.0) <= 2.0
