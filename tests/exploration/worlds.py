"""Worlds: which kind of world a space has."""

from __future__ import annotations

from .migrating_world import MigratingWorld
from .space import Space
from .transactional_world import TransactionalWorld
from .world import World

__all__ = ["kind_of", "world_of"]


def world_of(space: Space, faults: int) -> World:
    """Return the world with which the exploration of a space begins.

    Args:
        space: what there is in the world, and what may go wrong.
        faults: how many faults may happen.
    """
    return kind_of(space)(space, faults)


def kind_of(space: Space) -> type[World]:
    """Return the class of the worlds of a space."""
    if space.transactions:
        return TransactionalWorld
    return MigratingWorld if space.kinds & _OF_CLUSTERS else World


_OF_CLUSTERS = {"migrate", "stray"}
