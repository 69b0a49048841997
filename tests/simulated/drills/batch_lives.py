"""The drill of a batch's life: what becomes of one batch, and what is known of it.

In a run a batch is refused, lost and renumbered a few times at most. Here anything happens to it in
any order. What may not happen has to raise, and what is known of the batch is derived from the list
of what has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import Attempt, BatchEvent, BatchState, Evidence, Persistence
from aioidem._engine.draft import Draft
from aioidem._engine.idempotence import ProducerIdentity

from .comparing import differences, differs, misjudged
from .made_batches import made_batch

__all__ = ["drill_batch_lives"]

_STEPS: Final = 25
_SEQUENCES: Final = 2**31
"""How many sequences there are until they begin at 0 again."""
_OFTEN: Final = [Evidence.AMBIGUOUS, Evidence.REFUSED] * 5
"""Evidence that is drawn more often than the other kinds."""
_ENDS: Final = {
    BatchEvent.ACK: BatchState.ACKED,
    BatchEvent.REJECT: BatchState.NOT_WRITTEN,
    BatchEvent.GIVE_UP: BatchState.UNKNOWN,
    BatchEvent.SPLIT: BatchState.SPLIT,
}


def drill_batch_lives(dice: Random) -> Iterator[str]:
    """Yield what is told of a batch against what has happened to it."""
    for wrong in _BatchDrill(dice).run():
        yield f"batch: {wrong}"
        return


class _BatchDrill:
    """A batch, and all that has happened to it."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        base = dice.choice((0, 5, _SEQUENCES - 1, 3 * _SEQUENCES - 2))
        self._batch = made_batch(dice.randrange(5), dice.randrange(1, 4), base=base)
        if dice.random() < 0.2:
            self._batch.identity = None
        # Its identity, base sequence and bytes.
        self._numbers: list[object] = [self._batch.identity, base, b"batch"]
        self._compression = 1.0
        self._ordinal = self._batch.ordinal
        self._state = BatchState.SEALED
        # The evidence since the batch was made, with its time; a renumbering is evidence, too.
        self._evidence: list[tuple[Evidence, float]] = []
        self._attempts: list[Attempt] = []
        self._since_renumbered: list[Attempt] = []
        # How much of the evidence came before the last renumbering.
        self._evidence_before = 0
        self._forsaken = self._renamed = False
        self._flags = dict.fromkeys(("astray", "appended", "oversized"), False)

    def run(self) -> Iterator[str]:
        """Let things happen to the batch, and yield what is wrong."""
        yield from self._differences()
        for step in range(_STEPS):
            for wrong in (self._act(float(step + 3)), *self._differences()):
                if wrong is not None:
                    yield f"{wrong}, of {self._batch}"
                    return

    def _act(self, now: float) -> str | None:
        batch, dice = self._batch, self._dice
        match dice.randrange(13):
            case 0 | 1 | 2:
                return self._send(now)
            case 3 | 4 if self._state is BatchState.IN_FLIGHT or dice.random() < 0.3:
                return self._learn(dice.choice([*Evidence, *_OFTEN]), now)
            case 5 | 9:
                return self._move(BatchEvent.RETRY, {BatchState.IN_FLIGHT}, BatchState.WAITING)
            case 6 | 10 | 11:
                return self._renumber(now)
            case 7 if dice.random() < 0.5:
                batch.forsake()
                self._forsaken = True
            case 8 if dice.random() < 0.1:
                return self._end()
            case _:
                self._note()
        return None

    def _note(self) -> None:
        """Let something happen that is allowed in any state, but for a refusal for its size."""
        batch = self._batch
        match self._dice.randrange(5):
            case 0:
                batch.go_astray()
                self._flags["astray"] = True
            case 1:
                batch.find_appended()
                self._flags["appended"] = True
            case 2 if self._state is BatchState.IN_FLIGHT:
                batch.refuse_size()
                self._flags["oversized"] = True
                self._state = BatchState.WAITING
            case 3:
                places = self._dice.randrange(3)
                batch.shift(places)
                self._ordinal += places
            case _:
                self._numbers[2] = data = self._dice.choice((b"one", b"two"))
                self._compression = self._dice.choice((0.5, 1.0))
                batch.draft = Draft(batch.records)
                batch.build(data, self._compression)

    def _send(self, now: float) -> str | None:
        after, link, sent_ms = (5, None, 5), self._dice.choice((None, 3)), 1000 * now
        attempt = Attempt(
            *(int(now), 0, 0, now), knows_us=True, earlier_link=link, after=after, sent_ms=sent_ms
        )
        told = attempt.earlier_link, attempt.after, attempt.sent_ms
        if told != (link, after, sent_ms):
            return differs(
                "an attempt's earlier link, log end and time", told, (link, after, sent_ms)
            )
        allowed = self._state in {BatchState.SEALED, BatchState.WAITING}
        attempt.disbelieve()
        if attempt.knows_us:
            return "a success of an attempt is believed, expected not after disbelieve()"
        what = f"sending while {self._state.value}"
        wrong = misjudged(what, lambda: self._batch.send(attempt), allowed=allowed)
        if allowed:
            self._state = BatchState.IN_FLIGHT
            self._attempts.append(attempt)
            self._since_renumbered.append(attempt)
        return wrong

    def _move(self, event: BatchEvent, allowed: set[BatchState], after: BatchState) -> str | None:
        may = self._state in allowed
        what = f"{event.value} while {self._state.value}"
        wrong = misjudged(what, lambda: self._batch.move(event), allowed=may)
        if may:
            self._state = after
        return wrong

    def _end(self) -> str | None:
        event = self._dice.choice(list(_ENDS))
        allowed = {BatchState.IN_FLIGHT, BatchState.WAITING, BatchState.SEALED}
        if event is BatchEvent.ACK:
            allowed.remove(BatchState.SEALED)
        return self._move(event, allowed, _ENDS[event])

    def _learn(self, evidence: Evidence, now: float) -> str | None:
        before = self._persistence
        allowed = before is not Persistence.STORED
        if evidence is Evidence.RENUMBERED:
            allowed = before in {Persistence.NEVER_SENT, Persistence.REJECTED}
        elif evidence is Evidence.FORSAKEN:
            allowed = before is Persistence.IN_DOUBT
        what = f"evidence {evidence.value!r} while {before.value}"
        wrong = misjudged(what, lambda: self._batch.learn(evidence, now), allowed=allowed)
        if allowed:
            self._evidence.append((evidence, now))
            self._forsaken &= evidence not in {Evidence.REFUSED, Evidence.AMBIGUOUS}
        return wrong

    def _renumber(self, now: float) -> str | None:
        doubt = self._persistence is Persistence.IN_DOUBT
        fits = self._persistence is not Persistence.STORED and doubt is self._forsaken
        if not fits or self._state not in {BatchState.SEALED, BatchState.WAITING}:
            return None  # `_learn` and `_move` show what is refused
        identity = ProducerIdentity(8, int(now))
        self._numbers, self._ordinal = [identity, int(now), b"again"], int(now) + 1
        self._batch.renumber(identity, int(now), b"again", int(now) + 1)
        kind = Evidence.FORSAKEN if self._forsaken else Evidence.RENUMBERED
        self._evidence.append((kind, now))
        self._renamed |= self._forsaken
        self._state = BatchState.SEALED
        self._since_renumbered.clear()
        self._evidence_before = len(self._evidence)
        return None

    @property
    def _persistence(self) -> Persistence:
        """Whether it is stored, by all evidence.

        A proof is final, and doubt stays until then; a refusal counts until the batch gets new
        numbers.
        """
        kinds = [kind for kind, _ in self._evidence]
        if Evidence.PROVED in kinds:
            return Persistence.STORED
        if Evidence.AMBIGUOUS in kinds:
            return Persistence.IN_DOUBT
        if Evidence.RENUMBERED in kinds:
            kinds = kinds[len(kinds) - kinds[::-1].index(Evidence.RENUMBERED) :]
        return Persistence.REJECTED if Evidence.REFUSED in kinds else Persistence.NEVER_SENT

    def _differences(self) -> Iterator[str]:
        batch, state = self._batch, self._state
        doubt = self._persistence is Persistence.IN_DOUBT
        doubts = [at for kind, at in self._evidence if kind is Evidence.AMBIGUOUS]
        here = any(
            kind is Evidence.AMBIGUOUS for kind, _ in self._evidence[self._evidence_before :]
        )
        base = self._numbers[1]
        wire = base % _SEQUENCES if isinstance(base, int) else 0
        first = self._since_renumbered[0] if self._since_renumbered else None
        pairs: dict[str, tuple[object, object]] = {
            "state": (batch.state, state),
            "persistence": (batch.persistence, self._persistence),
            "due": (batch.due, state in {BatchState.SEALED, BatchState.WAITING}),
            "settled": (batch.settled, state in _ENDS.values()),
            "in doubt": (batch.in_doubt, doubt),
            "in doubt since": (batch.doubted_at, doubts[0] if doubts else None),
            "numbers stay": (batch.keeps_numbers, doubt and not self._forsaken),
            "surely absent under its present identity": (
                batch.absent_here,
                doubt and self._renamed and not here,
            ),
            "in doubt under its present identity": (batch.doubted_here, here),
            "renamed": (batch.renamed, self._renamed),
            "attempts": (batch.attempts, len(self._attempts)),
            "attempt": (batch.attempt, self._attempts[-1] if self._attempts else None),
            "first attempt": (batch.first_attempt, first),
            "numbers": ([batch.identity, batch.base, batch.data], self._numbers),
            "ordinal": (batch.ordinal, self._ordinal),
            "first sequence": (batch.wire_base, -1 if batch.identity is None else wire),
            "last sequence": (batch.wire_last, (wire + batch.count - 1) % _SEQUENCES),
            "compression": (batch.compression, self._compression),
            "number of records, and draft": (
                (len(batch.records), batch.draft),
                (batch.count, None),
            ),
            "deadline and latest timestamp": ((batch.deadline, batch.max_timestamp_ms), (100.0, 0)),
            "astray": (batch.astray, self._flags["astray"]),
            "appended": (batch.appended, self._flags["appended"]),
            "oversized": (batch.oversized, self._flags["oversized"]),
            "deadline is extended": (batch.extended, False),
        }
        yield from differences(pairs)
