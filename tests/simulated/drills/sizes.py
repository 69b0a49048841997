"""The drill of sizes: how large a batch of a topic may be, as brokers accept, refuse and tell.

A refusal for a batch's size limits its topic for an hour (`TopicState`), and a connection learns
what its broker accepts (`BatchLimit`). All batches and answers are kept as rows, from which the
limits are derived, and whether the topic's config is to be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.batch_limits import BatchLimits
from aioidem._engine.topics import TopicState

from .comparing import unequal

__all__ = ["drill_sizes"]

_STEPS: Final = 40
_HOUR: Final = 3600.0
"""Seconds for which a refusal counts."""
_SIZES: Final = (1, 2, 3, 100, 101, 250, 999, 1000, 5000)
"""Sizes of batches, in bytes."""


def drill_sizes(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the sizes that batches of a topic may have."""
    yield from _refusals(dice)
    yield from _LimitsDrill(dice).run()


# -- what was refused ------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    """A batch of some bytes that was refused for its size, and when."""

    nbytes: int
    at: float


def _refusals(dice: Random) -> Iterator[str]:
    """Yield what is wrong with a topic of which batches are refused for their size."""
    topic = TopicState("t", 100, dice.random)
    refusals: list[_Refusal] = []
    now = dice.choice((0.0, 9000.0))
    for _ in range(_STEPS):
        match dice.randrange(5):
            case 0 | 1:
                refusals.append(_Refusal(dice.choice(_SIZES), now))
                topic.too_large(*refusals[-1])
            case 2 if dice.random() < 0.2:
                refusals.clear()
                dice.choice((topic.forget_sizes, topic.forget_cluster))()
            case _:
                now += dice.choice((1.0, 1800.0, _HOUR - 1, _HOUR, _HOUR))
        default, told = dice.choice(_SIZES), dice.choice((None, *_SIZES))
        said, due = topic.ceiling(default, now, told), _ceiling(refusals, default, now, told)
        if said != due:
            yield f"topic: batches of {said} bytes, not {due}, after {refusals[-3:]} at {now}"
            return


def _ceiling(refusals: list[_Refusal], default: int, now: float, told: int | None) -> int:
    """Return how large a batch may be: at most half of the smallest that was refused lately.

    Each refusal counts for an hour, and on if one more comes within the hour.

    Args:
        refusals: all refusals.
        default: how large a batch may be without a refusal.
        now: seconds.
        told: the limit of the topic's config; one below all refused sizes explains them.
    """
    counted: list[int] = []
    after = now
    for refusal in reversed(refusals):
        if after - refusal.at >= _HOUR:
            break
        counted.append(refusal.nbytes)
        after = refusal.at
    if not counted:
        return default
    smallest = min(counted)
    explained = told is not None and told < smallest
    return min(default, told if explained and told is not None else max(1, smallest // 2))


# -- what a connection has shown -------------------------------------------------------------------


class _Row(NamedTuple):
    """One event."""

    kind: str
    """A batch was accepted ("accept") or refused ("refuse"); the limit was asked for ("ask") or
    told ("tell"); or there was room for records, in time after the last answer ("room") or not
    ("late room").
    """
    at: float
    nbytes: int | None = None
    """The size of the batch, or the limit."""


class _LimitsDrill:
    """The limits of one connection, and all that has happened on it, by topic."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._limits = BatchLimits()
        self._rows: dict[str, list[_Row]] = {"t": [], "u": []}
        self._now = dice.choice((0.0, 100.0))

    def run(self) -> Iterator[str]:
        """Let batches be accepted and refused, ask and answer; yield what is wrong."""
        if not self._limits.may_ask:
            yield "limits: a new connection may not be asked for limits"
        for _ in range(_STEPS):
            name = self._dice.choice(("t", "t", "u"))
            kind = self._happen(name, self._rows[name])
            for each in self._rows:
                wrong = self._difference(each)
                if wrong is not None:
                    rows = self._rows[each][-5:]
                    yield f"limit: {wrong} at {self._now} after {kind}: {rows}"
                    return

    def _difference(self, name: str) -> str | None:
        """Return how the limit of a topic differs from what its rows say."""
        dice, limit, rows = self._dice, self._limits.of(name), self._rows[name]
        batch_size = dice.choice(_SIZES)
        max_age, unused_for = dice.choice((5.0, 60.0, 300.0)), dice.choice((2.0, 30.0, 900.0))
        told = _told(rows)
        accepted = max(_accepted(rows), default=0)
        pairs: dict[str, tuple[object, object]] = {
            "name": (limit.topic, name),
            "the same object as before": (self._limits.of(name) is limit, True),
            "limit told": (limit.told, told),
            "largest batch acknowledged": (limit.acknowledged, accepted),
            "known": (limit.known(batch_size), max(batch_size, accepted) if told is None else told),
            "no room since the answer": (limit.unused, _unused(rows)),
            "batches wait for the answer": (limit.awaited(), _asking(rows) and _unexplained(rows)),
        }
        for growth in (True, False):
            pairs[f"an answer is wanted, with growth {growth}"] = (
                limit.wants(self._now, max_age, unused_for, growth=growth),
                not _asking(rows)
                and (growth or _unexplained(rows))
                and self._now >= _valid_until(rows, max_age, unused_for),
            )
        return unequal(pairs)

    def _happen(self, name: str, rows: list[_Row]) -> str:
        """Let one thing happen to a topic; return its kind."""
        dice, limit = self._dice, self._limits.of(name)
        kinds = ["accept", "refuse", "refuse", "wait"]
        kinds += ["tell"] * 3 if _asking(rows) else ["ask"] * 3
        kind = dice.choice([*kinds, "room", "room"] if _unused(rows) else kinds)
        nbytes: int | None = dice.choice((*_SIZES, *[_told(rows) or 1] * 3))
        match kind:
            case "accept":
                limit.accept(nbytes or 1)
            case "refuse":
                limit.refuse(nbytes or 1)
            case "ask":
                limit.ask()
            case "tell":
                nbytes = dice.choice((None, nbytes, nbytes))
                limit.tell(nbytes, self._now)
            case "room":
                since = self._now - _answers(rows)[-1].at
                room_for = dice.choice((2.0, 30.0, since, since))
                limit.find_room(self._now, room_for)
                kind = "late room" if since > room_for else "room"
            case _:
                self._now += dice.choice((0.0, 1.0, 2.0, 5.0, 30.0, 300.0))
                return self._forget(name) if dice.random() < 0.2 else "wait"
        rows.append(_Row(kind, self._now, nbytes))
        return kind

    def _forget(self, name: str) -> str:
        """Let the topic be deleted; a second time changes nothing."""
        self._limits.forget(name)
        self._limits.forget(name)
        self._rows[name].clear()
        return "forget"


def _answers(rows: list[_Row]) -> list[_Row]:
    return [row for row in rows if row.kind == "tell"]


def _since_answer(rows: list[_Row]) -> list[_Row]:
    """Return the events since the last answer; all, if there is none."""
    last = max((at for at, row in enumerate(rows) if row.kind == "tell"), default=-1)
    return rows[last + 1 :]


def _told(rows: list[_Row]) -> int | None:
    """Return the limit that the last answer names; None if it names none, or none has come."""
    answers = _answers(rows)
    return answers[-1].nbytes if answers else None


def _asking(rows: list[_Row]) -> bool:
    """Return whether a question is unanswered."""
    return any(row.kind == "ask" for row in _since_answer(rows))


def _unused(rows: list[_Row]) -> bool:
    """Return whether there was no room for records since the last answer."""
    return bool(_answers(rows)) and not any("room" in row.kind for row in _since_answer(rows))


def _accepted(rows: list[_Row]) -> list[int]:
    """Return the sizes that were accepted since one of them, or a smaller one, was refused."""
    accepted: list[int] = []
    for row in rows:
        size = row.nbytes or 0
        if row.kind == "accept":
            accepted.append(size)
        elif row.kind == "refuse" and any(each >= size for each in accepted):
            accepted.clear()
    return accepted


def _unexplained(rows: list[_Row]) -> bool:
    """Return whether a batch was refused that is not larger than the limit that is known."""
    told = _told(rows)
    refused = [row.nbytes or 0 for row in _since_answer(rows) if row.kind == "refuse"]
    return any(told is None or size <= told for size in refused)


def _valid_until(rows: list[_Row], max_age: float, unused_for: float) -> float:
    """Return until when the last answer is valid; 0.0 if there is none that is.

    It ages once there was room for records, which it was asked for.

    Args:
        rows: the events of a topic.
        max_age: for how many seconds an answer that is used is valid.
        unused_for: for how many seconds at least an answer is valid without such room.
    """
    answers = _answers(rows)
    if not answers or (_unexplained(rows) and answers[-1].nbytes is not None):
        return 0.0
    if _unused(rows):
        return answers[-1].at + max(max_age, unused_for)
    aging = [row.at for row in _since_answer(rows) if row.kind == "room"]
    return (aging[0] if aging else answers[-1].at) + max_age
