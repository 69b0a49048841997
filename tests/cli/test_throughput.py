"""What a window is worth, measured by `aioidem perf` itself as `make demo` runs it.

150 ms of round trip, one partition, records of 1000 bytes, batches of 16 KiB: a window of N cannot
carry more than N batches per round trip, and has to carry 95 % of that. Real time, because it is
real time that is promised; the round trip is measured, because timers may be late; the runs are
longer than the demo's, because discovery costs one round trip in every run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioidem._cli import main
from aioidem._records import build_batch
from aioidem.broker import EmbeddedCluster
from tests.producer.tools import round_trip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RTT = 0.150
BATCH_BYTES = 16_384
RECORD_BYTES = 1000
RECORDS_PER_BATCH = 16
ATTEMPTS = 3


def perf(path: Path, *words: str) -> list[dict[str, Any]]:
    common = f"perf --rtt {RTT * 1000} --record-size {RECORD_BYTES} --json {path}"
    assert main([*common.split(), *words]) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def test_the_batch_of_the_arithmetic_is_what_fits() -> None:
    class Record:
        key = None
        value = bytes(RECORD_BYTES)
        headers = ()
        timestamp_ms = 0

    assert len(build_batch([Record()] * RECORDS_PER_BATCH).data) <= BATCH_BYTES
    assert len(build_batch([Record()] * (RECORDS_PER_BATCH + 1)).data) > BATCH_BYTES


async def link() -> float:
    """The round trip that 150 ms are on this machine, now."""
    async with EmbeddedCluster(rtt=RTT) as cluster:
        return await round_trip(cluster)


def test_1_5_and_20_in_flight_reach_95_per_cent_of_window_times_batch_over_rtt(
    tmp_path: Path,
) -> None:
    words = "--retain 20 --in-flight 1,5,20 --duration 10 --producer-props late.sealing=false"
    ceilings = [window * RECORDS_PER_BATCH / RTT for window in (1, 5, 20)]
    shares = [0.0, 0.0, 0.0]
    # A neighbour on the machine can only take from a rate: the best attempt is the nearest to true.
    # What no attempt may do is pass the ceiling, or leave a window unfilled.
    for _ in range(ATTEMPTS):
        lateness = anyio.run(link) / RTT
        rows = perf(tmp_path / "rows.json", *words.split(), f"batch.size={BATCH_BYTES}")
        assert [row["in_flight"] for row in rows] == [1, 5, 20]
        assert [row["max_span"] for row in rows] == [1, 5, 20]
        reached = [
            row["steady_records_per_sec"] / most for row, most in zip(rows, ceilings, strict=True)
        ]
        assert max(reached) <= 1.01
        shares = [max(best, share * lateness) for best, share in zip(shares, reached, strict=True)]
        if min(shares) >= 0.95:
            break
    assert min(shares) >= 0.95, shares
    # Rates of 95 to 101 % of 1, 5 and 20 parts are in that ratio within 6 %; it is to be 5.
    assert shares[1] / shares[0] == pytest.approx(1, rel=0.05)
    assert shares[2] / shares[0] == pytest.approx(1, rel=0.05)


def test_late_sealing_at_a_window_of_5_is_worth_at_least_10_times(tmp_path: Path) -> None:
    words = ("--in-flight", "5", "--duration", "4")
    [late] = perf(tmp_path / "late.json", *words)
    [sealed] = perf(tmp_path / "sealed.json", *words, "--producer-props", "late.sealing=false")
    assert late["window"] == sealed["window"] == 5
    assert late["max_span"] == sealed["max_span"] == 5
    assert late["steady_records_per_sec"] >= 10 * sealed["steady_records_per_sec"]
