"""What has happened with one broker, as rows, and what follows from them for Produce v14.

A broker that knows Produce v14 names in its answers how many batches it retains. Nothing is kept
but the rows: what holds now follows from the last one of the present connection, or from those
since the broker's last answer in v14.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["History", "Kind", "Row"]

Kind = Literal[
    "opened",  # a connection to a broker that offers v14, which the option lets be used
    "opened without",  # one where v14 is not offered, or not to be used
    "asked",  # whether the broker's topics name a window (DescribeConfigs)
    "spoken",  # v14 is used without asking
    "named",  # the answer names the window, so v14 is used
    "not named",  # the answer does not
    "question refused",  # the answer is an error
    "heard",  # the first answer in v14 on the connection
    "heard late",  # an answer in v14 after v13 is used again
    "ruled out",  # v14 is not used until a back-off ends
    "lost",  # the connection ended
    "lost in silence",  # it ended while the question, or the first request in v14, was unanswered
]


class Row(NamedTuple):
    """One event with the broker that has changed something."""

    kind: Kind
    until: float = 0.0
    """When the back-off ends that began with it, in seconds."""


class History:
    """The events with one broker that have changed something, oldest first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, kind: Kind, until: float = 0.0) -> None:
        """Add an event, and when a back-off ends that began with it."""
        self.rows.append(Row(kind, until))

    def since_heard(self, kind: Kind) -> int:
        """Return how many events of a kind there were since the broker last answered in v14."""
        return len([row for row in self._since("heard", "heard late") if row.kind == kind])

    def _since(self, *kinds: Kind) -> list[Row]:
        """Return the rows after the last one of some kinds; all if there is none."""
        last = max((at for at, row in enumerate(self.rows) if row.kind in kinds), default=-1)
        return self.rows[last + 1 :]

    def kinds(self, *kinds: Kind) -> list[Row]:
        """Return all rows of some kinds, oldest first."""
        return [row for row in self.rows if row.kind in kinds]

    @property
    def connected(self) -> bool:
        """Whether a connection is up."""
        ends = self.kinds("opened", "opened without", "lost", "lost in silence")
        return bool(ends) and ends[-1].kind in ("opened", "opened without")

    def _ruled_out(self, rows: list[Row]) -> bool:
        """Return whether v14 is ruled out by some rows, and was not tried after that."""
        tried: list[Kind] = ["ruled out", "asked", "spoken", "opened without"]
        last = [row.kind for row in rows if row.kind in tried][-1:]
        return last == ["ruled out"]

    @property
    def use(self) -> str:
        """What is known of v14 on the present connection: "apart" if there is none.

        "unsettled" is before the question; otherwise it is the kind of the last row that tells.
        """
        if self._ruled_out(self.rows):
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
        """Whether batches wait for the answer to the first question on a connection.

        They do not if v14 was ruled out before, because then they went in v13 already.
        """
        if self.use != "asked":
            return False
        opened = max(at for at, row in enumerate(self.rows) if row.kind == "opened")
        asked = [at for at, row in enumerate(self.rows) if row.kind == "asked" and at > opened]
        return len(asked) == 1 and not self._ruled_out(self.rows[: asked[0]])

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
