"""The bench of the drill of answers: a partition alone, its batches, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.read_back import WrittenBatch
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route
from aioidem.errors import KafkaError, OutOfOrderSequenceNumber, RecordTooLargeError
from aioidem.structs import DeliveryStatus

from .answered_ends import LONGEST, Facts, Stamps
from .answered_rows import GAP, Picture, Told, look, reason_of
from .answered_rules import Due
from .comparing import differs

__all__ = ["Bench"]

_MOST_UNRESOLVED: Final = 8
"""The most batches that have no outcome yet."""
_KINDS: Final = (*["plain", "resend"] * 4, *["transaction"] * 2, "unnumbered", "unanswered")
"""Kinds of producers: idempotent with in_doubt="fail" or "resend", transactional, not idempotent,
and with acks=0.
"""
_DATA: Final = idempotent_batch(0)


class Bench:
    """A partition, its batches in flight, and what the rules need to know.

    Attributes:
        answers: Whether Produce requests are answered (acks is not 0).
        resend: Whether a batch in doubt may be sent under new numbers (`in_doubt="resend"`).
        pause: Seconds from the beginning of a pass of probes to the next pass.
        out: The batches in flight, oldest first.
        errors: How many errors were made, each of which has its number in its text.
        pass_began: When the first probe of this pass was sent, in seconds; None if none was.
        passes: How many passes were over when that was last noted.
    """

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = dice.choice((0.0, 1000.0))
        kind = dice.choice(_KINDS)
        self.idempotent = kind not in {"unnumbered", "unanswered"}
        self.answers = kind != "unanswered"
        self.resend, self.transactional = kind == "resend", kind == "transaction"
        self.pause = dice.choice((0.5, 10.0))
        self.retry = Backoff(1.0, LONGEST, lambda: 0.5)
        self.told = Told()
        self.state = PartitionState(
            *("t", 4, None),
            idempotent=self.idempotent,
            retry=self.retry,
            pause=self.pause,
            resend=self.resend,
            transactional=self.transactional,
        )
        self.epoch = 0
        if self.idempotent:
            self.state.adopt(ProducerIdentity(7, self.epoch))
            self.state.ledger.take(dice.choice((0, 0, 9, 2**31 - 4)))
        self.state.follow(Route(1, 1, 0))
        if dice.random() < 0.3:
            self.state.begin_transaction(1, gated=False)
        self.stamps = Stamps()
        self.out: list[Batch] = []
        self.errors = 0
        self.out_of_order = False
        """Whether the last answer was that a sequence is not the next one."""
        self.pass_began: float | None = None
        self.passes = 0

    def judge(
        self, rule: Callable[[Due], None], event: Callable[[], object], *others: Batch
    ) -> str | None:
        """Let something happen, and return how the partition differs from what must follow.

        Args:
            rule: Changes the picture of the partition from before to the one expected after.
            event: What happens.
            others: Batches that may end by it, or that take the place of one.
        """
        ended = [batch for batch in self.out if batch.settled]
        due = self._look(*ended, *others)
        rule(Due(due, self._facts()))
        due.stamp = self.stamps.oldest
        event()
        told = self._look(*due.rows)
        self._note_pass()
        for name, value in vars(due).items():
            wrong = differs(name, vars(told)[name], value)
            if wrong is not None:
                return wrong
        return None

    def _look(self, *others: Batch) -> Picture:
        return look(self.state, self.told, self.retry, others)

    def _facts(self) -> Facts:
        state, recovery = self.state, self.state.recovery
        return Facts(
            now=self.now,
            idempotent=self.idempotent,
            transactional=self.transactional,
            resend=self.resend,
            gated=state.gate.applies,
            identity=state.ledger.identity,
            route=state.leadership.route,
            next_ordinal=state.batches.next_ordinal,
            suspect=state.suspicion.suspect,
            proof=recovery.proof,
            probes_left=recovery.next_probe(state.batches.unresolved, self.now) is not None,
            pass_began=self.now if self.pass_began is None else self.pass_began,
            stamps=self.stamps,
        )

    def error(self) -> KafkaError:
        """Return a new error, which has its own number in its text."""
        self.errors += 1
        kind = self.dice.choice((KafkaError, OutOfOrderSequenceNumber, RecordTooLargeError))
        return kind(f"code {self.errors}")

    def pick(self, fits: Callable[[Batch], bool]) -> Batch | None:
        """Return one of the batches without an outcome that fit; None if none does."""
        found = [batch for batch in self.state.batches.unresolved if fits(batch)]
        return self.dice.choice(found) if found else None

    # -- what is sent, and to whom -----------------------------------------------------------------

    def send(self) -> None:
        """Send a batch that waits, or a new one, if the rung lets it; nothing is judged."""
        state, dice, rung = self.state, self.dice, self.state.recovery.rung
        wanted = state.ledger.bump_wanted
        batch = self.pick(lambda b: b.due and not (b.forsaken and wanted) and not b.oversized)
        if rung in {Rung.REFUSED, Rung.ASKING}:
            return
        if rung is Rung.PROBING and dice.random() < 0.9:
            self.send_next_probe()
            return
        if rung is Rung.SALVAGE and dice.random() < 0.8:
            batch = state.recovery.next_salvage(oldest=self.resend)
        elif (batch is None or dice.random() < 0.5) and len(
            state.batches.unresolved
        ) < _MOST_UNRESOLVED:
            batch = self._seal() if not wanted or dice.random() < 0.2 else batch
        if batch is not None:
            self.send_this(batch)

    def send_next_probe(self) -> bool:
        """Send the next probe; return whether there was one."""
        batch = self.state.recovery.next_probe(self.state.batches.unresolved, self.now)
        if batch is not None:
            self.send_this(batch)
        return batch is not None

    def send_this(self, batch: Batch) -> None:
        """Send a batch; sometimes it is drawn whether its success would prove anything."""
        self.state.send(batch, self.now)
        self.out.append(batch)
        if batch.attempt is not None and self.idempotent and self.dice.random() < 0.6:
            batch.attempt.knows_us = self.dice.random() < 0.8
        if self.state.recovery.rung is Rung.PROBING and self.pass_began is None:
            self.pass_began = self.now

    def _note_pass(self) -> None:
        """Note whether a pass of probes has ended."""
        recovery = self.state.recovery
        if recovery.rung is not Rung.PROBING or recovery.passes != self.passes:
            self.pass_began, self.passes = None, recovery.passes

    def prepare(self) -> None:
        """Prepare the next step, and go over to a new epoch if one is wanted."""
        self._note_pass()
        if self.state.ledger.bump_wanted and self.dice.random() < 0.4:
            self._renew()

    def _records(self, count: int) -> list[PendingRecord]:
        records = [PendingRecord(None, b"", (), 0, None, 10) for _ in range(count)]
        group = RecordGroup(99) if self.dice.random() < 0.3 else None
        for record in records:
            record.group = group
        return records

    def _seal(self) -> Batch:
        state, records = self.state, self._records(self.dice.choice((1, 1, 2, 3)))
        batch = self.batch(
            records, state.batches.next_ordinal, state.ledger.take(len(records)) * self.idempotent
        )
        state.enlist(batch)
        return batch

    def batch(self, records: list[PendingRecord], ordinal: int, base: int) -> Batch:
        """Return a sealed batch under the present identity."""
        return Batch(
            ordinal=ordinal,
            records=records,
            data=_DATA,
            identity=self.state.ledger.identity,
            base=base,
            deadline=self.dice.choice((90.0, 100.0)),
            max_timestamp_ms=self.dice.choice((500, 600, 700)),
        )

    def change(self) -> None:
        """Change what an answer depends on: the leader, the identity, and what is suspected."""
        state, dice = self.state, self.dice
        if self.idempotent and not self.transactional:
            state.suspicion.suspect = dice.random() < 0.3
            state.suspicion.exempt = state.suspicion.suspect and dice.random() < 0.5
        if dice.random() < 0.2:
            state.gate.question()
        if dice.random() < 0.3:
            state.queue.append(PendingRecord(None, b"", (), 0, None, 10), self.now)
        if state.batches.outstanding:
            return
        route = state.leadership.route
        if dice.random() < 0.3 and route is not None:
            state.follow(Route(route.link_id + 1, dice.choice((1, 2)), dice.choice((0, 1))))
        if dice.random() < 0.1:
            self._renew()

    def _renew(self) -> None:
        """Go over to the next epoch, if no batch is outstanding."""
        if not self.idempotent or self.state.batches.outstanding:
            return
        newer = ProducerIdentity(7, self.epoch + 1)
        self.state.adopt(newer)
        if self.state.ledger.identity == newer:
            self.stamps.acked = self.stamps.unknown = None
            self.epoch += 1

    # -- what no answer brings ---------------------------------------------------------------------

    def end_one(self) -> str | None:
        """End one batch with an error, perhaps while its answer is being handled."""
        batch, error = self.pick(lambda _: True), self.error()
        reason, answered = reason_of(error) or GAP, self.dice.random() < 0.5
        if batch is None:
            return None
        end = self.state.endings.end
        return self.judge(
            lambda due: due.ended([batch], reason, answered=answered),
            lambda: end(batch, error, self.told, answered=answered),
            batch,
        )

    def end_all(self) -> str | None:
        """End all batches, as the end of the producer or of the transaction does."""
        error, queued = self.error(), list(self.state.queue.records)
        reason, endings = reason_of(error) or GAP, self.state.endings
        if self.dice.random() < 0.5:
            return self.judge(
                lambda due: due.abandoned(queued, reason),
                lambda: endings.abandon(error, self.told),
            )
        doubt = self.dice.choice((None, DeliveryStatus.UNKNOWN, DeliveryStatus.NOT_WRITTEN))
        return self.judge(
            lambda due: due.aborted(queued, reason, doubt),
            lambda: endings.abort(error, doubt, self.told),
        )

    def find(self) -> str | None:
        """Read a batch in doubt back from the log, which proves that it is stored."""
        batch = self.pick(lambda b: b.in_doubt and b.state is BatchState.WAITING)
        if batch is None:
            return None
        written = WrittenBatch(9, 10, 7, 0, 0, self.dice.choice((-1, 44)))
        settle_ack = self.state.endings.settle_ack
        return self.judge(
            lambda due: due.acknowledge(batch, 9, written.log_append_time_ms, how="read back"),
            lambda: settle_ack(batch, 9, self.told, None, written),
            batch,
        )

    def set_back(self) -> str | None:
        """Let metadata or a quota set the partition back, or end what set it back."""
        setbacks, now, at = self.state.setbacks, self.now, self.now + 3.0
        which = self.dice.choice(("leaderless", "led", "leader changed", "wait", "forget"))
        events: dict[str, Callable[[], None]] = {
            "leaderless": lambda: setbacks.leaderless(now),
            "led": setbacks.led,
            "leader changed": setbacks.leader_changed,
            "wait": lambda: setbacks.wait_until(at),
            "forget": setbacks.forget,
        }
        return self.judge(lambda due: due.set_back(which, at), events[which])
