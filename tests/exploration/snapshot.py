"""Snapshots of worlds: copies, and worlds that wait for their turn.

A copy of a world has its own lists, dicts and parts, and shares what nobody changes: numbers,
texts, tuples, and the states of its engine (`engine`).
"""

from __future__ import annotations

import enum
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from .engine import Engine, EngineStates
from .space import Space
from .world import World
from .worlds import kind_of

__all__ = ["Frontier", "copied", "packed", "unpacked"]

_ROOMY = 10_000
"""The most worlds of a frontier that wait as they are (about 5 kB each), and not in a file."""


def copied(world: World) -> World:
    """Return a copy of a world, in which another action can happen."""
    copy: World = _clone(world)
    return copy


def packed(world: World) -> tuple[bytes, dict[str, Any]]:
    """Return the mark of a world's engine, and the other values, which can be pickled."""
    values = {name: each for name, each in vars(world).items() if name not in ("space", "core")}
    assert world.core.state.form is not None
    return world.core.state.form.mark, values


def unpacked(space: Space, core: Engine, values: dict[str, Any]) -> World:
    """Return the world that has some values."""
    kind = kind_of(space)
    world = kind.__new__(kind)
    vars(world).update(values, space=space, core=core)
    return world


class Frontier:
    """Worlds that wait for their turn, in order, each with its number and what may happen in it.

    Args:
        space: the space of the worlds.
        states: the states of their engines. Those of the worlds here must be touched in each era.
        folder: where to keep a file of those that take too much memory.
    """

    def __init__(self, space: Space, states: EngineStates, folder: Path | None = None) -> None:
        self._space = space
        self._states = states
        self._near: list[tuple[int, World, list[str]]] = []
        self._folder = folder
        self._far: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, world: World, actions: list[str]) -> None:
        """Add a world, which nobody changes from now on."""
        if self._count < _ROOMY:
            self._near.append((number, world, actions))
        else:
            if self._far is None:
                self._far = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see `close`
            pickle.dump((number, actions, *packed(world)), self._far, 5)
        self._count += 1

    def close(self) -> None:
        """Close the file."""
        if self._far is not None:
            self._far.close()

    def take(self) -> Iterator[tuple[int, World, list[str]]]:
        """Yield each world once, in the order in which they were added."""
        yield from self._near
        if self._far is None:
            return
        self._far.seek(0)
        for _ in range(self._count - len(self._near)):
            number, actions, mark, values = pickle.load(self._far)  # noqa: S301 - made by `add`
            core = self._states.at(mark)
            assert core is not None
            yield number, unpacked(self._space, core, values), actions


# -- copies

_shared: set[type] = {int, float, str, bytes, bool, type(None), tuple, frozenset, UUID, Space}
"""The classes whose objects nobody changes."""


def _clone(thing: Any) -> Any:
    kind = thing.__class__
    way = _ways.get(kind)
    if way is None:
        if isinstance(thing, (tuple, enum.Enum)):
            _shared.add(kind)
            return thing
        way = _ways[kind] = _way_for(thing)
    return way(thing)


def _sequence(thing: list[Any]) -> list[Any]:
    return [each if each.__class__ in _shared else _clone(each) for each in thing]


def _mapping(thing: dict[Any, Any]) -> dict[Any, Any]:
    return {key: each if each.__class__ in _shared else _clone(each) for key, each in thing.items()}


def _way_for(thing: Any) -> Callable[[Any], Any]:
    """Return how the objects of a class are copied that is met for the first time."""
    kind: Any = type(thing)
    slots = getattr(kind, "__slots__", None)
    if slots is None:

        def by_fields(thing: Any) -> Any:
            copy = kind.__new__(kind)
            copy.__dict__ = _mapping(thing.__dict__)
            return copy

        return by_fields

    def by_slots(thing: Any) -> Any:
        copy = kind.__new__(kind)
        for name in slots:
            each = getattr(thing, name)
            setattr(copy, name, each if each.__class__ in _shared else _clone(each))
        return copy

    return by_slots


_ways: dict[type, Callable[[Any], Any]] = {
    list: _sequence,
    dict: _mapping,
    set: set,
    Engine: Engine.copy,
}
