"""The drill of answers: what one answer, or the loss of one, does to one partition.

A partition is brought into states that a run hardly ever has: batches of which some are in flight,
some wait, some are in doubt or given up for another epoch, on any rung, with any log. Then one
thing happens to it. What must follow is derived by rules (`answered_rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.classify import Action, Disposition
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.recovery import Rung
from aioidem._protocol.produce import PartitionAnswer
from aioidem.errors import KafkaError

from .answered_bench import Bench
from .comparing import differs

__all__ = ["drill_answered"]

_STEPS: Final = 65
_PLAIN: Final = (Action.RETRY, Action.RETRY, Action.FAIL, Action.SPLIT, Action.FATAL)
"""What error codes mean to a producer that is not idempotent."""
_ACTIONS: Final = (*Action, *[Action.RETRY] * 3, *[Action.FAIL, Action.OUT_OF_ORDER] * 3)
"""What error codes mean to an idempotent producer."""
_PROBED: Final = (*[Action.OUT_OF_ORDER] * 9, *[Action.DUPLICATE] * 2, Action.FAIL)
"""What a leader that holds the producer's state says of a batch that is not next."""


def drill_answered(dice: Random) -> Iterator[str]:
    """Yield what an answer, or the end of a batch, does to a partition that breaks the rules."""
    walk = _Walk(dice)
    for _ in range(_STEPS):
        wrong = walk.step()
        if wrong is not None:
            yield f"answered: {wrong}"
            return


class _Walk(Bench):
    """A partition to which one thing after the other happens."""

    def step(self) -> str | None:
        """Let one thing happen, and return what is wrong after it."""
        dice = self.dice
        self.now += dice.choice((0.0, 0.0, 0.5, 1.0, 12.0))
        if dice.random() < 0.3:
            self.now = max(self.now, self.state.recovery.pass_not_before)
        acts: list[Callable[[], str | None]] = [self._answer, self._answer, self._advance]
        match self.state.recovery.rung:
            case Rung.CLEAR:
                acts += [self._several, self._answer, self._head] * 3
                acts += [self.send] * 4
            case Rung.REFUSED:
                acts += [self._answer, self._advance, self._advance]
                acts += [self.change]
            case Rung.ASKING:
                acts += [self._ask, self._ask]
            case Rung.PROBING:
                acts += [self._probe] * 5
            case Rung.SALVAGE:
                acts += [self._salvage] * 3
                acts += [self.send]
        acts += [self.change]
        # Seldom something happens that is no answer.
        if dice.random() < 0.12:
            acts = [self.end_one, self.end_all, self.find, self._ask, *[self.set_back] * 2]
        act = dice.choice(acts)
        wrong = act()
        self.prepare()
        return None if wrong is None else f"{wrong} after {act.__name__.strip('_')}"

    # -- several at once ---------------------------------------------------------------------------

    def _several(self) -> str | None:
        """Send several batches; the older ones are lost or refused, and the newest may succeed.

        Most ways to lose them leave them in doubt.
        """
        end = self.dice.choice((*[self._lose, self._decline] * 2, self._puzzle, None))
        wrong = self._end_attempt(self._acknowledge) if end == self._puzzle else None
        for _ in range(self.dice.randrange(2, 6)):
            self.send()
        while end is not None and len(self.out) > 1 and self.dice.random() < 0.9 and wrong is None:
            wrong = self._end_attempt(end, oldest=True)
        if wrong is None and self.dice.random() < 0.5:
            wrong = self._end_attempt(self._acknowledge)
        return wrong

    def _head(self) -> str | None:
        """Lose what is in flight, then send the oldest batch; mostly it is refused."""
        wrong = None
        while self.out and wrong is None and self.dice.random() < 0.95:
            wrong = self._end_attempt(self._lose)
        head = self.state.batches.head
        if wrong is None and head is not None and head.due and not self.out:
            self.send_this(head)
            wrong = self._end_attempt(self._refuse_probe)
        return wrong

    def _probe(self) -> str | None:
        """Send all probes of a pass; most are refused, for their sequence or their content."""
        wrong = None
        while self.state.recovery.rung is Rung.PROBING and self.send_next_probe():
            pass
        end = self.dice.choice(
            (*[self._refuse_probe] * 4, *[self._refuse_content] * 2, *[self._lose] * 2)
        )
        while self.out and wrong is None and self.dice.random() < 0.97:
            wrong = self._end_attempt(end)
        return wrong or self._advance()

    def _salvage(self) -> str | None:
        """Send one batch again, and answer it."""
        self.send()
        ends = self._refuse_probe, self._refuse_content, self._acknowledge, self._acknowledge
        return self._end_attempt(self.dice.choice(ends))

    def _refuse_probe(self, batch: Batch) -> str | None:
        """Refuse a batch as a leader does that compares its sequence with the next one."""
        action = self.dice.choice(_PROBED if self.idempotent else _PLAIN)
        return self._refuse_by(batch, action)

    def _refuse_content(self, batch: Batch) -> str | None:
        """Refuse a batch for its content, mostly by a leader that would recognise it."""
        known = self.state.leadership.knows(batch) or self.dice.random() < 0.2
        return self._refuse_by(batch, Action.FAIL if known else Action.RETRY)

    def _decline(self, batch: Batch) -> str | None:
        """Refuse a batch with a retriable code, which says that it was not appended."""
        return self._refuse_by(batch, Action.RETRY)

    def _puzzle(self, batch: Batch) -> str | None:
        """Answer with a code that no table explains: it leaves the batch in doubt."""
        known = self.state.leadership.knows(batch) or self.dice.random() < 0.2
        return self._refuse_by(batch, Action.FAIL if known else Action.RETRY, precedes=False)

    def _refuse_by(self, batch: Batch, action: Action, *, precedes: bool = True) -> str | None:
        precedes = precedes and action is not Action.DUPLICATE
        disposition = Disposition(action, precedes, refresh_metadata=False)
        return self._refuse(batch, Refusal(disposition, self.error(), {}, None))

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> str | None:
        draw = self.dice.random()
        if draw < 0.2:
            return self._end_attempt(self._lose)
        return self._end_attempt(self._acknowledge if draw < 0.5 else self._refuse_somehow)

    def _end_attempt(
        self, end: Callable[[Batch], str | None], *, oldest: bool = False
    ) -> str | None:
        """End an attempt: of a batch that is in flight, the oldest one or any.

        The attempt is made a retry, which is evidence of how many batches the leader retains. The
        evidence awaits its answer until it ends, and then keeps it only if the leader has refused
        the batch as out of order.
        """
        if not self.out:
            return None
        batch = self.out.pop(0 if oldest else self.dice.randrange(len(self.out)))
        attempt, evidence = batch.attempt, self.state.leadership.evidence
        if attempt is None or not self.answers:
            on_unanswered = self.state.failures.on_unanswered
            return self.judge(
                lambda due: due.unanswered(batch),
                lambda: on_unanswered(batch, self.now, self.told),
                batch,
            )
        evidence.clear()
        attempt.earlier_link = 1
        evidence.sent(batch, 1)
        self.out_of_order = False
        wrong = end(batch)
        awaited = not evidence.none
        attempt.earlier_link = None
        evidence.sent(batch, 1)  # it counts again, if it was refused and others do not show why
        told = awaited, not evidence.none
        evidence.clear()
        due = False, self.out_of_order
        return wrong or differs("a retry is awaited, and kept as evidence, after it", told, due)

    def _acknowledge(self, batch: Batch) -> str | None:
        dice, log, unresolved = self.dice, self.state.log, self.state.batches.unresolved
        older = unresolved[: unresolved.index(batch)] if batch in unresolved else []
        room = sum(b.count for b in older if b.in_doubt and b.ordinal > log.ordinal)
        offsets = -1, log.offset - 2, log.offset, *[log.offset + max(room, 1)] * 4
        answer = PartitionAnswer(
            *("t", None, 4, 0),
            max(dice.choice((*offsets, *[log.offset + room + 1] * 4)), -1),
            log_append_time_ms=dice.choice((-1, -1, batch.max_timestamp_ms, 550, 0)),
            log_start_offset=dice.choice((-1, 3)),
            retained=dice.choice((None, 6, 7, 8, 0)),
        )
        # Whether the answer came on the connection that the partition uses now.
        current, now = dice.random() < 0.8, self.now
        on_ack = self.state.acknowledgements.on_ack
        return self.judge(
            lambda due: due.acked(batch, answer, current=current),
            lambda: on_ack(batch, answer, now, current=current, out=self.told),
            batch,
        )

    def _lose(self, batch: Batch) -> str | None:
        """Lose the connection before the answer, perhaps before the request was written."""
        written, on_lost = self.dice.random() < 0.7, self.state.failures.on_lost
        return self.judge(
            lambda due: due.lost(batch, written=written),
            lambda: on_lost(batch, written=written, now=self.now),
            batch,
        )

    def _refuse_somehow(self, batch: Batch) -> str | None:
        dice = self.dice
        action = dice.choice(_ACTIONS if self.idempotent else _PLAIN)
        precedes = action is not Action.DUPLICATE and dice.random() < 0.8
        culprits: dict[int, KafkaError] = {}
        innocent = None
        if action is Action.FAIL and dice.random() < 0.7:
            named = dice.sample(range(batch.count), dice.randrange(1, batch.count + 1))
            culprits = {at: self.error() for at in sorted(named)}
            rest = [record for at, record in enumerate(batch.records) if at not in culprits]
            innocent = self.batch(rest, batch.ordinal, batch.base) if rest else None
        disposition = Disposition(action, precedes, dice.random() < 0.3)
        return self._refuse(batch, Refusal(disposition, self.error(), culprits, innocent))

    def _refuse(self, batch: Batch, refusal: Refusal) -> str | None:
        action, settled = refusal.disposition.action, batch.settled
        told: list[bool] = []
        self.out_of_order = action is Action.OUT_OF_ORDER

        def event() -> None:
            told.append(self.state.failures.on_error(batch, refusal, self.now, self.told))
            if told == [True]:  # as the caller does, for all partitions
                self.state.endings.disown(refusal.error, self.told)

        others = [batch] if refusal.innocent is None else [batch, refusal.innocent]
        wrong = self.judge(lambda due: due.refused(batch, refusal), event, *others)
        due = [action is Action.FENCED and not self.transactional and not settled]
        wrong = differs("another client uses the producer id", told, due) or wrong
        return wrong and f"{wrong}, where a batch was refused with {refusal.disposition}"

    # -- the ladder --------------------------------------------------------------------------------

    def _advance(self) -> str | None:
        dice, ladder = self.dice, self.state.ladder
        if dice.random() < 0.3:
            return self.judge(
                lambda due: due.advanced(self.pause, may_ask=False),
                lambda: ladder.advance(self.now, self.told),
            )
        throttled, may_ask = dice.choice((0.0, 5.0)), dice.random() < 0.5
        return self.judge(
            lambda due: due.advanced(max(self.pause, throttled), may_ask=may_ask),
            lambda: ladder.advance(self.now, self.told, throttled=throttled, may_ask=may_ask),
        )

    def _ask(self) -> str | None:
        """Ask the leader for the last sequence of the producer (DescribeProducers), and answer."""
        dice, state, ladder = self.dice, self.state, self.state.ladder
        asking, unresolved = state.recovery.rung is Rung.ASKING, state.batches.unresolved
        wrong = differs("the leader is to be asked", ladder.wants_producers, asking)
        if wrong is not None:
            return wrong
        state.recovery.ask()
        if ladder.wants_producers:
            return "the leader is to be asked twice, expected once"
        if not asking:
            state.recovery.asked = False
        numbers = [batch.wire_last for batch in unresolved] + [77]
        epoch = self.epoch + dice.choice((0, 0, 0, 1))
        last = dice.choice((None, *[(epoch, number) for number in numbers]))
        named = [
            batch
            for batch in unresolved
            if batch.in_doubt and last == (self.epoch, batch.wire_last)
        ]
        wrong = self.judge(lambda due: due.asked(), lambda: ladder.on_producers(last))
        if wrong is None and asking:
            how = state.recovery.proof, state.recovery.next_probe(unresolved, self.now)
            due = named[0] if named and named[0].state is BatchState.WAITING else None
            if how[0] != ("asked" if named else "probe") or (named and how[1] is not due):
                due_proof = "asked" if named else "probe"
                return (
                    f"after the answer {last}, the way to a proof and the next probe: told {how}, "
                    f"expected {due_proof!r} and {due if named else 'any batch'}"
                )
        return wrong
