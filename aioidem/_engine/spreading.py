"""The choice of partitions for the records of a block (many records of one call).

Records with a key go where single records with that key go. The sticky partitioner gives records
without a key to one partition until they fill a batch, then to another one, as it does with single
records. If a block is so large that each partition would get more than one batch, the block is
divided equally instead: every partition gets one long run of records, and batches can be large.

Rejected: dividing a large block like a small one, into runs that fill one batch. A batch is cut
from the queue when it can be sent, and at first the queue would contain only one such run. So a
large call would need many small batches, and the time that each of them costs would limit the rate.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from aioidem._engine.record_block import RecordBlock
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._records import BinaryColumn, partitions_of, rows_of_partitions

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
    placed = rows_of_partitions(hashed, block.chosen)
    if placed is None:
        rows = _with_some_keys(block, hashed, sticky, topic)
    else:
        rows = {everything[place]: chosen for place, chosen in placed.items()}
    for index, chosen in rows.items():
        yield index, block.among(chosen)


def _with_some_keys(
    block: RecordBlock, hashed: array[int], sticky: StickyPartitioner, topic: TopicView
) -> dict[int, array[int]]:
    """Return the rows of each partition, if some of the records have no key.

    Each record without a key gets its partition at its own place in the block. If records without a
    key were placed together, later or earlier than the records with keys, the records of a
    partition would not keep their order.
    """
    everything = topic.everything
    rows: dict[int, array[int]] = {}
    for number, row in enumerate(block.chosen):
        place = hashed[row]
        index = everything[place] if place >= 0 else sticky.choose(block.size_of(number), topic)
        if index in rows:
            rows[index].append(row)
        else:
            rows[index] = array("q", [row])
    return rows
