"""The drill of a partition: which batch it sends next, to whom, and under which numbers.

A run brings few partitions into the states in which that is hard to say. Here batches are refused,
lost and renumbered, leaders change, and the parts of the partition are set as they are after rare
answers (`partition_events`). Then what it tells must follow from its parts (`may_be_sent`), and
each of its own steps must change those parts (`partition_facts`) as its docstring says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route

from .comparing import raises_internal, unequal
from .made_batches import made_batch
from .may_be_sent import may_be_new, may_be_resent, room_for_records
from .partition_events import OLD, YOUNG, PartitionEvents
from .partition_facts import PartitionFacts, facts_of

__all__ = ["drill_sending"]

_STEPS: Final = 90
_EXPIRATION: Final = 100.0
"""Seconds for which a leader remembers a producer."""
_HALF_MS: Final = 50_000
"""Half of that, in milliseconds: a leader is suspected if its last record is older."""
_FRESH: Final = 1.0
"""For so many seconds a success shows that a suspected leader knows the producer."""
_BATCH_SIZE: Final = 40
"""Bytes."""


def drill_sending(dice: Random) -> Iterator[str]:
    """Yield what a partition sends, or tells, that is against the rules."""
    for wrong in _SendingDrill(dice).run():
        yield f"sending: {wrong}"
        return


class _SendingDrill:
    """A partition, and what has happened to it, as far as it counts now."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._idempotent = dice.random() < 0.8
        self._resend = dice.random() < 0.3
        self._transactional = dice.random() < 0.2
        cap = dice.choice((None, None, None, 6))
        self._state = PartitionState(
            *("t", 0, None),
            idempotent=self._idempotent,
            retry=Backoff(1.0, 64.0, dice.random),
            pause=10.0,
            resend=self._resend,
            sequence_cap=cap,
            transactional=self._transactional,
        )
        self._events = PartitionEvents(dice, self._state)
        self._links = self._transactions = 0  # how many there were so far
        # The routes of the attempts at each batch under its present identity.
        self._routes: dict[Batch, list[Route]] = {}

    def run(self) -> Iterator[str]:
        """Send batches and let things happen, and yield what is wrong."""
        now = 100.0
        if not raises_internal(lambda: self._state.send(made_batch(0), now)):
            yield "a batch is sent without a route, and no InternalError is raised"
        for wrong in (self._follow(), self._adopt()):
            if wrong is not None:
                yield wrong
        for _ in range(_STEPS):
            now += self._dice.choice((0.0, 0.5, 2.0))
            for each in (self._act(now), *self._differences(now)):
                if each is not None:
                    yield each
                    return

    def _act(self, now: float) -> str | None:
        """Take a step of the partition, or let something happen to it."""
        batches = self._state.batches.unresolved
        match self._dice.randrange(20):
            case 0 | 1 | 2 | 3 if len(batches) < self._events.most:
                return self._seal()
            case 4 | 5 | 6 | 7:
                return self._send(now)
            case 8 | 9 | 10:
                self._events.answer(now)
            case 11:
                return self._follow() if self._dice.random() < 0.8 else self._begin_transaction()
            case 12:
                return self._adopt()
            case 13 | 14:
                return self._assess()
            case _:
                self._events.happen(now)
        return None

    def _changed(self, due: PartitionFacts, what: str) -> str | None:
        """Return how the facts differ from what is due after something; None if they do not."""
        pairs = zip(facts_of(self._state), due, strict=True)
        wrong = unequal(dict(zip(due._fields, pairs, strict=True)))
        return None if wrong is None else f"{what}: {wrong}"

    # -- its own steps

    def _send(self, now: float) -> str | None:
        """Send the next batch, or any one that waits."""
        state, before = self._state, facts_of(self._state)
        batches = [batch for batch in state.batches.unresolved if batch.due]
        batch = state.next_resend(now)
        if batch is None and batches and self._dice.random() < 0.3:
            batch = self._dice.choice(batches)
        route = before.route
        if batch is None or route is None:
            return None
        routes = self._routes.setdefault(batch, [])
        same = len({each.link_id for each in routes}) == 1 and routes[0].same_leader(route)
        earlier = routes[0].link_id if same else None
        routes.append(route)
        state.send(batch, now)
        due = before._replace(outstanding=before.outstanding + 1)
        if before.suspect and not before.outstanding and now - self._events.heard_at > _FRESH:
            # The leader may have forgotten the producer while it had nothing to answer.
            due = due._replace(opened_for=None)
        probes = before.rung is Rung.PROBING
        shown = due.opened_for == (before.identity, route) or (probes and not before.questioned)
        expected: dict[str, object] = {
            **route._asdict(),
            "sent_at": now,
            "knows_us": self._idempotent and not before.suspect and shown,
            "earlier_link": earlier,
            "after": state.log.end,
            "sent_ms": state.suspicion.now_ms,
        }
        attempt = batch.attempt
        told = attempt and {name: getattr(attempt, name) for name in attempt.__slots__}
        if told != expected:
            return f"{batch} was sent with {told}, not {expected}"
        if probes and state.recovery.pauses:
            return f"{batch} was sent as a probe, and the pause between two passes goes on"
        if earlier is not None and state.leadership.evidence.none:
            return f"{batch} was sent again, and nothing is kept to judge its answer by"
        return self._changed(due, f"{batch} was sent")

    def _follow(self) -> str | None:
        """Follow the leader, perhaps to another connection, leader or epoch."""
        state, before, dice = self._state, facts_of(self._state), self._dice
        known = before.route
        self._links += 1
        route = Route(self._links, dice.randrange(2), dice.randrange(2))
        if known is not None:
            route = dice.choice((known, known._replace(link_id=self._links), route))
        stays = route == known or before.outstanding > 0
        pauses = state.recovery.pauses
        followed = state.follow(route)
        if followed is not (route == known or not before.outstanding):
            what = f"{route} after {known}, with {before.outstanding} batches outstanding"
            return f"{what}: followed: {followed}, not {not followed}"
        if stays:
            return self._changed(before, f"{known} stays")
        same = known is not None and known[1:] == route[1:]
        due = before._replace(
            route=route,
            reads=None,
            window=(5, False, before.window[2]),
            opened_for=None,
            questioned=same and pauses,
        )
        if known is not None and not same:
            self._events.carried |= before.suspect
            due = due._replace(retry_at=0.0, exempt=False)
        if not (same and pauses):
            rung = Rung.SALVAGE if before.rung is Rung.SALVAGE else Rung.CLEAR
            due = due._replace(rung=rung)
        return self._changed(due, f"{route} after {known}")

    def _adopt(self) -> str | None:
        """Take an identity, and give all batches new numbers, if no doubt is left."""
        state, before, dice = self._state, facts_of(self._state), self._dice
        identity = ProducerIdentity(7, dice.randrange(3))
        batches = list(state.batches.unresolved)
        for batch in state.batches.doubts() if dice.random() < 0.3 else ():
            batch.forsake()
        stuck = before.outstanding or any(each.in_doubt and not each.forsaken for each in batches)
        had = [(each.data, each.base, each.ordinal) for each in batches]
        state.adopt(identity)
        if stuck or identity == before.identity:
            numbers = [(each.data, each.base, each.ordinal) for each in batches]
            if numbers != had:
                return f"{identity} is not adopted, and batches had {had}, and now have {numbers}"
            return self._changed(before, f"{identity} is not adopted")
        self._events.acked, self._events.carried = None, False
        self._routes.clear()
        base = 0
        for ordinal, batch in enumerate(batches):
            epoch, count = identity.epoch, batch.count
            data = idempotent_batch(base, count, producer_id=7, epoch=epoch) if batch.data else b""
            pairs: dict[str, tuple[object, object]] = {
                "ordinal": (batch.ordinal, ordinal),
                "base sequence": (batch.base, base),
                "identity": (batch.identity, identity),
                "bytes": (batch.data, data),
            }
            wrong = unequal(pairs)
            if wrong is not None:
                return f"{batch} is renumbered under {identity}: {wrong}"
            base += count
        pairs = {
            "next sequence": (state.ledger.next, base),
            "next ordinal": (state.batches.next_ordinal, len(batches)),
            "another epoch is wanted": (state.ledger.bump_wanted, False),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            return f"{identity} is adopted: {wrong}"
        due = before._replace(
            identity=identity,
            rung=Rung.CLEAR,
            opened_for=None,
            newest=-1,
            questioned=False,
            suspect=False,
        )
        return self._changed(due, f"{identity} is adopted")

    def _begin_transaction(self) -> str | None:
        before = facts_of(self._state)
        number, gated = self._transactions + self._dice.randrange(2), self._dice.random() < 0.5
        self._state.begin_transaction(number, gated=gated)
        if number == self._transactions:
            return self._changed(before, "the same transaction")
        self._transactions = number
        ranged = self._state.window.sequence_cap is not None
        applies = self._idempotent and (gated or ranged)
        return self._changed(before._replace(applies=applies, opened_for=None), "a transaction")

    def _assess(self) -> str | None:
        """Look whether the leader may have forgotten the producer by now."""
        if self._dice.random() < 0.3:
            self._events.acknowledge(OLD)
        state, before = self._state, facts_of(self._state)
        wall = self._dice.choice((OLD + _HALF_MS, OLD + _HALF_MS + 1, YOUNG + 1))
        state.assess_memory(float(wall), _EXPIRATION)
        if not self._idempotent or self._transactional:
            return self._changed(before, "assessed, with a memory that does not count")
        batches = state.batches.unresolved
        stamps = [batch.max_timestamp_ms for batch in batches]
        stamps += [] if self._events.acked is None else [self._events.acked]
        suspect = self._events.carried or any(wall - stamp > _HALF_MS for stamp in stamps)
        due = before._replace(suspect=suspect)
        if suspect:
            first = batches[0].first_attempt if len(batches) == 1 else None
            sent = None if first is None else first.sent_ms
            young = sent is not None and wall - min(sent, batches[0].max_timestamp_ms) <= _HALF_MS
            newest = bool(batches) and batches[0].ordinal > state.log.ordinal
            due = due._replace(exempt=young and newest and not self._events.carried)
        return self._changed(due, f"assessed at {wall}, of {stamps}")

    def _seal(self) -> str | None:
        state, batch, before = self._state, self._events.batch(), facts_of(self._state)
        state.enlist(batch)
        limit, heard, most = before.window
        span = batch.ordinal - state.batches.unresolved[0].ordinal + 1
        due = before._replace(window=(limit, heard, max(most, span)))
        return self._changed(due, f"{batch} is enlisted")

    # -- what it tells

    def _differences(self, now: float) -> Iterator[str]:
        """Yield what it tells that is against the rules."""
        state, queued = self._state, self._events.queued
        batches = state.batches.unresolved
        records = [record for batch in batches for record in batch.records] + queued
        resent = may_be_resent(state, now, resend=self._resend)
        calm = state.recovery.rung is Rung.CLEAR and not state.suspicion.suspect
        names = state.where, state.topic, state.partition, state.topic_id
        size = sum(record.size for record in queued)
        grows = size > _BATCH_SIZE * state.window.limit or state.queue.blocked
        pairs: dict[str, tuple[object, object]] = {
            "batch to resend": (state.next_resend(now), resent),
            "may send a new batch": (state.may_send_new(), may_be_new(state)),
            "room for records": (state.sequence_room(), room_for_records(state)),
            "may outgrow": (state.may_outgrow(_BATCH_SIZE), grows),
            "active": (state.active, bool(records or state.batches.outstanding)),
            "unsettled": (state.unsettled, len(records)),
            "oldest": (state.oldest, records[0].queued_at if records else math.inf),
            "names": (names, ("t-0", "t", 0, None)),
            "waits": (state.waits(), bool(queued) or any(batch.due for batch in batches)),
            "untroubled": (state.untroubled(), calm and state.ledger.disowned is None),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield f"{wrong}, with {batches} at {now}"
        if batches and self._dice.random() < 0.3:
            yield from self._of_many_sequences()

    def _of_many_sequences(self) -> Iterator[str]:
        """Yield if a new batch may be sent, or not, while very many sequences have no outcome."""
        state, ledger = self._state, self._state.ledger
        taken, base = ledger.next, state.batches.unresolved[0].base
        for many in (2**29 - 1, 2**29, state.window.sequence_cap or 0):
            ledger.next = base + many
            may = state.may_send_new()
            if may is not may_be_new(state):
                yield f"may send a new batch: {may}, not {not may}, after {many} sequences"
        ledger.next = taken
