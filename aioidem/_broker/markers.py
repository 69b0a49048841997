"""The control batches that end a transaction in a partition's log (KIP-98).

A marker is a batch with one record: the key says whether the transaction was aborted or committed,
the value has the epoch of the coordinator that wrote the marker. A marker has an offset as other
records do, and readers skip it.

Rejected
    Decoding a marker by a general reader: all markers are made by `end_marker`, so the key is at a
    fixed position.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from aioidem._broker.batch import HEADER_SIZE, StoredBatch
from aioidem._records import build_batch

__all__ = ["COORDINATOR_EPOCH", "end_marker", "is_commit"]

COORDINATOR_EPOCH: Final = 0
"""The epoch of every coordinator: no coordinator loses its state, so none has to be fenced."""

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
# The number that says abort or commit begins 7 bytes after the batch header. Before it are the
# record's length, attributes, timestamp delta, offset delta and key length, one byte each, and the
# key's version, two bytes.
_KIND_AT: Final = HEADER_SIZE + 7


class _Marker(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes | None]] = ()


def end_marker(producer_id: int, epoch: int, *, commit: bool, stamp_ms: int) -> bytes:
    """Return the batch that ends a producer's transaction, as it is stored in the log."""
    kind = _COMMIT if commit else _ABORT
    record = _Marker(_KEY.pack(0, kind), _VALUE.pack(0, COORDINATOR_EPOCH), stamp_ms)
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True
    ).data


def is_commit(marker: StoredBatch) -> bool:
    """Return whether a control batch made by `end_marker` commits."""
    return int.from_bytes(marker.data[_KIND_AT : _KIND_AT + 2], "big") == _COMMIT
