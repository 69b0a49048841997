"""Exponential back-off with jitter (KIP-580), as a pure function of the number of failures.

The formula is Java's: base x 2^failures, capped, times a factor drawn from [0.8, 1.2]. The jitter
prevents many producers from reconnecting at the same moment after a broker restart. The random
source is an argument so that a run can be replayed from its seed.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Backoff"]

_JITTER = 0.2


class Backoff:
    """Delays in seconds that grow with each consecutive failure until `reset` is called."""

    __slots__ = ("_base", "_maximum", "_random", "failures")

    def __init__(self, base: float, maximum: float, random: Callable[[], float]) -> None:
        self._base = base
        self._maximum = maximum
        self._random = random
        self.failures = 0

    def next_delay(self) -> float:
        """Count one more failure and return the delay before the next attempt, in seconds."""
        delay = self._delay(self.failures)
        self.failures += 1
        return delay

    def last_delay(self) -> float:
        """Return as long a delay as after the last failure, in seconds, and count none."""
        return self._delay(max(self.failures - 1, 0))

    def _delay(self, failures: int) -> float:
        # 2**30 exceeds any cap; the bound keeps the shifted integer from growing without limit.
        delay = min(self._base * float(1 << min(failures, 30)), self._maximum)
        return delay * (1.0 - _JITTER + 2.0 * _JITTER * self._random())

    def reset(self) -> None:
        """Set the number of failures to zero: the next delay is the base again."""
        self.failures = 0
