"""Run the command line: print its version, and send a short load with `perf`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import aioidem

command = Path(sys.prefix) / "bin" / "aioidem"


def told(*words: str) -> str:
    return subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout


assert told("--version").startswith(f"aioidem {aioidem.__version__} (hot path: ")
assert "records/s" in told("perf", "--num-records", "100", "--record-size", "10")
