"""The judge of observers: they are told of each batch that is sent, and of each outcome, once.

One run in three has an observer. What it is told is compared with what the Sender was to write and
with what the engine has settled, and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from aioidem._engine import steps
from aioidem._engine.settlement import Settlement
from aioidem._producer.observer import SentBatch, SettledBatch
from aioidem.structs import DeliveryStatus

__all__ = ["Observed"]

_SENT = {DeliveryStatus.ACKED, DeliveryStatus.UNKNOWN}
"""Outcomes that only records have that were sent."""
_ROUNDING = 1e-9
"""Seconds."""


class Observed:
    """An observer of a producer, and the judge of what it is told.

    Args:
        clock: Returns the time in seconds.
        complain: Is told what is wrong.
    """

    def __init__(self, clock: Callable[[], float], complain: Callable[[str], None]) -> None:
        self._clock = clock
        self._complain = complain
        self._told: list[tuple[str, int, int]] = []
        self._written: list[tuple[str, int, int]] = []
        self._ended: deque[tuple[str, int, int, DeliveryStatus]] = deque()

    # -- what happens ------------------------------------------------------------------------------

    def writes(self, step: steps.SendProduce) -> None:
        """Note a request that is written."""
        for topic in step.topics:
            for partition, data in topic.partitions:
                self._written.append((topic.name, partition, len(data)))

    def ends(self, settlements: Sequence[Settlement]) -> None:
        """Note outcomes that the engine has decided, and that are told next."""
        for settlement in settlements:
            outcome, records = settlement.outcome, len(settlement.records)
            self._ended.append((outcome.topic, outcome.partition, records, outcome.status))

    def turned(self) -> None:
        """Judge what was told of the batches that a turn of the Sender has written."""
        if sorted(self._told) != sorted(self._written):
            self._complain(f"batches {self._written} were written, and {self._told} told")
        self._told.clear()
        self._written.clear()

    def over(self) -> None:
        """Judge a run that is over: each outcome was told."""
        if self._ended:
            self._complain(f"{len(self._ended)} outcomes were never told, as {self._ended[0]}")

    # -- what an observer is told ------------------------------------------------------------------

    def on_batch_sent(self, batch: SentBatch, /) -> None:
        """Judge what is told of a batch that is sent."""
        self._told.append((batch.topic, batch.partition, batch.size))
        # Where a topic was not known, the time is derived from the deadline, and rounded.
        if batch.queued_at > batch.sent_at + _ROUNDING or batch.sent_at != self._clock():
            self._complain(f"{batch} was not sent when it is told")

    def on_batch_settled(self, batch: SettledBatch, /) -> None:
        """Judge what is told of records that have got their outcome."""
        told = batch.topic, batch.partition, batch.records, batch.status
        expected = self._ended.popleft() if self._ended else None
        if told != expected:
            self._complain(f"the outcome {expected} was told as {told}")
        if batch.sent_at is None:
            if batch.status in _SENT:
                self._complain(f"{batch} has an outcome that needs an attempt")
        elif not batch.queued_at - _ROUNDING <= batch.sent_at <= batch.settled_at:
            self._complain(f"{batch} has its times in the wrong order")

    def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
        """Take note of nothing: no call waits in these runs."""
