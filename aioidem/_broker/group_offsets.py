"""The offsets that one group has committed, within transactions (KIP-98, KIP-447) and without.

Invariants
    A transaction's offsets are pending until its marker is written; an abort removes them.
    Of two commits for a partition, the one that was requested later counts, even if its transaction
    ends first.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from aioidem._broker.transaction import Identity

__all__ = ["MOST_METADATA", "Committed", "GroupOffsets", "TopicPartition"]

TopicPartition: TypeAlias = tuple[str, int]


MOST_METADATA: Final = 4096
"""The most characters of a commit's metadata; Kafka counts characters too."""


class Committed(NamedTuple):
    """A committed offset; ``order`` numbers the commits of a group, from 1 on."""

    offset: int
    leader_epoch: int
    metadata: str | None
    order: int = 0

    @property
    def too_large(self) -> bool:
        """Whether the metadata is longer than `offset.metadata.max.bytes` allows by default."""
        return len(self.metadata or "") > MOST_METADATA


class GroupOffsets:
    """The offsets of one group, by topic and partition."""

    __slots__ = ("_order", "committed", "pending")

    def __init__(self) -> None:
        self._order = count(1)
        self.committed: dict[TopicPartition, Committed] = {}
        # The offsets that open transactions will commit, by the producer's id and epoch.
        self.pending: dict[Identity, dict[TopicPartition, Committed]] = {}

    def __repr__(self) -> str:
        return f"<GroupOffsets committed={len(self.committed)} pending={len(self.pending)}>"

    def commit(self, where: TopicPartition, offset: Committed, producer: Identity | None) -> None:
        """Store an offset; if a producer commits it, it is pending until the transaction ends."""
        offset = offset._replace(order=next(self._order))
        if producer is None:
            self.committed[where] = offset
        else:
            self.pending.setdefault(producer, {})[where] = offset

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit or drop a producer's pending offsets when its transaction's marker is written."""
        for producer in [each for each in self.pending if each.producer_id == producer_id]:
            for where, offset in self.pending.pop(producer).items():
                known = self.committed.get(where)
                if commit and (known is None or known.order < offset.order):
                    self.committed[where] = offset

    def unstable(self, where: TopicPartition) -> bool:
        """Return whether an open transaction commits an offset for this partition."""
        return any(where in each for each in self.pending.values())

    def forget(self, wanted: Iterable[TopicPartition]) -> None:
        """Forget the committed and the pending offsets of these partitions."""
        for where in wanted:
            self.committed.pop(where, None)
            for pending in self.pending.values():
                pending.pop(where, None)

    def forget_topic(self, name: str) -> None:
        """Forget all offsets of a topic."""
        known = [*self.committed, *(where for each in self.pending.values() for where in each)]
        self.forget([where for where in known if where[0] == name])
