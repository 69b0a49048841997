"""The drill of refreshed metadata: when a `MetadataRefresher` requests it, and what topics keep.

A run asks for metadata a few times. Here requests fail, and their answers lack something, many
times in a row. All that was wanted, sent and answered is kept as rows, from which it is derived
when a request is due. Beside it a `TopicState` is driven: the topic's error, which answer described
it last, and the callers that wait for its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from random import Random
from typing import Final, Literal, NamedTuple

from aioidem._engine.backoff import Backoff
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.topics import TopicState
from aioidem.errors import KafkaError

from .comparing import unequal

__all__ = ["drill_refreshed"]

_STEPS: Final = 50
_FIRST: Final = 0.125
_LONGEST: Final = 4.0
"""The shortest and the longest back-off, in seconds, before its variation."""
_JUST: Final = 0.0009765625
"""A moment, in seconds, before something is due."""
_CODES: Final = (3, 5, 17, 29)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, INVALID_TOPIC_EXCEPTION,
TOPIC_AUTHORIZATION_FAILED."""

_Kind = Literal["wanted", "unnamed", "sent", "out of turn", "failed", "lacking", "enough"]


class _Row(NamedTuple):
    """One event; times are in seconds.

    "unnamed": a topic is wanted that no request has named yet. "out of turn": a request is sent
    because of that, without waiting for the back-off. "lacking": an answer lacks something.
    """

    kind: _Kind
    at: float
    until: float = 0.0
    """For an answer or a failure: when the back-off after it ends."""


def drill_refreshed(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the times at which metadata is requested, and with a topic."""
    yield from _RefresherDrill(dice).run()
    yield from _TopicDrill(dice).run()


class _RefresherDrill:
    """A refresher, and all that has happened to it."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._max_age = dice.choice((0.0, 1.0, 300.0))
        self._drawn = 0.0
        self._part = MetadataRefresher(self._max_age, Backoff(_FIRST, _LONGEST, self._draw))
        self._now = dice.choice((0.0, 7000.0))
        self._rows: list[_Row] = []

    def run(self) -> Iterator[str]:
        """Want metadata, send requests and answer them, at random, and yield what is wrong."""
        actions = [self._want, self._send, self._send, self._end, self._end, self._wait]
        for _ in range(_STEPS):
            wrong = self._difference()
            if wrong is not None:
                yield f"metadata: {wrong} at {self._now}, after {self._rows[-4:]}"
                return
            self._dice.choice(actions)()

    def _draw(self) -> float:
        self._drawn = self._dice.choice((0.0, 0.5, 0.75))
        return self._drawn

    # -- what the rows say -------------------------------------------------------------------------

    def _last(self, *kinds: _Kind) -> _Row | None:
        """Return the last row of one of these kinds."""
        return next((row for row in reversed(self._rows) if row.kind in kinds), None)

    def _since_sent(self) -> set[_Kind]:
        """Return what has happened since the last request was sent."""
        last = max((n for n, row in enumerate(self._rows) if _sent(row)), default=-1)
        return {row.kind for row in self._rows[last + 1 :]}

    @property
    def _in_flight(self) -> bool:
        """Whether a request has no answer."""
        return _sent(self._last("sent", "out of turn", "failed", "lacking", "enough"))

    @property
    def _at_once(self) -> bool:
        """Whether a request need not wait: a topic was never named, and brokers have answered."""
        ended = self._last("failed", "lacking", "enough")
        answered = ended is None or ended.kind != "failed"
        return "unnamed" in self._since_sent() and answered

    @property
    def _wanted(self) -> bool:
        """Whether something is wanted that the last request, if there is one, did not bring."""
        asked = any(map(_sent, self._rows))
        return not asked or bool(self._since_sent() & {"wanted", "unnamed", "failed", "lacking"})

    def _due(self, now: float) -> bool:
        """Return whether a request should be sent at some time, if nothing else happens."""
        ended, answered = self._last("failed", "lacking", "enough"), self._last("lacking", "enough")
        if self._in_flight or (ended is not None and now < ended.until and not self._at_once):
            return False
        return self._wanted or answered is None or now >= answered.at + self._max_age

    def _due_at(self) -> float | None:
        """Return the first time at which a request is due; None if it depends on an answer."""
        ended, answered = self._last("failed", "lacking", "enough"), self._last("lacking", "enough")
        times = [0.0]
        times += [] if ended is None else [ended.until]
        times += [] if answered is None else [answered.at + self._max_age]
        return min((each for each in times if self._due(each)), default=None)

    def _difference(self) -> str | None:
        part, at, answered = self._part, self._due_at(), self._last("lacking", "enough")
        last = self._last("sent", "out of turn")
        pairs: dict[str, tuple[object, object]] = {
            "due now": (part.due(self._now), self._due(self._now)),
            "next due at": (part.due_at(), at),
            "in flight": (part.in_flight, self._in_flight),
            "requests": (part.requests, len(list(filter(_sent, self._rows)))),
            "out of turn": (part.out_of_turn, last is not None and last.kind == "out of turn"),
            "wanted": (part.wanted, self._wanted),
            "answered at": (part.refreshed_at, None if answered is None else answered.at),
        }
        for near in () if not at else (at - _JUST, at):
            pairs[f"due at {near}"] = (part.due(near), self._due(near))
        return unequal(pairs)

    # -- what happens ------------------------------------------------------------------------------

    def _want(self) -> None:
        if self._dice.random() < 0.5:
            self._part.want()
            self._rows.append(_Row("wanted", self._now))
        else:
            self._part.want_unnamed()
            self._rows.append(_Row("unnamed", self._now))

    def _send(self) -> None:
        if self._due(self._now):
            row = _Row("out of turn" if self._at_once else "sent", self._now)
            self._part.sent()
            self._rows.append(row)

    def _end(self) -> None:
        """Let the request fail, or be answered, and note how long the next one must wait.

        Each failure in turn doubles the wait, and so does each answer that lacks something. An
        answer to a request out of turn does not: the wait is as long as the last time.
        """
        if not self._in_flight:
            return
        kind: _Kind = self._dice.choice(("failed", "lacking", "lacking", "enough"))
        if kind == "failed":
            self._part.failed(self._now)
        else:
            self._part.answered(self._now, enough=kind == "enough")
        before = self._setbacks()
        if kind != "failed" and _out_of_turn(self._last("sent", "out of turn")):
            before = max(before - 1, 0)
        delay = min(_FIRST * 2.0**before, _LONGEST) * (0.8 + 0.4 * self._drawn)
        self._rows.append(_Row(kind, self._now, self._now + delay))

    def _setbacks(self) -> int:
        """Return how many requests failed since one brought all, or lacked something in turn.

        What a request out of turn lacks does not count.
        """
        count = 0
        out_of_turn = False
        for row in self._rows:
            if _sent(row):
                out_of_turn = _out_of_turn(row)
            elif row.kind == "enough":
                count = 0
            elif row.kind == "failed" or (row.kind == "lacking" and not out_of_turn):
                count += 1
        return count

    def _wait(self) -> None:
        at = self._part.due_at()
        if at is not None and self._dice.random() < 0.5:
            self._now = max(self._now, at)
        else:
            self._now += self._dice.choice((0.03125, 0.25, 2.0, 500.0))


def _sent(row: _Row | None) -> bool:
    return row is not None and row.kind in ("sent", "out of turn")


def _out_of_turn(row: _Row | None) -> bool:
    return row is not None and row.kind == "out of turn"


# -- what a topic remembers ------------------------------------------------------------------------


class _TopicDrill:
    """One topic: what the cluster said of it last, and who waits for its partitions."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._topic = TopicState("orders", 1000, dice.random)
        self._code = 0
        self._told_by = 0
        self._refused: KafkaError | None = None
        self._waiting: list[AbstractContextManager[None]] = []

    def run(self) -> Iterator[str]:
        """Describe and refuse the topic, and let callers wait for it; yield what is wrong."""
        actions = [self._describe, self._refuse, self._forget, self._come, self._come, self._leave]
        for number in range(1, _STEPS // 2):
            action = self._dice.choice(actions)
            action(number)
            topic = self._topic
            pairs: dict[str, tuple[object, object]] = {
                "error code": (topic.error_code, self._code),
                "described by answer": (topic.described_by, self._told_by),
                "error that callers got": (topic.refused, self._refused),
                "callers that wait": (topic.waiting, len(self._waiting)),
                "records without a partition": (len(topic.unassigned), 0),
                "bytes until another partition": (topic.sticky.switch_after, 1000),
            }
            wrong = unequal(pairs)
            if wrong is not None:
                yield f"topic: {wrong} after {action.__name__}"
                return
            if action == self._refuse and self._code and not self._is_told():
                yield f"topic: its error is {self._refused!r}, not of code {self._code} by name"
                return

    def _is_told(self) -> bool:
        """Return whether the error that callers get has the code, and names the topic."""
        error = self._refused
        return (
            error is not None
            and getattr(error, "errno", None) == self._code
            and "'orders'" in str(error)
        )

    def _describe(self, number: int) -> None:
        self._code = self._dice.choice((0, 0, *_CODES))
        told_by = number if self._code == 0 and self._dice.random() < 0.7 else None
        self._refused = None
        self._told_by = self._told_by if told_by is None else told_by
        self._topic.describe(self._code, told_by=told_by)

    def _refuse(self, _number: int) -> None:
        if self._code:
            self._refused = self._topic.refuse()

    def _forget(self, _number: int) -> None:
        self._code, self._told_by, self._refused = 0, 0, None
        self._topic.forget_cluster()

    def _come(self, _number: int) -> None:
        waiter = self._topic.awaited()
        waiter.__enter__()
        self._waiting.append(waiter)

    def _leave(self, _number: int) -> None:
        """Let a caller stop waiting, by itself or because its time is over."""
        if not self._waiting:
            return
        waiter = self._waiting.pop(self._dice.randrange(len(self._waiting)))
        if self._dice.random() < 0.5:
            waiter.__exit__(None, None, None)
            return
        error = TimeoutError()
        try:
            waiter.__exit__(TimeoutError, error, None)
        except TimeoutError as same:
            if same is not error:
                raise
