"""`aioidem perf` has as many batches in flight as asked, in the configuration of `make demo`.

There is one partition, with records of 1000 bytes and batches of 16 KiB. The throughput (window x
batch bytes per round trip) is tested by tests/producer/test_throughput.py on a virtual clock, and
measured by benchmarks/window.py in real time.
"""

from __future__ import annotations

import json
from pathlib import Path

from aioidem._cli import main
from aioidem._records import build_batch

BATCH_BYTES = 16_384
RECORD_BYTES = 1000
RECORDS_PER_BATCH = 16


def test_the_batch_of_the_arithmetic_is_what_fits() -> None:
    """A batch of 16 KiB holds 16 records of 1000 bytes, which the expected rates assume."""

    class Record:
        key = None
        value = bytes(RECORD_BYTES)
        headers = ()
        timestamp_ms = 0

    assert len(build_batch([Record()] * RECORDS_PER_BATCH).data) <= BATCH_BYTES
    assert len(build_batch([Record()] * (RECORDS_PER_BATCH + 1)).data) > BATCH_BYTES


def test_1_5_and_20_in_flight_are_reached_and_not_passed(tmp_path: Path) -> None:
    """With 1, 5 and 20 requests in flight, the broker's largest spans are 1, 5 and 20 batches."""
    path = tmp_path / "rows.json"
    words = "perf --rtt 50 --retain 20 --in-flight 1,5,20 --num-records 500 --record-size 1000"
    props = ("--producer-props", "late.sealing=false", f"batch.size={BATCH_BYTES}")
    assert main([*words.split(), "--json", str(path), *props]) == 0
    rows = json.loads(path.read_text())
    assert [row["in_flight"] for row in rows] == [1, 5, 20]
    assert [row["max_span"] for row in rows] == [1, 5, 20]
    assert [row["acked"] for row in rows] == [500] * 3
