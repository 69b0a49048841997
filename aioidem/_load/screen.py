"""Show the progress of an `aioidem perf` run: a live bar on a terminal, plain lines in a pipe.

Invariants:

- Both screens (`LiveScreen` and `PlainScreen`) have the methods `begin`, `update` and `end`, whose
  arguments are plain data; neither uses a producer.
- Results go to standard output, errors to standard error, each error in one line.
- Nothing but `table` and the end of a screen waits for the reader of the output, so `update` shows
  nothing while the reader has much to take.

Rejected: rich's live display in a pipe. It prints nothing until the end, and then a blank frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from aioidem._load import render
from aioidem._load.measure import Progress as Interval
from aioidem._load.measure import RunResult
from aioidem._load.spool import Spool, SpooledStream
from aioidem._protocol.foreign_text import printable

__all__ = ["LiveScreen", "PlainScreen", "Screen", "choose_screen"]


class Screen(Protocol):
    """A display of the progress of runs; callers call `update` every `interval` seconds."""

    interval: float

    def begin(self, name: str, total: float | None) -> None:
        """Show that a run starts; `total` counts its records or its seconds, None if unknown."""

    def update(self, name: str, progress: Interval, done: float) -> None:
        """Show the figures of one interval; `done` is how much of `total` (see `begin`) is done."""

    def end(self, name: str, result: RunResult) -> None:
        """Show that the run is over."""

    def note(self, line: str) -> None:
        """Show a line of information."""

    def trouble(self, line: str) -> None:
        """Show a line about something that went wrong."""

    def table(self, results: Sequence[RunResult]) -> None:
        """Show the results of all runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class PlainScreen:
    """A screen that prints lines, for pipes and logs."""

    def __init__(
        self,
        out: Console,
        errors: Console,
        interval: float | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.interval = 1.0 if interval is None else interval
        self._out = out
        self._errors = errors
        self._spool = spool or Spool()

    def begin(self, name: str, total: float | None) -> None:
        """Print nothing; the first line is printed after the first interval."""

    def update(self, name: str, progress: Interval, done: float) -> None:
        """Print one line about the interval, without `done`."""
        del done
        if not self._spool.behind:
            self.note(render.progress_line(name, progress))

    def end(self, name: str, result: RunResult) -> None:
        """Print one line about the finished run."""
        self.note(render.summary_line(name, result))

    def note(self, line: str) -> None:
        """Print a line to standard output."""
        _line(self._out, line)

    def trouble(self, line: str) -> None:
        """Print a line to standard error."""
        _line(self._errors, line)

    def table(self, results: Sequence[RunResult]) -> None:
        """Print the table in ASCII."""
        for line in render.table_text(results).splitlines():
            _line(self._out, line)
        self._spool.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not KeyboardInterrupt:  # who interrupts does not wait for a reader
            self._spool.drain()


class LiveScreen:
    """A screen with a moving bar per run, for terminals."""

    interval = 0.2

    def __init__(self, out: Console, errors: Console, spool: Spool | None = None) -> None:
        self._out = out
        self._errors = errors
        self._spool = spool or Spool()
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
        """Add a bar for the run."""
        self._out.quiet = False
        self._tasks[name] = self._progress.add_task(name, total=total, rate="")

    def update(self, name: str, progress: Interval, done: float) -> None:
        """Move the run's bar to `done`, and show the rate beside it."""
        # Rich's thread draws the bars; what it prints while the console is quiet is dropped.
        self._out.quiet = self._spool.behind
        rate = f"{progress.acked} acked, {progress.records_per_sec:,.0f}/s"
        self._progress.update(self._tasks[name], completed=done, rate=rate)

    def end(self, name: str, result: RunResult) -> None:
        """Fill and stop the run's bar, and show the run's rate beside it.

        The rate is the steady one, which leaves out the first batch; without a steady rate, it is
        the rate of the whole run.
        """
        task = self._tasks.pop(name, None)
        if task is None:  # it has ended before it could begin: the cluster was not reached
            return
        steady = result.steady_records_per_sec or result.records_per_sec
        total = next(bar.total for bar in self._progress.tasks if bar.id == task)
        rate = f"{result.acked} acked, {steady:,.0f}/s"
        self._progress.update(task, completed=total or 1, total=total or 1, rate=rate)
        self._progress.stop_task(task)

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._out.quiet = False
        _line(self._out, line)

    def trouble(self, line: str) -> None:
        """Print a line to standard error, which the bars do not use."""
        _line(self._errors, line)

    def table(self, results: Sequence[RunResult]) -> None:
        """Stop the bars and print the table."""
        self._out.quiet = False
        self._progress.stop()
        self._out.print(render.results_table(results))
        self._spool.drain()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._out.quiet = False
        self._progress.stop()
        if kind is not KeyboardInterrupt:  # who interrupts does not wait for a reader
            self._spool.drain()


def choose_screen(interval: float | None = None) -> Screen:
    """Return a live screen if standard output is a terminal, else a plain one.

    With an `interval` in seconds it is always a plain one, which prints a line after each interval.
    """
    spool = Spool()
    out = Console(file=_spooled(sys.stdout, spool), highlight=False)
    errors = Console(file=_spooled(sys.stderr, spool), stderr=True, highlight=False)
    if out.is_terminal and interval is None:
        return LiveScreen(out, errors, spool)
    return PlainScreen(out, errors, interval, spool)


def _spooled(stream: TextIO | None, spool: Spool) -> IO[str] | None:
    """Return a file that a spool writes to the stream; None if the stream has no descriptor."""
    try:
        if stream is not None and stream.fileno() >= 0:
            return SpooledStream(stream, spool)  # type: ignore[return-value]
    except (OSError, ValueError):
        pass
    return None


def _line(console: Console, line: str) -> None:
    # soft_wrap keeps a line whole even on a narrow terminal. Markup is off, because a broker's text
    # may contain brackets.
    console.print(printable(line, len(line)), markup=False, soft_wrap=True)
