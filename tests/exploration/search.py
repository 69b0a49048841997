"""Search: every world that can be reached from the first one, breadth first.

Each of a world's actions happens in a copy of its own (`snapshot`), and a copy that is like no
earlier world (`canonical`) waits for its turn. So each world is first reached by a shortest path,
and the first violation that is found has the shortest path of all.

After the last world, each world must be able to reach one in which all records have an outcome. If
one cannot, the engine could go round in circles for ever (`circles`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from .circles import first_without_end, path_to
from .coverage import Coverage
from .judge import wrong
from .parallel import visit_together
from .space import Space
from .visits import Graph, Visits, Wrong
from .worlds import world_of

__all__ = ["Found", "Progress", "Violation", "explore", "replay"]

Progress = Callable[[int, int, int], None]
"""Called now and then with the numbers of worlds met and of steps to the present level's worlds."""


class Violation(NamedTuple):
    """What is wrong, and the shortest path from the beginning of the space to it."""

    what: str
    path: tuple[str, ...]


class Found(NamedTuple):
    """The result of a search."""

    space: Space
    faults: int
    states: int
    transitions: int
    ends: int
    """The number of worlds in which nothing more can happen."""
    depth: int
    """The length of the longest of the shortest paths."""
    complete: bool
    """Whether every world was visited; False if a bound or a violation ended the search."""
    seconds: float
    violation: Violation | None


class Bounds:
    """When a search ends before it has visited everything.

    Args:
        limit: the most worlds to meet; None: all.
        seconds: the longest time; None: no bound.
        asked: returns whether somebody asked the search to end.
    """

    def __init__(
        self, limit: int | None, seconds: float | None, asked: Callable[[], bool] | None
    ) -> None:
        self._limit = limit
        self._until = None if seconds is None else time.monotonic() + seconds
        self._asked = asked

    def reached(self, met: int) -> bool:
        """Return whether the search has to end, after it has met some worlds."""
        return (
            (self._limit is not None and met >= self._limit)
            or (self._until is not None and time.monotonic() >= self._until)
            or (self._asked is not None and self._asked())
        )


def explore(
    space: Space,
    *,
    faults: int | None = None,
    limit: int | None = None,
    seconds: float | None = None,
    asked: Callable[[], bool] | None = None,
    workers: int = 1,
    coverage: Coverage | None = None,
    progress: Progress | None = None,
) -> Found:
    """Visit all worlds of a space, until one of them is wrong.

    Args:
        space: the space.
        faults: how many faults may happen; by default as many as the space says.
        limit: the most worlds to meet; by default all.
        seconds: how long the search may take.
        asked: returns whether somebody asked the search to end.
        workers: how many processes share the search.
        coverage: gets the rows of the engine's tables that were taken.
        progress: called now and then.
    """
    began = time.monotonic()
    faults = space.faults if faults is None else faults
    bounds = Bounds(limit, seconds, asked)
    coverage = Coverage() if coverage is None else coverage
    if workers == 1:
        with coverage.counted():
            graphs, found, depth, stopped = _visit_alone(space, faults, bounds.reached, progress)
    else:
        graphs, found, depth, stopped = visit_together(
            space, faults, bounds.reached, progress, workers, coverage
        )
    violation = None if found is None else _violation(graphs, found)
    complete = violation is None and not stopped
    if complete:
        number = first_without_end(graphs)
        if number is not None:
            what = "the engine can go round in circles for ever"
            violation = Violation(what, path_to(graphs, number))
    return Found(
        space,
        faults,
        sum(len(graph.before) for graph in graphs),
        sum(len(graph.steps_from) for graph in graphs),
        sum(graph.ends for graph in graphs),
        depth,
        complete,
        time.monotonic() - began,
        violation,
    )


def _visit_alone(
    space: Space, faults: int, reached: Callable[[int], bool], progress: Progress | None
) -> tuple[list[Graph], Wrong | None, int, bool]:
    with closing(Visits(space, faults, reached)) as visits:
        found, depth = visits.begin(), 0
        while found is None and visits.waiting and not visits.stopped:
            if progress is not None:
                progress(visits.met, len(visits.waiting), depth)
            found = visits.expand()
            depth += bool(visits.waiting)
        return [visits.graph], found, depth, visits.stopped


def _violation(graphs: Sequence[Graph], found: Wrong) -> Violation:
    path = path_to(graphs, found.number)
    return Violation(found.what, (*path, found.action) if found.action else path)


def replay(space: Space, path: tuple[str, ...], faults: int | None = None) -> str | None:
    """Let the actions of a path happen, and return what is wrong; None if nothing is.

    The replay ends at the first action after which something is wrong, even if the path goes on.
    """
    world = world_of(space, len(path) if faults is None else faults)
    for action in path:
        world.do(action)
        found = wrong(world, ended=False)
        if found is not None:
            return found
    return wrong(world, ended=not world.actions())
