"""Pieces: the records of a `send_many`, read from its arguments as columns.

An iterable may be endless, or make its values when they are asked for. Therefore a call is read in
pieces of about a megabyte. A list or tuple exists already, and its pieces are larger. Reading and
queueing one piece takes at most about 5 ms, and then other tasks run (`Producer.send_many`).

Invariant: if a record is bad, all records before it are in pieces, and its error is raised only
after these pieces were taken. If the iterable itself raises an exception, the exception is raised
only after the records that it made before were taken.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from aioidem import errors
from aioidem._engine.record_block import Columns, SharedHeaders
from aioidem._hot import WHY_PURE
from aioidem._producer.arguments import (
    Headers,
    checked_headers,
    checked_payload,
    milliseconds,
)
from aioidem._records import record_size_bound
from aioidem.structs import Record

__all__ = ["FEW_ROWS", "HASHED_ROWS", "MOST_ROWS", "before_too_large", "most_rows", "pieces_of"]

MOST_ROWS = 10_000
"""The most records in a piece. Reading and queueing a piece blocks the event loop: for 1 ms with
values alone, and for 3 ms if each record has a key of 36 bytes."""

HASHED_ROWS = 2_000
"""The most records in a piece if keys are hashed in pure Python: 5 ms with keys of 36 bytes. In
smaller pieces each record would cost more, because every piece makes batches of its own."""

FEW_ROWS = 1_000
"""The most records in a piece if other Python code runs for each record: 1 ms if each has a header,
5 ms with a partitioner of the user's."""

_FIRST_ROWS = 100
_PIECE_BYTES = 1 << 20


def pieces_of(
    values: Iterable[bytes | None] | Iterable[Record],
    *,
    key: bytes | None,
    headers: SharedHeaders,
    timestamp_ms: int | None,
    most: int,
    too_large: Callable[[int], errors.KafkaError],
    asks: bool = False,
) -> Iterator[Columns]:
    """Read the records of a call, piece by piece.

    Args:
        values: The values, or the records.
        key: The key of the records that have none of their own; checked.
        headers: The headers of the records that have none of their own; checked.
        timestamp_ms: The timestamp of the records that have none of their own, in milliseconds
            since the epoch; None is now.
        most: The most bytes that one record may take.
        too_large: Returns the error for a record that takes the given number of bytes.
        asks: Whether the user's own partitioner is called for each record.

    Raises:
        TypeError: A part of a record has a wrong type.
        KafkaError: A part of a record has an illegal value, or the record is too large.
    """
    rows = iter(values)
    wanted = _FIRST_ROWS
    if isinstance(values, list | tuple) and values:
        wanted = _most_rows_like(values[0], asks)
    common = _Common(key, headers, timestamp_ms)
    failure: BaseException | None = None
    while failure is None:
        piece: list[Any] = []
        try:
            piece.extend(islice(rows, wanted))  # what came before an exception is kept
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        if not piece:
            break
        columns, bad = _columns(piece, common)
        if columns is not None and columns.largest > most:
            columns, bad = before_too_large(columns, most, too_large)
        if columns is not None:
            yield columns
            in_bytes = _PIECE_BYTES * len(columns) // columns.sizes[-1]
            wanted = max(1, min(_most_rows_like(piece[-1], asks), in_bytes))
        if bad is not None:
            raise bad
    if failure is not None:
        raise failure


def most_rows(*, keys: bool, in_python: bool) -> int:
    """Return how many records a piece (the records that are queued together) may have.

    Args:
        keys: Whether the records have keys of their own, which decide the partitions.
        in_python: Whether Python code runs for each record, for other reasons than its key.
    """
    if in_python:
        return FEW_ROWS
    return HASHED_ROWS if keys and WHY_PURE is not None else MOST_ROWS


def _most_rows_like(example: object, asks: bool) -> int:
    """Return how many records a piece may have if they are like this one."""
    if isinstance(example, Record):
        return most_rows(keys=example.key is not None, in_python=asks or bool(example.headers))
    return most_rows(keys=False, in_python=asks or not isinstance(example, bytes | None))


class _Common:
    """The key, the headers and the timestamp of records that have none of their own."""

    __slots__ = ("headers", "key", "timestamp_ms")

    def __init__(self, key: bytes | None, headers: SharedHeaders, timestamp_ms: int | None) -> None:
        self.key = key
        self.headers = headers
        self.timestamp_ms = timestamp_ms

    def now(self) -> int:
        """Return the timestamp of a record without one, in milliseconds since the epoch."""
        return round(time.time() * 1000) if self.timestamp_ms is None else self.timestamp_ms


def _columns(piece: list[Any], common: _Common) -> tuple[Columns | None, Exception | None]:
    """Return the columns of the records before the first bad one, and the error of that one."""
    try:
        return _quickly(piece, common), None
    except (TypeError, ValueError, AttributeError, errors.KafkaError):
        return _one_by_one(piece, common)


def _quickly(piece: list[Any], common: _Common) -> Columns:
    """Return the columns of records that need no conversion.

    Raises:
        TypeError, ValueError, AttributeError, KafkaError: A record must be converted, or is bad.
    """
    if type(piece[0]) is not Record:
        return Columns(tuple(piece), common.key, common.headers, common.now())
    if set(map(type, piece)) != {Record}:
        raise TypeError("records and values are mixed")
    # Four passes take half the time of `zip(*piece)`, which makes an iterator for each record.
    values, keys, headers, times = (tuple(map(itemgetter(field), piece)) for field in range(4))
    now = common.now()
    stamps: array[int] | int = now
    if any(at is not None for at in times):
        stamps = array("q", [now if at is None else milliseconds(at) for at in times])
    one_key: tuple[bytes | None, ...] | bytes | None = common.key
    if any(key is not None for key in keys):
        one_key = (
            keys
            if common.key is None
            else tuple(common.key if key is None else key for key in keys)
        )
    all_headers: list[Headers] | SharedHeaders = common.headers
    if any(headers):
        if not set(map(type, headers)) <= {tuple, list}:
            # An iterator can be read only once, and a record of the piece may still turn out bad.
            raise TypeError("headers of other types are read one by one")
        all_headers = [checked_headers(each) if each else common.headers for each in headers]
    return Columns(values, one_key, all_headers, stamps)


def _one_by_one(piece: list[Any], common: _Common) -> tuple[Columns | None, Exception | None]:
    """Convert and check each record; the arguments and the result are those of `_columns`."""
    good: list[tuple[bytes | None, bytes | None, Headers, int]] = []
    bad: Exception | None = None
    now = common.now()
    for each in piece:
        try:
            good.append(_checked(each, common, now))
        except (TypeError, errors.KafkaError) as error:
            bad = error
            break
    if not good:
        return None, bad
    values, keys, headers, stamps = zip(*good, strict=True)
    return Columns(values, keys, list(headers), array("q", stamps)), bad


def _checked(
    each: object, common: _Common, now: int
) -> tuple[bytes | None, bytes | None, Headers, int]:
    if not isinstance(each, Record):
        return checked_payload("value", each), common.key, common.headers, now
    headers = checked_headers(each.headers) if each.headers else common.headers
    record_size_bound(None, None, headers)  # raises if a name cannot be encoded
    key = checked_payload("key", each.key)
    return (
        checked_payload("value", each.value),
        common.key if key is None else key,
        headers,
        now if each.timestamp is None else milliseconds(each.timestamp),
    )


def before_too_large(
    columns: Columns, most: int, too_large: Callable[[int], errors.KafkaError]
) -> tuple[Columns | None, Exception]:
    """Return the columns of the records before the first too large one, and that one's error."""
    sizes: Sequence[int] = columns.sizes
    row = next(row for row in range(len(columns)) if sizes[row + 1] - sizes[row] > most)
    error = too_large(sizes[row + 1] - sizes[row])
    return (columns.before(row) if row else None), error
