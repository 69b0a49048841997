"""The drill of what brokers retain: retries of batches, their answers, and what these prove.

A broker that retains fewer batches than it says is rare, and so are the answers that convict it.
Here retries are answered in any way, and whether a broker is convicted is derived from the rules
(KIP-1269): the refusal of a retry counts if retries of two later batches were recognised before it,
and if all earlier attempts at these batches were made on one connection. The distance of a batch is
how many batches, with itself, there are up to the newest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.retention import BrokerMemory, Disproof, RetentionEvidence, earlier_link

from .comparing import unequal
from .made_batches import made_batch

__all__ = ["drill_retained"]

_STEPS: Final = 40
_BATCHES: Final = 8
_FIRST_DOUBT: Final = 600.0
_LONGEST_DOUBT: Final = 86_400.0
"""Seconds for which a conviction counts: at first, and at most."""


def drill_retained(dice: Random) -> Iterator[str]:
    """Yield what is concluded about brokers that does not follow from their answers."""
    yield from _EvidenceDrill(dice).run()
    yield from _of_memory(dice)
    yield from _of_links(dice)


# -- what a partition's retries show ---------------------------------------------------------------


class _Answer(NamedTuple):
    """An answer that counts, to a retry of a batch."""

    link: int
    """The connection on which all attempts before the retry were made."""
    ordinal: int
    distance: int
    recognised: bool
    """Whether the answer was NONE; else it was OUT_OF_ORDER_SEQUENCE_NUMBER, and counts."""


class _EvidenceDrill:
    """Retries of some batches, and all answers to them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._told = RetentionEvidence()
        self._batches = [made_batch(at) for at in range(_BATCHES)]
        # Of retries without an answer: the connection of all earlier attempts, and the distance.
        self._awaited: dict[Batch, tuple[int, int]] = {}
        # By ordinal of a batch whose refusal came too early to count: the connection of all
        # earlier attempts. Its next refusal may count.
        self._early: dict[int, int] = {}
        self._answers: list[_Answer] = []

    def run(self) -> Iterator[str]:
        """Send retries and answer them, and yield what is wrong."""
        for _ in range(_STEPS):
            if self._dice.random() < 0.1:
                self._probe()
            else:
                self._act()
            said = self._dice.choice((3, 5, 20))
            refused = any(not answer.recognised for answer in self._answers)
            none = not self._awaited and not refused
            if self._told.none is not none:
                yield f"retained: nothing is awaited or refused: {self._told.none}, not {none}"
                return
            if not self._awaited or self._dice.random() < 0.05:
                due = self._verdict(said)
                told = self._told.verdict(said)
                if told != due:
                    yield f"retained: verdict {told}, not {due}"
                    return

    def _probe(self) -> None:
        """Send all batches again, newest first, to a broker that knows the newest few."""
        known = self._dice.randrange(1, _BATCHES)
        for distance, batch in enumerate(reversed(self._batches), start=1):
            self._send(batch, self._dice.choice((1, 1, 1, 1, 2)), distance)
        for distance, batch in enumerate(reversed(self._batches), start=1):
            if self._dice.random() < 0.1:
                continue
            if distance <= known:
                self._recognise(batch, distance)
            else:
                self._refuse(batch)
        for batch in list(self._awaited):
            self._end(batch)

    def _act(self) -> None:
        dice = self._dice
        batch = dice.choice([*self._batches, *self._awaited])
        match dice.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                link = dice.choice((None, 1, 1, 1, 1, 2))
                self._send(batch, link, dice.choice((2, 5, 6, 9)))
            case 5 | 6 | 7 | 8:
                self._recognise(batch, dice.choice((1, 2, 3, 4, 8)))
            case 9 | 10:
                self._refuse(batch)
            case _ if dice.random() < 0.7:
                self._end(batch)
            case _ if dice.random() < 0.1:
                self._told.clear()
                self._awaited.clear()
                self._early.clear()
                self._answers.clear()
            case _:
                pass

    def _end(self, batch: Batch) -> None:
        self._told.ended(batch)
        self._awaited.pop(batch, None)

    def _recognise(self, batch: Batch, distance: int) -> None:
        self._told.recognised(batch, distance)
        link, _ = self._awaited.pop(batch, (None, 0))
        if link is not None and distance > 1:
            self._answers.append(_Answer(link, batch.ordinal, distance, True))

    def _send(self, batch: Batch, link: int | None, distance: int) -> None:
        batch.attempt = None
        if self._dice.random() < 0.9:
            batch.attempt = Attempt(9, 0, 0, 0.0, knows_us=True, earlier_link=link)
        self._told.sent(batch, distance)
        if batch.attempt is None:
            return
        if link is None:
            # The attempt that was refused has appended nothing: those before it were on one.
            link = self._early.pop(batch.ordinal, None)
        if link is not None:
            self._awaited[batch] = link, distance

    def _refuse(self, batch: Batch) -> None:
        self._told.refused(batch)
        link, distance = self._awaited.pop(batch, (None, 0))
        if link is None:
            return
        later = [
            each
            for each in self._answers
            if each.recognised and each.link == link and each.ordinal > batch.ordinal
        ]
        if len(later) >= 2:
            self._answers.append(_Answer(link, batch.ordinal, distance, False))
        else:
            self._early[batch.ordinal] = link

    def _verdict(self, said: int) -> Disproof | None:
        """Return what convicts a broker that has said how many batches it retains.

        It has recognised a batch at some distance on a connection, and refused one that is farther
        away on it, but within what it has said.
        """
        refused = [each for each in self._answers if not each.recognised]
        if self._awaited or not refused:
            return None
        answers, self._answers = self._answers, []
        for link in dict.fromkeys(each.link for each in refused):
            proved = max(e.distance for e in answers if e.recognised and e.link == link)
            beyond = [e.distance for e in refused if e.link == link and proved < e.distance <= said]
            if beyond:
                return Disproof(said, proved, min(beyond))
        return None


# -- what is believed of a broker ------------------------------------------------------------------


def _of_memory(dice: Random) -> Iterator[str]:
    """Yield what is believed of a broker, before and after convictions, against the rules."""
    memory, now = BrokerMemory(lambda: 0.5), dice.choice((0.0, 1e6))
    limit: int | None = None
    reported: int | None = None  # the limit that was news last
    until, wait = now, _FIRST_DOUBT
    for _ in range(15):
        now += dice.choice((0.0, 1.0, 599.0, 600.0, 40_000.0, 90_000.0))
        if dice.random() < 0.3:
            proved = dice.choice((3, 5, 7))
            news = memory.disprove(Disproof(20, proved, proved + 1), now)
            limit = max(5, proved)
            if news is not (limit != reported):
                yield f"retained: a limit of {limit} after {reported} is news: {news}"
            reported, until, wait = limit, now + wait, min(2 * wait, _LONGEST_DOUBT)
        said = dice.choice((None, 2, 5, 6, 50))
        if now >= until:
            limit = None
        due = said if said is None or limit is None else min(said, limit)
        pairs: dict[str, tuple[object, object]] = {
            f"believed of {said} at {now}": (memory.believed(said, now), due),
            "limit": (memory.limit, limit),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield f"retained: {wrong}"
            return


def _of_links(dice: Random) -> Iterator[str]:
    """Yield which connection is wrongly taken for that of all attempts at a batch.

    It is one if the first attempt and the last one were made on it, to the leader and in the leader
    epoch of now.
    """
    ways = [dice.choice(((1, 0, 3), (1, 0, 3), (2, 0, 3), (1, 1, 3), (1, 0, 4))) for _ in range(3)]
    del ways[dice.randrange(4) :]
    batch = made_batch(0)
    for link, leader, epoch in ways:
        batch.attempt = Attempt(link, leader, epoch, 0.0, knows_us=True)
        batch.first_attempt = batch.first_attempt or batch.attempt
    due = None
    if ways and ways[0][0] == ways[-1][0] and ways[0][1:] == (0, 3):
        due = ways[0][0]
    if dice.random() < 0.1:
        batch.attempt = due = None
    if earlier_link(batch, (0, 3)) != due:
        told = earlier_link(batch, (0, 3))
        yield f"retained: the connection of {ways} (link, leader, epoch) is {told}, not {due}"
