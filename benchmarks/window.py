"""Compare the producer's rate with its model, window x batch bytes per round trip, in real time.

    python benchmarks/window.py
    python benchmarks/window.py --rtt 80 --duration 5

`aioidem perf` writes to one partition of the embedded cluster over TCP, in batches of 16 records
that are sealed at 16 KiB, with 1, 5 and 20 batches in flight; then with late sealing and 5. The
exit status is 1 unless every window reaches 95 % of the model's rate and none exceeds it, the rates
of the windows are as 1 : 5 : 20 within 5 %, and late sealing makes the rate at least ten times as
high.

Tests check the same model on a virtual clock, where it is exact, so that they fail only because of
what the producer does. This script fails also if computing takes too long. Other programs on the
machine can only lower a rate, so the best of three attempts counts. Timers may be late, so the
round-trip time in the model is a measured one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from aioidem._cli import main as command_line
from aioidem.broker import EmbeddedCluster

WINDOWS = (1, 5, 20)
RECORD_BYTES = 1000
BATCH_BYTES = 16_384
RECORDS_PER_BATCH = 16  # of 1009 bytes each, plus 61 of the batch, as a test checks
ATTEMPTS = 3
SHARE, RATIO, LATE_SEALING = 0.95, 0.05, 10.0


async def round_trip(rtt: float) -> float:
    """Measure the round-trip time of a link of the embedded cluster, in seconds."""
    api_versions = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    took = []
    async with EmbeddedCluster(rtt=rtt) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            for _ in range(7):
                started = time.perf_counter()
                await stream.send(api_versions)
                await stream.receive()
                took.append(time.perf_counter() - started)
    return statistics.median(took)


def perf(rtt: float, *words: str) -> list[dict[str, Any]]:
    """Run `aioidem perf` over a link with this round-trip time, and return its rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        common = f"perf --rtt {rtt * 1000} --record-size {RECORD_BYTES} --json {path}"
        if command_line([*common.split(), *words]) != 0:
            sys.exit("aioidem perf failed")
        rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def shares_of_the_model(rtt: float, duration: float) -> tuple[list[float], list[str]]:
    """Return each window's share of the model's rate, and a message for each wrong share."""
    words = f"--retain 20 --in-flight 1,5,20 --duration {duration}".split()
    words += ["--producer-props", "late.sealing=false", f"batch.size={BATCH_BYTES}"]
    shares, wrong = [0.0] * len(WINDOWS), []
    for _ in range(ATTEMPTS):
        measured = anyio.run(round_trip, rtt)
        rows = perf(rtt, *words)
        spans = [row["max_span"] for row in rows]
        if spans != list(WINDOWS):
            wrong.append(f"spans of {spans} batches instead of {list(WINDOWS)}")
        rates = [row["steady_records_per_sec"] for row in rows]
        for number, (rate, window) in enumerate(zip(rates, WINDOWS, strict=True)):
            batches = window * RECORDS_PER_BATCH
            if rate > 1.01 * batches / rtt:
                wrong.append(f"window {window}: {rate:.0f} records/s is more than the model has")
            shares[number] = max(shares[number], rate * measured / batches)
        if min(shares) >= SHARE:
            break
    wrong += [
        f"window {window}: {share:.1%} of the model, less than {SHARE:.0%}"
        for window, share in zip(WINDOWS, shares, strict=True)
        if share < SHARE
    ]
    if max(abs(share / shares[0] - 1) for share in shares) > RATIO:
        wrong.append(f"the windows are not as 1 : 5 : 20 within {RATIO:.0%}")
    return shares, wrong


def worth_of_late_sealing(rtt: float, duration: float) -> float:
    """Measure how many times faster a window of five is with late sealing than without."""
    words = ("--in-flight", "5", "--duration", str(duration))
    [late] = perf(rtt, *words)
    [sealed] = perf(rtt, *words, "--producer-props", "late.sealing=false")
    worth: float = late["steady_records_per_sec"] / sealed["steady_records_per_sec"]
    return worth


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rtt", type=float, default=150.0, help="round trip in ms")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds for each window")
    flags = parser.parse_args()
    rtt = flags.rtt / 1000
    shares, wrong = shares_of_the_model(rtt, flags.duration)
    for window, share in zip(WINDOWS, shares, strict=True):
        print(f"window {window:2}: {share:.1%} of window x batch / round trip")
    worth = worth_of_late_sealing(rtt, min(flags.duration, 4.0))
    print(f"late sealing at a window of 5: {worth:.1f} times the rate")
    if worth < LATE_SEALING:
        wrong.append(f"late sealing is worth {worth:.1f} times, less than {LATE_SEALING:.0f}")
    for each in wrong:
        print(f"WRONG: {each}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
