"""Parallel: a search that several processes share.

Each process expands its part of a level (`visits`), waits until the others have done so, and takes
over what they found for it. So all of them are at the same level, and a violation that one of them
finds has a shortest path. What differs from a search by one process is which of several equal
worlds, or of several shortest paths, is met first.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from contextlib import closing
from ctypes import c_uint64
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any, NamedTuple

from .coverage import Coverage
from .space import Space
from .visits import Graph, Visits, Wrong

__all__ = ["visit_together"]

_SECONDS_BETWEEN_LOOKS = 0.5
# What the processes are told while they visit worlds.
_STOPPED = 1
_DISMISSED = 2


def visit_together(
    space: Space,
    faults: int,
    reached: Callable[[int], bool],
    progress: Callable[[int, int, int], None] | None,
    workers: int,
    coverage: Coverage,
) -> tuple[list[Graph], Wrong | None, int, bool]:
    """Visit all worlds of a space by several processes.

    Args:
        space: the space.
        faults: how many faults may happen.
        reached: returns whether to end, after some worlds were met.
        progress: called now and then with the numbers of worlds met and waiting, and the depth.
        workers: how many processes.
        coverage: gets the rows of the engine's tables that were taken.

    Returns:
        What each process met, what is wrong, the depth, and whether the search was ended.

    Raises:
        RuntimeError: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="exploration-") as folder:
        team = _Team(space, faults, workers, Path(folder))
        try:
            found, depth, waiting = team.ask("begin", reached), 0, 1
            while found is None and waiting and not team.stopped:
                if progress is not None:
                    progress(team.met, waiting, depth)
                found = team.ask("expand", reached) or team.ask("receive", reached)
                waiting = team.waiting
                depth += waiting > 0
            return team.finish(coverage), found, depth, team.stopped
        finally:
            team.dismiss()


class _Failure(NamedTuple):
    """What a process sends that failed."""

    trace: str


class _Team:
    """The processes of a search, as the one sees them that started them."""

    def __init__(self, space: Space, faults: int, workers: int, folder: Path) -> None:
        context = multiprocessing.get_context("fork")  # the engine may be changed by a mutant
        self._folder = folder
        # Whether to end (see `_STOPPED`), and how many worlds each process has met.
        self._shared = RawArray(c_uint64, workers + 1)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self.stopped = False
        self.waiting = 0
        for rank in range(workers):
            ours, theirs = context.Pipe()
            worker = _Worker(theirs, self._shared, rank, workers, folder)
            process = context.Process(target=worker.run, args=(space, faults), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def met(self) -> int:
        """How many worlds were met."""
        return sum(self._shared[1:])

    def ask(self, what: str, reached: Callable[[int], bool]) -> Wrong | None:
        """Let each process do something, and return what the first one found that is wrong."""
        for pipe in self._pipes:
            pipe.send(what)
        left = list(self._pipes)
        self.waiting = 0
        wrongs: list[Wrong] = []
        while left:
            ready = wait(left, _SECONDS_BETWEEN_LOOKS)
            for pipe in [each for each in left if each in ready]:
                found, waiting, stopped = self._answer(pipe)
                left.remove(pipe)
                self.waiting += waiting
                self.stopped = self.stopped or stopped
                if found is not None:
                    wrongs.append(found)
            if wrongs or reached(self.met):
                self._shared[0] = _STOPPED
        return min(wrongs, default=None)

    def _answer(self, pipe: Connection) -> Any:
        try:
            answer = pipe.recv()
        except EOFError:
            raise RuntimeError("a process of the exploration ended") from None
        if isinstance(answer, _Failure):
            raise RuntimeError(answer.trace)  # noqa: TRY004 - nobody passed a wrong type
        return answer

    def finish(self, coverage: Coverage) -> list[Graph]:
        """Collect what each process met."""
        graphs = []
        for rank, pipe in enumerate(self._pipes):
            pipe.send("finish")
            rows, codes = self._answer(pipe)
            coverage.add(rows, codes)
            path = _graph_path(self._folder, rank)
            graph = pickle.loads(path.read_bytes())  # noqa: S301 - a process here wrote it
            assert isinstance(graph, Graph)
            graphs.append(graph)
        return graphs

    def dismiss(self) -> None:
        """End the processes."""
        self._shared[0] = _DISMISSED
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()


class _Worker:
    """One process of a search."""

    def __init__(self, pipe: Connection, shared: Any, rank: int, ranks: int, folder: Path) -> None:
        self._pipe = pipe
        self._shared = shared
        self._rank = rank
        self._ranks = ranks
        self._folder = folder
        self._parent = os.getpid()

    def run(self, space: Space, faults: int) -> None:
        """Do what is asked until nobody asks any more."""
        for number in (signal.SIGINT, signal.SIGTERM):  # the process that started it handles them
            signal.signal(number, signal.SIG_IGN)
        coverage = Coverage()
        try:
            with (
                coverage.counted(),
                closing(
                    Visits(space, faults, self._ends, self._rank, self._ranks, self._folder)
                ) as visits,
            ):
                while (what := self._asked()) != "finish":
                    found = self._done(visits, what)
                    self._pipe.send((found, len(visits.waiting), visits.stopped))
            path = _graph_path(self._folder, self._rank)
            path.write_bytes(pickle.dumps(visits.graph, 5))
            self._pipe.send((coverage.rows, coverage.codes))
        except (EOFError, BrokenPipeError):
            pass  # nobody needs this process any more
        except Exception:  # noqa: BLE001 - it is raised there
            self._pipe.send(_Failure(traceback.format_exc()))

    def _asked(self) -> str:
        """Wait for the next thing to do.

        Raises:
            EOFError: there is none.
        """
        # The end of the pipe does not show: another process here may hold a copy of it.
        while not self._pipe.poll(_SECONDS_BETWEEN_LOOKS):
            if self._shared[0] == _DISMISSED or os.getppid() != self._parent:
                raise EOFError
        what = self._pipe.recv()
        assert isinstance(what, str)
        return what

    def _done(self, visits: Visits, what: str) -> Wrong | None:
        match what:
            case "begin":
                return visits.begin()
            case "expand":
                # What is kept now lives long: the garbage collector need not look at it again.
                gc.freeze()
                return visits.expand()
            case "receive":
                return visits.receive()
        raise ValueError(what)

    def _ends(self, met: int) -> bool:
        self._shared[self._rank + 1] = met
        return bool(self._shared[0]) or os.getppid() != self._parent


def _graph_path(folder: Path, rank: int) -> Path:
    return folder / f"graph-{rank}"
