"""The drill of batches in doubt: which there are, and which one is probed or salvaged next.

A run rarely has several batches in doubt that are refused, lost and divided in an unusual order.
Here that happens at random (`open_batches`), while the recovery moves from rung to rung. What
`Recovery` tells is derived from what has happened since it came to its present rung (`Rung`): a
partition climbs these one by one to find out whether batches in doubt are in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from aioidem._engine.recovery import RECOVERY_TRANSITIONS, Recovery, RecoveryEvent, Rung
from aioidem.errors import KafkaError

from .comparing import differences, differs, misjudged
from .open_batches import SEQUENCES, OpenBatches, Row

__all__ = ["drill_doubted"]

_STEPS: Final = 60
_PASSES: Final = 2
"""After so many passes whose probes were all refused, the batches are not in the log."""


def drill_doubted(dice: Random) -> Iterator[str]:
    """Yield what is told of batches in doubt that does not follow from what has happened."""
    batches = OpenBatches(dice)
    recovery = _RecoveryDrill(dice, batches)
    now = 0.0
    for _ in range(_STEPS):
        now += dice.choice((0.0, 0.0, 1.0, 5.0))
        drill = dice.choice((batches, recovery))
        for wrong in (*batches.differences(), *recovery.differences(now), drill.act(now)):
            if wrong is not None:
                yield f"doubted: {wrong}"
                return


@dataclass
class _Since:
    """What has happened since the recovery came to its rung."""

    searches: bool
    """Whether batches older than the one that the leader named are probed, too."""
    asked: bool = False
    """Whether the leader was asked for its last sequence."""
    refusal: KafkaError | None = None
    """Why a batch was refused for its content."""
    hinted: Row | None = None
    """The batch that the leader named as the newest one in its log."""
    salvaged: list[Row] = field(default_factory=list)
    """The batches that are sent one by one, because the leader has lost its state."""
    probes: list[tuple[Row, float]] = field(default_factory=list)
    """The probes of this pass, and when each was sent."""
    over: list[float] = field(default_factory=list)
    """For each pass that is over: when the next one may begin."""


class _RecoveryDrill:
    """A `Recovery`, and what has happened to it."""

    def __init__(self, dice: Random, batches: OpenBatches) -> None:
        self._dice = dice
        self._batches = batches
        self._recovery = Recovery()
        self._rung = Rung.CLEAR
        self._since = _Since(searches=False)

    def act(self, now: float) -> str | None:
        """Take a step on the ladder; return what is wrong by itself."""
        told, since, dice = self._recovery, self._since, self._dice
        match dice.randrange(12):
            case 0:
                return self._move(dice.choice(list(RecoveryEvent)))
            case 1 if dice.random() < 0.5:
                told.interrupt()
                if self._rung is Rung.PROBING:
                    self._come_to(Rung.CLEAR)
            case 2:
                told.search(wanted=(wanted := dice.random() < 0.5))
                since.searches = wanted
            case 3:
                told.refused_for_good(error := KafkaError("too large"))
                since.refusal = error
            case 4 | 5 if dice.random() < 0.5:
                return self._salvage()
            case _:
                return self._go_on(now)
        return None

    def _go_on(self, now: float) -> str | None:
        """Do what the engine does on the present rung."""
        told, dice = self._recovery, self._dice
        match self._rung:
            case Rung.CLEAR:
                return self._move(RecoveryEvent.HEAD_REFUSED)
            case Rung.REFUSED if dice.random() < 0.4:
                told.search(wanted=True)
                self._since.searches = True
            case Rung.REFUSED:
                return self._move(dice.choice((RecoveryEvent.ASK, RecoveryEvent.DOUBT_REMAINS)))
            case Rung.ASKING if dice.random() < 0.4:
                told.ask()
                self._since.asked = True
            case Rung.ASKING:
                rows = [row for row in self._batches.open if row.doubted]
                hinted = dice.choice(rows) if rows else None
                told.hint(None if hinted is None else hinted.batch)
                self._come_to(Rung.PROBING)
                self._since.hinted = hinted
            case Rung.PROBING:
                self._probe(now)
                return self._end_pass(now)
            case Rung.SALVAGE if dice.random() < 0.1:
                return self._move(RecoveryEvent.RESOLVED)
            case Rung.SALVAGE if dice.random() < 0.3:
                told.salvaged_one()
                if all(row.ended for row in self._since.salvaged):
                    self._come_to(Rung.CLEAR)
            case _:
                pass
        return None

    def _come_to(self, rung: Rung) -> None:
        """Note that the recovery is on a rung; on another one than before it begins anew."""
        if rung is not self._rung:
            kept = self._since.searches and rung in {Rung.ASKING, Rung.PROBING}
            self._rung, self._since = rung, _Since(searches=kept)

    def _move(self, event: RecoveryEvent) -> str | None:
        rung = RECOVERY_TRANSITIONS.get((self._rung, event))
        what, allowed = f"{event} on {self._rung}", rung is not None
        wrong = misjudged(what, lambda: self._recovery.move(event), allowed=allowed)
        self._come_to(rung or self._rung)
        return wrong

    def _salvage(self) -> str | None:
        rows = [row for row in self._batches.open if row.doubted and self._dice.random() < 0.7]
        rows = [row for row in rows if row not in self._since.salvaged]
        batches = [row.batch for row in rows]
        what, allowed = f"salvaging batches on {self._rung}", self._rung is not Rung.ASKING
        wrong = misjudged(what, lambda: self._recovery.salvage(batches), allowed=allowed)
        if allowed:
            self._come_to(Rung.SALVAGE)
            self._since.salvaged += rows
        return wrong

    def _probe(self, now: float) -> None:
        row = self._due_probe(now)
        if row is not None:
            self._recovery.probed(row.batch, now)
            self._batches.send(row)
            self._since.refusal = self._since.refusal if self._since.probes else None
            self._since.probes.append((row, now))

    def _end_pass(self, now: float) -> str | None:
        since, pause = self._since, self._dice.choice((0.0, 3.0, 10.0))
        if self._dice.random() < 0.5:
            return None
        began = since.probes[0][1] if since.probes else now
        since.over.append(max(began + pause, now))
        since.probes.clear()
        enough = len(since.over) >= _PASSES
        if self._recovery.end_pass(now, pause) is not enough:
            return differs(f"{len(since.over)} passes are enough", not enough, enough)
        return None

    def _due_probe(self, now: float) -> Row | None:
        """Return the batch to be probed next: the one that the leader named, or else the newest.

        None is probed before the next pass may begin, or where none is left in this pass.
        """
        since, rows = self._since, self._batches.open
        if since.over and now < since.over[-1]:
            return None
        probed = [row for row, _ in since.probes]
        hinted = since.hinted
        if hinted is not None and not hinted.ended and hinted not in probed:
            return hinted if hinted.waits else None
        if hinted is not None and hinted.flies:
            # Its success would prove all before it, which only a search asks about all the same.
            rows = rows[: rows.index(hinted)] if since.searches else []
        left = [row for row in rows if row.doubted and row not in probed]
        # The first sequence after the wrap-around may be taken for the first one of an epoch.
        wrapped = [row for row in left[1:] if row.batch.base % SEQUENCES == 0]
        waiting = [row for row in left if row.waits and row not in wrapped]
        return waiting[-1] if waiting else None

    def differences(self, now: float) -> Iterator[str]:
        """Yield how the recovery differs from the model."""
        told, since, probing = self._recovery, self._since, self._rung is Rung.PROBING
        unresolved = self._batches.told.unresolved
        row = self._due_probe(now)
        left = [each for each in since.salvaged if not each.ended]
        ordered = sorted(
            (each.batch for each in left if each.waits), key=lambda batch: batch.ordinal
        )
        by_probes = "probe" if since.hinted is None else "asked"
        pairs: dict[str, tuple[object, object]] = {
            "rung": (told.rung, self._rung),
            "passes": (told.passes, len(since.over)),
            "when the next pass may begin": (
                told.pass_not_before,
                since.over[-1] if since.over else 0.0,
            ),
            "it waits between two passes": (
                told.pauses,
                probing and bool(since.over) and not since.probes,
            ),
            "the leader was asked": (told.asked, since.asked),
            "searches": (told.searches, since.searches),
            "refusal": (told.refusal, since.refusal),
            "way to a proof": (told.proof, by_probes if probing else "resend"),
            "salvaging": (told.salvaging, bool(left)),
            "next probe": (told.next_probe(unresolved, now), None if row is None else row.batch),
            "next to salvage, oldest first": (
                told.next_salvage(oldest=True),
                ordered[0] if ordered else None,
            ),
            "next to salvage, newest first": (
                told.next_salvage(oldest=False),
                ordered[-1] if ordered else None,
            ),
            "salvaged": (told.salvaged, [each.batch for each in left]),
        }
        for wrong in differences(pairs):
            yield f"{wrong}, on {self._rung}"
