"""`aioidem replay`: show what a flight record has, and whether the engine decides the same."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from aioidem._flight.page import page
from aioidem._flight.record import MOST_EXPANDED, FlightRecord
from aioidem._flight.replay import Replay
from aioidem._flight.timeline import Row, Timeline
from aioidem._flight.verdict import Verdict, regression_test
from aioidem._load.usage import UsageError, apart, one_line, reason, terminal_line
from aioidem.errors import FlightRecordError
from aioidem.incident import incidents_to_json

__all__ = ["replay"]

_MOST_ROWS = 200


def replay(
    file: Path,
    *,
    partition: str | None,
    html: Path | None,
    to_test: Path | None,
    incidents: Path | None,
    full: bool,
) -> int:
    """Replay a file, print its timeline, and return the exit status.

    Args:
        file: the flight record.
        partition: shows only this partition, such as "orders-3"; None shows all.
        html: where to write the timeline as a page; None writes none.
        to_test: where to write a test that replays the record; None writes none.
        incidents: where to write the batches that ended UNKNOWN, for `aioidem resolve`; or None.
        full: whether to print more than the last 200 rows.

    Raises:
        UsageError: the file is no flight record or is damaged, or a file cannot be written.
    """
    apart({"FILE": file, "--html": html, "--to-test": to_test, "--incidents": incidents})
    try:
        if file.stat().st_size > MOST_EXPANDED:  # no record is, and memory may not have the room
            raise UsageError(f"{file}: has more than {MOST_EXPANDED} bytes: no flight record")
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {reason(error)}") from error
    try:
        record = FlightRecord.decode(content)
        unknown = record.incidents
        run = Replay(record)
        rows = list(Timeline(run).rows())
    except FlightRecordError as error:
        raise UsageError(f"{file}: {one_line(error)}") from error
    verdict = Verdict.of(run)
    if partition is not None:
        rows = [row for row in rows if row.where == partition]
        if not rows:
            raise UsageError(f"--partition: the record says nothing of {partition!r}")
    # The files come first: the reader of the output may go away in the middle of it (`| head`).
    if html is not None:
        _write("--html", html, page(record, rows, verdict))
    if to_test is not None:
        _write("--to-test", to_test, regression_test(content, run))
    if incidents is not None:
        _write("--incidents", incidents, incidents_to_json(unknown))
    _print(record, rows, verdict, full=full)
    return 0 if verdict.same and verdict.kept else 1


def _write(flag: str, path: Path, text: str) -> None:
    try:
        # A damaged file may have text that UTF-8 cannot encode.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{flag}: {path}: {reason(error)}") from error


def _print(record: FlightRecord, rows: list[Row], verdict: Verdict, *, full: bool) -> None:
    head = record.head
    client, why = record.config.client_id, head.get("reason")
    told = f"{client}: {why}; aioidem {head.get('aioidem')}, Python {head.get('python')}"
    print(terminal_line(told))
    table = Table(box=None, pad_edge=False)
    for name in ("s", "event"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    for name in ("span", "doubt", "epoch", "leader"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    shown = rows if full else rows[-_MOST_ROWS:]
    for row in shown:
        table.add_row(*_cells(row))
    if len(shown) < len(rows):
        print(f"{len(rows) - len(shown)} earlier rows are left out: --full shows them")
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    console.print(table)
    print(terminal_line(verdict.text))


def _cells(row: Row) -> list[str]:
    what = terminal_line(row.what)
    if row.quiet:
        what += f" (before: {row.quiet} batches sent)"
    cells = [f"{row.at:.3f}", str(row.event), terminal_line(row.where)]
    if row.where:
        doubt = str(row.in_doubt) if row.in_doubt else ""
        cells += [f"{row.span}/{row.window}", doubt, _or(row.epoch), _or(row.leader)]
    else:
        cells += [""] * 4
    return [*cells, what]


def _or(value: int | None) -> str:
    return "" if value is None else str(value)
