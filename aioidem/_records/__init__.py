"""Record batches of magic 2: build, renumber, read and compress them, and estimate their size.

Nothing here opens a socket, reads a clock or needs an event loop. Records are encoded by `_hot`,
which may be compiled. Other packages import the names below; the modules behind them may change.
"""

from __future__ import annotations

from aioidem._hot import (
    BinaryColumn,
    NewRecord,
    encode_columns,
    measure_columns,
    partitions_of,
    payload_size,
    record_size,
    rows_of_partitions,
)
from aioidem._records._decode import ReadRecord
from aioidem._records.builder import (
    BatchBody,
    BuiltBatch,
    add_header,
    assign_offsets,
    build_batch,
    build_body,
    checksum_and_codec,
    record_size_bound,
    restamp,
)
from aioidem._records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LEVELS,
    Codec,
    compress,
    decompress,
    quick_bytes,
    require,
)
from aioidem._records.estimator import ESTIMATION_FACTOR, CompressionRatioEstimator
from aioidem._records.layout import BATCH_OVERHEAD
from aioidem._records.reader import DEFAULT_MAX_ITEMS, RecordBatch, read_batches
from aioidem._records.section import RecordSection

__all__ = [
    "BATCH_OVERHEAD",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "DEFAULT_MAX_ITEMS",
    "ESTIMATION_FACTOR",
    "LEVELS",
    "BatchBody",
    "BinaryColumn",
    "BuiltBatch",
    "Codec",
    "CompressionRatioEstimator",
    "NewRecord",
    "ReadRecord",
    "RecordBatch",
    "RecordSection",
    "add_header",
    "assign_offsets",
    "build_batch",
    "build_body",
    "checksum_and_codec",
    "compress",
    "decompress",
    "encode_columns",
    "measure_columns",
    "partitions_of",
    "payload_size",
    "quick_bytes",
    "read_batches",
    "record_size",
    "record_size_bound",
    "require",
    "restamp",
    "rows_of_partitions",
]
