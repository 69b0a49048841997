"""The choice of partitions for the records of a block (many records of one call).

Records with a key go where single records with that key go. Records without a key are given to
partitions in runs that fill a batch, by the sticky partitioner, as single records would be. If the
block has more than such a run for each partition, every partition gets one run of the same size
instead: the batches are as large as they can be, and the partitions get the same number of bytes.

Rejected: runs that fill a batch for every block. The time that a batch costs would bound the rate
of large calls, because late sealing finds only one such run in a queue at first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from aioidem._engine.record_block import RecordBlock
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._records import BinaryColumn, partitions_of

__all__ = ["spread"]


def spread(
    block: RecordBlock, sticky: StickyPartitioner, topic: TopicView
) -> Iterator[tuple[int, RecordBlock]]:
    """Divide a block among the partitions of a topic; yield (partition, part of the block).

    The block itself has no records afterwards, or is yielded as a whole.

    Args:
        block: the records, without a partition.
        sticky: the topic's partitioner for records without a key.
        topic: the topic, which has at least one partition.
    """
    keys = block.columns.keys
    if isinstance(keys, tuple | BinaryColumn):
        yield from _by_keys(block, sticky, topic)
    elif keys is not None:
        everything = topic.everything
        yield everything[partitions_of((keys,), len(everything))[0]], block
    else:
        yield from _without_keys(block, sticky, topic)


def _without_keys(
    block: RecordBlock, sticky: StickyPartitioner, topic: TopicView
) -> Iterator[tuple[int, RecordBlock]]:
    count = len(topic.available or topic.everything)
    if block.size > sticky.switch_after * count:
        share = -(-block.size // count)
        for index in sticky.round(topic):
            yield index, block.take(block.reaching(share))
            if not block.count:
                return
    while block.count:
        index = sticky.choose(0, topic)
        part = block.take(block.reaching(sticky.left))
        sticky.left -= part.size
        yield index, part


def _by_keys(
    block: RecordBlock, sticky: StickyPartitioner, topic: TopicView
) -> Iterator[tuple[int, RecordBlock]]:
    everything = topic.everything
    hashed = block.columns.hashed(len(everything))
    rows: dict[int, array[int]] = {}
    for number, row in enumerate(block.chosen):
        place = hashed[row]
        # A record without a key is given to a partition when its turn comes, not in a run: the
        # records of one partition keep their order.
        index = everything[place] if place >= 0 else sticky.choose(block.size_of(number), topic)
        if index in rows:
            rows[index].append(row)
        else:
            rows[index] = array("q", [row])
    for index, chosen in rows.items():
        yield index, block.among(chosen)
