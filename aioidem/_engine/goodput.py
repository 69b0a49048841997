"""Goodput: how many bytes per second a connection moves, measured from acknowledgements.

A sample is the delivery rate of BBR: the bytes acknowledged between the sending of a request and
its answer, divided by that time. It is right for pipelined requests, where the size of one request
divided by its round-trip time would be too low by a factor of the number in flight. The estimate is
the largest of the last eight samples, because samples taken while there was little to send are too
low.

With late sealing (see the module `sealing`) a batch may grow beyond `batch_size`. The estimate
bounds its growth: at this rate all bytes in flight must be transferred in well under the request
timeout. Without that bound a large batch on a slow connection would time out and be resent, again
and again.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Goodput"]

_SAMPLES = 8


class Goodput:
    """The bytes per second that were acknowledged on one connection."""

    __slots__ = ("_samples", "delivered")

    def __init__(self) -> None:
        self.delivered = 0
        self._samples: deque[float] = deque(maxlen=_SAMPLES)

    def acknowledge(
        self, nbytes: int, *, sent_at: float, delivered_at_send: int, now: float
    ) -> None:
        """Note that a request was answered.

        Args:
            nbytes: size of the request's batches.
            sent_at: when the request was sent, in seconds.
            delivered_at_send: the value of `delivered` when the request was sent, in bytes.
            now: seconds.
        """
        self.delivered += nbytes
        elapsed = now - sent_at
        if elapsed > 0:
            self._samples.append((self.delivered - delivered_at_send) / elapsed)

    @property
    def rate(self) -> float | None:
        """The largest of the last samples, in bytes per second; None before the first one."""
        return max(self._samples) if self._samples else None
