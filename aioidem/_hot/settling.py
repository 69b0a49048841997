"""Add up and settle the records of a batch.

These are the pure-Python forms of the functions of the same names in ``_compiled.pyx``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

__all__ = ["settle_each", "total_overhead", "total_size"]

_headers_of = attrgetter("headers")
_memory_of = attrgetter("memory")
_size_of = attrgetter("size")


def total_size(records: Sequence[Any]) -> int:
    """Return the sum of the records' `size`."""
    total: int = sum(map(_size_of, records))
    return total


def total_overhead(records: Sequence[Any], header_memory: int) -> int:
    """Return the bytes that the records take in memory besides their `size`.

    Args:
        records: the records; `memory` is what each takes besides its payload and headers.
        header_memory: the bytes of a header.
    """
    headers: int = sum(map(len, map(_headers_of, records)))
    memory: int = sum(map(_memory_of, records))
    return memory + headers * header_memory


def settle_each(
    records: Sequence[Any], outcome: object, begin: int, told: Callable[[int], object]
) -> None:
    """Give an outcome to each record.

    Args:
        records: the records.
        outcome: the outcome that all of them get.
        begin: the place of the first one among all records that share the outcome.
        told: called at the end, also if an error ends the loop early, with the place after the last
        record that was given the outcome.
    """
    place = begin - 1
    try:
        for place, record in enumerate(records, begin):
            record.settle(outcome, place)
    finally:
        told(place + 1)
