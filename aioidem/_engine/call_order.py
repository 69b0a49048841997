"""Put records that were taken back from several partitions in the order of the user's calls.

Each record has an ordinal, its number in the order of the calls. The records that a large call
sends to one partition are kept as a block (`RecordBlock`). If keys spread the records of a call
over partitions (`spreading`), its blocks overlap: records of one lie between records of another.
After a move to another cluster, or to a recreated topic with fewer partitions, two such blocks may
get the same partition, and sorting the blocks is not enough. So overlapping blocks become one
block, or a block is divided where other records lie between its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordBlock

__all__ = ["in_call_order"]

Mark = TypeVar("Mark", bound=Hashable)


def in_call_order(
    items: Iterable[tuple[Mark, PendingRecord]],
) -> Iterator[tuple[Mark, PendingRecord]]:
    """Yield the records of the items in the order of the user's calls.

    The records of one call come in as few blocks as possible.

    Args:
        items: single records and blocks, in any order. Each comes with a mark that the caller
        chooses; blocks are united into one block only if their marks are equal.
    """
    overlapping: list[tuple[Mark, PendingRecord]] = []
    last = -1
    for mark, item in sorted(items, key=lambda each: each[1].ordinal):
        if item.ordinal > last:
            yield from _united(overlapping)
            overlapping = []
        overlapping.append((mark, item))
        last = max(last, _last_ordinal(item))
    yield from _united(overlapping)


def _last_ordinal(item: PendingRecord) -> int:
    return item.base + item.row(item.count - 1) if isinstance(item, RecordBlock) else item.ordinal


def _united(items: list[tuple[Mark, PendingRecord]]) -> Iterator[tuple[Mark, PendingRecord]]:
    """Yield the records of some items in call order; the items' ranges of ordinals overlap."""
    if len(items) == 1:
        yield items[0]
        return
    first_of: dict[tuple[object, ...], int] = {}
    # For each record: its ordinal, the index of its item, and its row in a block. Blocks that can
    # be united (parts of the same call) all get the index of the first of them.
    places: list[tuple[int, int, int]] = []
    for number, (mark, item) in enumerate(items):
        if isinstance(item, RecordBlock):
            first = first_of.setdefault((mark, *_call_of(item)), number)
            places += [(item.base + row, first, row) for row in item.chosen]
        else:
            places.append((item.ordinal, number, 0))
    places.sort()
    for number, run in groupby(places, key=lambda place: place[1]):
        mark, item = items[number]
        if isinstance(item, RecordBlock):
            item = item.among(array("q", [row for _, _, row in run]))
        yield mark, item


def _call_of(block: RecordBlock) -> tuple[object, ...]:
    """Return what two blocks must have in common to become one block."""
    call = (id(block.columns), id(block.receiver), block.base)
    return (*call, block.partition, block.deadline, block.generation)
