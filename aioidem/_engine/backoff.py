"""Exponential back-off with jitter (KIP-580), as a pure function of how often something failed.

Java's shape: base x 2^failures, capped, times a factor drawn from [0.8, 1.2]. The jitter is what
keeps a fleet of producers from reconnecting in step after a broker restart. Randomness is an
argument so that a seed replays.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Backoff"]

_JITTER = 0.2


class Backoff:
    """Delays, in seconds, that grow with each consecutive failure until `reset`."""

    __slots__ = ("_base", "_maximum", "_random", "failures")

    def __init__(self, base: float, maximum: float, random: Callable[[], float]) -> None:
        self._base = base
        self._maximum = maximum
        self._random = random
        self.failures = 0

    def next_delay(self) -> float:
        """Count one more failure and say how long to wait before the next attempt."""
        # 2**30 is far past any cap; the bound keeps the shift from growing for ever.
        delay = min(self._base * float(1 << min(self.failures, 30)), self._maximum)
        self.failures += 1
        return delay * (1.0 - _JITTER + 2.0 * _JITTER * self._random())

    def reset(self) -> None:
        """Forget the failures: the next delay is the base again."""
        self.failures = 0
