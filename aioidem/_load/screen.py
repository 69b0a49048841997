"""Where a run is seen while it goes on: a live bar on a terminal, plain lines in a pipe.

Invariants:

* Both have the same three moments (`begin`, `update`, `end`), told with plain data; neither reads
  a clock nor touches a producer.
* Results go to standard output, trouble to standard error, one line each.

Rejected: rich's live display in a pipe. It prints one blank frame at the end and nothing before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from aioidem._load import render
from aioidem._load.measure import Progress as Interval
from aioidem._load.measure import RunResult
from aioidem._protocol.foreign_text import printable

__all__ = ["LiveScreen", "PlainScreen", "Screen", "choose_screen", "silence"]


class Screen(Protocol):
    """What the runs tell; `interval` is how often, in seconds, they should call `update`."""

    interval: float

    def begin(self, name: str, total: float | None) -> None:
        """A run starts; `total` is the records or seconds it will take, as `update` counts them."""

    def update(self, name: str, progress: Interval, done: float) -> None:
        """An interval is over and `done` of the total with it."""

    def end(self, name: str, result: RunResult) -> None:
        """The run is over."""

    def note(self, line: str) -> None:
        """Something worth knowing."""

    def trouble(self, line: str) -> None:
        """Something that went wrong."""

    def table(self, results: Sequence[RunResult]) -> None:
        """All runs are over."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _PatientConsole(Console):
    """Goes quiet when its reader goes away (`| head`).

    Rich would exit from wherever it printed, here a task beside a producer with records in flight.
    The run goes on, so that its files are written and its status is true.
    """

    def on_broken_pipe(self) -> None:
        """Drop what is printed from now on."""
        self.quiet = True
        silence(self.file)


def silence(file: IO[str]) -> None:
    """Let a file's descriptor lead nowhere, or Python complains once more when it flushes at exit.

    Does nothing for a file without a descriptor.
    """
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class PlainScreen:
    """Lines, for pipes and logs."""

    interval = 1.0

    def __init__(self, out: Console, errors: Console) -> None:
        self._out = out
        self._errors = errors

    def begin(self, name: str, total: float | None) -> None:
        """Nothing to say before there is something to say."""

    def update(self, name: str, progress: Interval, done: float) -> None:
        """One line per interval; how much is left is the bar's business."""
        del done
        self.note(render.progress_line(name, progress))

    def end(self, name: str, result: RunResult) -> None:
        """One line per run."""
        self.note(render.summary_line(name, result))

    def note(self, line: str) -> None:
        """A line on standard output."""
        _line(self._out, line)

    def trouble(self, line: str) -> None:
        """A line on standard error."""
        _line(self._errors, line)

    def table(self, results: Sequence[RunResult]) -> None:
        """The table in ASCII."""
        for line in render.table_text(results).splitlines():
            _line(self._out, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class LiveScreen:
    """A bar per run that moves, for terminals."""

    interval = 0.2

    def __init__(self, out: Console, errors: Console) -> None:
        self._out = out
        self._errors = errors
        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rate]}", justify="right"),
            TimeElapsedColumn(),
            console=out,
        )
        self._tasks: dict[str, TaskID] = {}

    def begin(self, name: str, total: float | None) -> None:
        """A new bar."""
        self._tasks[name] = self._progress.add_task(name, total=total, rate="")

    def update(self, name: str, progress: Interval, done: float) -> None:
        """The bar moves."""
        rate = f"{progress.acked} acked, {progress.records_per_sec:,.0f}/s"
        self._progress.update(self._tasks[name], completed=done, rate=rate)

    def end(self, name: str, result: RunResult) -> None:
        """The bar stops and shows the steady rate."""
        steady = result.steady_records_per_sec or result.records_per_sec
        task = self._tasks[name]
        total = next(bar.total for bar in self._progress.tasks if bar.id == task)
        rate = f"{result.acked} acked, {steady:,.0f}/s"
        self._progress.update(task, completed=total or 1, total=total or 1, rate=rate)
        self._progress.stop_task(task)

    def note(self, line: str) -> None:
        """A line above the bars."""
        _line(self._out, line)

    def trouble(self, line: str) -> None:
        """A line on standard error, kept clear of the bars."""
        _line(self._errors, line)

    def table(self, results: Sequence[RunResult]) -> None:
        """The table, after the bars have come to rest."""
        self._progress.stop()
        self._out.print(render.results_table(results))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def choose_screen() -> Screen:
    """The screen for where standard output goes."""
    out = _PatientConsole(highlight=False)
    errors = _PatientConsole(stderr=True, highlight=False)
    return LiveScreen(out, errors) if out.is_terminal else PlainScreen(out, errors)


def _line(console: Console, line: str) -> None:
    # soft_wrap: a line stays a line however narrow the terminal is taken to be. markup off: what a
    # broker says may hold brackets.
    console.print(printable(line, len(line)), markup=False, soft_wrap=True)
