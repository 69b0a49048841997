"""The drill of `Leadership`: what one partition's leader has shown, over many routes to it.

A route is a connection, the leader at its end, and a leader epoch. A run changes leaders a few
times. Here routes and identities change at random while batches are answered. All successes, and
all retries with their answers, are kept as rows. From them it is derived whether several batches
may be in flight, whether the leader knows a batch, what the window is, and when a leader has proved
that it retains fewer batches than it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.effects import Effects
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import ProducerIdentity, SequenceLedger
from aioidem._engine.leadership import Leadership
from aioidem._engine.log_position import LogPosition
from aioidem._engine.retention import Disproof, RetentionEvidence
from aioidem._engine.route import Route
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.windows import PartitionWindow
from aioidem.structs import TopicPartition

from .comparing import unequal

__all__ = ["drill_led"]

_STEPS: Final = 50
_NEWEST: Final = 14
"""The ordinal of the newest batch that was sent."""
_DEFAULT_WINDOW: Final = 5
"""How many batches a broker retains that names no number."""
_LARGEST_WINDOW: Final = 1000
"""The largest number that is believed."""
_WITNESSES: Final = 2
"""So many later batches must be recognised before a refusal counts."""
_ANSWERS: Final = ("none", "out of order", "error")
"""Answers to a retry: error NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, or another error."""


def drill_led(dice: Random) -> Iterator[str]:
    """Yield what is wrong with what a partition knows of its leader."""
    yield from _LeadershipDrill(dice).run()


class _Reports(Effects):
    """Keeps what a leadership reports."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def window_changed(self, where: str, route: Route | None, before: int, after: int) -> None:
        """Keep that a leader names another window than before."""
        self.said.append((where, route, before, after))

    def disprove(
        self, topic: str, partition: int, route: Route | None, disproof: Disproof, now: float
    ) -> None:
        """Keep that a leader retains fewer batches than it says."""
        self.said.append((topic, partition, route, disproof, now))


class _Success(NamedTuple):
    """Error NONE for a batch, sent under the present identity and on the present connection."""

    identity: ProducerIdentity | None
    route: Route


class _Answered(NamedTuple):
    """A retry that the leader has recognised, or refused as out of order."""

    ordinal: int
    earlier: int
    """The connection on which all attempts before it were made."""
    distance: int
    """The batch's place among those of the leader, from the newest one: 1 for that."""
    recognised: bool


class _LeadershipDrill:
    """A leadership with its parts, and all that its leaders have answered."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._now = 0.0
        self._effects = _Reports()
        self._due: list[tuple[object, ...]] = []
        self._ledger = SequenceLedger()
        self._applies = dice.random() < 0.9
        """Whether the first-ack gate applies: one batch is in flight until one is acknowledged."""
        self._suspicion = Suspicion()
        self._log = LogPosition()
        self._log.reach(self._batch(_NEWEST - dice.choice((0, 1, 9)), None), -1)
        self._leadership = Leadership(
            TopicPartition("t", 4),
            self._ledger,
            PartitionWindow(),
            FirstAckGate(applies=self._applies),
            RetentionEvidence(),
            self._suspicion,
            self._log,
        )
        self._routes: list[Route] = []
        self._identities: list[ProducerIdentity | None] = [None]
        if dice.random() < 0.8:  # else the producer is not idempotent
            self._adopt()
        self._successes: list[_Success] = []
        self._fresh = 0
        """How many successes came before the present route, or the present identity."""
        self._questioned = self._suspected = False
        self._windows: list[int] = [_DEFAULT_WINDOW]
        self._heard = False
        self._forget_retries()

    def run(self) -> Iterator[str]:
        """Change routes and answer batches, at random, and yield what is wrong."""
        actions = [self._move, self._renew, self._succeed, self._succeed, self._learn, self._learn]
        actions += [self._question, self._suspect, self._answer]
        actions += [self._resend_some] * 4 + [self._answer_all] * 4
        for _ in range(_STEPS):
            action = self._dice.choice(actions)
            self._now += 1.0
            action()
            wrong = self._difference()
            if wrong is not None:
                yield f"leadership: {wrong} after {action.__name__}"
                return

    @property
    def _route(self) -> Route | None:
        return self._routes[-1] if self._routes else None

    def _forget_retries(self) -> None:
        self._awaited: dict[Batch, tuple[int, int]] = {}
        """By retry without an answer: its earlier connection, and its distance."""
        self._answers: list[_Answered] = []
        self._early: dict[int, int] = {}
        """By ordinal of a batch that was refused too early to count: its earlier connection."""

    def _difference(self) -> str | None:
        """Return how the leadership differs from the rows; None if it does not."""
        part, route, identity = self._leadership, self._route, self._identities[-1]
        fresh = self._successes[self._fresh :]
        batch = self._batch(0, self._dice.choice((None, *self._identities)))
        known = route is not None and self._successes[-1:] == [_Success(batch.identity, route)]
        proved = route is not None and fresh[-1:] == [_Success(identity, route)]
        pairs: dict[str, tuple[object, object]] = {
            "route": (part.route, route),
            "several batches may be in flight": (part.gate_open, not self._applies or proved),
            "the leader may have lost the state": (part.gate.questioned, self._questioned),
            "the leader knows the batch": (part.knows(batch), known and batch.identity is not None),
            "window": (part.window.limit, self._windows[-1] if self._heard else _DEFAULT_WINDOW),
            "a window was named": (part.window.heard, self._heard),
            "reports": (self._effects.said, self._due),
            "the leader may have forgotten the producer": (
                self._suspicion.suspect,
                self._suspected,
            ),
            "no retry is evidence": (
                part.evidence.none,
                not self._awaited and not list(self._proofs()),
            ),
        }
        return unequal(pairs)

    def _batch(self, ordinal: int, identity: ProducerIdentity | None) -> Batch:
        """Return a batch without records."""
        return Batch(
            ordinal=ordinal,
            records=(),
            data=b"",
            identity=identity,
            base=0,
            deadline=99.0,
            max_timestamp_ms=0,
        )

    # -- routes, identities and successes ----------------------------------------------------------

    def _move(self) -> None:
        """Go over to another connection, or to another leader epoch on the same one."""
        if self._dice.random() < 0.5:
            return
        link, leader, epoch = self._route or (0, 1, 0)
        if self._dice.random() < 0.8:
            link += 1
        route = Route(link, leader, epoch + self._dice.choice((0, 1)))
        self._routes.append(route)
        self._leadership.take(route)
        self._heard = False
        self._begin_anew()

    def _renew(self) -> None:
        """Write under the next epoch; the leader's answers under the last one do not count."""
        if self._dice.random() < 0.6 or self._ledger.identity is None:
            return
        self._adopt()
        if self._dice.random() < 0.8:
            self._leadership.renew()
            self._suspected = False
            self._begin_anew()

    def _adopt(self) -> None:
        identity = ProducerIdentity(9, len(self._identities))
        self._identities.append(identity)
        self._ledger.adopt(identity)

    def _begin_anew(self) -> None:
        """Note that what the leader has shown before does not count any more."""
        self._fresh = len(self._successes)
        self._questioned = False
        self._forget_retries()

    def _succeed(self) -> None:
        """Let a batch succeed that was perhaps sent elsewhere, or under an earlier identity."""
        identity = self._dice.choice((None, self._identities[0], *self._identities[-1:] * 3))
        route = self._route
        link = self._dice.choice((route.link_id, route.link_id, route.link_id - 1)) if route else 1
        attempt = None if self._dice.random() < 0.1 else Attempt(link, 1, 0, 0.0, knows_us=True)
        self._leadership.hear_none(self._batch(0, identity), attempt, self._now)
        sent_here = route is not None and attempt is not None and link == route.link_id
        if route is not None and sent_here and identity == self._identities[-1]:
            self._successes.append(_Success(identity, route))
            self._questioned = False

    def _learn(self) -> None:
        """Let a success name the window; it is reported if it is another one than the last."""
        retained = self._dice.choice((None, 0, 1, 5, 8, 8, 12, 12, 12, 10_000))
        window = _DEFAULT_WINDOW if retained is None else min(max(retained, 1), _LARGEST_WINDOW)
        self._leadership.learn_window(retained, "t-4", self._effects)
        if window != self._windows[-1]:
            self._due.append(("t-4", self._route, self._windows[-1], window))
        self._windows.append(window)
        self._heard = True

    def _question(self) -> None:
        self._leadership.gate.question()
        self._questioned = True

    def _suspect(self) -> None:
        """Let the leader be suspected to forget the producer, or sequences be counted (KIP-758)."""
        self._suspicion.suspect = self._suspected = self._dice.random() < 0.2
        self._leadership.window.limit_records(self._dice.choice((None, None, None, 100)))

    # -- retries, and what they prove --------------------------------------------------------------

    def _resend_some(self) -> None:
        for _ in range(self._dice.choice((1, 4, 8))):
            self._resend()

    def _answer_all(self) -> None:
        """Answer all retries, mostly later batches first; the leader has forgotten the oldest."""
        retained = self._dice.choice((3, 5, 8))
        while self._awaited:
            newest = max(self._awaited, key=lambda batch: batch.ordinal)
            batch = self._dice.choice([newest, newest, newest, *self._awaited])
            known = _NEWEST - batch.ordinal < retained
            self._answer_one(batch, self._dice.choice((*[_ANSWERS[not known]] * 9, *_ANSWERS)))

    def _resend(self) -> None:
        """Send a batch again, all earlier attempts at which were made on one connection."""
        ordinal = self._dice.randrange(_NEWEST + 1)
        if any(batch.ordinal == ordinal for batch in self._awaited):
            return
        earlier = self._dice.choice((*[101] * 9, 102, None, None))
        batch = self._batch(ordinal, self._identities[-1])
        batch.send(Attempt(1, 1, 0, 0.0, knows_us=True, earlier_link=earlier))
        distance = _NEWEST - ordinal + 1
        self._leadership.evidence.sent(batch, distance)
        if earlier is None:  # an earlier retry was refused, and so has appended nothing
            earlier = self._early.pop(ordinal, None)
        if earlier is not None:
            self._awaited[batch] = (earlier, distance)

    def _answer(self) -> None:
        """Let the leader answer any batch, which perhaps was not sent again."""
        other = self._batch(self._dice.randrange(_NEWEST + 1), self._identities[-1])
        batch = self._dice.choice([*self._awaited, other])
        self._answer_one(batch, self._dice.choice(_ANSWERS))

    def _answer_one(self, batch: Batch, answer: str) -> None:
        earlier, distance = self._awaited.pop(batch, (None, 0))
        if answer == "none":
            if self._dice.random() < 0.9:
                self._log.reach(batch, -1)
            behind = self._log.ordinal - batch.ordinal + 1
            self._leadership.recognised(batch, self._now, self._effects)
            if earlier is not None and behind > 1:
                self._answers.append(_Answered(batch.ordinal, earlier, behind, recognised=True))
        else:
            refused = answer == "out of order"
            self._leadership.refused(batch, self._now, self._effects, out_of_order=refused)
            if earlier is not None and refused:
                self._refuse(batch.ordinal, earlier, distance)
        self._judge()

    def _refuse(self, ordinal: int, earlier: int, distance: int) -> None:
        """Note a refusal: it counts if two later batches were recognised before it."""
        witnesses = [
            each
            for each in self._answers
            if each.recognised and each.earlier == earlier and each.ordinal > ordinal
        ]
        if len(witnesses) >= _WITNESSES:
            self._answers.append(_Answered(ordinal, earlier, distance, recognised=False))
        else:
            self._early[ordinal] = earlier

    def _proofs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the distances of recognised and refused retries, by their earlier connection."""
        refused = [each for each in self._answers if not each.recognised]
        for earlier in dict.fromkeys(each.earlier for each in refused):
            alike = [each for each in self._answers if each.earlier == earlier]
            seen = max(each.distance for each in alike if each.recognised)
            yield seen, [each.distance for each in alike if not each.recognised]

    def _judge(self) -> None:
        """Note the report that is due once all retries are answered.

        Nothing is reported if the leader may have forgotten them, or counts sequences (KIP-758).
        """
        proofs = list(self._proofs())
        if self._awaited or not self._heard or not proofs:
            return
        self._answers.clear()
        if self._suspected or self._leadership.window.sequence_cap is not None:
            return
        said = self._windows[-1]
        for seen, refused in proofs:
            beyond = [each for each in refused if seen < each <= said]
            if beyond:
                proof = Disproof(said, seen, min(beyond))
                self._due.append(("t", 4, self._route, proof, self._now))
                return
