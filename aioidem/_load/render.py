"""Format the results of `aioidem perf`: the table, progress lines, JSON file and statistics.

Invariants:

- Every function except `write_json` and `write_whole` only turns data into text, or into something
  that rich can print.
- Output to a pipe is plain ASCII, with one line per interval and a table as wide as its content, so
  that `grep` finds whole lines and logs are readable.
- The objects in the JSON have the keys of `RunResult.as_json`; an unknown value is null.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from aioidem._load.measure import AfterWarmup, Progress, RunResult, speed_ups
from aioidem._load.usage import is_device

__all__ = [
    "cold_line",
    "failures",
    "progress_line",
    "results_columns",
    "results_json",
    "results_table",
    "statistics_lines",
    "summary_line",
    "table_text",
    "warmup_line",
    "write_json",
    "write_whole",
]

_UNKNOWN = "-"
_BREAKS = re.compile(r" |(?=/s)|(?<=-)")  # where a heading may be broken into lines


def progress_line(name: str, progress: Progress) -> str:
    """Format the progress of one interval as a line, worded as by kafka-producer-perf-test.sh."""
    line = (
        f"{name}: {progress.acked} records acknowledged,"
        f" {progress.records_per_sec:.1f} records/sec ({progress.mb_per_sec:.2f} MB/sec)"
    )
    if progress.avg_ms is not None and progress.max_ms is not None:
        line += f", {progress.avg_ms:.1f} ms avg latency, {progress.max_ms:.1f} ms max latency"
    if progress.failed:
        line += f", {progress.failed} failed"
    return line


def summary_line(name: str, result: RunResult) -> str:
    """Format a finished run as one line."""
    line = f"{name}: {result.acked} of {result.records} records acknowledged in"
    line += f" {result.seconds:.2f} s, {result.records_per_sec:.1f} records/sec"
    if result.steady_records_per_sec is not None:
        line += f", steady {result.steady_records_per_sec:.1f} records/sec"
    if result.committed is not None:
        done = result.committed
        line += f", {done.records} committed in {done.transactions} transactions"
        line += f", {done.avg_ms:.1f} ms avg commit"
    return line


def warmup_line(name: str, rest: AfterWarmup) -> str:
    """Format the figures of a run without its warm-up as one line, worded as Kafka's tool does."""
    line = (
        f"{name}: after {rest.warmup} warm-up records, {rest.acked} steady state records"
        f" acknowledged, {rest.records_per_sec:.1f} records/sec ({rest.mb_per_sec:.2f} MB/sec)"
    )
    if rest.latency is not None:
        each = rest.latency
        line += f", {each.avg:.2f} ms avg latency, {each.max:.2f} ms max latency"
        line += f", {each.p50:.1f} ms 50th, {each.p95:.1f} ms 95th, {each.p99:.1f} ms 99th"
        line += f", {each.p999:.1f} ms 99.9th"
    return line


def cold_line(name: str, warmup: int, result: RunResult) -> str:
    """Say that a run ended before its warm-up was over."""
    return (
        f"{name}: no steady state: the run sent {result.records} records, and --warmup-records is"
        f" {warmup}"
    )


def failures(name: str, result: RunResult) -> list[str]:
    """Return lines about a run that did not acknowledge every record, else an empty list."""
    if result.complete:
        return []
    reason = f": {result.failure}" if result.failure else ""
    if result.records == 0:
        return [f"{name}: no record was sent{reason}"]
    counts = f"{result.not_written} not written, {result.unknown} unknown"
    return [f"{name}: {result.acked} of {result.records} acknowledged, {counts}{reason}"]


def results_table(results: Sequence[RunResult], *, plain: bool = False) -> Table:
    """Put the results into a table, one row per run; `plain` is for a pipe."""
    # Headings are broken into lines, because a terminal may have only 80 columns. In a pipe each
    # heading stays on one line, so that grep finds it.
    table = Table(
        box=box.ASCII if plain else box.SIMPLE_HEAD, pad_edge=False, collapse_padding=not plain
    )
    columns = results_columns(results)
    for name, _ in columns:
        heading = name if plain else _BREAKS.sub("\n", name)
        table.add_column(heading, justify="left" if name == "client" else "right", no_wrap=True)
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*row)
    return table


def table_text(results: Sequence[RunResult]) -> str:
    """Format the table as plain text for a pipe, as wide as its content."""
    console = Console(width=400, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(results_table(results, plain=True))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def results_columns(results: Sequence[RunResult]) -> list[tuple[str, list[str]]]:
    """Return the table's columns, each with its heading and one cell per run.

    Columns without information are left out: clients if there is only one, transactions and
    failures if there are none. The steady rate is a run's rate after its first batch; the speed-up
    is this rate divided by that of the first run.
    """
    columns = [
        ("in flight", [str(row.label.in_flight) for row in results]),
        ("window", [_count(row.window) for row in results]),
        ("max span", [_count(row.max_span) for row in results]),
        ("records", [str(row.records) for row in results]),
        ("records/s", [f"{row.records_per_sec:.1f}" for row in results]),
        ("steady/s", [_decimal(row.steady_records_per_sec) for row in results]),
        ("MB/s", [f"{row.mb_per_sec:.2f}" for row in results]),
        ("p50 ms", [_decimal(None if row.latency is None else row.latency.p50) for row in results]),
        ("p99 ms", [_decimal(None if row.latency is None else row.latency.p99) for row in results]),
        ("speed-up", [_decimal(ratio, "x") for ratio in speed_ups(results)]),
    ]
    if len({row.label.client for row in results}) > 1:
        columns.insert(0, ("client", [row.label.client for row in results]))
    if any(row.committed is not None for row in results):
        done = [row.committed for row in results]
        columns.append(
            ("transactions", ["0" if each is None else str(each.transactions) for each in done])
        )
        columns.append(
            ("commit ms", [_decimal(None if each is None else each.avg_ms) for each in done])
        )
    if any(row.not_written or row.unknown for row in results):
        columns.append(("not written", [str(row.not_written) for row in results]))
        columns.append(("unknown", [str(row.unknown) for row in results]))
    return columns


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _decimal(number: float | None, unit: str = "") -> str:
    return _UNKNOWN if number is None else f"{number:.1f}{unit}"


def results_json(results: Sequence[RunResult]) -> str:
    """Format the results as a JSON list of objects, one per run."""
    return json.dumps([result.as_json() for result in results], indent=2, allow_nan=False) + "\n"


def write_json(path: Path, results: Sequence[RunResult]) -> None:
    """Write the results as JSON; a reader sees either the old file or the whole new one.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, results_json(results))


def write_whole(path: Path, text: str) -> None:
    """Replace a regular file atomically; write to any other, such as `/dev/stdout`, directly.

    A link to a file stays a link.

    Raises:
        OSError: the file cannot be written.
    """
    if is_device(path):
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    # The text is first written to a temporary file in the same folder, because a rename is atomic
    # only within one file system.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".aioidem.", delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.flush()
            # Only the owner may read a temporary file; the result gets the permissions of any new
            # file of this user.
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def statistics_lines(statistics: object) -> list[str]:
    """Format a dataclass of statistics as `name value` lines, with dotted names for nested ones."""
    width = max((len(name) for name, _ in _leaves("", statistics)), default=0)
    return [f"{name:<{width}}  {value}" for name, value in _leaves("", statistics)]


def _leaves(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            name = f"{prefix}.{field.name}" if prefix else field.name
            yield from _leaves(name, getattr(value, field.name))
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        for index, entry in enumerate(value):
            yield from _leaves(f"{prefix}[{index}]", entry)
    else:
        yield prefix, value
