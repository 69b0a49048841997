"""An example of an anomaly, as a text: which record, what its ledger says, and where it is.

A plain function over one row, so that what strangers write into a topic can be tried on it without
Spark. The text has the producer's name as the record has it: whoever shows it escapes it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["example"]


def example(row: Any) -> str:
    """Name a record and what is known of it, in a few words.

    Args:
        row: of `anomalies`. Its `producer` and `call` are None of a value that says nothing of
            itself; `told` is the place that the ledger has, `found` the first one where it is.
    """
    name = "a value" if row.producer is None else f"{row.producer}#{row.call}"
    told = "" if row.status is None else f", {row.status}"
    if row.told is not None and row.told.offset is not None and row.told.offset >= 0:
        told += f" at {row.told.partition}@{row.told.offset}"
    where = "" if row.found is None else f", in {row.found.partition}@{row.found.offset}"
    times = f", {row.copies} times" if row.copies > 1 else ""
    return f"{name}{told}{where}{times}"
