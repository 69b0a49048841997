"""The report is a single page that contains every run."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from aioidem._load.measure import RunLabel, RunResult, Tally
from tests.ci import CI

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None and not CI,
    reason="plotly is not installed: pip install 'aioidem[report]'",
)


def row(in_flight: int, client: str = "aioidem") -> RunResult:
    label = RunLabel(client=client, version="1.2", in_flight=in_flight, record_size=1000)
    tally = Tally(0.0)
    for batch in range(1, 4):
        for _ in range(in_flight):
            tally.queued()
            tally.acknowledged(1000, 0.0, batch * 0.15)
        tally.first_batch_over()
    return tally.result(label, window=in_flight, rtt_ms=150.0, max_span=in_flight)


def test_the_page_holds_every_run_and_needs_no_network() -> None:
    """The report shows every run, and loads nothing from the network."""
    from aioidem._load.report import report_html

    page = report_html([row(1), row(5), row(20)])
    for text in ("1 in flight", "5 in flight", "20 in flight", "round trip 150.0 ms"):
        assert text in page
    assert "<script src=" not in page
    assert page.count("Plotly.newPlot(") >= 3
    assert page.count("<tr>") == 4


def test_what_others_named_is_escaped() -> None:
    """Text in the report is escaped as HTML."""
    from aioidem._load.report import report_html

    page = report_html([row(1), row(1, client="<script>alert(1)</script>")])
    assert "<script>alert(1)" not in page


def test_runs_that_say_nothing_can_be_drawn() -> None:
    """Runs without any figure, or no run at all, make a valid report."""
    from aioidem._load.report import report_html

    empty = Tally(0.0).result(RunLabel(client="c", version="0", in_flight=1, record_size=1))
    assert "</html>" in report_html([empty])
    assert "no run" in report_html([])


def test_no_two_rows_have_the_same_name() -> None:
    """Runs with the same settings have different names in the report."""
    from aioidem._load.report import run_names

    assert run_names([row(5), row(5), row(5), row(1)]) == [
        "5 in flight",
        "5 in flight #2",
        "5 in flight #3",
        "1 in flight",
    ]
    assert run_names([row(5), row(5, client="other")]) == [
        "aioidem, 5 in flight",
        "other, 5 in flight",
    ]


def test_the_report_is_written_to_its_file(tmp_path: Path) -> None:
    from aioidem._load.report import write_report

    path = tmp_path / "report.html"
    write_report(path, [replace(row(1), steady_records_per_sec=None)])
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
