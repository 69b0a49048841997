"""What the drill of answers sees of a partition: its batches, its rung, its log, and what it told.

A `Picture` is taken before and after each answer. The rules (`answered_rules`) change the first
one to what must follow; whatever they leave alone must be the same after the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch, BatchState, LogEnd, Persistence
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.meters import Meters
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import Rung
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.settlement import Settlement
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus

__all__ = [
    "GAP",
    "LOSS",
    "METERS_NOW",
    "WHERE",
    "Ended",
    "Event",
    "Picture",
    "Reason",
    "Row",
    "Told",
    "look",
    "reason_of",
]

WHERE: Final = "t-4"
"""The partition, as texts call it."""
METERS_NOW: Final = 50.0
"""The time of the meters in seconds, from which they count to the deadline of a batch."""
_NUMBERED: Final = re.compile(r"code (\d+)")

Event = tuple[object, ...]
Reason = tuple[str, str | None]
"""An error: its class, and its number if the drill has made it."""

GAP: Final[Reason] = ("OutOfOrderSequenceNumber", None)
"""The error that the engine makes itself: a sequence before the batch is missing in the log."""
LOSS: Final[Event] = ("loss", WHERE, True)
"""The report that the cluster has lost acknowledged records, with a reason."""


def reason_of(error: Exception | str | None) -> Reason | None:
    """Return by what an error is told from others; of a text that is the last word."""
    if error is None:
        return None
    if isinstance(error, str):
        return "", error.split()[-1]
    text = str(error.args[0]) if error.args else ""
    found = _NUMBERED.search(text)
    return type(error).__name__, None if found is None else found[1]


class Ended(NamedTuple):
    """An outcome, and the records that have it."""

    status: DeliveryStatus
    records: list[PendingRecord]
    attempts: int = 0
    offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    reason: Reason | None = None
    incident: tuple[object, ...] | None = None
    """What identifies the batch in the log, if it may be there."""


def _ended(settlement: Settlement) -> Ended:
    """Return the outcome that some records were told.

    Its status is PENDING, which no rule expects, if it contradicts its error, or names another
    partition.
    """
    outcome, error = settlement.outcome, settlement.outcome.error
    status = outcome.status
    incident: tuple[object, ...] | None = None
    if isinstance(error, KafkaError):
        status = error.status or status
        if WHERE not in str(error):
            status = DeliveryStatus.PENDING
        told = error.incident
        if told is not None:
            identity = told.producer_id, told.producer_epoch
            incident = (identity, told.base_sequence, told.count, told.renumbered, told.topic_id)
    if (outcome.topic, outcome.partition) != ("t", 4) or status is not outcome.status:
        status = DeliveryStatus.PENDING
    return Ended(
        status,
        list(settlement.records),
        outcome.attempts,
        outcome.base_offset,
        outcome.log_append_time_ms,
        outcome.log_start_offset,
        reason_of(error),
        incident,
    )


class Told(Effects):
    """Keeps what a partition tells the rest of the engine."""

    def __init__(self) -> None:
        self.meters = Meters()
        self.meters.now = METERS_NOW
        self.settlements: list[Settlement] = []
        self.events: list[Event] = []

        def keep(settlement: Settlement) -> None:
            self.settlements.append(settlement)

        self.settle = keep

    def refresh_metadata(self) -> None:
        self.events.append(("metadata",))

    def bump(self, where: str, identity: ProducerIdentity | None, reason: str) -> None:
        error = reason[reason.rindex("(") + 1 : -1] if reason.endswith(")") else None
        self.events.append(("epoch", where, identity, error))

    def data_loss(self, where: str, reason: str) -> None:
        self.events.append(("loss", where, bool(reason)))

    def waited_at_gate(self, since: float, now: float) -> None:
        self.events.append(("gate", since, now))

    def fatal(self, error: KafkaError) -> None:
        self.events.append(("fatal", reason_of(error)))

    def fail_transaction(self, where: str, error: KafkaError) -> None:
        self.events.append(("transaction", where, reason_of(error)))

    def window_changed(self, where: str, route: Route | None, before: int, after: int) -> None:
        self.events.append(("window", where, route, before, after))

    def disprove(
        self, topic: str, partition: int, route: Route | None, disproof: Disproof, now: float
    ) -> None:
        self.events.append(("disproof", topic, partition, route, disproof, now))


@dataclass
class Row:
    """A batch, as far as an answer may change it."""

    state: BatchState
    persistence: Persistence
    since: float | None
    """Since when it is in doubt."""
    forsaken: bool
    """Whether it may get a new identity although it is in doubt."""
    renamed: bool
    """Whether it got a new identity while it was in doubt."""
    here: bool
    """Whether an attempt under its present identity may be in the log."""
    astray: bool
    """Whether an attempt had no answer, so that a copy may still reach a leader."""
    appended: bool
    """Whether a leader has answered that it has the batch (DUPLICATE_SEQUENCE_NUMBER)."""
    oversized: bool
    """Whether it was refused for its size, and will be divided."""
    trusted: bool
    """Whether a success would prove that earlier batches are stored."""
    known: bool
    """Whether the leader would recognise another copy."""
    explained: bool
    """Whether a loss that it shows was reported before."""

    @property
    def doubt(self) -> bool:
        """Whether it may be in the log."""
        return self.persistence is Persistence.IN_DOUBT

    @property
    def absent(self) -> bool:
        """Whether it may be in the log under an earlier identity only."""
        return self.doubt and self.renamed and not self.here

    @property
    def flies(self) -> bool:
        """Whether it is in flight."""
        return self.state is BatchState.IN_FLIGHT

    @property
    def due(self) -> bool:
        """Whether it waits to be sent."""
        return self.state in {BatchState.SEALED, BatchState.WAITING}


def _row(batch: Batch, state: PartitionState) -> Row:
    attempt, flies = batch.attempt, batch.state is BatchState.IN_FLIGHT
    return Row(
        state=batch.state,
        persistence=batch.persistence,
        since=batch.doubted_at,
        forsaken=batch.forsaken,
        renamed=batch.renamed,
        here=batch.doubted_here,
        astray=batch.astray,
        appended=batch.appended,
        oversized=batch.oversized,
        trusted=flies and attempt is not None and attempt.knows_us,
        known=state.leadership.knows(batch),
        explained=state.log.is_explained(batch),
    )


@dataclass
class Picture:
    """All of a partition that an answer may change, and what it has told since the last answer."""

    rows: dict[Batch, Row]
    unresolved: list[Batch]
    """The batches without an outcome, oldest first."""
    outstanding: int
    """How many batches are in flight."""
    queued: int
    ended: list[Ended]
    events: Counter[Event]
    doubts: Counter[str]
    """How often doubt was resolved, by the way in which it was."""
    acked: list[float]
    """For each acknowledged batch: seconds since its deadline, below 0 if that is to come."""
    # how doubt is resolved
    rung: Rung
    passes: int
    next_pass: float
    refusal: Reason | None
    """The error by which a batch in doubt was refused for its content."""
    searches: bool
    """Whether batches older than the one that DescribeProducers named are probed, too."""
    salvaged: set[Batch]
    """The batches that are sent one by one, because the leader has lost the producer's state."""
    # the leader
    gate: bool
    """Whether it has acknowledged a batch, so that several may be in flight."""
    questioned: bool
    """Whether an answer makes it doubtful that the leader holds the producer's state."""
    heard: bool
    """Whether the leader has named its window, or none."""
    said: int
    """The window that it has named: how many batches it retains."""
    exempt: bool
    """Whether a batch may be resent although the leader may have forgotten the producer."""
    stamp: float | None
    """The oldest timestamp from which the leader may count until it forgets the producer, in ms."""
    # its log
    offset: int
    """The last offset that is known to be stored; -1 if none is."""
    newest: int
    """The ordinal of the newest batch that is known to be stored."""
    end: LogEnd | None
    # numbers
    wanted: bool
    """Whether another epoch is wanted."""
    skipped: int | None
    """The first sequence that was given up and is missing in the log."""
    disowned: Reason | None
    """Why the identity is not to be used any more: another client uses it."""
    # what has failed
    retry_at: float
    failures: int
    """How many back-offs there were in a row."""
    trouble: tuple[float, int, Reason | None, float | None] | None
    """Since when attempts fail, how many have, why the last one did, and since when there is no
    leader.
    """


def look(state: PartitionState, told: Told, retry: Backoff, others: Iterable[Batch]) -> Picture:
    """Return the picture of a partition, and forget what it has told until now.

    Args:
        state: the partition.
        told: what it has told.
        retry: its back-off.
        others: batches that have ended, or that may take the place of one.
    """
    recovery, ledger, log, suspicion = state.recovery, state.ledger, state.log, state.suspicion
    suspect = suspicion.suspect
    suspicion.assess(0.0, 0.0, ())  # this computes `due_ms`, and changes nothing else here
    suspicion.suspect = suspect
    trouble = state.setbacks.trouble
    picture = Picture(
        rows={batch: _row(batch, state) for batch in (*state.batches.unresolved, *others)},
        unresolved=list(state.batches.unresolved),
        outstanding=state.batches.outstanding,
        queued=state.queue.count,
        ended=[_ended(each) for each in told.settlements],
        events=Counter(told.events),
        doubts=Counter(told.meters.doubts),
        acked=list(told.meters.acked),
        rung=recovery.rung,
        passes=recovery.passes,
        next_pass=recovery.pass_not_before,
        refusal=reason_of(recovery.refusal),
        searches=recovery.searches,
        salvaged={batch for batch in recovery.salvaged if not batch.settled},
        gate=state.gate.opened_for is not None,
        questioned=state.gate.questioned,
        heard=state.window.heard,
        said=state.window.said,
        exempt=suspicion.exempt,
        stamp=suspicion.due_ms,
        offset=log.offset,
        newest=log.ordinal,
        end=log.end,
        wanted=ledger.bump_wanted,
        skipped=ledger.skipped,
        disowned=reason_of(ledger.disowned),
        retry_at=state.setbacks.retry_at,
        failures=retry.failures,
        trouble=None
        if trouble is None
        else (trouble.since, trouble.attempts, reason_of(trouble.last), trouble.leaderless_since),
    )
    told.settlements.clear()
    told.events.clear()
    told.meters.doubts.clear()
    told.meters.acked.clear()
    return picture
