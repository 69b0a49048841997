"""Traffic: what a connection counts while it is used."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NoTraffic", "Traffic"]


class Traffic(Protocol):
    """Lists to which a connection appends. Whoever made them empties them now and then."""

    requests: list[float]
    """The size of each request in bytes, with its length prefix."""

    answers: list[float]
    """The size of each answer in bytes, without its length prefix."""

    renewals: list[float]
    """How many seconds each renewal of the SASL session took (KIP-368)."""

    refusals: list[float]
    """A 1 for each renewal of the session that was refused."""


class NoTraffic:
    """The lists of a connection of which nobody counts anything: they stay empty."""

    class _Nowhere(list[float]):
        def append(self, _number: float, /) -> None:
            return

    requests = answers = renewals = refusals = _Nowhere()
