"""The figures of `short_link.py`, and how they are written: JSON, Markdown tables, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from machine import Machine
from short_link_job import Figures
from short_link_scenarios import LONG, Scenario

BEGIN = "<!-- The tables below are written by benchmarks/short_link.py. -->"
END = "<!-- End of the tables. -->"
BASE = "aioidem"
BATCH_RECORDS = 16
"""How many records of `long_link.py` are in a sealed batch."""

Measured = Callable[[Figures], float | None]


@dataclass(slots=True, kw_only=True)
class Row:
    """One client in one scenario.

    Args:
        client: The client's name.
        rounds: The figures of each round.
        cannot: Why the client cannot do what the scenario asks, or empty.
        failed: The error of a run that failed, or empty.
    """

    client: str
    rounds: list[Figures] = field(default_factory=list)
    cannot: str = ""
    failed: str = ""

    def add(self, other: Row) -> None:
        """Add the result of one more run."""
        self.rounds += other.rounds
        self.cannot = self.cannot or other.cannot
        self.failed = self.failed or other.failed

    def values(self, measured: Measured) -> list[float]:
        """Return the values of one figure that was measured, in all rounds."""
        return [value for each in self.rounds if (value := measured(each)) is not None]

    def median(self, measured: Measured) -> float | None:
        """Return the median of a figure, or None if it was not measured."""
        values = self.values(measured)
        return statistics.median(values) if values else None

    def cell(self, measured: Measured, digits: int = 1) -> str:
        """Format a figure: its median, and its lowest and highest value."""
        values = self.values(measured)
        if not values:
            return "-"
        middle = f"{statistics.median(values):,.{digits}f}"
        if len(values) == 1:
            return middle
        return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"

    def name(self) -> str:
        """Return the client's name and version."""
        if not self.rounds:
            return self.client
        return f"{self.client} {self.rounds[0].version.removeprefix('aioidem ')}"

    def note(self) -> str:
        """Return what a reader has to know, or why there are no figures."""
        if self.failed:
            return f"FAILED: {self.failed}"
        if self.cannot:
            return f"cannot: {self.cannot}"
        return self.rounds[0].note if self.rounds else "did not run"

    def line(self) -> str:
        """Format a single run for the screen."""
        if not self.rounds:
            return f"{self.client:16} {self.note()}"
        found = self.rounds[-1]
        parts = [
            f"{found.records_per_sec:,.0f} records/s" if found.records_per_sec else "",
            f"{found.cpu_us_per_record:.2f} us/record" if found.cpu_us_per_record else "",
            f"p99 {found.latency_ms['p99']:.1f} ms" if found.latency_ms else "",
            f"first after {found.first_ack_s:.3f} s" if found.first_ack_s else "",
        ]
        return f"{self.client:16} {', '.join(filter(None, parts))}"


@dataclass(slots=True, kw_only=True)
class Table:
    """One scenario with all of its clients.

    Args:
        scenario: What the clients did.
        rows: The clients.
        links: The rows of `long_link.py`, for a long link.
        failed: Why `long_link.py` did not end well, or empty.
    """

    scenario: Scenario
    rows: list[Row] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""

    def row(self, client: str) -> Row:
        """Return a client's row, which is added if there is none."""
        for each in self.rows:
            if each.client == client:
                return each
        self.rows.append(Row(client=client))
        return self.rows[-1]


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that one run of the script measured, and where."""

    machine: Machine
    broker: str
    command: str
    rounds: int
    seconds: float
    tables: list[Table] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Return whether a run failed."""
        return any(table.failed or any(row.failed for row in table.rows) for table in self.tables)

    def state(self) -> dict[str, Any]:
        """Return the report as it is written to JSON."""
        return asdict(self)

    @classmethod
    def read(cls, state: dict[str, Any]) -> Self:
        """Return the report that `state` wrote."""
        tables = [
            Table(
                scenario=Scenario(**table["scenario"]),
                rows=[
                    Row(**{**row, "rounds": [Figures(**each) for each in row["rounds"]]})
                    for row in table["rows"]
                ],
                links=table["links"],
                failed=table["failed"],
            )
            for table in state["tables"]
        ]
        return cls(**{**state, "machine": Machine(**state["machine"]), "tables": tables})


def rate(found: Figures) -> float | None:
    """Return the records per second."""
    return found.records_per_sec


def cpu(found: Figures) -> float | None:
    """Return the CPU time per record in microseconds."""
    return found.cpu_us_per_record


def memory(found: Figures) -> float | None:
    """Return the peak of the resident memory in MB."""
    return found.peak_rss_mb


def latency(name: str) -> Measured:
    """Return a function for one percentile of the latencies in milliseconds."""
    return lambda found: (found.latency_ms or {}).get(name)


Column = tuple[str, Callable[[Row, Table], str]]


def _figure(title: str, measured: Measured, digits: int = 1) -> Column:
    return title, lambda row, _table: row.cell(measured, digits)


def _against(row: Row, table: Table) -> str:
    """Compare a client's medians with aioidem's."""
    base = table.row(BASE) if any(each.client == BASE for each in table.rows) else None
    if base is None or base is row:
        return "-"
    parts = []
    for measured, name in ((rate, "the rate"), (cpu, "the CPU")):
        mine, its = row.median(measured), base.median(measured)
        if mine and its:
            parts.append(f"{mine / its:.2f} x {name}")
    return ", ".join(parts) or "-"


_RATE = _figure("records/s", rate, 0)
_CPU = _figure("CPU us/record", cpu, 2)
_MEMORY = _figure("peak RSS, MB", memory, 0)
_LATENCIES = [_figure(f"{name}, ms", latency(name), 2) for name in ("p50", "p99", "p99.9")]
_COLUMNS: dict[str, list[Column]] = {
    "one": [*_LATENCIES, _RATE, _CPU, _MEMORY, ("against aioidem", _against)],
    "paced": [
        _figure("records/s asked", lambda found: found.asked_rate, 0),
        *_LATENCIES,
        _figure("schedule late, p99, ms", lambda found: found.late_ms, 2),
        _CPU,
        _MEMORY,
    ],
    "start": [_figure("first acknowledgement, s", lambda found: found.first_ack_s, 3), _MEMORY],
    "idle": [_figure("CPU, % of a core", lambda found: found.cpu_percent, 2), _MEMORY],
}
_THROUGHPUT: list[Column] = [_RATE, _CPU, _MEMORY, ("against aioidem", _against)]


def markdown(report: Report) -> list[str]:
    """Format the report as Markdown: the circumstances, and a table for each scenario."""
    machine = report.machine
    made = (
        f"Made on {machine.date} by `{report.command}`, commit {machine.commit or 'unknown'}: "
        f"{report.broker}, {machine.python}, {machine.system}, {machine.cpu}, {machine.cores} "
        f"cores, load average at the start {machine.load:g}. Medians of {report.rounds} rounds of "
        f"{report.seconds:g} s each, with the lowest and the highest."
    )
    lines = [made]
    if not machine.quiet:
        lines += ["", f"**Not to be quoted: {machine.complaint()}.**"]
    for table in report.tables:
        lines += ["", f"### {table.scenario.title}", ""]
        lines += _links(table) if table.scenario.way == LONG else _rows(table)
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(each.replace('|', '/') for each in cells)} |"


def _rows(table: Table) -> list[str]:
    columns = _COLUMNS.get(table.scenario.way, _THROUGHPUT)
    lines = [
        _line(["client", *(title for title, _ in columns), "note"]),
        "|---" * (len(columns) + 2) + "|",
    ]
    lines += [
        _line([row.name(), *(cell(row, table) for _, cell in columns), row.note()])
        for row in table.rows
    ]
    return lines


def _links(table: Table) -> list[str]:
    """Format the rows of `long_link.py`, with the share of window x batch / round trip."""
    lines = [f"FAILED: {table.failed}", ""] if table.failed else []
    lines += ["| client | window | records/s | of window x batch / round trip |", "|---" * 4 + "|"]
    for each in table.links:
        steady, window = each["steady_records_per_sec"], each["in_flight"]
        sealed = each["client"] == BASE and not table.scenario.mbit
        model = window * BATCH_RECORDS * 1000 / table.scenario.rtt
        share = f"{100 * steady / model:.1f} %" if steady and sealed else "-"
        shown = "-" if steady is None else f"{steady:,.1f}"
        lines.append(_line([f"{each['client']} {each['version']}", str(window), shown, share]))
    return lines


def has_place(document: Path) -> bool:
    """Return whether a document exists and has the lines between which the tables belong."""
    if not document.is_file():
        return False
    _, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    return bool(begin) and END in rest


def into_document(report: Report, document: Path) -> None:
    """Replace the tables of a document, and the picture of the same name beside it.

    Raises:
        ValueError: The document has no place for them.
    """
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no lines {BEGIN} and {END}")
    image = document.with_suffix(".svg")
    picture(report, image)
    body = [BEGIN, "", *markdown(report), "", f"![the same as a picture]({image.name})", "", END]
    document.write_text(before + "\n".join(body) + after, encoding="utf-8")


_SHOWN: dict[str, tuple[str, Measured]] = {
    "one": ("p50 of the latency, ms", latency("p50")),
    "paced": ("p99 of the latency, ms", latency("p99")),
    "start": ("seconds to the first acknowledgement", lambda found: found.first_ack_s),
    "idle": ("CPU, % of a core", lambda found: found.cpu_percent),
}


def picture(report: Report, path: Path) -> None:
    """Draw the medians of each scenario, with the lowest and the highest as error bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    # The same figures give the same file.
    mpl.rcParams.update({"svg.hashsalt": "aioidem", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    tables = [each for each in report.tables if any(row.rounds for row in each.rows)]
    rows = sum(len(each.rows) for each in tables)
    figure, axes = plt.subplots(
        max(1, len(tables)),
        2,
        figsize=(10, 1 + 0.25 * rows + 0.7 * len(tables)),
        squeeze=False,
        layout="constrained",
    )
    for (left, right), table in zip(axes, tables, strict=False):
        title, measured = _SHOWN.get(table.scenario.way, ("records/s", rate))
        _bars(left, table, measured, f"{table.scenario.name}: {title}")
        _bars(right, table, cpu, f"{table.scenario.name}: CPU us/record")
    quiet = "" if report.machine.quiet else "; the machine was busy"
    figure.suptitle(f"{report.broker}, {report.machine.date}{quiet}")
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _bars(axes: Any, table: Table, measured: Measured, title: str) -> None:
    found = [(row, row.values(measured)) for row in table.rows]
    found = [(row, values) for row, values in found if values]
    if not found:
        axes.set_axis_off()
        return
    middles = [statistics.median(values) for _, values in found]
    low = [middle - min(values) for middle, (_, values) in zip(middles, found, strict=True)]
    high = [max(values) - middle for middle, (_, values) in zip(middles, found, strict=True)]
    colours = ["C0" if row.client.startswith(BASE) else "C7" for row, _ in found]
    axes.barh([row.client for row, _ in found], middles, xerr=[low, high], color=colours)
    axes.invert_yaxis()
    axes.set_title(title, loc="left")
