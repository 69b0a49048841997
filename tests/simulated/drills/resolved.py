"""The drill of doubt: when a leader is asked or its log is read, and what follows from a page.

A run has few batches in doubt at a time whose leader may have forgotten the producer. Here batches
are lost and refused, leaders change and fall silent, clocks are set, and pages of logs come in any
order. From what has happened it follows which question is due on which connection, and which
batches have an outcome by each page. `resolved_logs` judges the pages; `doubt_rows` has the `Lane`,
which is a partition and its log.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import BatchState
from aioidem._engine.links import Link
from aioidem._engine.recovery import Rung
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import AskProducers
from aioidem._engine.suspicion import Suspicion
from aioidem._log import LogLine
from aioidem._protocol.producers import ProducersAnswer

from .comparing import unequal
from .doubt_bench import PATIENCE
from .doubt_rows import Lane
from .engine_parts import act
from .resolved_logs import LogBench, Question, given_up

__all__ = ["drill_resolved"]

_STEPS: Final = 150
_SILENCE: Final = 2.0
"""Seconds for which an old leader may be silent."""
_JUST: Final = 0.0015
"""A moment, in seconds: a little more than the millisecond to which timestamps are exact."""
_PASSING: Final = (-1, 3, 6)
"""Codes of DescribeProducers after which it may be asked again: UNKNOWN_SERVER_ERROR,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
"""


def drill_resolved(dice: Random) -> Iterator[str]:
    """Yield what is wrong with how doubt is resolved."""
    yield from _DoubtDrill(dice).run()


class _DoubtDrill(LogBench):
    """The resolution of doubt, polled at random between anything that may happen to batches."""

    def run(self) -> Iterator[str]:
        """Let things happen at random, poll, and yield what is wrong."""
        checked = [self._poll] * 10 + [self._reply] * 9
        events = [self._send] * 10 + [self._answer] * 9 + [self._trouble] * 4 + [self._wait] * 4
        events += [self._lose, self._lead, self._disturb, self._set_clock, self._tell]
        events += [self._append_other, self._expire, self._move]
        self._begin_well()
        if self._part.old_leaders_owe:
            yield "doubt: an old leader owes answers before any was asked"
        if self._dice.random() < 0.8:
            self._set_clock()
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.0, 0.25, 0.25, 0.5, 1.0, 2.0, 16.0))
            wrong = act(self._dice, checked, events) or self._difference()
            if wrong is not None:
                yield f"doubt: {wrong}"
                return

    def _wait(self) -> None:
        """Wait until something may be due, or almost."""
        lane = self._some_lane()
        behind = None if lane.behind_since is None else lane.behind_since + PATIENCE
        turn = self._part.turns_at(lane.state, self._now)
        times = (self._silent_at(lane), behind, lane.state.setbacks.retry_at, turn)
        at = self._dice.choice([at for at in times if at is not None])
        self._now = max(self._now, at - self._dice.choice((0.0, 0.0, 0.125)))

    # -- clocks ------------------------------------------------------------------------------------

    def _set_clock(self) -> None:
        """Show the time of day, which may have been set; or show none."""
        wall = self._stamp_ms + self._now * 1000.0 + self._dice.choice((0.0, 0.0, 20e3, -50e3))
        shown = self._dice.choice((None, wall, wall))
        self._part.see_clock(shown, self._now)
        if shown is not None:
            # The clock that was ahead most counts, because brokers do not set back theirs.
            ahead = shown - self._now * 1000.0
            known = self._ahead_ms
            self._ahead_ms = ahead if known is None else max(known, ahead)

    def _assessed(self, lane: Lane, at: float) -> Suspicion:
        """Return what is suspected of a leader at a time, by the stamps of a partition's batches.

        The only batch that has no outcome may be exempt, if it is newer than all that are stored.
        """
        suspicion, unresolved = copy.copy(lane.state.suspicion), lane.state.batches.unresolved
        if self._ahead_ms is not None:
            wall, seconds = self._ahead_ms + at * 1000.0, self._parts.inquiries.expiration
            if suspicion.assess(wall, seconds, unresolved):
                alone = unresolved[0] if len(unresolved) == 1 else None
                stored = alone is not None and alone.ordinal <= lane.state.log.ordinal
                suspicion.exempt_alone(None if stored else alone, wall, seconds)
        return suspicion

    # -- polls -------------------------------------------------------------------------------------

    def _poll(self) -> str | None:
        """Do what a poll does: leave silent leaders, read on, and prepare each partition."""
        wrong = self._leave_silent() or self._read_on()
        for lane in self._lanes:
            wrong = wrong or self._prepare(lane) or self._wrong_turn(lane)
            identity = self._parts.identity.current
            if identity is not None:
                lane.state.adopt(identity)
        self._connect()
        return wrong

    def _prepare(self, lane: Lane) -> str | None:
        """Let the doubt of a partition be resolved as far as it can be; compare what is asked."""
        state, suspicion = lane.state, self._assessed(lane, self._now)
        rung, passes = state.recovery.rung, state.recovery.passes
        link, outstanding = self._link_of(lane), state.batches.outstanding
        may_ask = link is not None and link.knows_producers
        troubled = rung is not Rung.CLEAR or suspicion.suspect
        keeps = any(batch.keeps_numbers for batch in state.batches.unresolved)
        moves = rung not in (Rung.CLEAR, Rung.SALVAGE) and not outstanding
        if moves and suspicion.suspect and (keeps or rung is not Rung.REFUSED) and not self._resend:
            suspicion.refused()  # a batch in doubt was out of order: no batch is exempt after it
        free = link is not None and self._free(link) and self._leads(lane)
        read = troubled and free and self._wants_log(lane, suspicion)
        read = read and self._now >= state.setbacks.retry_at
        begin = self._begins_at(lane, link) if read and link is not None else None
        unknown = given_up(lane, {}) if read and begin is None else None
        self._ended()
        made = self._parts.poll()
        self._part.prepare(state, self._now)
        wrong = self._differing_suspicion(state.suspicion, suspicion)
        if troubled and suspicion.forbids_resend and not self._warned:
            self._warned = True
            self._warnings += 1
        after = state.recovery.rung
        if rung is Rung.REFUSED and moves and keeps and not suspicion.suspect:
            due_rung = Rung.ASKING if may_ask else Rung.PROBING
            due_word = f"{after.value} after a refusal, not {due_rung.value}"
            wrong = wrong or (None if after is due_rung else due_word)
        if state.recovery.passes > passes and lane.pass_began is not None:
            pause = max(PATIENCE, 0.0 if link is None else link.last_throttle)
            again = max(lane.pass_began + pause, self._now)
            lane.pass_began = None
            if state.recovery.pass_not_before != again:
                return f"the next pass is at {state.recovery.pass_not_before}, not {again}"
        due: list[Question] = []
        if link is not None and free and after is Rung.ASKING and not lane.asked:
            lane.asked = True
            due.append(AskProducers(link.link_id, self._token(), state.topic, lane.index))
        elif link is not None and begin is not None:
            due.append(self._read(lane, link, begin))
        ended = {} if unknown is None else self._ended()
        if ended != (unknown or {}):
            return f"{ended} end, where no log can be read, not {unknown}"
        return wrong or self._compare(made, due)

    def _differing_suspicion(self, told: Suspicion, due: Suspicion) -> str | None:
        return unequal(
            {
                "suspect": (told.suspect, due.suspect),
                "exempt": (told.exempt, due.exempt),
                "suspect from (ms)": (told.due_ms, due.due_ms),
                "time of day (ms)": (told.now_ms, due.now_ms),
            }
        )

    # -- old leaders -------------------------------------------------------------------------------

    def _silent_at(self, lane: Lane) -> float | None:
        """Return when the old leader of a partition has been silent for too long.

        It owes the answers to batches in flight, and there is a newer leader epoch.
        """
        link, route = self._link_of(lane), lane.state.leadership.route
        view = self._parts.cluster.leader_of(lane.state.topic, lane.index)
        if link is None or route is None or view is None or not lane.flights:
            return None
        if view.leader_epoch <= route.leader_epoch:
            return None
        quiet_since = max(link.last_progress, link.throttled_until)
        return quiet_since + max(_SILENCE, 3 * (link.rtt or 0.0))

    def _leave_silent(self) -> str | None:
        """Leave the connections to old leaders that are silent; compare when, and which."""
        states = [lane.state for lane in self._lanes]
        times = {lane.index: self._silent_at(lane) for lane in self._lanes}
        told = {lane.index: self._part.awaits(lane.state) for lane in self._lanes}
        if told != times:
            return f"by partition, old leaders are left at {told}, not {times}"
        due = [
            self._link_of(lane)
            for lane in self._lanes
            if (at := times[lane.index]) is not None and self._now >= at
        ]
        left = list(self._part.silent_leaders(states, self._now))
        if [each.link for each in left] != due:
            nodes = [each.link.node_id for each in left]
            due_nodes = [None if link is None else link.node_id for link in due]
            return f"old leaders {nodes} are left at {self._now}, not {due_nodes}"
        owe = any(at is not None for at in times.values())
        if self._part.old_leaders_owe is not owe:
            return f"old leaders are said {'not ' * owe}to owe answers; times of leaving: {times}"
        for link in dict.fromkeys(each.link for each in left):
            self._lose_link(link)
        return None

    # -- turns -------------------------------------------------------------------------------------

    def _wrong_turn(self, lane: Lane) -> str | None:
        """Check when the turn of a batch in doubt comes: as soon as its leader is suspected.

        A moment earlier, the leader is not suspected yet. If it is suspected now, and the batch is
        exempt, the turn comes when the batch is exempt no more.
        """
        turn, now = self._part.turns_at(lane.state, self._now), self._assessed(lane, self._now)
        if self._ahead_ms is None or not lane.state.batches.in_doubt:
            return None if turn is None else f"a turn at {turn}, not None: nothing is in doubt"
        if now.suspect and not now.exempt:
            return None if turn is None else f"a turn at {turn}, not None: it has come"
        if turn is None:
            return "a turn at None, and a batch is in doubt whose leader is not suspected yet"
        early, late = (self._assessed(lane, at) for at in (turn - _JUST, turn))
        forgotten = late.suspect and not (now.suspect and late.exempt)
        may_have = early.suspect and not early.exempt
        right = turn > self._now and forgotten and not may_have
        suspected = f"suspected a moment before: {may_have}, then: {forgotten}"
        return None if right else f"a turn at {turn}, the leader is {suspected}; now {self._now}"

    # -- replies -----------------------------------------------------------------------------------

    def _reply(self) -> str | None:
        """Answer a question: a page of a log, or what a leader has stored."""
        owed = [
            (link, request)
            for link in self._parts.connections.links.values()
            for request in link.outstanding.values()
        ]
        if not owed:
            return None
        link, request = self._dice.choice(owed)
        self._parts.requests.answered(link.link_id, request.token, self._now)
        lane = next(lane for lane in self._lanes if lane.state is request.subject)
        if request.kind is RequestKind.READ_BACK:
            return self._page(lane, link, request)
        return self._name_stored(lane, link)

    def _name_stored(self, lane: Lane, link: Link) -> str | None:
        """Name the last sequence that a leader has stored, or refuse the question."""
        dice, state = self._dice, lane.state
        code = dice.choice((0, 0, 0, 0, dice.choice(_PASSING), 29))
        doubted = [batch for batch in state.batches.unresolved if batch.in_doubt]
        named = dice.choice(doubted) if doubted else None
        epoch = dice.choice((1, 1, 1, 2))
        last = {8: (1, 0), 7: (epoch, named.wire_last if named else 5)}
        if dice.random() < 0.2:
            del last[7]
        asking, known = state.recovery.rung is Rung.ASKING, link.knows_producers
        answer = ProducersAnswer(code, last, dice.choice((0, 500)))
        paused = self._paused(link, answer.throttle_ms)
        self._part.on_producers(link, state, answer, self._now)
        if code:
            known = code in _PASSING
        pairs: dict[str, tuple[object, object]] = {
            "the connection may be asked": (link.knows_producers, known),
            "throttled until": (link.throttled_until, paused),
        }
        if asking:
            pairs["rung"] = state.recovery.rung, Rung.PROBING
        wrong = unequal(pairs)
        if wrong is not None:
            return f"{wrong}, after {answer}"
        identity = state.ledger.identity
        if not asking or not doubted or identity is None:
            return None
        if any(batch.state is not BatchState.WAITING for batch in doubted):
            return None  # one was given another identity, and is sent, not probed
        hinted = not code and 7 in last and epoch == identity.epoch
        first = named if hinted else doubted[-1]
        probe = state.recovery.next_probe(state.batches.unresolved, self._now)
        return None if probe is first else f"{probe} is resent first, not {first}, after {answer}"

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        """Return how warnings, and what is read, differ from what is due."""
        events = self._parts.outcomes.take_events()
        told = sum(event.line is LogLine.STATE_EXPIRED for event in events)
        due, self._warnings = self._warnings, 0
        self._parts.outcomes.take_settled()
        pairs: dict[str, tuple[object, object]] = {
            "warnings that a leader may have forgotten": (told, due),
            "a next page is to be read": (self._part.reads_on(), bool(self._pending)),
        }
        for lane in self._lanes:
            lane.asked &= lane.state.recovery.rung is Rung.ASKING
            if lane.state.recovery.rung is not Rung.PROBING:
                lane.pass_began = None
            pairs[f"{lane.state} is read at"] = lane.state.read_back.offset, lane.reading
        return unequal(pairs)
