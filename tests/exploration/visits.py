"""Visits: the worlds that one process has met, and those among them that wait for their turn.

The search is breadth first, level by level: a level is what can be reached by a number of actions.
Where several processes share a search, each one keeps the worlds whose engines have a form that
belongs to it (`Visits.owner`), so most of what can happen in a world leads to a world of the same
process. The others are handed over in files, at the end of a level.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .canonical import digest
from .engine import EngineStates
from .judge import wrong
from .snapshot import Frontier, copied, packed, unpacked
from .space import Space
from .world import World
from .worlds import world_of

__all__ = ["Graph", "Visits", "Wrong"]

NOWHERE = 2**32 - 1
"""Stands for the world before the first one."""


class Wrong(NamedTuple):
    """What is wrong, in which world, and after which action there; "" if the world is wrong."""

    what: str
    number: int
    action: str


class Graph:
    """How the worlds that a process met were reached, by their place in the order of meeting."""

    def __init__(self) -> None:
        # For each world: the number of the world before it, and the action between them, as its
        # place in `names`.
        self.before = array("I")
        self.actions = array("I")
        self.names: dict[str, int] = {}
        # Every step between two worlds: from number to number.
        self.steps_from = array("I")
        self.steps_to = array("I")
        # The numbers of the worlds in which every record has its outcome.
        self.good = array("I")
        self.ends = 0
        """The number of worlds in which nothing more can happen."""

    def meet(self, before: int, action: str) -> None:
        """Add a world, reached by an action from the one before it."""
        self.before.append(before)
        self.actions.append(self.names.setdefault(action, len(self.names)))


class Visits:
    """The part of a search that one process does.

    Args:
        space: the space.
        faults: how many faults may happen.
        stop: returns whether to end before everything was visited.
        rank: the number of this process among those that share the search.
        ranks: how many there are.
        folder: for files; needed only if several processes share the search.
    """

    def __init__(
        self,
        space: Space,
        faults: int,
        stop: Callable[[int], bool],
        rank: int = 0,
        ranks: int = 1,
        folder: Path | None = None,
    ) -> None:
        self._space = space
        self._stop = stop
        self._rank = rank
        self._ranks = ranks
        self._folder = folder
        # By digest: the number of each world that was met.
        self.known: dict[bytes, int] = {}
        self.graph = Graph()
        self.stopped = False
        """Whether it ended before everything was visited."""
        self._level = 0
        self._sent: list[set[bytes]] = []
        self._out: list[BinaryIO | None] = []
        world = world_of(space, faults)
        self._states: EngineStates = world.core.states
        self.waiting = Frontier(space, self._states, folder)
        self._first = world

    @property
    def met(self) -> int:
        """The number of worlds that were met."""
        return len(self.known)

    def close(self) -> None:
        """Close the file of the worlds that wait."""
        self.waiting.close()

    def begin(self) -> Wrong | None:
        """Meet the first world, if it belongs to this process."""
        mark = digest(self._first)
        if self._owner(self._first) != self._rank:
            return None
        return self._keep(mark, self._first, NOWHERE, "")

    def expand(self) -> Wrong | None:
        """Visit the worlds of a level; those that they lead to are the next one."""
        self._states.next_era()
        level, self.waiting = self.waiting, Frontier(self._space, self._states, self._folder)
        self._level += 1
        self._open()
        try:
            for number, world, actions in level.take():
                if self._stop(len(self.known)):
                    self.stopped = True
                    return None
                found = self._visit(number, world, actions)
                if found is not None:
                    return found
        finally:
            level.close()
            for file in self._out:
                if file is not None:
                    file.close()
        return None

    def _visit(self, number: int, world: World, actions: list[str]) -> Wrong | None:
        """Let each action of a world happen, and keep the worlds that are new."""
        last = len(actions) - 1
        for place, action in enumerate(actions):
            after = world if place == last else copied(world)
            try:
                after.do(action)
            except Exception as error:  # noqa: BLE001 - whatever the engine raises is wrong
                return Wrong(f"the engine raises {error!r}", number, action)
            mark = digest(after)
            owner = self._owner(after)
            if owner != self._rank:
                self._send(owner, mark, after, number, action)
                continue
            found = self._keep(mark, after, number, action)
            if found is not None:
                return found
        return None

    def _keep(self, mark: bytes, world: World | None, before: int, action: str) -> Wrong | None:
        """Note a step, and keep the world that it leads to if it is new; judge it then."""
        graph, known = self.graph, self.known
        number = known.get(mark)
        if number is None:
            assert world is not None
            number = known[mark] = len(known) * self._ranks + self._rank
            graph.meet(before, action)
            actions = world.actions()
            what = wrong(world, ended=not actions)
            if what is not None:
                return Wrong(what, number, "")
            if world.settled:
                graph.good.append(number)
            if not actions:
                graph.ends += 1
            self._states.touch(world.core.state)
            self.waiting.add(number, world, actions)
        if before != NOWHERE:
            graph.steps_from.append(before)
            graph.steps_to.append(number)
        return None

    # -- worlds of other processes

    def _owner(self, world: World) -> int:
        """Return which process keeps a world."""
        form = world.core.state.form
        assert form is not None
        return int.from_bytes(form.digest[:4], "big") % self._ranks

    def _file(self, sender: int, receiver: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._level}-{sender}-{receiver}"

    def _open(self) -> None:
        """Open files for the worlds of a level that belong to other processes."""
        self._sent = [set() for _ in range(self._ranks)]
        self._out = [
            None if other == self._rank else self._file(self._rank, other).open("wb")
            for other in range(self._ranks)
        ]

    def _send(self, owner: int, mark: bytes, world: World, before: int, action: str) -> None:
        """Hand over a step to a world of another process, with the world if it may be new."""
        sent, file = self._sent[owner], self._out[owner]
        assert file is not None
        content: Any = None
        if mark not in sent:
            sent.add(mark)
            engine_mark, values = packed(world)
            engine = None
            if engine_mark not in sent:
                sent.add(engine_mark)
                state = world.core.state
                engine = (state.form, state.frozen, state.sight)
            content = (engine_mark, engine, values)
        pickle.dump((mark, before, action, content), file, 5)

    def receive(self) -> Wrong | None:
        """Take over the worlds that the other processes found in the level that has ended."""
        for other in range(self._ranks):
            if other == self._rank:
                continue
            path = self._file(other, self._rank)
            with path.open("rb") as file:
                size = path.stat().st_size
                while file.tell() < size:
                    found = self._receive(*pickle.load(file))  # noqa: S301 - made by `_send`
                    if found is not None:
                        return found
            path.unlink()
        return None

    def _receive(self, mark: bytes, before: int, action: str, content: Any) -> Wrong | None:
        world = None
        if content is not None:
            engine_mark, engine, values = content
            core = self._states.at(engine_mark)
            if core is None:
                core = self._states.add(*engine)
            world = unpacked(self._space, core, values)
        return self._keep(mark, world, before, action)
