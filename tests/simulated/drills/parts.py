"""The drills of the buffer and of a distribution of durations.

A `ByteBudget` is used by more callers than a run has, which come, give up and claim their room in
any order; a `Distribution` gets numbers over minutes, with gaps. Each is compared after each step
with a model that keeps everything, and derives from that what should be told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.samples import Distribution

from .comparing import unequal

__all__ = ["drill_budget", "drill_distribution"]

_STEPS: Final = 60
_SAMPLE: Final = 30.0
"""Seconds for which numbers are collected in one sample."""
_MINUTE: Final = 2 * _SAMPLE
_SHARES: Final = (0.01, 0.5, 0.9, 0.99, 1.0)
"""The shares of all numbers that are below the percentiles asked for."""
_PRECISION: Final = 0.015
"""The largest relative error of a percentile: it is known by classes that are 2 % wide."""
_SMALLEST: Final = 1e-5
"""Seconds: shorter durations are all of one class."""


def drill_budget(dice: Random) -> Iterator[str]:
    """Yield what is wrong with a budget whose callers come and go."""
    yield from _BudgetDrill(dice).run()


def drill_distribution(dice: Random) -> Iterator[str]:
    """Yield what is wrong with a distribution of numbers that come over minutes."""
    yield from _DistributionDrill(dice).run()


# -- the budget ------------------------------------------------------------------------------------


class _BudgetDrill:
    """A budget, and the model of one: who has taken how much, and who waits in which order."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._capacity = dice.choice((100, 1000))
        self._reserve = dice.choice((0, self._capacity // 3))
        self._budget = ByteBudget(self._capacity, self._reserve)
        # The sizes of records that have room, and of the copies of batches.
        self._taken: list[int] = []
        self._copies: list[int] = []
        # Who waits, first come first; the one that was granted room, and has neither claimed it nor
        # given it up.
        self._queue: list[MemoryWaiter] = []
        self._granted: MemoryWaiter | None = None
        # The number of each caller that has waited; those who were woken, and who should have been.
        self._numbers: dict[MemoryWaiter, int] = {}
        self._woken: list[int] = []
        self._due: list[int] = []

    def run(self) -> Iterator[str]:
        """Do what callers do, at random, and yield what is wrong."""
        actions = [self._take, self._wait, self._wait, self._settle, self._settle, self._claim]
        actions += [self._abandon, self._copy, self._drop]
        for _ in range(_STEPS):
            action = self._dice.choice(actions)
            wrong = action() or self._difference()
            if wrong is not None:
                yield f"budget: {wrong} after {action.__name__}"
                return
        yield from self._end()

    def _end(self) -> Iterator[str]:
        """Wake all that wait, as when a producer ends, and yield what is wrong."""
        left = [each for each in self._queue if each is not self._granted]
        numbers = [self._numbers[each] for each in left]
        woken = [self._numbers[each] for each in self._budget.wake_all()]
        called = self._woken[len(self._due) :]
        if woken != numbers or called != numbers:
            yield f"budget: {woken} are woken at the end, and {called} called, not {numbers}"
        odd = [self._numbers[each] for each in left if not each.abandoned or each.granted]
        if odd:
            yield f"budget: {odd} were woken at the end, and are not abandoned, or have room"
        if self._budget.waiting != (self._granted is not None):
            due = int(self._granted is not None)
            yield f"budget: {self._budget.waiting} wait after the end, not {due}"

    def _size(self) -> int:
        return self._dice.choice((1, 10, 40, self._capacity // 2, self._capacity + 1))

    def _fits(self, size: int) -> bool:
        used = sum(self._taken)
        room = self._capacity - max(self._reserve, sum(self._copies))
        return used == 0 or used + size <= room

    def _grant(self) -> None:
        """Grant room to the caller that has waited longest, if there is enough."""
        if self._granted is None and self._queue and self._fits(self._queue[0].size):
            self._granted = self._queue[0]
            self._taken.append(self._granted.size)
            self._due.append(self._numbers[self._granted])

    def _difference(self) -> str | None:
        """Return how the budget differs from the model; None if it does not."""
        self._grant()
        budget = self._budget
        waiting = [each for each in self._queue if each is not self._granted]
        pairs: dict[str, tuple[object, object]] = {
            "bytes of records": (budget.used, sum(self._taken)),
            "bytes of copies": (budget.copies, sum(self._copies)),
            "bytes in use": (budget.in_use, sum(self._taken) + sum(self._copies)),
            "room": (budget.limit, self._capacity - max(self._reserve, sum(self._copies))),
            "waiting": (budget.waiting, len(self._queue)),
            "callers that were woken": (self._woken, self._due),
            "who has waited longest": (self._number(budget.head), self._number(*waiting[:1])),
        }
        if self._granted is not None and not self._granted.granted:
            return f"caller {self._numbers[self._granted]} should have room, and is not granted it"
        return unequal(pairs)

    def _number(self, waiter: MemoryWaiter | None = None) -> int | None:
        return None if waiter is None else self._numbers[waiter]

    # what callers do; each returns what is wrong by itself

    def _take(self) -> str | None:
        size = self._size()
        free = not self._queue and self._fits(size)
        if self._budget.try_take(size) is not free:
            return f"{size} bytes are {'not ' * free}taken beside {self._taken}"
        if free:
            self._taken.append(size)
        return None

    def _wait(self) -> str | None:
        number = len(self._numbers)
        waiter = self._budget.wait(self._size(), partial(self._woken.append, number))
        self._numbers[waiter] = number
        self._queue.append(waiter)
        return None

    def _settle(self) -> str | None:
        """Release the room of a record that has got its outcome."""
        own = None if self._granted is None else self._granted.size
        sizes = list(self._taken)
        if own is not None:
            sizes.remove(own)  # its record is not queued yet
        if sizes:
            size = self._dice.choice(sizes)
            self._taken.remove(size)
            self._budget.release(size)
        return None

    def _claim(self) -> str | None:
        if self._granted is not None:
            waiter, self._granted = self._granted, None
            self._queue.remove(waiter)
            self._budget.claim(waiter)
        return None

    def _abandon(self) -> str | None:
        if not self._queue:
            return None
        waiter = self._dice.choice(self._queue)
        self._queue.remove(waiter)
        if waiter is self._granted:
            self._granted = None
            self._grant_after(waiter)
        self._budget.abandon(waiter)
        self._budget.abandon(waiter)  # a second time, which changes nothing
        return None

    def _grant_after(self, gone: MemoryWaiter) -> None:
        """Give back the room of a caller that is gone, just after it was offered to the next."""
        self._grant()
        self._taken.remove(gone.size)

    def _copy(self) -> str | None:
        size = self._size()
        self._copies.append(size)
        self._budget.add_copy(size)
        return None

    def _drop(self) -> str | None:
        if self._copies:
            size = self._copies.pop(self._dice.randrange(len(self._copies)))
            self._budget.drop_copy(size)
        return None


# -- numbers of the last minute --------------------------------------------------------------------


@dataclass
class _Sample:
    """Numbers that were collected together; times are in seconds."""

    began: float
    last: float
    numbers: list[float] = field(default_factory=list)


class _DistributionDrill:
    """A distribution, and all numbers that it was given, by the samples to which they belong."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._told = Distribution()
        self._ever: list[float] = []
        self._samples: list[_Sample] = []

    def run(self) -> Iterator[str]:
        """Record numbers over minutes, and yield what is wrong."""
        dice, now = self._dice, self._dice.choice((0.0, 1e6))
        for _ in range(_STEPS):
            now += dice.choice((0.0, 0.1, 4.0, 29.0, 31.0, 61.0))
            if dice.random() < 0.7:
                numbers = [dice.choice((1e-6, 0.001, 0.5, 7.0, 3000.0)) for _ in range(3)]
                del numbers[dice.choice((0, 1, 3)) :]
                self._told.record_all(numbers, now)
                self._keep(numbers, now)
            if dice.random() < 0.5:
                continue
            for name, (told, least, most) in self._pairs(now).items():
                alike = math.isnan(told) and math.isnan(least)
                if not alike and not least * (1 - 1e-9) <= told <= most * (1 + 1e-9):
                    yield f"distribution: {name} is {told}, not between {least} and {most}"
                    return

    def _keep(self, numbers: list[float], now: float) -> None:
        if not numbers:
            return
        self._ever += numbers
        if not self._samples or now - self._samples[-1].began >= _SAMPLE:
            self._samples.append(_Sample(now, now))
        newest = self._samples[-1]
        newest.numbers += numbers
        newest.last = now

    def _pairs(self, now: float) -> dict[str, tuple[float, float, float]]:
        """Return what is told, and the least and the most that it may be."""
        kept = self._samples[-3:]
        for sample in kept:
            if now - sample.last >= _MINUTE:  # it begins anew, and is empty
                sample.began = sample.last = now
                sample.numbers.clear()
        # The first 30 s of a rate count as 30 s more, so that a few numbers are no high rate.
        numbers = sorted(number for sample in kept for number in sample.numbers)
        elapsed = now - min((sample.began for sample in kept), default=now)
        seconds = elapsed if elapsed >= _SAMPLE else elapsed + _SAMPLE
        average = sum(numbers) / len(numbers) if numbers else math.nan
        told = self._told
        exact = {
            "count": (told.count, len(self._ever)),
            "total": (told.total, sum(self._ever)),
            "average": (told.average(now), average),
            "largest": (told.largest(now), numbers[-1] if numbers else math.nan),
            "rate": (told.rate(now), sum(numbers) / seconds),
            "frequency": (told.frequency(now), len(numbers) / seconds),
        }
        pairs = {name: (is_told, due, due) for name, (is_told, due) in exact.items()}
        for share in _SHARES:
            due = numbers[math.ceil(share * len(numbers)) - 1] if numbers else math.nan
            least = 0.0 if due < _SMALLEST else due * (1 - _PRECISION)
            most = max(due, _SMALLEST) * (1 + _PRECISION)
            pairs[f"percentile {share}"] = (told.percentile(share, now), least, most)
        return pairs
