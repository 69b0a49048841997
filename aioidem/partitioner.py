"""How a record's key decides its partition: Java's murmur2, and aiokafka's rule that uses it.

Invariant: ``murmur2`` returns what Java's ``Utils.murmur2`` does, and a record with a key goes to
``(murmur2(key) & 0x7fffffff) % n``, where n counts *all* partitions and not only the available
ones: a key must keep its partition when a broker goes down, and have the same one in every client.

Rejected: Python's ``hash`` and CRC-32 (librdkafka's default), which send keys to other partitions
than Java's producer does.

`Producer` chooses one partition for several records without a key in a row (sticky). That choice
depends on batches, and is made in `aioidem._engine`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from aioidem._hot import murmur2

__all__ = ["DefaultPartitioner", "Partitioner", "murmur2"]


class Partitioner(Protocol):
    """A function that chooses the partition of a record that was sent without one.

    It is called on the event loop and must not block.
    """

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int:
        """Return the partition of a record: one member of ``all_partitions``.

        Args:
            key: The serialised key, or None.
            all_partitions: The numbers of all partitions, sorted and never empty.
            available: The numbers of the partitions that have a leader at present; may be empty.
        """
        ...


class DefaultPartitioner:
    """Chooses by the key's murmur2 hash, as aiokafka does; at random for a record without a key.

    The random choice is among the available partitions, or among all if none is available.
    """

    __slots__ = ()

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int:
        """Return the partition of a record: one member of ``all_partitions``; see `Partitioner`.

        Raises:
            IndexError: ``all_partitions`` is empty.
        """
        if key is None:
            return random.choice(available or all_partitions)
        return all_partitions[(murmur2(key) & 0x7FFFFFFF) % len(all_partitions)]
