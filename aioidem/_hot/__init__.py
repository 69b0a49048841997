"""The hot loops, compiled if a compiled module is installed: encoding records, and murmur2.

This package imports no other part of the library. Each loop exists twice: in pure Python
(`encoding`, `columns`, `hashing`), and under the same name in ``_compiled.pyx``, which Cython
compiles. Both forms give the same results and raise the same errors. The compiled module is used if
it is installed and ``AIOIDEM_NO_EXTENSIONS`` is not set. `WHY_PURE` is None then, and otherwise the
reason why pure Python runs.

Invariant: compiled code decides nothing; it computes sizes, bytes and hashes. The engine decides
which records make a batch, and what happens to the batch, and is never compiled.

Rejected:

- Choosing between the two forms in each call: that is a branch in the hot path.
- Replacing entries of ``sys.modules``: that breaks pickles and type checkers.
- Compiling the Python sources with mypyc: it saves a quarter of the time of encoding, and Cython
  three quarters. Besides, code compiled by mypyc calls the original of a method that a test has
  replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioidem._hot.choice import load_compiled
from aioidem._hot.columns import BinaryColumn, encode_columns, measure_columns
from aioidem._hot.encoding import (
    MAX_RECORD_OVERHEAD,
    NewRecord,
    encode_records,
    payload_size,
    record_size,
)
from aioidem._hot.hashing import murmur2, partitions_of

__all__ = [
    "MAX_RECORD_OVERHEAD",
    "WHY_PURE",
    "BinaryColumn",
    "NewRecord",
    "encode_columns",
    "encode_records",
    "measure_columns",
    "murmur2",
    "partitions_of",
    "payload_size",
    "record_size",
]

_compiled, WHY_PURE = load_compiled()

# Type checkers see the pure functions, whose types the compiled ones share.
if not TYPE_CHECKING and _compiled is not None:
    encode_columns = _compiled.encode_columns
    encode_records = _compiled.encode_records
    measure_columns = _compiled.measure_columns
    murmur2 = _compiled.murmur2
    partitions_of = _compiled.partitions_of
    payload_size = _compiled.payload_size
    record_size = _compiled.record_size
