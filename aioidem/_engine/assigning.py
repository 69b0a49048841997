"""Assigning: the choice of partitions for records that waited for their topic's metadata.

When metadata names the partitions of a topic, the records that waited for it become due: they can
be assigned to partitions. Assigning tens of thousands of records at once would block the event
loop, so each `ProducerCore.poll` assigns at most `SLICE` of them. A block (many records of one
call) is assigned as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from aioidem._engine.record import RecordGroup
from aioidem._engine.record_block import BLOCK
from aioidem._engine.topics import TopicState
from aioidem._engine.unassigned import Unassigned

__all__ = ["SLICE", "Assigning"]

SLICE: Final = 1_000
"""The records assigned in one `ProducerCore.poll`; 1,000 with keys of 20 bytes take about 3 ms."""


class Assigning:
    """A queue of the topics that have records due to be assigned to a partition."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: deque[TopicState] = deque()

    def __bool__(self) -> bool:
        return bool(self._topics) and any(topic.unassigned.due for topic in self._topics)

    def add(self, topic: TopicState) -> None:
        """Make the waiting records of a topic due, because metadata has named its partitions."""
        topic.unassigned.make_due()
        if topic.unassigned.due and topic not in self._topics:
            self._topics.append(topic)

    def take(self, most: int) -> Iterator[tuple[TopicState, Unassigned]]:
        """Take out the first due records or blocks, each with its topic, until `most` are taken.

        A block is taken as a whole, and so are the records of a batch of the caller's, even if more
        than `most` records are taken then.
        """
        topics = self._topics
        group: RecordGroup | None = None  # the one that the last record belongs to
        while topics and (most > 0 or group is not None):
            due = topics[0].unassigned.due
            if group is not None and not (due and due[0].record.group is group):
                group = None
            elif due:
                waited = due.popleft()
                most -= waited.record.count
                group = None if waited.record.group is BLOCK else waited.record.group
                yield topics[0], waited
            else:
                topics.popleft()
