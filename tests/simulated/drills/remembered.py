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
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.log_position import LogPosition
from aioidem._engine.record import PendingRecord
from aioidem._engine.route import Route
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.windows import ConnectionWindow, PartitionWindow

__all__ = ["drill_remembered", "made_batch"]

_STEPS: Final = 40
_EXPIRATION: Final = 100.0
"""Seconds after which a leader may forget the producer; it is suspected after the half of it."""
_HALF_MS: Final = 50_000.0
_MOST_RETAINED: Final = 1000
_IDENTITY: Final = ProducerIdentity(7, 1)


def made_batch(ordinal: int, count: int = 1, stamp_ms: int = 0, base: int = 0) -> Batch:
    """Return a batch of some records, sealed and not sent."""
    records = [PendingRecord(None, b"", (), stamp_ms, None, 10) for _ in range(count)]
    return Batch(
        ordinal=ordinal,
        records=records,
        data=b"batch",
        identity=_IDENTITY,
        base=base,
        deadline=100.0,
        max_timestamp_ms=stamp_ms,
    )


def drill_remembered(dice: Random) -> Iterator[str]:
    """Yield what a partition believes of its leader against what has happened."""
    for drill in (_SuspicionDrill(dice), _GateDrill(dice), _LogDrill(dice)):
        for wrong in drill.run():
            yield f"{drill.name}: {wrong}"
            return
    yield from _windows(dice)


# -- whether it may have forgotten the producer ----------------------------------------------------


class _Since(NamedTuple):
    """What has happened to a partition, as far as it counts now."""

    stamp: int | None
    """The timestamp from which the leader counts, if the last stored batch is known."""
    by_log: int | None
    """The log append time of the last acknowledged batch, if the log stamps its batches."""
    given_up: int | None
    carried: bool
    refused: bool


class _SuspicionDrill:
    """A `Suspicion`, and all that it was told."""

    name = "suspicion"

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._resend = dice.random() < 0.3
        self._told = Suspicion(resend=self._resend)
        self._events: list[tuple[str, int, int]] = []
        self._suspect = self._exempt = False
        self._unresolved: list[Batch] = []

    def run(self) -> Iterator[str]:
        """Let things happen, and yield what is suspected, or not, against them."""
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
            answers = told, self._told.suspect, self._told.due_ms, self._told.now_ms
            if answers != (suspect, suspect, due_ms, now_ms):
                yield f"{answers}, not {suspect}, due at {due_ms}"
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
                self._events.append(("acked", created, appended))
            case 3:
                told.found(created)
                self._events.append(("found", created, 0))
            case 4:
                told.given_up(created)
                self._events.append(("given up", created, 0))
            case 5:
                told.leader_changed()
                self._events.append(("changed", int(self._suspect), 0))
                self._exempt = False
            case 6:
                told.refused()
                self._events.append(("refused", 0, 0))
                self._exempt = False
            case 7 if self._dice.random() < 0.5:
                told.renewed()
                self._events.append(("renewed", 0, 0))
                self._suspect = False
            case _:
                pass

    def _since(self) -> _Since:
        """Return what counts of all that has happened."""
        stamp = by_log = given_up = None
        carried = refused = False
        for what, created, other in self._events:
            if what == "acked":
                # A duplicate's answer repeats the timestamp of its records.
                by_log = other if other >= 0 and other != created else None
                stamp = created if by_log is None else by_log
                carried = refused = False
            elif what == "found":
                least = created if by_log is None else by_log
                stamp = least if stamp is None else min(stamp, least)
            elif what == "given up":
                given_up = created if given_up is None else min(given_up, created)
            elif what == "changed":
                carried = carried or bool(created)
            elif what == "refused":
                refused = True
            else:
                stamp, given_up, carried, refused = None, None, False, False
        return _Since(stamp, by_log, given_up, carried, refused)

    def _due(self) -> float | None:
        """Return when half of the expiration has passed since the oldest last batch."""
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
            yield f"one batch is exempt: {self._told.exempt}, not {self._exempt}"
        forbids = self._suspect and not self._resend and not self._exempt
        if self._told.forbids_resend is not forbids:
            yield f"it forbids to resend: {self._told.forbids_resend}, not {forbids}"


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
            (identity, route) for identity in (_IDENTITY, None) for route in (*routes, None)
        ]
        # What opened the gate, since when; what the last NONE came for; whether it is questioned.
        self._open: SentAs | None = None
        self._none: SentAs | None = None
        self._none_at = 0.0
        self._questioned = False
        self._number = 0

    def run(self) -> Iterator[str]:
        """Let answers come, and yield for what the gate is open, or not, against them."""
        now = 100.0
        for _ in range(_STEPS):
            now += self._dice.choice((0.0, 0.5, 1.0, 1.1))
            self._happen(now)
            for way in self._dice.sample(self._ways, 3):
                passed = self._open is not None and self._open == way
                told = self._gate.is_open(way), self._gate.passed(way), self._gate.has_heard(way)
                due = passed or not self._applies, passed, self._none == way
                if told != due or self._gate.questioned is not self._questioned:
                    yield f"{told}, {self._gate.questioned}, not {due}, {self._questioned}"
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
                again = self._number and self._dice.random() < 0.3
                self._number += not again
                applies = self._dice.random() < 0.6
                gate.begin(self._number, applies=applies)
                if not again:
                    self._applies, self._open = applies, None


# -- how far its log reaches -----------------------------------------------------------------------


class _LogDrill:
    """A `LogPosition`, and the batches that are known to be stored."""

    name = "log"

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._log = LogPosition()
        # Ordinals that are stored, and the ends that are known since the log last lost its end.
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
            told = self._log.offset, self._log.ordinal, self._log.end
            if told != (self._offset, max(self._ordinals, default=-1), self._end):
                yield f"it reaches {told}, not {self._offset}, {self._ordinals}, {self._end}"
                return

    @property
    def _offset(self) -> int:
        return self._ends[-1][0] if self._ends else -1

    @property
    def _end(self) -> tuple[int, ProducerIdentity | None, int] | None:
        if not self._ends:
            return None
        offset, batch = self._ends[-1]
        return offset, _IDENTITY, (batch.base + batch.count - 1) % 2**31

    def _of_batch(self, batch: Batch, offset: int) -> Iterator[str]:
        newest = max(self._ordinals, default=-1)
        lost = offset >= 0 and batch.ordinal > newest and offset <= self._offset
        if self._log.contradicts(batch, offset) is not lost:
            yield f"{batch} at {offset} contradicts {self._ends}, or not"
        if self._log.is_explained(batch) is not any(batch.ordinal <= at for at in self._losses):
            yield f"{batch} is explained by {self._losses}, or not"
        between = [
            made_batch(at, self._dice.randrange(1, 3))
            for at in range(batch.ordinal)
            if self._dice.random() < 0.3
        ]
        need = sum(each.count for each in between if each.ordinal > newest)
        room = offset < 0 or batch.ordinal < newest or offset - self._offset - 1 >= need
        if self._log.leaves_room(batch, offset, between) is not room:
            yield f"{batch} at {offset} leaves room for {between} behind {self._ends}, or not"


# -- how many batches may be in flight -------------------------------------------------------------


def _windows(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the windows of a partition and of a connection."""
    cap = dice.choice((None, 9))
    window, spans = PartitionWindow(cap), [0]
    heard: list[int] = []
    counts = False
    if (window.limit, window.heard, window.said, window.max_span) != (5, False, 5, 0):
        yield f"window: {window.limit} before anything was heard"
    for _ in range(12):
        if window.sequence_cap != cap:
            yield f"window: {window.sequence_cap} records, not {cap}"
        cap = dice.choice((None, 1, 8))
        window.limit_records(cap)
        if dice.random() < 0.3:
            window.reset()
            counts = False
        else:
            named = dice.choice((None, -1, 0, 1, 5, 20, 1000, 1001, 2**31 - 1))
            number = 5 if named is None else min(max(named, 1), _MOST_RETAINED)
            if window.learn(named) is not (number != (heard or [5])[-1]):
                yield f"window: {number} after {heard} is news, or not"
            heard.append(number)
            counts = True
        limit = heard[-1] if counts else 5
        spans.append(dice.choice((1, limit, limit + 1)))
        window.observe(spans[-1])
        told = window.limit, window.heard, window.said, window.max_span
        if told != (limit, counts, (heard or [5])[-1], max(spans)):
            yield f"window: {told} after {heard}, now {limit}"
        if window.admits(limit) is not True or window.admits(limit + 1) is not False:
            yield f"window: {limit} batches are admitted, or one more"
    limit = dice.choice((1, 5))
    connection = ConnectionWindow(limit)
    if not connection.admits() or connection.outstanding:
        yield "window: a request is outstanding before the first"
    for outstanding in range(limit + 2):
        connection.outstanding = outstanding
        if connection.admits() is not (outstanding < limit):
            yield f"window: one more than {outstanding} of {limit} requests, or not"
