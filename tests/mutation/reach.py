"""Reach: which runs execute which line of the mutated files.

A *run* is a test, a seed of the simulation or a space of the exploration. Only runs that execute a
mutated line can notice the mutant, so only they are tried.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from .operators import Place
from .sources import ROOT

__all__ = ["Lines", "Reach", "Run", "Tracer"]

Lines = dict[str, set[int]]
"""By path: the lines that were executed."""

_Trace = Callable[[FrameType, str, Any], Any]


_CALLS = 200
"""Calls of a function that are traced per run. Long runs would be slow if all of them were; a line
that is executed only later is taken for one that the run does not execute."""


class Tracer:
    """Collects the lines of the mutated files that this process executes."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths: Final = {str(ROOT / path): path for path in paths}
        # By id of a code object, which none of these loses: its lines that were not executed yet.
        self._left: dict[int, set[int]] = {}
        self._calls: dict[int, int] = {}
        self._found: Lines = {}

    @contextmanager
    def traced(self) -> Iterator[Lines]:
        """Trace while the block runs; the yielded lines are complete at its end."""
        self._left = {}
        self._calls = {}
        self._found = found = Lines({path: set[int]() for path in self._paths.values()})
        before = sys.gettrace()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield found
        finally:
            sys.settrace(before)
            threading.settrace(None)
            for path in [path for path, lines in found.items() if not lines]:
                del found[path]

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> _Trace | None:
        code = frame.f_code
        calls = self._calls[id(code)] = self._calls.get(id(code), 0) + 1
        if calls > _CALLS:
            return None
        left = self._left.get(id(code))
        if left is None:
            ours = code.co_filename in self._paths
            left = {line for _, _, line in code.co_lines() if line} if ours else set()
            self._left[id(code)] = left
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> _Trace:
        if event == "line":
            code, line = frame.f_code, frame.f_lineno
            self._left[id(code)].discard(line)
            self._found[self._paths[code.co_filename]].add(line)
        return self._line


class Run(NamedTuple):
    """A run without any mutant: how much CPU time it took (traced), and the lines it executed."""

    name: str
    seconds: float
    lines: Mapping[str, int]
    """By path: a set of lines, as the bits of one number."""

    def executes(self, path: str, lines: int) -> bool:
        """Tell whether the run executed any of some lines (bits) of a file."""
        return bool(self.lines.get(path, 0) & lines)

    @classmethod
    def of(cls, name: str, seconds: float, lines: Lines) -> Run:
        """Make one from sets of lines."""
        return cls(name, seconds, {path: sum(1 << n for n in each) for path, each in lines.items()})


class Reach:
    """The runs of all groups (files of tests, and the simulation), kept in a file."""

    def __init__(self, file: Path, sources: str) -> None:
        """Read what the file has about these sources; other sources have other lines."""
        self._file = file
        self._sources = sources
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._groups: dict[str, list[Run]] = {}
        if file.exists():
            self._read(json.loads(file.read_text()))

    def _read(self, kept: Any) -> None:
        if kept["sources"] != self._sources:
            return
        for group, (digest, runs) in kept["groups"].items():
            self._digests[group] = digest
            self._groups[group] = [
                Run(name, seconds, {path: int(bits, 16) for path, bits in lines.items()})
                for name, seconds, lines in runs
            ]

    def knows(self, group: str, digest: str) -> bool:
        """Tell whether a group was traced, with these contents of its files."""
        return self._digests.get(group) == digest

    def add(self, group: str, digest: str, runs: Iterable[Run]) -> None:
        """Keep the runs of a group, in the file too."""
        with self._lock:
            self._digests[group] = digest
            self._groups[group] = list(runs)
            self._save()

    def _save(self) -> None:
        groups = {
            group: (
                self._digests[group],
                [(r.name, r.seconds, {p: f"{b:x}" for p, b in r.lines.items()}) for r in runs],
            )
            for group, runs in self._groups.items()
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"sources": self._sources, "groups": groups}))

    def runs(self, groups: Iterable[str], place: Place) -> list[Run]:
        """Return the runs of some groups that execute a place, the quickest first.

        What is outside of functions is executed when it is imported: then these are all runs that
        execute any line of the file, or all runs if none does.
        """
        among = [run for group in groups for run in self._groups.get(group, ())]
        wanted = [1 << place.line, 1 << place.statement] if place.function else [-1]
        for lines in wanted:
            found = [run for run in among if run.executes(place.path, lines)]
            if found:
                break
        else:
            found = [] if place.function else among
        return sorted(found, key=lambda run: run.seconds)
