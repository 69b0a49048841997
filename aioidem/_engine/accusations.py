"""Accusations: verdicts on a broker's memory that wait for metadata (see `retention`).

A leader that was deposed in between may have forgotten batches without having said anything untrue.
Metadata that is asked for after the verdict tells: if leader and epoch are the same still, the
verdict stands.
"""

from __future__ import annotations

from typing import NamedTuple

from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route

__all__ = ["Accusation", "Accusations"]


class Accusation(NamedTuple):
    """A partition's answers show that its leader remembers fewer batches than it says."""

    topic: str
    partition: int
    route: Route
    disproof: Disproof
    at: float

    def text(self, limit: int | None) -> str:
        """Say to an operator what was found; `limit`: batches that are sent ahead from now on."""
        disproof = self.disproof
        return (
            f"broker {self.route.leader_id} says that it retains {disproof.said} batches per "
            f"producer and partition, and was seen to deduplicate {disproof.proved} and "
            f"not {disproof.refused} ({self.topic}-{self.partition}): no more than "
            f"{limit} are sent ahead there for a while; no record is harmed "
            "(is something between that answers for it?)"
        )


class Accusations:
    """Verdicts that wait for metadata."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Accusation] = []

    def add(self, accusation: Accusation) -> None:
        """Keep a verdict until metadata has come that is asked for from now on."""
        self._waiting.append(accusation)

    def clear(self) -> None:
        """Drop all of them: the cluster is left."""
        self._waiting.clear()

    def take_due(self, asked_at: float) -> list[Accusation]:
        """Return those that are older than metadata which was asked for at a time."""
        due = [each for each in self._waiting if each.at <= asked_at]
        self._waiting = [each for each in self._waiting if each.at > asked_at]
        return due
