"""The flag `--report` of `aioidem perf`: write the results as one self-contained HTML file.

Invariants:

- The page contains everything, including the plotting library's script, so it can be mailed and
  archived.
- It shows `RunResult`s and computes nothing; its numbers are those of the table and the JSON.
- Only this module imports plotly, which comes with the extra `report`.

Rejected: matplotlib (static pictures, and it needs numpy); a script from a CDN (behind a firewall
the report would be blank).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly import graph_objects  # type: ignore[import-untyped,import-not-found,unused-ignore]

from aioidem._load.measure import RunResult
from aioidem._load.render import results_columns, write_whole

__all__ = ["report_html", "run_names", "write_report"]

_STYLE = """
body { font: 15px system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 2rem } p { color: #555 }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
"""


def write_report(path: Path, results: Sequence[RunResult]) -> None:
    """Write the results as an HTML file.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, report_html(results))


def report_html(results: Sequence[RunResult]) -> str:
    """Return the HTML page: the table of results and three charts."""
    figures = [_rates(results), _latencies(results), _timelines(results)]
    drawings = [
        figure.to_html(full_html=False, include_plotlyjs=index == 0)
        for index, figure in enumerate(figures)
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>aioidem perf</title>',
            f"<style>{_STYLE}</style></head><body>",
            "<h1>aioidem perf</h1>",
            f"<p>{html.escape(_subtitle(results))}</p>",
            _table(results),
            *drawings,
            "</body></html>",
            "",
        ]
    )


def run_names(results: Sequence[RunResult]) -> list[str]:
    """Return a different name for each row, because a chart merges rows with the same name."""
    clients = {row.label.client for row in results}
    names: list[str] = []
    for row in results:
        name = f"{row.label.in_flight} in flight"
        if len(clients) > 1:
            name = f"{row.label.client}, {name}"
        repeats = sum(taken == name or taken.startswith(f"{name} #") for taken in names)
        names.append(f"{name} #{repeats + 1}" if repeats else name)
    return names


def _subtitle(results: Sequence[RunResult]) -> str:
    if not results:
        return "no run"
    row = results[0]
    rtt = "" if row.rtt_ms is None else f", round trip {row.rtt_ms:.1f} ms"
    versions = sorted({f"{each.label.client} {each.label.version}" for each in results})
    return f"{', '.join(versions)}; records of {row.label.record_size} bytes{rtt}"


def _table(results: Sequence[RunResult]) -> str:
    columns = results_columns(results)
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading, _ in columns)
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*(cells for _, cells in columns), strict=True)
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _figure(title: str, x: str, y: str) -> Any:
    figure = graph_objects.Figure()
    figure.update_layout(
        title=title,
        xaxis_title=x,
        yaxis_title=y,
        template="plotly_white",
        hovermode="x unified",
    )
    figure.update_yaxes(rangemode="tozero")
    return figure


def _rates(results: Sequence[RunResult]) -> Any:
    figure = _figure("Steady rate", "", "records per second")
    rates = [row.steady_records_per_sec for row in results]
    text = ["" if rate is None else f"{rate:,.0f}" for rate in rates]
    figure.add_bar(x=run_names(results), y=rates, text=text, textposition="outside")
    return figure


def _latencies(results: Sequence[RunResult]) -> Any:
    figure = _figure("Latency of acknowledged records", "percentile", "milliseconds")
    for name, row in zip(run_names(results), results, strict=True):
        labels = [f"p{percentile:g}" for percentile, _ in row.curve]
        figure.add_scatter(x=labels, y=[value for _, value in row.curve], name=name)
    return figure


def _timelines(results: Sequence[RunResult]) -> Any:
    figure = _figure("Acknowledged over time", "seconds", "records per second")
    for name, row in zip(run_names(results), results, strict=True):
        seconds = [step * row.timeline_step for step in range(len(row.timeline))]
        rates = [count / row.timeline_step for count in row.timeline]
        figure.add_scatter(x=seconds, y=rates, name=name, line_shape="hv")
    return figure
