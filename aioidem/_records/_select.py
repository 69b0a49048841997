"""Import the hot loops from compiled modules if these are installed, else from pure Python.

``AIOIDEM_NO_EXTENSIONS=1`` selects pure Python, for comparison and debugging. Both have the same
functions, so callers need not know which one runs; `IMPLEMENTATION` is "compiled" or "pure".

Rejected: choosing per call (a branch in the hot path); replacing entries of ``sys.modules`` (breaks
pickles and type checkers).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("AIOIDEM_NO_EXTENSIONS"):
    from aioidem._records._decode import ReadRecord, iter_records
    from aioidem._records._encode import encode_records, payload_size, record_size

    IMPLEMENTATION = "pure"
else:
    try:
        from aioidem._records._decode_compiled import ReadRecord, iter_records
        from aioidem._records._encode_compiled import encode_records, payload_size, record_size

        IMPLEMENTATION = "compiled"
    except ImportError:
        from aioidem._records._decode import ReadRecord, iter_records
        from aioidem._records._encode import encode_records, payload_size, record_size

        IMPLEMENTATION = "pure"

__all__ = [
    "IMPLEMENTATION",
    "ReadRecord",
    "encode_records",
    "iter_records",
    "payload_size",
    "record_size",
]
