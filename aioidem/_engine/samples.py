"""Sensor and Distribution: numbers of one kind, over all time and over the last minute.

The last minute is Java's: numbers are collected in samples of 30 s (`metrics.sample.window.ms`), of
which the newest two (`metrics.num.samples`) count, and with them an older one that reaches into
that minute. A sample begins with a number, not by the clock. So a rate is the sum of the samples
divided by the time since the oldest of them began, but by no less than one sample. A sample without
a number in the last minute is emptied.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from functools import partial
from itertools import accumulate, repeat
from operator import mul
from typing import Final

__all__ = ["Distribution", "Sensor"]

SAMPLES = 2
"""How many samples count (Java's `metrics.num.samples`)."""

SAMPLE_SECONDS = 30.0
"""How long a sample collects, in seconds (Java's `metrics.sample.window.ms`)."""

_STEP: Final = 1.02
_BOUNDS: tuple[float, ...] = tuple(accumulate(repeat(_STEP, 1000), mul, initial=1e-5))
"""The upper ends of the classes of a distribution, in seconds: from 10 us to more than an hour."""

_class_of = partial(bisect_right, _BOUNDS)


class _Sample:
    """What was recorded in about 30 seconds."""

    __slots__ = ("began", "classes", "count", "largest", "last", "total")

    def __init__(self, now: float) -> None:
        self.classes: Counter[int] = Counter()
        self.reset(now)

    def reset(self, now: float) -> None:
        """Empty the sample, and begin it anew."""
        self.began = self.last = now
        self.count = 0
        self.total = 0.0
        self.largest = -math.inf
        self.classes.clear()


class Sensor:
    """Numbers of one kind. Times are in seconds, on any one clock.

    Attributes:
        count: how many numbers were recorded so far.
        total: the sum of all of them.
    """

    __slots__ = ("_at", "_samples", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._samples: list[_Sample] = []
        self._at = 0

    def record(self, number: float, now: float) -> None:
        """Record one number."""
        self._add(1, number, number, now)

    def record_all(self, numbers: Collection[float], now: float) -> None:
        """Record numbers; all of them count as recorded `now`."""
        if numbers:
            self._add(len(numbers), sum(numbers), max(numbers), now)

    def _add(self, count: int, total: float, largest: float, now: float) -> _Sample:
        self.count += count
        self.total += total
        sample = self._current(now)
        sample.count += count
        sample.total += total
        if largest > sample.largest:
            sample.largest = largest
        sample.last = now
        return sample

    def _current(self, now: float) -> _Sample:
        """Return the sample that collects now; one more than `SAMPLES` is kept."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now))
        elif now - samples[self._at].began >= SAMPLE_SECONDS:
            self._at = (self._at + 1) % (SAMPLES + 1)
            if self._at == len(samples):
                samples.append(_Sample(now))
            else:
                samples[self._at].reset(now)
        return samples[self._at]

    def _counting(self, now: float) -> list[_Sample]:
        """Return the samples that count, after those that do not were emptied."""
        for sample in self._samples:
            if now - sample.last >= SAMPLES * SAMPLE_SECONDS:
                sample.reset(now)
        return self._samples

    # -- what the last minute had

    def average(self, now: float) -> float:
        """Return the average of the numbers of the last minute; NaN if there were none."""
        samples = self._counting(now)
        count = sum(each.count for each in samples)
        return sum(each.total for each in samples) / count if count else math.nan

    def largest(self, now: float) -> float:
        """Return the largest number of the last minute; NaN if there was none."""
        found = max((each.largest for each in self._counting(now)), default=-math.inf)
        return found if found > -math.inf else math.nan

    def rate(self, now: float) -> float:
        """Return the sum of the numbers of the last minute, per second."""
        return sum(each.total for each in self._counting(now)) / self._seconds(now)

    def frequency(self, now: float) -> float:
        """Return how many numbers there were in the last minute, per second."""
        return sum(each.count for each in self._counting(now)) / self._seconds(now)

    def _seconds(self, now: float) -> float:
        """Return for how long the samples have collected, but no less than all but one take."""
        elapsed = now - min((each.began for each in self._counting(now)), default=now)
        whole = int(elapsed / SAMPLE_SECONDS)
        elapsed += max(0, SAMPLES - 1 - whole) * SAMPLE_SECONDS
        return elapsed


class Distribution(Sensor):
    """Durations, which are also counted by size, so that percentiles can be told.

    The classes are 2 % wide, so a percentile is off by at most 1 %, as of an HDR histogram with two
    digits. The library `hdrhistogram` is not used: it would have to be installed in order to send,
    and it takes the numbers one at a time, in Python.
    """

    __slots__ = ()

    def record_all(self, numbers: Collection[float], now: float) -> None:
        """Record durations, in seconds; all of them count as recorded `now`."""
        if numbers:
            sample = self._add(len(numbers), sum(numbers), max(numbers), now)
            sample.classes.update(map(_class_of, numbers))

    def percentile(self, share: float, now: float) -> float:
        """Return the duration that a share of those of the last minute does not exceed.

        Args:
            share: for example 0.99.
            now: seconds.

        Returns:
            Seconds; NaN if there were none.
        """
        counts: Counter[int] = Counter()
        for sample in self._counting(now):
            counts.update(sample.classes)
        left = math.ceil(share * counts.total())
        for number in sorted(counts):
            left -= counts[number]
            if left <= 0:
                middle: float = _BOUNDS[min(number, len(_BOUNDS) - 1)] / _STEP**0.5
                return min(middle, self.largest(now))
        return math.nan
