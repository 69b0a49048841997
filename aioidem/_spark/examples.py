"""Describe an anomaly in words: which record it is, what its ledger says, and where it was found.

`example` is a plain function over one row, so that tests can call it with hostile text without
Spark. Its result contains the producer's name as it is in the record, so the caller must escape it
before showing it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["example"]


def example(row: Any) -> str:
    """Describe a record in a few words.

    Args:
        row: a row of `anomalies`. Its `producer` and `call` are None if the value has no identity;
            `told` is the partition and offset that the ledger gives the record; `found` is the
            first partition and offset at which the record is in the topic.
    """
    name = "a value" if row.producer is None else f"{row.producer}#{row.call}"
    told = "" if row.status is None else f", {row.status}"
    if row.told is not None and row.told.offset is not None and row.told.offset >= 0:
        told += f" at {row.told.partition}@{row.told.offset}"
    where = "" if row.found is None else f", in {row.found.partition}@{row.found.offset}"
    times = f", {row.copies} times" if row.copies > 1 else ""
    return f"{name}{told}{where}{times}"
