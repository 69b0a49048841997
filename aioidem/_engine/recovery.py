"""Resolving doubt: which batch of a partition goes next when something must be sent again.

The rungs of the ladder:

CLEAR    resend oldest first; alone while the first-ack gate is closed. NONE = acknowledged, with
its own offset.
REFUSED  the oldest was answered OUT_OF_ORDER. Wait for what is outstanding, then decide: something
         in doubt means PROBING, nothing in doubt means that the leader lost what it had
         acknowledged.
ASKING   DescribeProducers (KIP-664) may say where to start. A hint, never a verdict: any replica
         answers it, it runs ahead of the high watermark, and it counts only with our epoch.
PROBING  the leader holds state for us (it said OUT_OF_ORDER), so it appends only in sequence:
         resend newest first. The first NONE proves every in-doubt batch below it. Probes append at
         most one batch and evict only what its own NONE proves, so they may be pipelined and the
         span does not bind them. After a code that no table names this is not sure: one at
         a time, and a NONE sends what is in doubt below it to SALVAGE.
SALVAGE  a success above a *rejected* batch: the leader had lost our state, so nothing is implied
         any more. Each in-doubt batch below is resent by itself, newest first; NONE = acknowledged,
         anything else = UNKNOWN.

Two full passes of refused probes, the second begun late enough for queued requests of a closed
connection to have been appended, end the probing: the data is not in this leader's log. That is a
loss of the leader's only where each refusal was OUT_OF_ORDER: what is refused for its size or its
timestamp may never have been there.

The evidence for PROBING dies with the route (leader epoch, connection) it was gathered on:
`restart`.

Rejected: what Java does, which is to bump the epoch and resend on OUT_OF_ORDER. Brokers of today
answer a retry older than their cache with that code too, and then the resend is a duplicate.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.lifecycle import transition
from aioidem.errors import KafkaError

__all__ = ["RECOVERY_TRANSITIONS", "Recovery", "RecoveryEvent", "Rung"]

PASSES_NEEDED = 2


class Rung(enum.Enum):
    """Where on the ladder a partition stands."""

    CLEAR = "clear"
    REFUSED = "refused"
    ASKING = "asking"
    PROBING = "probing"
    SALVAGE = "salvage"


class RecoveryEvent(enum.Enum):
    """What moves it."""

    HEAD_REFUSED = "head refused"
    DOUBT_REMAINS = "doubt remains"
    ASK = "ask"
    ANSWERED = "answered"
    PROVED = "proved"
    STATE_LOST = "state lost"
    RESOLVED = "resolved"
    RESTART = "restart"


_R, _E = Rung, RecoveryEvent

RECOVERY_TRANSITIONS: dict[tuple[Rung, RecoveryEvent], Rung] = {
    (_R.CLEAR, _E.HEAD_REFUSED): _R.REFUSED,
    (_R.CLEAR, _E.PROVED): _R.CLEAR,
    (_R.CLEAR, _E.STATE_LOST): _R.SALVAGE,
    (_R.CLEAR, _E.RESOLVED): _R.CLEAR,
    (_R.CLEAR, _E.RESTART): _R.CLEAR,
    (_R.REFUSED, _E.HEAD_REFUSED): _R.REFUSED,
    (_R.REFUSED, _E.DOUBT_REMAINS): _R.PROBING,
    (_R.REFUSED, _E.ASK): _R.ASKING,
    (_R.REFUSED, _E.PROVED): _R.CLEAR,
    (_R.REFUSED, _E.STATE_LOST): _R.SALVAGE,
    (_R.REFUSED, _E.RESOLVED): _R.CLEAR,
    (_R.REFUSED, _E.RESTART): _R.CLEAR,
    (_R.ASKING, _E.ANSWERED): _R.PROBING,
    (_R.ASKING, _E.RESOLVED): _R.CLEAR,
    (_R.ASKING, _E.RESTART): _R.CLEAR,
    (_R.PROBING, _E.PROVED): _R.CLEAR,
    (_R.PROBING, _E.STATE_LOST): _R.SALVAGE,
    (_R.PROBING, _E.RESOLVED): _R.CLEAR,
    (_R.PROBING, _E.RESTART): _R.CLEAR,
    (_R.SALVAGE, _E.PROVED): _R.SALVAGE,
    (_R.SALVAGE, _E.STATE_LOST): _R.SALVAGE,
    (_R.SALVAGE, _E.RESOLVED): _R.CLEAR,
    # A batch to be salvaged stays one whatever the route: the loss of state is a fact of the past.
    (_R.SALVAGE, _E.RESTART): _R.SALVAGE,
}


class Recovery:
    """The rung of one partition, and which batches this pass has probed."""

    __slots__ = (
        "_hinted",
        "_pass_began",
        "_probed",
        "asked",
        "pass_not_before",
        "passes",
        "refusal",
        "rung",
        "salvaged",
        "searches",
    )

    def __init__(self) -> None:
        self.rung = Rung.CLEAR
        self.passes = 0
        self.pass_not_before = 0.0
        self.salvaged: list[Batch] = []
        # ASKING only: whether DescribeProducers is on its way.
        self.asked = False
        # PROBING only: a probe of this pass was refused for good, for what it is and not for its
        # place. It may never have been appended, so that the pass proves no loss.
        self.refusal: KafkaError | None = None
        # ASKING, PROBING: probe what lies below the hinted batch as well. What the leader
        # recognises there shows how many batches it remembers (`retention`).
        self.searches = False
        self._hinted: Batch | None = None
        self._probed: set[int] = set()
        self._pass_began: float | None = None

    def move(self, event: RecoveryEvent) -> None:
        """Take one step of the ladder.

        Raises:
            InternalError: the table has no such step.
        """
        rung = transition(RECOVERY_TRANSITIONS, self.rung, event, "recovery")
        if rung is not self.rung:
            self.passes = 0
            self.pass_not_before = 0.0
            self.asked = False
            self.refusal = None
            self.searches &= rung in (Rung.ASKING, Rung.PROBING)
            self._hinted = None
            self._probed.clear()
            self._pass_began = None
        self.rung = rung

    def ask(self) -> None:
        """DescribeProducers is being asked: once is enough."""
        self.asked = True

    def refused_for_good(self, error: KafkaError) -> None:
        """Keep the reason that a leader which knows us gave for refusing a batch in doubt."""
        self.refusal = error

    def search(self, *, wanted: bool) -> None:
        """Say whether a pass goes on below what DescribeProducers names."""
        self.searches = wanted

    def hint(self, batch: Batch | None) -> None:
        """DescribeProducers named this batch as the newest appended, or nothing of ours."""
        self.move(RecoveryEvent.ANSWERED)
        self._hinted = batch

    def salvage(self, batches: Sequence[Batch]) -> None:
        """Probe these batches one by one: the leader had lost our state below them.

        Nothing is implied for them any more.
        """
        self.move(RecoveryEvent.STATE_LOST)
        self.salvaged.extend(batches)

    def next_probe(self, unresolved: Sequence[Batch], now: float) -> Batch | None:
        """Return the newest batch in doubt that this pass has not probed, or None."""
        if now < self.pass_not_before:
            return None
        hinted = self._hinted
        if hinted is not None and not hinted.settled:
            if id(hinted) not in self._probed:
                return hinted if hinted.state is BatchState.WAITING else None
            if hinted.state is BatchState.IN_FLIGHT:
                if not self.searches:
                    return None  # its NONE would answer for all the others
                unresolved = unresolved[: unresolved.index(hinted)]
        candidates = [b for b in unresolved if b.in_doubt and id(b) not in self._probed]
        for batch in reversed(candidates):
            if batch.state is not BatchState.WAITING:
                continue
            if batch.wire_base == 0 and batch is not candidates[0]:
                # A leader that holds an older epoch's state accepts wire sequence 0 with nothing
                # below it.
                continue
            return batch
        return None

    def probed(self, batch: Batch, now: float) -> None:
        """Note that a probe was sent."""
        if self._pass_began is None:
            self._pass_began = now
            self.refusal = None
        self._probed.add(id(batch))

    def end_pass(self, now: float, pause: float) -> bool:
        """Every probe of this pass was refused. Whether that was the last pass needed."""
        began = now if self._pass_began is None else self._pass_began
        self.passes += 1
        self.pass_not_before = max(began + pause, now)
        self._probed.clear()
        self._pass_began = None
        return self.passes >= PASSES_NEEDED

    @property
    def salvaging(self) -> bool:
        """Whether a batch to be salvaged is not settled, be it in flight."""
        return any(not batch.settled for batch in self.salvaged)

    def next_salvage(self) -> Batch | None:
        """Return the newest batch still to be salvaged that may be sent, or None."""
        self.salvaged = [batch for batch in self.salvaged if not batch.settled]
        for batch in reversed(self.salvaged):
            if batch.state is BatchState.WAITING:
                return batch
        return None
