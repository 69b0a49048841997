"""Search: every world that can be reached from the first one, breadth first.

A world is kept as a pickle until it is its turn. Then each of its actions happens in a copy of its
own, and a copy that is like no earlier world (`canonical`) is kept in turn. So each world is first
reached by a shortest path, and the first violation that is found has the shortest path of all.

After the last world, each world must be able to reach one in which all records have an outcome. If
one cannot, the engine could go round in circles for ever.
"""

from __future__ import annotations

import io
import pickle
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from aioidem._config import ProducerConfig

from .canonical import digest
from .judge import wrong
from .space import Space
from .world import World

__all__ = ["Found", "Violation", "explore", "replay"]

_ROOT = 0
_ROOMY = 10_000
"""Waiting worlds (about 12 kB each) are compressed only if there are more of them than this."""


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
    """Whether every world was visited; False if the limit or a violation ended the search."""
    seconds: float
    violation: Violation | None


def explore(
    space: Space,
    *,
    faults: int | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Visit all worlds of a space, until one of them is wrong.

    Args:
        space: the space.
        faults: how many faults may happen; by default as many as the space says.
        limit: the most worlds to visit; by default all.
        progress: called now and then with the number of worlds met, and of those that wait.
    """
    budget = space.faults if faults is None else faults
    return _Search(space, budget, limit, progress).run()


def replay(space: Space, path: tuple[str, ...], faults: int | None = None) -> str | None:
    """Let the actions of a path happen, and return what is wrong; None if nothing is.

    The replay ends at the first action after which something is wrong, even if the path goes on.
    """
    world = World(space, len(path) if faults is None else faults)
    for action in path:
        world.do(action)
        found = wrong(world, ended=False)
        if found is not None:
            return found
    return wrong(world, ended=not world.actions())


class _Search:
    def __init__(
        self,
        space: Space,
        faults: int,
        limit: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.space = space
        self.faults = faults
        self.limit = limit
        self.progress = progress
        self.freezer = _Freezer(space)
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.known: dict[bytes, int] = {}
        # By number of a world: the world before it, the action between them, and its depth.
        self.before = array("q")
        self.actions: list[str] = []
        self.depths = array("i")
        # Every step between two worlds, for `_stuck`: from and to.
        self.steps_from = array("q")
        self.steps_to = array("q")
        self.good: list[int] = []
        self.transitions = self.ends = 0

    def run(self) -> Found:
        began = time.monotonic()
        world = World(self.space, self.faults)
        violation = self._meet(world, -1, "")
        while self.waiting and violation is None:
            if self.limit is not None and len(self.known) >= self.limit:
                break
            number, frozen = self.waiting.popleft()
            violation = self._visit(number, frozen)
        complete = violation is None and not self.waiting
        if complete:
            violation = self._stuck()
        return Found(
            self.space,
            self.faults,
            len(self.known),
            self.transitions,
            self.ends,
            max(self.depths),
            complete,
            time.monotonic() - began,
            violation,
        )

    def _visit(self, number: int, frozen: bytes) -> Violation | None:
        """Let each action of a world happen, and keep the worlds that are new."""
        world = self.freezer.thaw(frozen)
        actions = world.actions()
        if not actions:
            self.ends += 1
        for place, action in enumerate(actions):
            if place:
                world = self.freezer.thaw(frozen)
            violation = self._step(world, number, action)
            if violation is not None:
                return violation
        return None

    def _step(self, world: World, number: int, action: str) -> Violation | None:
        self.transitions += 1
        try:
            world.do(action)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is a violation
            return Violation(f"the engine raises {error!r}", (*self._path(number), action))
        return self._meet(world, number, action)

    def _meet(self, world: World, before: int, action: str) -> Violation | None:
        """Keep a world if it is new, and judge it."""
        mark = digest(world)
        number = self.known.get(mark)
        if number is None:
            number = self.known[mark] = len(self.known)
            self.before.append(before)
            self.actions.append(action)
            self.depths.append(self.depths[before] + 1 if before >= 0 else 0)
            violation = wrong(world, ended=not world.actions())
            if violation is not None:
                return Violation(violation, self._path(number))
            if world.settled:
                self.good.append(number)
            roomy = len(self.waiting) < _ROOMY
            self.waiting.append((number, self.freezer.freeze(world, roomy=roomy)))
            if self.progress is not None and number % 1000 == 0:
                self.progress(number, len(self.waiting))
        if before >= 0:
            self.steps_from.append(before)
            self.steps_to.append(number)
        return None

    def _path(self, number: int) -> tuple[str, ...]:
        path = []
        while number != _ROOT:
            path.append(self.actions[number])
            number = self.before[number]
        return tuple(reversed(path))

    def _stuck(self) -> Violation | None:
        """Find a world from which no world can be reached in which every record has an outcome."""
        count = len(self.known)
        # The steps, sorted by the world that they lead to.
        starts = array("q", bytes(8 * (count + 1)))
        for to in self.steps_to:
            starts[to + 1] += 1
        for number in range(count):
            starts[number + 1] += starts[number]
        places, origins = array("q", starts), array("q", bytes(8 * len(self.steps_to)))
        for origin, to in zip(self.steps_from, self.steps_to, strict=True):
            origins[places[to]] = origin
            places[to] += 1
        fine = bytearray(count)
        todo = list(self.good)
        for number in todo:
            fine[number] = 1
        while todo:
            to = todo.pop()
            for origin in origins[starts[to] : starts[to + 1]]:
                if not fine[origin]:
                    fine[origin] = 1
                    todo.append(origin)
        worst = fine.find(0)
        if worst < 0:
            return None
        return Violation("the engine can go round in circles for ever", self._path(worst))


class _Freezer:
    """Makes copies of worlds, which share what never changes in their space.

    Args:
        space: the space of the worlds.
    """

    def __init__(self, space: Space) -> None:
        _SHARED[:] = [space, space.config]
        self._table: dict[type, Callable[[Any], Any]] = {
            Space: lambda _: (_shared, (0,)),
            ProducerConfig: lambda _: (_shared, (1,)),
        }

    def freeze(self, world: World, *, roomy: bool) -> bytes:
        """Return a copy of a world as bytes; compressed to about a tenth if memory is scarce."""
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 5)
        pickler.dispatch_table = self._table
        pickler.dump(world)
        frozen = stream.getvalue()
        return frozen if roomy else zlib.compress(frozen, 1)

    def thaw(self, frozen: bytes) -> World:
        """Return a new copy of the world that was frozen."""
        if frozen[:1] != pickle.PROTO:
            frozen = zlib.decompress(frozen)
        world = pickle.loads(frozen)  # noqa: S301 - made by `freeze`
        assert isinstance(world, World)
        return world


_SHARED: list[Any] = []


def _shared(place: int) -> Any:
    return _SHARED[place]
