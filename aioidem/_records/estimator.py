"""Guesses how well a topic's next batch will compress, as Java's CompressionRatioEstimator does.

A ratio is compressed over uncompressed bytes of a batch's records. The guess is pessimistic: it
falls slowly and rises at once, because a batch that turns out too large costs a round trip and a
split.

Invariants: an estimate is above 0; it never falls below the last observation; topics and codecs are
independent. Pure: no clock, no locks (one event loop owns it).
Rejected: an exponential average (recovers from one incompressible batch only after several
refusals).
"""

from __future__ import annotations

from typing import Final

from aioidem._records.compression import Codec

# The size of a new batch is guessed as its uncompressed bytes x estimate x this.
ESTIMATION_FACTOR: Final = 1.05
IMPROVING_STEP: Final = 0.005
DETERIORATE_STEP: Final = 0.05
INITIAL_ESTIMATE: Final = 1.0


class CompressionRatioEstimator:
    """Ratio estimates by topic and codec; 1.0 until something was observed."""

    __slots__ = ("_estimates",)

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, Codec], float] = {}

    def estimate(self, topic: str, codec: Codec) -> float:
        """The expected ratio; multiply by ESTIMATION_FACTOR before relying on it."""
        return self._estimates.get((topic, codec), INITIAL_ESTIMATE)

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        """Learn the ratio of a sealed batch, and return the new estimate.

        Down by at most IMPROVING_STEP and not below ``ratio``; up by at least DETERIORATE_STEP and
        to ``ratio``.
        """
        current = self.estimate(topic, codec)
        if ratio > current:
            current = max(current + DETERIORATE_STEP, ratio)
        elif ratio < current:
            current = max(current - IMPROVING_STEP, ratio)
        self._estimates[topic, codec] = current
        return current

    def reset_after_split(self, topic: str, codec: Codec, ratio: float) -> float:
        """Start over from the ratio of a batch refused as too large, at least 1.0. Returns it."""
        current = max(INITIAL_ESTIMATE, ratio)
        self._estimates[topic, codec] = current
        return current

    def forget(self, topic: str) -> None:
        """Drop what is known of a topic that is no longer written to."""
        for key in [key for key in self._estimates if key[0] == topic]:
            del self._estimates[key]
