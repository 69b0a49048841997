"""Circles: what is asked of all worlds together, once every one of them was visited.

The number of a world that one of several processes met is its place in the graph of that process,
times the number of processes, plus the number of that process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from .visits import NOWHERE, Graph

__all__ = ["first_without_end", "path_to"]


def path_to(graphs: Sequence[Graph], number: int) -> tuple[str, ...]:
    """Return the actions that lead to a world from the first one."""
    names = [list(graph.names) for graph in graphs]
    path: list[str] = []
    while True:
        place, rank = divmod(number, len(graphs))
        graph = graphs[rank]
        number = graph.before[place]
        if number == NOWHERE:
            return tuple(reversed(path))
        path.append(names[rank][graph.actions[place]])


def first_without_end(graphs: Sequence[Graph]) -> int | None:
    """Find a world from which no world can be reached in which every record has an outcome."""
    count = len(graphs) * max(len(graph.before) for graph in graphs)
    # The steps, sorted by the world that they lead to.
    starts = array("I", bytes(4 * (count + 1)))
    for graph in graphs:
        for to in graph.steps_to:
            starts[to + 1] += 1
    starts = array("I", accumulate(starts))
    places = array("I", starts)
    origins = array("I", bytes(4 * starts[-1]))
    for graph in graphs:
        for origin, to in zip(graph.steps_from, graph.steps_to, strict=True):
            origins[places[to]] = origin
            places[to] += 1
    fine = bytearray(count)
    todo = [number for graph in graphs for number in graph.good]
    for number in todo:
        fine[number] = 1
    while todo:
        to = todo.pop()
        for origin in origins[starts[to] : starts[to + 1]]:
            if not fine[origin]:
                fine[origin] = 1
                todo.append(origin)
    for rank, graph in enumerate(graphs):
        place = fine[rank :: len(graphs)].find(0, 0, len(graph.before))
        if place >= 0:
            return place * len(graphs) + rank
    return None
