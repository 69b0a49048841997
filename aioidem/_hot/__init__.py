"""The hot loops, compiled where a compiled module is installed: bytes of records, and murmur2.

This is the bottom of the library: it imports nothing of it. Each loop exists twice: in pure Python
(`encoding`, `hashing`), and under the same name in ``_compiled.pyx``, which Cython compiles. Both
forms give the same results and raise the same errors. The compiled module is used if it is
installed and ``AIOIDEM_NO_EXTENSIONS`` is not set. `WHY_PURE` is None then, and otherwise the
reason why pure Python runs.

Invariant: what is compiled decides nothing. It computes sizes, bytes and hashes; which records make
a batch, and what happens to it, is the engine's, in Python in both forms.

Rejected: choosing per call (a branch in the hot path); replacing entries of ``sys.modules`` (breaks
pickles and type checkers); compiling the Python sources with mypyc (bytes gain a quarter instead of
three quarters, and a method that a test replaces is not seen by compiled callers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioidem._hot.choice import load_compiled
from aioidem._hot.encoding import (
    MAX_RECORD_OVERHEAD,
    NewRecord,
    encode_records,
    encode_values,
    payload_size,
    record_size,
)
from aioidem._hot.hashing import murmur2, partitions_of

__all__ = [
    "MAX_RECORD_OVERHEAD",
    "WHY_PURE",
    "NewRecord",
    "encode_records",
    "encode_values",
    "murmur2",
    "partitions_of",
    "payload_size",
    "record_size",
]

_compiled, WHY_PURE = load_compiled()

# Type checkers see the pure functions, whose types the compiled ones share.
if not TYPE_CHECKING and _compiled is not None:
    encode_records = _compiled.encode_records
    encode_values = _compiled.encode_values
    murmur2 = _compiled.murmur2
    partitions_of = _compiled.partitions_of
    payload_size = _compiled.payload_size
    record_size = _compiled.record_size
