"""How many bytes a connection moves per second, measured from acknowledgements.

The delivery-rate sample of BBR: bytes acknowledged between a request's send and its answer, over
that time. It holds for pipelined requests, where size / RTT of one request would undercount by the
number in flight. The estimate is the largest of the last few samples: samples taken while there was
little to send say little.

Late sealing asks it how large a batch may grow: only while the bytes in flight move in well under
the request timeout. Without that bound a thin link would never finish one grown batch: timeout,
resend, timeout, for ever.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Goodput"]

_SAMPLES = 8


class Goodput:
    """Bytes per second acknowledged on one connection; None until something was."""

    __slots__ = ("_samples", "delivered")

    def __init__(self) -> None:
        self.delivered = 0
        self._samples: deque[float] = deque(maxlen=_SAMPLES)

    def acknowledge(
        self, nbytes: int, *, sent_at: float, delivered_at_send: int, now: float
    ) -> None:
        """Note that a request of `nbytes` was answered.

        `delivered_at_send` is what `delivered` was when the request left.
        """
        self.delivered += nbytes
        elapsed = now - sent_at
        if elapsed > 0:
            self._samples.append((self.delivered - delivered_at_send) / elapsed)

    @property
    def rate(self) -> float | None:
        """Bytes per second."""
        return max(self._samples) if self._samples else None
