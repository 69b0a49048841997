"""Route: the connection, leader and leader epoch that a partition's batches are sent to."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Route"]


class Route(NamedTuple):
    """The connection that batches go over, the leader it leads to, and that leader's epoch."""

    link_id: int
    leader_id: int
    leader_epoch: int

    def same_leader(self, other: Route) -> bool:
        """Return whether both routes lead to the same leader in the same leader epoch."""
        return self[1:] == other[1:]
