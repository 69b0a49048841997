"""The judge of batches: a batch takes as many records of a call as fit, and in the call's order.

A producer whose batches are half full delivers each record once and in order, so no other judge
would notice. Only records that one call has queued for one partition are judged: none of them can
have come after the batch was sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from aioidem._config import ProducerConfig
from aioidem._engine.steps import SendProduce
from aioidem.testing import ValueId

from .decoding import records_in

__all__ = ["Filling"]

_HEADER = 61
"""Bytes of a batch before its records."""


class Filling:
    """Judges the batches that a producer sends for the first time.

    Args:
        config: The producer's options.
        complain: Is told what is wrong.
    """

    def __init__(self, config: ProducerConfig, complain: Callable[[str], None]) -> None:
        self._limit = min(config.batch_size, config.max_request_size)
        self._complain = complain
        # By record: the most bytes that it takes in a batch, and the next record of its call.
        self._sizes: dict[ValueId, int] = {}
        self._next: dict[ValueId, ValueId] = {}
        self._sent: set[ValueId] = set()
        # By record of a caller's batch: the batch's first record, its number of records, its bytes.
        self._batches: dict[ValueId, tuple[ValueId, int, int]] = {}
        self.limited = config.compression_type != "none"
        """Whether a batch may end below `batch_size`: its topic's max.message.bytes may be less, or
        its size is estimated as it will be compressed, or brokers of KIP-758 know a duplicate only
        among so many records. Then nothing is judged.
        """

    def queued(self, values: Sequence[ValueId], sizes: Sequence[int]) -> None:
        """Note the records of one call, all for one partition, in their order."""
        self._sizes.update(zip(values, sizes, strict=True))
        self._next.update(pairwise(values))

    def grouped(self, values: Sequence[ValueId], size: int) -> None:
        """Note the records of a batch of the caller's, and how many bytes the batch has."""
        for value in values:
            self._batches[value] = values[0], len(values), size

    def sent(self, step: SendProduce) -> None:
        """Note a Produce request that the engine gives to the Sender."""
        if self.limited:
            return
        for topic in step.topics:
            for _, data in topic.partitions:
                self._judge([value for value, _ in records_in(data)])

    def _judge(self, values: Sequence[ValueId]) -> None:
        again = not self._sent.isdisjoint(values)
        self._sent.update(values)
        self._judge_callers(values, again=again)
        following = self._next.get(values[-1])
        # A record may have ended in the queue. If it is sent at all, it comes next.
        if again or following is None or following in self._sent:
            return
        if any(value not in self._sizes for value in values):
            return
        size = _HEADER + sum(self._sizes[value] for value in values)
        room = self._limit - size - self._sizes[following]
        if room >= 0:
            self._complain(
                f"a batch of {len(values)} records that ends at {values[-1]} has room for "
                f"{following} and {room} bytes more"
            )

    def _judge_callers(self, values: Sequence[ValueId], *, again: bool) -> None:
        """Judge whether the batches of the caller's are by themselves, and whole if they fit."""
        batches = {self._batches.get(value) for value in values}
        if len(batches) > 1:
            self._complain(f"a batch that ends at {values[-1]} mixes batches of the caller's")
        for batch in batches:
            if batch is None or again:
                continue
            first, count, size = batch
            if size <= self._limit and len(values) < count and values[0] == first:
                self._complain(f"{len(values)} of the {count} records from {first} on are sent")
