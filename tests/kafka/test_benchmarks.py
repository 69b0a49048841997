"""The benchmarks run from end to end, in short, and the judge of faults sees what is wrong.

What they measure is not held against anything here: that takes a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *flags: str, timeout: float = 280) -> str:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *flags],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "script", ["long_link.py", "localhost.py", "faults.py", "clients.py", "transactions.py"]
)
def test_help_is_there(script: str) -> None:
    assert "usage:" in run(script, "--help")


@pytest.mark.slow
def test_long_link(tmp_path: Path) -> None:
    """Windows of 5 on a stock broker, of 20 on the patched one, and not one more."""
    found = tmp_path / "rows.json"
    run(
        "long_link.py",
        *("--kafka", "--aiokafka", "--rtt", "40", "--in-flight", "5,20", "--duration", "1"),
        *("--json", str(found)),
    )
    rows = json.loads(found.read_text())
    assert [(row["client"], row["in_flight"], row["max_span"]) for row in rows] == [
        ("aioidem", 5, 5),
        ("aiokafka", 1, 1),
        ("aioidem", 20, 20),
    ]


@pytest.mark.slow
def test_localhost(tmp_path: Path) -> None:
    """Each way of sending, with figures."""
    found = tmp_path / "rows.json"
    run(
        "localhost.py",
        *("--rounds", "1", "--seconds", "0.3", "--clients", "aioidem", "aiokafka-pure"),
        *("--json", str(found)),
    )
    rows = json.loads(found.read_text())
    assert len({(row["client"], row["way"]) for row in rows}) == 6
    assert all(row["records_per_sec"] > 0 and row["cpu_us_per_record"] > 0 for row in rows)


@pytest.mark.slow
def test_transactions(tmp_path: Path) -> None:
    """Java up to five in flight, aioidem beyond that as well."""
    found = tmp_path / "rows.json"
    run(
        "transactions.py",
        *("--rounds", "1", "--records", "2000", "--warm-up", "200", "--in-flight", "5,10"),
        *("--clients", "Java", "aioidem", "--json", str(found)),
    )
    rows = json.loads(found.read_text())
    told = [(row["client"], row["in_flight"]) for row in rows]
    assert told == [("Java", 5), ("aioidem", 5), ("aioidem", 10)]
    assert all(row["records_per_sec"] > 0 and row["megabytes_per_sec"] > 0 for row in rows)


@pytest.mark.slow
def test_faults(tmp_path: Path) -> None:
    """Two faults for every client; aioidem gets everything acknowledged (else it exits with 1)."""
    found = tmp_path / "rows.json"
    run(
        "faults.py",
        *("--faults", "lost-response", "clean-restart", "--seconds", "1", "--deadline", "60"),
        *("--json", str(found)),
    )
    rows: list[dict[str, Any]] = json.loads(found.read_text())
    clients = {"aioidem", "aiokafka", "confluent-kafka", "kafka-python", "Java"}
    assert {row["client"] for row in rows} == clients
    assert all(row["acked"] == row["sent"] for row in rows if row["client"] == "aioidem")


def test_the_judge_of_faults_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One planted anomaly of each kind."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults import judge
    from workers import Sent, Worker

    from aioidem.testing.kafka_process import ProcessGuard

    guard = ProcessGuard()
    try:
        worker = Worker([], guard)
    finally:
        guard.close()
    worker.records = {
        1: Sent(at=0.0, ended=1.0, outcome="acked", offset=0),
        2: Sent(at=0.0, ended=1.0, outcome="acked", offset=-1),
        3: Sent(at=0.0, ended=1.0, outcome="acked", offset=9),
        4: Sent(at=0.0, ended=1.0, outcome="not-written", reason="refused"),
        5: Sent(at=0.0, ended=1.0, outcome="unknown", reason="late"),
        6: Sent(at=0.0),
    }
    verdict = judge("fault", "client", worker, [1, 4, 3, 5, 5], deadline=30.0)
    assert (verdict.acked, verdict.not_written, verdict.unknown) == (3, 1, 1)
    assert (verdict.lost, verdict.duplicated, verdict.reordered, verdict.hung) == (1, 1, 1, 1)
    assert "1 said to be not written are in the log" in verdict.note
    assert "1 acknowledged at another record's offset" in verdict.note
    assert not verdict.clean
