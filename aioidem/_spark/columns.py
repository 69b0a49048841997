"""The rows of a task as Arrow's record batches: cut by topic and partition, and summed up.

Spark passes the rows of a task in record batches, which may be cut anywhere: at 10,000 rows, or at
a number of bytes. `parts` says which rows of a batch go where; `RowSum` is a digest of the rows of
all batches.

Invariants:

- Rows for one partition stay in their order.
- Where Spark cuts the batches, and in which of Arrow's layouts it passes a column, changes no
  digest. An absent column counts as one of nulls.
- No Python object is made for a row, except for a header, and for a moment while a row is digested.

Rejected: BLAKE2, whose 0.35 us per row were a tenth of what an exactly-once task costs. A digest of
columns or of whole batches (a repeated shuffle may bring the rows in another order, and in other
batches).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from aioidem.errors import ConfigError, RecordError

__all__ = ["Part", "RowSum", "parts"]

_MASK: Final = 2**64 - 1
_BINARY: Final = pa.large_binary()
_SUMMED: Final = ("topic", "partition", "timestamp", "key", "value", "headers")


class Part(NamedTuple):
    """Rows for one topic, in their order; `partition` is that of all of them, None if not given."""

    topic: str
    partition: int | None
    rows: pa.RecordBatch


def parts(batch: pa.RecordBatch, topic: str | None) -> Iterator[Part]:
    """Divide the rows of a batch by topic and partition.

    Args:
        batch: the rows.
        topic: the topic of all rows; None takes that of the column `topic`.

    Raises:
        RecordError: a row has no topic.
    """
    if topic is not None:
        yield from _by_partition(topic, batch)
        return
    if batch.column("topic").null_count:
        raise RecordError("a row's topic is null, and there is no option topic")
    for name, rows in _by_value(batch, "topic"):
        yield from _by_partition(name, rows)


def _by_partition(topic: str, batch: pa.RecordBatch) -> Iterator[Part]:
    column = batch.column("partition") if "partition" in batch.schema.names else None
    if column is None or column.null_count == batch.num_rows:
        yield Part(topic, None, batch)
        return
    if not column.null_count:
        for number, rows in _by_value(batch, "partition"):
            yield Part(topic, number, rows)
        return
    # The producer may choose the partition that another row names: such rows stay in their order
    # only if they are queued in it.
    ends = pc.call_function("run_end_encode", [column.is_valid()]).run_ends.to_pylist()
    for begin, end in pairwise([0, *ends]):
        yield from _by_partition(topic, batch.slice(begin, end - begin))


def _by_value(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield each value of a column without nulls, and the rows that have it."""
    encoded = batch.column(name).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if len(values) == 1:
        yield values[0], batch
        return
    for index, value in enumerate(values):
        mask = pc.call_function("equal", [encoded.indices, pa.scalar(index, pa.int32())])
        yield value, batch.filter(mask)


@dataclass(slots=True)
class RowSum:
    """A digest of rows that is the same in any order: a repeated shuffle may reorder the rows.

    It is the sum of the rows' XXH3 hashes, modulo 2^64. It tells rows apart that have changed by
    accident, not rows that somebody has chosen to have the same digest.
    """

    rows: int = 0
    digest: int = 0

    def add(self, batch: pa.RecordBatch, topic: str | None = None) -> None:
        """Add the rows of a batch.

        Args:
            batch: the rows.
            topic: the topic of all rows; None takes that of the column `topic`.

        Raises:
            ConfigError: xxhash is not installed.
        """
        if not batch.num_rows:
            return
        try:
            # Here, because a client of Spark Connect imports this module and digests nothing.
            from xxhash import xxh3_64_intdigest
        except ImportError:
            raise ConfigError("exactly-once needs xxhash: pip install 'aioidem[spark]'") from None
        cells = _cells(batch, topic)
        _, places, content = cells.buffers()
        offsets = memoryview(places).cast("q")[cells.offset : cells.offset + len(cells) + 1]
        data = b"" if content is None else content.to_pybytes()
        hashes = [xxh3_64_intdigest(data[begin:end]) for begin, end in pairwise(offsets.tolist())]
        self.digest = (self.digest + sum(hashes)) & _MASK
        self.rows += batch.num_rows


def _cells(batch: pa.RecordBatch, topic: str | None) -> pa.Array:
    """Return the content of each row as bytes, which differ if and only if the rows differ.

    The bytes of a row are the lengths of its columns, and then the columns. A null has the length
    "-". Numbers are written in decimal.
    """
    names = batch.schema.names
    columns: list[pa.Array | pa.Scalar] = [
        _binary(name, batch.column(name)) if name in names else pa.scalar(None, _BINARY)
        for name in _SUMMED
    ]
    if topic is not None:
        columns[0] = pa.scalar(topic.encode(), _BINARY)
    between = pa.scalar(b":", _BINARY)
    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    cells = [*map(_length, columns), *columns, between]
    return pc.call_function("binary_join_element_wise", cells, options)


def _length(column: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Return the lengths of a column's values in decimal; of a scalar, which all rows have, one."""
    if isinstance(column, pa.Scalar):
        return pa.scalar(str(len(column.as_py())).encode() if column.is_valid else b"-", _BINARY)
    length = pc.call_function("binary_length", [column])
    return length.cast(pa.large_string()).fill_null("-").cast(_BINARY)


def _binary(name: str, column: pa.Array) -> pa.Array:
    if name == "headers":
        return pa.array(map(_header_text, column.to_pylist()), _BINARY)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_integer(column.type):
        column = column.cast(pa.large_string())
    return column.cast(_BINARY)


def _header_text(headers: list[dict[str, object] | None] | None) -> bytes | None:
    """Return a row's headers as bytes; a row without headers has none, however that is said."""
    if not headers:
        return None
    # A header that is null cannot be sent, and is refused when the row is queued.
    return repr([each and tuple(each.values()) for each in headers]).encode()
