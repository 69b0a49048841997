"""Send a short load with `aioidem perf`, and draw its charts (`--report`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

command = Path(sys.prefix) / "bin" / "aioidem"
report = Path("report.html")
load = ("perf", "--num-records", "100", "--record-size", "10", "--report", str(report))
subprocess.run([command, *load], check=True, capture_output=True)
assert "plotly" in report.read_text().lower()
