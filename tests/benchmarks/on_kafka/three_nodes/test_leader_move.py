"""The fault leader-move of `benchmarks/faults.py`, which needs a cluster of three nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks.on_kafka.test_benchmarks import really_ran, rows_of_faults


@pytest.mark.slow
def test_leaders_move_under_every_client(tmp_path: Path) -> None:
    """Every client meets NOT_LEADER as leaders move, and aioidem's records are all acknowledged."""
    rows = rows_of_faults(tmp_path, ("leader-move",), "--seconds", "1")
    assert all(row["acked"] == row["sent"] for row in rows if row["client"] == "aioidem")
    assert all(re.match(r"[1-9][0-9]* x NOT_LEADER", row["note"]) for row in rows)
    really_ran(rows)
