"""StickyPartitioner: the choice of a partition for records without a key (KIP-480, KIP-794).

One partition gets all records without a key, until they add up to the size of a batch. Then another
one is drawn at random from the partitions that have a leader. If each record went to the next
partition, every batch would be divided into as many pieces as there are partitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from aioidem._engine.topic_view import TopicView
from aioidem._hot import StickyFields

__all__ = ["StickyPartitioner"]


class StickyPartitioner(StickyFields):
    """The partition that at present gets the records without a key of one topic.

    Args:
        switch_after: bytes after which another partition is drawn.
        random: returns uniform numbers from [0, 1).
    """

    __slots__ = ("_random", "current", "switch_after")

    def __init__(self, switch_after: int, random: Callable[[], float]) -> None:
        # `left` is how many bytes the current partition gets before another is drawn.
        super().__init__()
        self.switch_after = switch_after
        self._random = random
        self.current: int | None = None

    def choose(self, size: int, topic: TopicView) -> int:
        """Choose the partition for a record of `size` bytes; the topic must have a partition."""
        current = self.current
        if current is None or self.left <= 0 or current not in topic.leaders:
            current = self.current = self._draw(topic)
            self.left = self.switch_after
        self.left -= size
        return current

    def round(self, topic: TopicView) -> Iterator[int]:
        """Yield every partition with a leader, each once, beginning with a random one.

        A partition becomes `current` when it is yielded. If no partition has a leader, all
        partitions are yielded.
        """
        choices = topic.available or topic.everything
        start = int(self._random() * len(choices))
        for place in range(len(choices)):
            self.current = choices[(start + place) % len(choices)]
            self.left = 0
            yield self.current

    def _draw(self, topic: TopicView) -> int:
        choices = topic.available or topic.everything
        count = len(choices)
        place = count if self.current is None else bisect_left(choices, self.current)
        if count in (1, place) or choices[place] != self.current:
            return choices[int(self._random() * count) % count]
        # Draw from the choices without the current one, which is at index `place`.
        drawn = int(self._random() * (count - 1)) % (count - 1)
        return choices[drawn + (drawn >= place)]
