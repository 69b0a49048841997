"""What has happened with one broker, as rows, and what follows from them for Produce v14.

Nothing is kept but the rows: what holds now follows from the last one of the present connection, or
from those since the broker's last answer in v14.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["History", "Kind", "Row"]

Kind = Literal[
    "opened",
    "opened without",
    "asked",
    "spoken",
    "named",
    "not named",
    "question refused",
    "heard",
    "heard late",
    "ruled out",
    "lost",
    "lost in silence",
]


class Row(NamedTuple):
    """One event with the broker that has changed something."""

    kind: Kind
    until: float = 0.0
    """When a back-off ends that began with it, in seconds."""


class History:
    """The events with one broker that have changed something, oldest first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, kind: Kind, until: float = 0.0) -> None:
        """Add an event, and when a back-off ends that began with it."""
        self.rows.append(Row(kind, until))

    def since_heard(self, kind: Kind) -> int:
        """Return how many events of a kind there were since the last answer in v14."""
        return len([row for row in self._since("heard", "heard late") if row.kind == kind])

    def _since(self, *kinds: Kind) -> list[Row]:
        """Return the rows after the last one of some kinds; all if there is none."""
        last = max((at for at, row in enumerate(self.rows) if row.kind in kinds), default=-1)
        return self.rows[last + 1 :]

    def kinds(self, *kinds: Kind) -> list[Row]:
        """Return the rows of some kinds."""
        return [row for row in self.rows if row.kind in kinds]

    @property
    def connected(self) -> bool:
        """Whether a connection is up."""
        ends = self.kinds("opened", "opened without", "lost", "lost in silence")
        return bool(ends) and ends[-1].kind in ("opened", "opened without")

    def _held(self, rows: list[Row]) -> bool:
        """Return whether v14 was ruled out by some rows, and has not been tried since."""
        tried: list[Kind] = ["ruled out", "asked", "spoken", "opened without"]
        last = [row.kind for row in rows if row.kind in tried][-1:]
        return last == ["ruled out"]

    @property
    def use(self) -> str:
        """What is known of v14 on the present connection."""
        if self._held(self.rows):
            return "ruled out"
        if not self.connected:
            return "apart"
        here = [
            row.kind
            for row in self._since("opened", "opened without")
            if row.kind not in ("heard late", "ruled out")
        ]
        offered = self.kinds("opened", "opened without")[-1].kind == "opened"
        return here[-1] if here else "unsettled" if offered else "not named"

    @property
    def batches_wait(self) -> bool:
        """Whether the first question of a connection is unanswered, and no batch went in v13."""
        if self.use != "asked":
            return False
        opened = max(at for at, row in enumerate(self.rows) if row.kind == "opened")
        asked = [at for at, row in enumerate(self.rows) if row.kind == "asked" and at > opened]
        return len(asked) == 1 and not self._held(self.rows[: asked[0]])

    @property
    def proven(self) -> bool:
        """Whether the broker has ever answered in v14."""
        return bool(self.kinds("heard", "heard late"))

    @property
    def silences(self) -> int:
        """How many connections were lost before an answer, since the last one in v14."""
        return self.since_heard("lost in silence")

    @property
    def until(self) -> float | None:
        """When what was refused is tried again; None if nothing was."""
        if self.use not in ("ruled out", "question refused"):
            return None
        return self.kinds("ruled out", "question refused")[-1].until
