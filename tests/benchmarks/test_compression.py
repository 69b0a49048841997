"""`benchmarks/compression.py` runs; it measures how long compression blocks the event loop.

Its figures are not checked, because that would take a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_each_codec_has_figures_for_both_ways(tmp_path: Path) -> None:
    """Each row has the longest times on the loop and with a thread, and the CPU time of a batch."""
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable, ROOT / "benchmarks" / "compression.py",
            "--codecs", "lz4", "zstd:1", "--batches", "1", "--json", found,
        ],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| lz4 ", "| zstd:1 "))]
    assert [row.count("|") for row in rows] == [8, 8]
    for runs in json.loads(found.read_text()).values():
        assert len(runs) == 2
        for run in runs:
            assert run["batches"] == 2, "one batch to begin with, and one that is measured"
            assert min(run["cpu"], run["elapsed"], run["per_batch"]) > 0
