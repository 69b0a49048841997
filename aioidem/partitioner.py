"""Which partition a record with a key goes to: Java's murmur2, and the rule aiokafka builds on it.

Invariant: ``murmur2`` gives Java's ``Utils.murmur2`` for every input, and a keyed record goes to
``(murmur2(key) & 0x7fffffff) % n`` with n counting *all* partitions, not only the available ones:
a key must not move when a broker goes down, nor differ between clients.

Rejected: Python's ``hash`` and crc32 (librdkafka's default), which send keys elsewhere than Java's
producer does. The sticky choice for records without a key is not here: it depends on batches, which
only the engine sees.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

__all__ = ["DefaultPartitioner", "Partitioner", "murmur2"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


class Partitioner(Protocol):
    """Chooses a partition for each record without one. Runs on the event loop: must not block."""

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int:
        """Return one member of ``all_partitions``.

        ``key`` is the serialised key; ``all_partitions`` is sorted and never empty; ``available``
        holds those that have a leader just now, and may be empty.
        """
        ...


class DefaultPartitioner:
    """aiokafka's rule: by the key's murmur2 hash; without a key, a random available partition."""

    __slots__ = ()

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int:
        """See `Partitioner`. Raises IndexError when ``all_partitions`` is empty."""
        if key is None:
            return random.choice(available or all_partitions)
        return all_partitions[(murmur2(key) & 0x7FFFFFFF) % len(all_partitions)]


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of ``data`` as Java's signed ``int``."""
    length = len(data)
    h = _SEED ^ length
    aligned = length & ~3
    for at in range(0, aligned, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if aligned < length:
        h ^= int.from_bytes(data[aligned:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h
