"""Recovery: finds out whether a partition's batches in doubt (perhaps appended) are in the log.

It resends batches, and concludes from the error codes of the answers (NONE is success). How it does
so depends on the rung of a ladder on which the partition stands:

- CLEAR: batches are resent oldest first; only the oldest while the first-ack gate is closed (until
  the leader has acknowledged a batch). NONE means acknowledged, with the batch's own offset.
- REFUSED: the oldest batch was answered OUT_OF_ORDER. Wait until no batch is outstanding. If a
  batch is in doubt, PROBING follows (or ASKING first, if the leader answers DescribeProducers). If
  none is in doubt, the leader has lost a batch that it had acknowledged.
- ASKING: DescribeProducers (KIP-664) may say with which batch probing should begin. Its answer is a
  hint and decides nothing: any replica answers it, the batch may be above the high watermark, and
  the answer counts only for the present producer epoch.
- PROBING: the leader holds the producer's state (it answered OUT_OF_ORDER), so it appends only in
  sequence. Batches in doubt are resent, newest first (each such resend is a probe). The first NONE
  proves that every earlier batch in doubt is stored. At most one probe is appended. It may push
  earlier batches out of the broker's cache, but its NONE proves that they are stored. So several
  probes may be in flight, even more than the window (the most new batches in flight). After an
  error code that has no row in `classify` it is not certain that the leader holds the state. Then
  batches are probed one at a time, and after a NONE the earlier batches in doubt go to SALVAGE.
- SALVAGE: a batch succeeded although an earlier one had been *rejected*, or while the leader may
  have forgotten the producer. A success implies nothing any more: each earlier batch in doubt is
  resent by itself, newest first. NONE means acknowledged; OUT_OF_ORDER or a permanent refusal means
  UNKNOWN. Should the leader forget the producer once more, then of these resends it appends at most
  one again: a batch below the newest sequence that it knows is refused. With `in_doubt="resend"`,
  which permits second copies, they are resent oldest first, so that such a leader appends all of
  them, and in order.

Probing ends after two passes (a pass probes every batch in doubt once) in which all probes were
refused. Then the batches are not in this leader's log. The second pass begins late: by then the
broker has served the requests of closed connections that it may still have queued. One pass is
enough if the batches are refused for their content, and no copy of them can be appended later.

A batch that is not in the log is a data loss of the leader only if each refusal was OUT_OF_ORDER: a
batch that is refused for its size or its timestamp may never have been there.

What PROBING has shown is valid only for its route (leader epoch, connection); `RESTART` discards
it.

Rejected: raising the epoch and resending after OUT_OF_ORDER, as Java does. Present brokers also
answer a retry with that code if it is older than their cache, and then the resend is a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.lifecycle import Named, transition
from aioidem.errors import KafkaError

__all__ = ["RECOVERY_TRANSITIONS", "Recovery", "RecoveryEvent", "Rung"]

PASSES_NEEDED = 2


class Rung(Named):
    """How a partition resolves batches in doubt at present; the module docstring describes each."""

    CLEAR = "clear"
    REFUSED = "refused"
    ASKING = "asking"
    PROBING = "probing"
    SALVAGE = "salvage"


class RecoveryEvent(Named):
    """An event that changes a partition's `Rung`."""

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
    (_R.CLEAR, _E.STATE_LOST): _R.SALVAGE,
    (_R.CLEAR, _E.RESOLVED): _R.CLEAR,
    (_R.CLEAR, _E.RESTART): _R.CLEAR,
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
    # A new route (connection or leader) does not end SALVAGE: the leader lost the producer's state,
    # so a later success still proves nothing about the batches in doubt.
    (_R.SALVAGE, _E.RESTART): _R.SALVAGE,
}


class Recovery:
    """The progress of finding out which of one partition's batches in doubt are in the log.

    A batch is in doubt if an attempt to send it has ended, and it is unknown whether the broker
    wrote it. A probe is a batch in doubt that is resent to learn whether it is stored. A pass
    probes each batch in doubt once, newest first.
    """

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
        # ASKING only: whether DescribeProducers has been sent.
        self.asked = False
        # PROBING only: the error of a batch that was permanently refused for its content (not for
        # its sequence); None if none was. Such a batch may never have been appended, so the pass
        # does not prove that the leader lost it.
        self.refusal: KafkaError | None = None
        # ASKING and PROBING only: whether to probe also the batches that are older than the one
        # that DescribeProducers named as the newest appended. Each older batch that the leader
        # recognises as a duplicate shows how many batches the leader retains (`retention`).
        self.searches = False
        self._hinted: Batch | None = None
        self._probed: set[Batch] = set()
        self._pass_began: float | None = None

    def move(self, event: RecoveryEvent) -> None:
        """Go to the rung that `RECOVERY_TRANSITIONS` names, and forget the previous one's details.

        Raises:
            InternalError: the table has no row for this rung and event.
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
            self.salvaged.clear()
        self.rung = rung

    def interrupt(self) -> None:
        """Leave the rung PROBING without a result, if the partition is on it.

        A probe (a batch in doubt that is resent) got no answer or a retriable error code, so the
        probes so far do not show whether the batches in doubt are in the log.
        """
        if self.rung is Rung.PROBING:
            self.move(RecoveryEvent.RESTART)

    def salvaged_one(self) -> None:
        """Note that a batch to be salvaged has its outcome: the rung SALVAGE ends with the last."""
        self.move(RecoveryEvent.PROVED if self.salvaging else RecoveryEvent.RESOLVED)

    def ask(self) -> None:
        """Note that DescribeProducers is being sent, so that it is sent once."""
        self.asked = True

    def refused_for_good(self, error: KafkaError) -> None:
        """Keep the error with which the leader has permanently refused a batch in doubt.

        Only a refusal by a leader that holds the producer's state counts: such a leader recognises
        a batch that it has already appended.
        """
        self.refusal = error

    def search(self, *, wanted: bool) -> None:
        """Set whether batches older than the one that DescribeProducers names are probed too."""
        self.searches = wanted

    def hint(self, batch: Batch | None) -> None:
        """Begin to probe, starting with the newest appended batch that DescribeProducers named.

        Args:
            batch: that batch; None if the answer named no batch in doubt. Then probing starts with
            the newest batch in doubt.
        """
        self.move(RecoveryEvent.ANSWERED)
        self._hinted = batch

    def salvage(self, batches: Sequence[Batch]) -> None:
        """Have batches in doubt resent one by one: the leader may have lost the producer's state.

        Therefore the success of a later batch does not prove that these are stored.
        """
        self.move(RecoveryEvent.STATE_LOST)
        self.salvaged.extend(batches)

    def next_probe(self, unresolved: Sequence[Batch], now: float) -> Batch | None:
        """Return the next batch to probe (resend); None if none is left in this pass, or not yet.

        It is the newest batch in doubt that was not probed in this pass, or the batch of `hint`.
        """
        if now < self.pass_not_before:
            return None
        hinted = self._hinted
        if hinted is not None and not hinted.settled:
            if hinted not in self._probed:
                return hinted if hinted.state is BatchState.WAITING else None
            if hinted.state is BatchState.IN_FLIGHT:
                if not self.searches:
                    return None  # error NONE for it would prove all earlier batches stored
                unresolved = unresolved[: unresolved.index(hinted)]
        candidates = [b for b in unresolved if b.in_doubt and b not in self._probed]
        for batch in reversed(candidates):
            if batch.state is not BatchState.WAITING:
                continue
            if batch.wire_base == 0 and batch is not candidates[0]:
                # The sequence has wrapped around to 0. A leader whose state is of an older epoch,
                # because it has lost what it acknowledged in this one, accepts 0 without earlier
                # batches. So this probe is the last of its pass.
                continue
            return batch
        return None

    def probed(self, batch: Batch, now: float) -> None:
        """Note that a probe is being sent."""
        if self._pass_began is None:
            self._pass_began = now
            self.refusal = None
        self._probed.add(batch)

    def end_pass(self, now: float, pause: float) -> bool:
        """Note that every probe of this pass was refused.

        Args:
            now: seconds.
            pause: the least number of seconds between the beginnings of two passes.

        Returns:
            Whether enough passes were made to conclude that the batches are not in the log.
        """
        began = now if self._pass_began is None else self._pass_began
        self.passes += 1
        self.pass_not_before = max(began + pause, now)
        self._probed.clear()
        self._pass_began = None
        return self.passes >= PASSES_NEEDED

    @property
    def pauses(self) -> bool:
        """Whether a pass has ended, all its probes refused, and the next one has not begun."""
        return self.rung is Rung.PROBING and self.passes > 0 and self._pass_began is None

    @property
    def proof(self) -> str:
        """How a batch in doubt is being resolved: "resend", "probe", or "asked" (see `hint`)."""
        if self.rung is not Rung.PROBING:
            return "resend"
        return "probe" if self._hinted is None else "asked"

    @property
    def salvaging(self) -> bool:
        """Whether a batch to be salvaged (resent by itself) has no outcome yet."""
        return any(not batch.settled for batch in self.salvaged)

    def next_salvage(self, *, oldest: bool) -> Batch | None:
        """Return the next batch to be salvaged that is not in flight; None if there is none.

        Args:
            oldest: whether the oldest one is next, and not the newest one.
        """
        self.salvaged = [batch for batch in self.salvaged if not batch.settled]
        waiting = [batch for batch in self.salvaged if batch.state is BatchState.WAITING]
        first = min if oldest else max
        return first(waiting, key=lambda batch: batch.ordinal, default=None)
