"""Route: where a partition's batches go."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Route"]


class Route(NamedTuple):
    """The connection that batches go over, the leader it leads to, and that leader's epoch."""

    link_id: int
    leader_id: int
    leader_epoch: int

    def same_leader(self, other: Route) -> bool:
        """Whether both lead to one leader in one epoch, over whatever connection."""
        return self[1:] == other[1:]
