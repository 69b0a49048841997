"""What limits the size of a batch: the options, the leader, the connection, and compression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Final

from aioidem._config import ProducerConfig
from aioidem._engine.links import Link
from aioidem._engine.topics import TopicState
from aioidem._records import BATCH_OVERHEAD, BatchBody

__all__ = ["Limits", "Share", "division"]

_HOUR: Final = 3600.0
"""Seconds for which a refusal counts."""
_WINDOW: Final = 5
"""The number of batches that every broker retains: if more wait, batches may grow."""
_TRANSFER: Final = 0.25
"""The share of the request timeout in which all bytes in flight are to be transferred."""
_ENLARGED: Final = 6 / 7
"""The share of a limit that records may have before compression: at worst it makes 7 bytes of 6."""


class Limits:
    """What is known of a leader and of the connection to it, and how large a batch may be."""

    def __init__(self, config: ProducerConfig, topic: TopicState, link: Link) -> None:
        self._config = config
        self._topic = topic
        self._link = link
        # The most bytes of a batch by the topic's config, the largest batch that was acknowledged,
        # and the bytes per second that the connection moves.
        self._told: int | None = None
        self._acknowledged = 0
        self._rate: int | None = None
        # The size of the smallest batch that was refused, and when one was refused last.
        self._refused: tuple[int, float] | None = None

    def learn(self, dice: Random, now: float) -> None:
        """Learn something new from the leader's answers."""
        link, limit = self._link, self._link.limits.of("t")
        size = dice.choice((400, 1000, 3000, 50_000))
        match dice.randrange(5):
            case 0:
                self._told = dice.choice((None, size))
                limit.tell(self._told, now)
            case 1:
                limit.accept(size)
                self._acknowledged = max(self._acknowledged, size)
            case 2:
                self.refuse(size, now)
            case 3 if self._rate is None:
                self._rate = 10 * size
                link.goodput.acknowledge(10 * size, sent_at=0.0, delivered_at_send=0, now=1.0)
            case _:
                link.bytes_in_flight = dice.choice((0, 1000, 100_000))

    def refuse(self, size: int, now: float) -> None:
        """Learn that a batch was refused for its size; the smallest one of an hour counts."""
        self._topic.too_large(size, now)
        if self._refused is not None and now < self._refused[1] + _HOUR:
            size = min(size, self._refused[0])
        self._refused = size, now

    def most(self, now: float) -> int:
        """Return the most bytes of a batch that the leader is known to accept."""
        known = max(self._config.batch_size, self._acknowledged)
        if self._told is not None:
            known = self._told
        return self._ceiling(min(known, self._config.max_request_size), now)

    def at_most(self, now: float) -> int:
        """Return the most bytes of a batch that replaces a refused one."""
        limit = self._config.max_request_size if self._told is None else self._told
        return self._ceiling(limit, now)

    def _ceiling(self, known: int, now: float) -> int:
        """Return a limit, or a lower one if a batch was refused within an hour."""
        if self._refused is None or now >= self._refused[1] + _HOUR:
            return known
        size = self._refused[0]
        explained = self._told is not None and self._told < size
        return known if explained else min(known, size // 2)

    def limit(self, most: int, waiting: int, *, blocked: bool) -> int:
        """Return the most bytes of the next batch, which may grow if others would wait behind it.

        Args:
            most: the most bytes that the leader accepts.
            waiting: the bytes of records that wait.
            blocked: whether the partition was held back.
        """
        config = self._config
        usual = min(config.batch_size, most)
        grows = blocked or waiting > _WINDOW * config.batch_size
        if not config.late_sealing or not grows or self._rate is None:
            return usual
        moved = int(self._rate * config.request_timeout * _TRANSFER) - self._link.bytes_in_flight
        return max(usual, min(most, moved))


class Share:
    """The share of a batch's bytes that compression is believed to leave (KIP-126)."""

    def __init__(self, now: float = 1.0) -> None:
        self.now = now

    @property
    def ratio(self) -> float:
        """The share that is assumed for the next batch, a little more than is believed."""
        return self.now * 1.05

    def observe(self, body: BatchBody) -> None:
        """Learn from a batch: slowly if it was compressed better than believed, else at once."""
        left = body.batch_size / body.uncompressed_size
        if left > self.now:
            self.now = max(left, self.now + 0.05)
        else:
            self.now = max(left, self.now - 0.005)


def division(sizes: Sequence[int], batch_size: int, most: int, *, compresses: bool) -> list[int]:
    """Return the numbers of records of the parts that a batch is divided into.

    Each part has as many records as are sure to fit, or one. If all would fit, two halves are made.

    Args:
        sizes: The most bytes of each record, before compression.
        batch_size: The option.
        most: The most bytes that the leader accepts.
        compresses: Whether the records are compressed, which may enlarge them.
    """
    room = min(batch_size, int(most * _ENLARGED) if compresses else most) - BATCH_OVERHEAD
    left, parts = list(sizes), list[int]()
    while left:
        fits = sum(total <= room for total in accumulate(left))
        parts.append(max(1, fits))
        del left[: parts[-1]]
    half = len(sizes) // 2
    return parts if len(parts) > 1 else [half, len(sizes) - half]
