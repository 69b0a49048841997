"""The drill of what is known of a leader: its memory of the producer, its log, its window.

A run rarely has the acknowledgements, losses and changes of leaders in an unusual order. Here they
come in any; everything that has happened is kept, and what a partition may believe of its leader
is derived from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.first_ack_gate import FirstAckGate, SentAs
from aioidem._engine.route import Route
from aioidem._engine.suspicion import Suspicion

from .comparing import unequal
from .made_batches import IDENTITY, made_batch
from .remembered_log import LogDrill, drill_windows

__all__ = ["drill_remembered"]

_STEPS: Final = 40
_EXPIRATION: Final = 100.0
"""Seconds after which a leader may forget the producer; it is suspected after half of them."""
_HALF_MS: Final = 50_000.0
"""Half of the expiration, in milliseconds."""


def drill_remembered(dice: Random) -> Iterator[str]:
    """Yield what a partition believes of its leader that does not follow from what happened."""
    for drill in (_SuspicionDrill(dice), _GateDrill(dice), LogDrill(dice)):
        for wrong in drill.run():
            yield f"{drill.name}: {wrong}"
            return
    yield from drill_windows(dice)


# -- whether it may have forgotten the producer ----------------------------------------------------


class _Event(NamedTuple):
    """Something that a suspicion was told of; timestamps are in milliseconds."""

    what: str
    created: int = 0
    """The timestamp of the records."""
    appended: int = -1
    """The log append time in the answer; -1 if it has none."""
    suspect: bool = False
    """Whether the leader was suspected when it changed."""


class _Since(NamedTuple):
    """What has happened to a partition, as far as it counts now; timestamps are in milliseconds."""

    stamp: int | None
    """The timestamp from which the leader counts, if the last stored batch is known."""
    by_log: int | None
    """The log append time of the last acknowledged batch, if the log stamps its batches."""
    given_up: int | None
    """The oldest timestamp of a batch that was given up in doubt."""
    carried: bool
    """Whether a suspected leader has changed, and none has acknowledged a batch since."""
    refused: bool
    """Whether a batch in doubt was refused as out of order."""


class _SuspicionDrill:
    """A `Suspicion`, and all that it was told."""

    name = "suspicion"

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._resend = dice.random() < 0.3
        self._told = Suspicion(resend=self._resend)
        self._events: list[_Event] = []
        self._suspect = self._exempt = False
        self._unresolved: list[Batch] = []

    def run(self) -> Iterator[str]:
        """Let things happen, and yield how what is suspected does not follow from them."""
        now_ms = 1_000_000.0
        for _ in range(_STEPS):
            now_ms += self._dice.choice((0.0, 1_000.0, 49_000.0, 50_000.0))
            self._happen(int(now_ms))
            self._unresolved = [
                made_batch(at, stamp_ms=self._stamp(int(now_ms)))
                for at in range(self._dice.choice((0, 0, 1, 2)))
            ]
            due_ms = self._due()
            suspect = self._since().carried or (due_ms is not None and now_ms > due_ms)
            self._suspect = suspect
            told = self._told.assess(now_ms, _EXPIRATION, self._unresolved)
            pairs: dict[str, tuple[object, object]] = {
                "found suspect": (told, suspect),
                "suspect": (self._told.suspect, suspect),
                "suspect from (ms)": (self._told.due_ms, due_ms),
                "time of day (ms)": (self._told.now_ms, now_ms),
            }
            wrong = unequal(pairs)
            if wrong is not None:
                yield f"{wrong} at {now_ms} after {self._events[-5:]}"
                return
            yield from self._of_one(now_ms)

    def _stamp(self, now_ms: int) -> int:
        return now_ms - self._dice.choice((0, 1_000, 49_999, 50_000, 50_001, -5_000))

    def _happen(self, now_ms: int) -> None:
        created, told = self._stamp(now_ms), self._told
        match self._dice.randrange(9):
            case 0 | 1 | 2:
                appended = self._dice.choice((-1, -1, created, now_ms, now_ms - 60_000, 0))
                told.acked(created, appended)
                self._events.append(_Event("acked", created, appended))
            case 3:
                told.found(created)
                self._events.append(_Event("found", created))
            case 4:
                told.given_up(created)
                self._events.append(_Event("given up", created))
            case 5:
                told.leader_changed()
                self._events.append(_Event("changed", suspect=self._suspect))
                self._exempt = False
            case 6:
                told.refused()
                self._events.append(_Event("refused"))
                self._exempt = False
            case 7 if self._dice.random() < 0.5:
                told.renewed()
                self._events.append(_Event("renewed"))
                self._suspect = False
            case _:
                pass

    def _since(self) -> _Since:
        """Return what counts of all that has happened."""
        stamp = by_log = given_up = None
        carried = refused = False
        for what, created, appended, suspect in self._events:
            if what == "acked":
                # A duplicate's answer repeats the timestamp of its records.
                by_log = appended if appended >= 0 and appended != created else None
                stamp = created if by_log is None else by_log
                carried = refused = False
            elif what == "found":
                least = created if by_log is None else by_log
                stamp = least if stamp is None else min(stamp, least)
            elif what == "given up":
                given_up = created if given_up is None else min(given_up, created)
            elif what == "changed":
                carried = carried or suspect
            elif what == "refused":
                refused = True
            else:
                stamp, given_up, carried, refused = None, None, False, False
        return _Since(stamp, by_log, given_up, carried, refused)

    def _due(self) -> float | None:
        """Return when the leader is suspected, in ms: half of the expiration after a timestamp.

        It is the oldest timestamp among those of the last stored batch, of batches without an
        outcome, and of batches that were given up.
        """
        since = self._since()
        created = [batch.max_timestamp_ms for batch in self._unresolved]
        created += [] if since.given_up is None else [since.given_up]
        if since.by_log is not None and created:
            created = [since.by_log]  # the log stamps them, not before its last batch
        stamps = created + ([] if since.stamp is None else [since.stamp])
        return min(stamps) + _HALF_MS if stamps else None

    def _of_one(self, now_ms: float) -> Iterator[str]:
        """Ask whether the only batch without an outcome may be sent again all the same."""
        if self._suspect and self._dice.random() < 0.7:
            alone, sent_ms = None, self._stamp(int(now_ms))
            if self._dice.random() < 0.8:
                alone = made_batch(0, stamp_ms=self._stamp(int(now_ms)))
                if self._dice.random() < 0.8:
                    known = sent_ms if self._dice.random() < 0.8 else None
                    alone.send(Attempt(1, 0, 0, 0.0, knows_us=True, sent_ms=known))
            self._told.exempt_alone(alone, now_ms, _EXPIRATION)
            since = self._since()
            first = None if alone is None else alone.first_attempt
            young = (
                alone is not None
                and first is not None
                and first.sent_ms is not None
                and now_ms <= min(alone.max_timestamp_ms, first.sent_ms) + _HALF_MS
            )
            spoilt = since.carried or since.refused or since.given_up is not None
            self._exempt = young and not spoilt
        if self._told.exempt is not self._exempt:
            yield f"the only batch is exempt: {self._told.exempt}, not {self._exempt}"
        forbids = self._suspect and not self._resend and not self._exempt
        if self._told.forbids_resend is not forbids:
            yield f"it forbids a resend: {self._told.forbids_resend}, not {forbids}"


# -- whether it holds the producer's state ---------------------------------------------------------


class _GateDrill:
    """A `FirstAckGate`, and the answers that came."""

    name = "gate"

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._applies = dice.random() < 0.8
        self._gate = FirstAckGate(applies=self._applies)
        routes = [Route(link, 0, epoch) for link in (1, 2) for epoch in (3, 4)]
        self._ways: list[SentAs] = [
            (identity, route) for identity in (IDENTITY, None) for route in (*routes, None)
        ]
        # For what the gate is open; for what error NONE came last, and when, in seconds.
        self._open: SentAs | None = None
        self._none: SentAs | None = None
        self._none_at = 0.0
        # Whether an error came after which the leader may have lost the producer's state.
        self._questioned = False
        self._transactions = 0

    def run(self) -> Iterator[str]:
        """Let answers come, and yield how the gate differs from what follows from them."""
        now = 100.0
        for _ in range(_STEPS):
            now += self._dice.choice((0.0, 0.5, 1.0, 1.1))
            self._happen(now)
            for way in self._dice.sample(self._ways, 3):
                passed = self._open is not None and self._open == way
                pairs: dict[str, tuple[object, object]] = {
                    f"open for {way}": (self._gate.is_open(way), passed or not self._applies),
                    f"passed for {way}": (self._gate.passed(way), passed),
                    f"has heard of {way}": (self._gate.has_heard(way), self._none == way),
                    "questioned": (self._gate.questioned, self._questioned),
                }
                wrong = unequal(pairs)
                if wrong is not None:
                    yield f"{wrong} at {now}"
                    return

    def _happen(self, now: float) -> None:
        gate = self._gate
        match self._dice.randrange(8):
            case 0 | 1:
                self._open = self._none = self._dice.choice(self._ways)
                self._none_at, self._questioned = now, False
                gate.hear_none(self._none, now)
            case 2:
                self._open = None
                gate.close()
            case 3:
                self._open = None if now - self._none_at > 1.0 else self._open
                gate.close_unless_fresh(now)
            case 4:
                self._open, self._questioned = None, False
                gate.restart()
            case 5:
                self._questioned = True
                gate.question()
            case 6:
                self._questioned = False
                gate.hear_of_state()
            case _:
                again = self._transactions and self._dice.random() < 0.3
                self._transactions += not again
                applies = self._dice.random() < 0.6
                gate.begin(self._transactions, applies=applies)
                if not again:
                    self._applies, self._open = applies, None
