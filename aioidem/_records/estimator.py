"""Estimate how well a topic's next batch will compress, as Java's CompressionRatioEstimator does.

The ratio is the compressed size of a batch's records divided by their uncompressed size. The
estimate is pessimistic: it falls slowly and rises at once, because a batch that turns out too large
costs a round trip and a split.

Invariants: an estimate is above 0 and never below the last observation; each pair of topic and
codec has an estimate of its own. There is no lock, because an estimator is used on one event loop.

Rejected: an exponential average (when batches stop compressing well, it would rise so slowly that
brokers refuse several batches as too large before it is right).
"""

from __future__ import annotations

from typing import Final

from aioidem._records.compression import Codec

# A new batch's estimated size is its uncompressed size x the estimate x this factor.
ESTIMATION_FACTOR: Final = 1.05
IMPROVING_STEP: Final = 0.005
DETERIORATE_STEP: Final = 0.05
INITIAL_ESTIMATE: Final = 1.0


class CompressionRatioEstimator:
    """The estimated compression ratio for each topic and codec: 1.0 until a batch was observed."""

    __slots__ = ("_estimates",)

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, Codec], float] = {}

    def estimate(self, topic: str, codec: Codec) -> float:
        """Return the estimated compression ratio; callers multiply it by ESTIMATION_FACTOR."""
        return self._estimates.get((topic, codec), INITIAL_ESTIMATE)

    def observe(self, topic: str, codec: Codec, ratio: float) -> float:
        """Adjust the estimate to a sealed batch's compression ratio, and return the new estimate.

        The estimate falls by at most IMPROVING_STEP, not below ``ratio``. It rises by at least
        DETERIORATE_STEP, and at least to ``ratio``.
        """
        current = self.estimate(topic, codec)
        if ratio > current:
            current = max(current + DETERIORATE_STEP, ratio)
        elif ratio < current:
            current = max(current - IMPROVING_STEP, ratio)
        self._estimates[topic, codec] = current
        return current

    def reset_after_split(self, topic: str, codec: Codec, ratio: float) -> float:
        """Set the estimate to 1.0, or to ``ratio`` if that is higher; return the estimate.

        ``ratio`` is the compression ratio of a batch that was too large and had to be split.
        """
        current = max(INITIAL_ESTIMATE, ratio)
        self._estimates[topic, codec] = current
        return current

    def forget(self, topic: str) -> None:
        """Drop the estimates of a topic that is no longer written to."""
        for key in [key for key in self._estimates if key[0] == topic]:
            del self._estimates[key]
