"""Accusations: verdicts, not yet confirmed, that a broker retains fewer batches than it says.

A broker retains each producer's last batches in order to recognise a retry, and says how many in
its Produce answers (KIP-1269). `retention` reaches such a verdict from a leader's answers to the
batches of one partition. If the broker lost the leadership before it gave those answers, it may
have forgotten batches although it retains as many as it says. Therefore each verdict waits for
metadata that is requested after the verdict, and stands only if the partition still has the same
leader in the same leader epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route

__all__ = ["Accusation", "Accusations"]


class Accusation(NamedTuple):
    """The verdict that a leader retains fewer batches per producer than it announces (KIP-1269).

    ``route`` is the partition's connection, leader and leader epoch at the time of the verdict.
    ``disproof`` has the numbers of batches that led to the verdict. ``at`` is its time, in seconds
    on the engine's clock.
    """

    topic: str
    partition: int
    route: Route
    disproof: Disproof
    at: float

    def text(self, limit: int | None) -> str:
        """Return the message for an operator.

        Args:
            limit: the largest window that is used with this broker from now on, in batches.
        """
        disproof = self.disproof
        return (
            f"broker {self.route.leader_id} says that it retains {disproof.said} batches per "
            f"producer and partition (KIP-1269), but in {self.topic}-{self.partition} it was seen "
            f"to deduplicate a retry {disproof.proved} batches back and to refuse one "
            f"{disproof.refused} batches back. For some minutes or longer, at most {limit} batches "
            "of a partition are in flight to this broker; no record is lost or written twice. "
            "Check whether a proxy between answers for the broker"
        )


class Accusations:
    """The accusations that wait for the answer to a later Metadata request.

    An accusation is the verdict that a leader retains fewer batches than it says.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Accusation] = []

    def add(self, accusation: Accusation) -> None:
        """Keep a verdict against a leader until the answer to a later Metadata request has come."""
        self._waiting.append(accusation)

    def clear(self) -> None:
        """Drop all accusations: the producer moves to another cluster."""
        self._waiting.clear()

    def take_due(self, asked_at: float) -> list[Accusation]:
        """Take out the accusations that are not newer than a Metadata request.

        Args:
            asked_at: when that request was sent, in seconds on the engine's clock.
        """
        due = [each for each in self._waiting if each.at <= asked_at]
        self._waiting = [each for each in self._waiting if each.at > asked_at]
        return due
