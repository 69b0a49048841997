"""The hot path: what is done with every record, compiled if a compiled module is installed.

Everything here exists twice: in pure Python (`encoding`, `columns`, `hashing`, `record`, `fields`,
`queueing`, `settling`), and under the same name in ``_compiled.pyx``, which Cython compiles. Both
forms give the same results and raise the same errors. The compiled module is used if it is
installed and ``AIOIDEM_NO_EXTENSIONS`` is not set. `WHY_PURE` is None then, and otherwise the
reason why pure Python runs. This package imports no other part of the library.

Invariant: compiled code takes the common way only. It computes sizes, bytes and hashes, and it
queues, adds up and settles records where nothing has to be decided. Where something is out of the
ordinary it does nothing and says so, and the producer or the engine decides in Python.

Rejected:

- Choosing between the two forms in each call: that is a branch in the hot path.
- Replacing entries of ``sys.modules``: that breaks pickles and type checkers.
- Compiling the Python sources with mypyc: it saves a quarter of the time of encoding, and Cython
  three quarters. Besides, code compiled by mypyc calls the original of a method that a test has
  replaced.
- Deliveries that the garbage collector does not track, although its collections are a tenth of the
  time of a queued record: a delivery may be part of a reference cycle, through its callbacks or the
  traceback of its error, and then it would never be freed.
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
from aioidem._hot.fields import BudgetFields, QueueFields, StickyFields, TargetFields
from aioidem._hot.hashing import murmur2, partitions_of, rows_of_partitions
from aioidem._hot.queueing import Appender, PlainSends, squeeze, take_fitting
from aioidem._hot.record import LOOKED, DeliveryFields, RecordFields
from aioidem._hot.settling import settle_each, total_overhead, total_size

_ALIKE = ("LOOKED", "MAX_RECORD_OVERHEAD", "WHY_PURE", "BinaryColumn", "NewRecord")
__all__ = [
    "LOOKED",
    "MAX_RECORD_OVERHEAD",
    "WHY_PURE",
    "Appender",
    "BinaryColumn",
    "BudgetFields",
    "DeliveryFields",
    "NewRecord",
    "PlainSends",
    "QueueFields",
    "RecordFields",
    "StickyFields",
    "TargetFields",
    "encode_columns",
    "encode_records",
    "measure_columns",
    "murmur2",
    "partitions_of",
    "payload_size",
    "record_size",
    "rows_of_partitions",
    "settle_each",
    "squeeze",
    "take_fitting",
    "total_overhead",
    "total_size",
]

# Which names have a compiled form.
_TWINS = [name for name in __all__ if name not in _ALIKE]
_compiled, WHY_PURE = load_compiled(_TWINS)

# Type checkers see the pure functions, whose types the compiled ones share.
if not TYPE_CHECKING and _compiled is not None:
    globals().update({name: getattr(_compiled, name) for name in _TWINS})
