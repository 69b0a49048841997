"""The drill of what is known of a leader's log, and of how many batches may be in flight."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.log_position import LogPosition
from aioidem._engine.windows import ConnectionWindow, PartitionWindow

from .comparing import unequal
from .made_batches import IDENTITY, made_batch

__all__ = ["LogDrill", "drill_windows"]

_STEPS: Final = 40
_MOST_RETAINED: Final = 1000
"""The largest number of retained batches that is believed."""


# -- how far its log reaches -----------------------------------------------------------------------


class LogDrill:
    """A `LogPosition`, and the batches that are known to be stored."""

    name = "log"

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._log = LogPosition()
        # Ordinals of stored batches; batches that were the end of the log, with their last offsets,
        # since a loss of its end was accepted; ordinals of the batches that showed a loss.
        self._ordinals: list[int] = []
        self._ends: list[tuple[int, Batch]] = []
        self._losses: list[int] = []

    def run(self) -> Iterator[str]:
        """Let batches be stored and lost, and yield what is wrong."""
        for number in range(_STEPS):
            dice = self._dice
            batch = made_batch(dice.randrange(10), dice.randrange(1, 4), base=number)
            offset = dice.choice((-1, dice.randrange(12)))
            yield from self._of_batch(batch, offset)
            match dice.randrange(6):
                case 0 | 1 | 2:
                    self._log.reach(batch, offset)
                    self._ordinals.append(batch.ordinal)
                    last = offset + batch.count - 1
                    if offset >= 0 and last > self._offset:
                        self._ends.append((last, batch))
                case 3 if offset >= 0:
                    self._log.accept_loss(batch, offset)
                    self._losses.append(batch.ordinal)
                    self._ends = [(offset + batch.count - 1, batch)]
                case 4:
                    self._log.note_loss(batch)
                    self._losses.append(batch.ordinal)
                case _ if dice.random() < 0.3:
                    self._log.renumber()
                    self._ordinals.clear()
                    self._losses.clear()
                case _:
                    pass
            pairs: dict[str, tuple[object, object]] = {
                "last offset": (self._log.offset, self._offset),
                "newest ordinal": (self._log.ordinal, max(self._ordinals, default=-1)),
                "end": (self._log.end, self._end),
            }
            wrong = unequal(pairs)
            if wrong is not None:
                yield f"{wrong} after {batch} at {offset}"
                return

    @property
    def _offset(self) -> int:
        return self._ends[-1][0] if self._ends else -1

    @property
    def _end(self) -> tuple[int, ProducerIdentity | None, int] | None:
        if not self._ends:
            return None
        offset, batch = self._ends[-1]
        return offset, IDENTITY, (batch.base + batch.count - 1) % 2**31

    def _of_batch(self, batch: Batch, offset: int) -> Iterator[str]:
        """Yield which question about a batch at an offset is answered against what is known."""
        newest = max(self._ordinals, default=-1)
        lost = offset >= 0 and batch.ordinal > newest and offset <= self._offset
        explained = any(batch.ordinal <= at for at in self._losses)
        between = [
            made_batch(at, self._dice.randrange(1, 3))
            for at in range(batch.ordinal)
            if self._dice.random() < 0.3
        ]
        need = sum(each.count for each in between if each.ordinal > newest)
        room = offset < 0 or batch.ordinal < newest or offset - self._offset - 1 >= need
        pairs: dict[str, tuple[object, object]] = {
            "shows that the log has lost its end": (self._log.contradicts(batch, offset), lost),
            f"is explained by {self._losses}": (self._log.is_explained(batch), explained),
            f"leaves room for {between}": (self._log.leaves_room(batch, offset, between), room),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield f"{batch} at {offset}, with the log up to {self._offset}: {wrong}"


# -- how many batches may be in flight -------------------------------------------------------------


def drill_windows(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the windows of a partition and of a connection."""
    yield from _partition_window(dice)
    yield from _connection_window(dice)


def _window_facts(window: PartitionWindow) -> tuple[int, bool, int, int]:
    return window.limit, window.heard, window.said, window.max_span


def _partition_window(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the window that a leader names, and with the widest span."""
    cap = dice.choice((None, 9))
    window, spans = PartitionWindow(cap), [0]
    heard: list[int] = []  # the numbers of batches that the leader has named
    counts = False  # whether the last of them still counts
    if _window_facts(window) != (5, False, 5, 0):
        yield f"window: (limit, heard, said, span) is {_window_facts(window)} at first"
    for _ in range(12):
        if window.sequence_cap != cap:
            yield f"window: a cap of {window.sequence_cap} sequences, not {cap}"
        cap = dice.choice((None, 1, 8))
        window.limit_records(cap)
        if dice.random() < 0.3:
            window.reset()
            counts = False
        else:
            named = dice.choice((None, -1, 0, 1, 5, 20, 1000, 1001, 2**31 - 1))
            number = 5 if named is None else min(max(named, 1), _MOST_RETAINED)
            news = number != (heard or [5])[-1]
            if window.learn(named) is not news:
                yield f"window: {number} after {heard} is {'not ' * news}news"
            heard.append(number)
            counts = True
        limit = heard[-1] if counts else 5
        spans.append(dice.choice((1, limit, limit + 1)))
        window.observe(spans[-1])
        told, due = _window_facts(window), (limit, counts, (heard or [5])[-1], max(spans))
        if told != due:
            yield f"window: (limit, heard, said, span) is {told} after {heard}, not {due}"
        admitted = [span for span in (limit, limit + 1) if window.admits(span)]
        if admitted != [limit]:
            yield f"window: of {limit} batches and one more, {admitted} are admitted, not {limit}"


def _connection_window(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the number of requests that a connection takes."""
    limit = dice.choice((1, 5))
    connection = ConnectionWindow(limit)
    if not connection.admits() or connection.outstanding:
        yield f"window: {connection.outstanding} requests are outstanding before the first"
    for outstanding in range(limit + 2):
        connection.outstanding = outstanding
        if connection.admits() is not (outstanding < limit):
            admits = connection.admits()
            yield f"window: {outstanding} of {limit} requests, and one more is admitted: {admits}"
