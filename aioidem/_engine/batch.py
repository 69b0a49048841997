"""A sealed batch: its life cycle, and what is known of its bytes in the log.

Two small state machines, each a table. `BatchState` is where the batch is; `Persistence` is what
every attempt that *ended* has shown. They are apart because they answer different questions: "may
it be sent now?" and "may it be renumbered, split or called NOT_WRITTEN?".

Invariants
- Doubt is sticky: once an attempt may have been appended, no refusal clears it (a broker answered
  MESSAGE_TOO_LARGE and INVALID_TIMESTAMP for batches it had stored). Only a proof (error NONE)
  does.
- A final state is final. A late answer for a settled batch is dropped before it reaches the tables.
- Bytes never change while the identity is the same, so a retry is byte-identical.

Rejected: one status with in-doubt as a flag beside it. That is how a batch comes to be "failed, but
unsure".
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.idempotence import ProducerIdentity, wire_sequence
from aioidem._engine.lifecycle import Named, transition
from aioidem._engine.record import PendingRecord

__all__ = [
    "BATCH_TRANSITIONS",
    "PERSISTENCE_TRANSITIONS",
    "Attempt",
    "Batch",
    "BatchEvent",
    "BatchState",
    "Evidence",
    "Persistence",
]


class BatchState(Named):
    """Where a batch is in its life."""

    SEALED = "sealed"
    """Numbered and built, not yet given to a connection."""
    IN_FLIGHT = "in flight"
    """Given to a connection, unanswered."""
    WAITING = "waiting"
    """An attempt ended without a verdict; to be sent again."""
    ACKED = "acked"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"
    SPLIT = "split"
    """Its records go on in other batches: smaller ones, or those of a recreated topic."""


class BatchEvent(Named):
    """What happens to a batch."""

    SEND = "send"
    RETRY = "retry"
    ACK = "ack"
    REJECT = "reject"
    GIVE_UP = "give up"
    SPLIT = "split"
    RENUMBER = "renumber"


_S, _E = BatchState, BatchEvent

BATCH_TRANSITIONS: dict[tuple[BatchState, BatchEvent], BatchState] = {
    (_S.SEALED, _E.SEND): _S.IN_FLIGHT,
    (_S.SEALED, _E.REJECT): _S.NOT_WRITTEN,
    (_S.SEALED, _E.RENUMBER): _S.SEALED,
    (_S.SEALED, _E.SPLIT): _S.SPLIT,
    (_S.IN_FLIGHT, _E.ACK): _S.ACKED,
    (_S.IN_FLIGHT, _E.RETRY): _S.WAITING,
    (_S.IN_FLIGHT, _E.REJECT): _S.NOT_WRITTEN,
    (_S.IN_FLIGHT, _E.GIVE_UP): _S.UNKNOWN,
    (_S.IN_FLIGHT, _E.SPLIT): _S.SPLIT,
    (_S.WAITING, _E.SEND): _S.IN_FLIGHT,
    # Implicit acknowledgement: a later batch's success proves this one stored.
    (_S.WAITING, _E.ACK): _S.ACKED,
    (_S.WAITING, _E.REJECT): _S.NOT_WRITTEN,
    (_S.WAITING, _E.GIVE_UP): _S.UNKNOWN,
    (_S.WAITING, _E.RENUMBER): _S.SEALED,
    (_S.WAITING, _E.SPLIT): _S.SPLIT,
}


_FINAL = frozenset({_S.ACKED, _S.NOT_WRITTEN, _S.UNKNOWN, _S.SPLIT})


class Persistence(Named):
    """What the attempts that ended have shown about the bytes in the log."""

    NEVER_SENT = "never sent"
    REJECTED = "rejected"
    """Every attempt ever written was answered with a code that precedes the append."""
    IN_DOUBT = "in doubt"
    """Some attempt may have been appended."""
    STORED = "stored"
    """Error NONE, for this batch or, through the open gate, for a later one."""


class Evidence(Named):
    """What one ended attempt tells."""

    UNSENT = "unsent"
    """The write never began."""
    REFUSED = "refused"
    """Answered with a code that precedes the append, and base offset -1."""
    AMBIGUOUS = "ambiguous"
    """It may have been appended: connection lost, timed out, two-faced or unknown answer."""
    PROVED = "proved"
    """Error NONE."""
    FORSAKEN = "forsaken"
    """Not an answer: `in_doubt="resend"` gives the no-duplicate promise up. It stays in doubt."""
    RENUMBERED = "renumbered"
    """Not an answer: the records got a new identity, so these are new bytes. In doubt has no such
    row.
    """


_P, _V = Persistence, Evidence

PERSISTENCE_TRANSITIONS: dict[tuple[Persistence, Evidence], Persistence] = {
    (_P.NEVER_SENT, _V.UNSENT): _P.NEVER_SENT,
    (_P.NEVER_SENT, _V.REFUSED): _P.REJECTED,
    (_P.NEVER_SENT, _V.AMBIGUOUS): _P.IN_DOUBT,
    (_P.NEVER_SENT, _V.PROVED): _P.STORED,
    (_P.NEVER_SENT, _V.RENUMBERED): _P.NEVER_SENT,
    (_P.REJECTED, _V.UNSENT): _P.REJECTED,
    (_P.REJECTED, _V.REFUSED): _P.REJECTED,
    (_P.REJECTED, _V.AMBIGUOUS): _P.IN_DOUBT,
    (_P.REJECTED, _V.PROVED): _P.STORED,
    (_P.REJECTED, _V.RENUMBERED): _P.NEVER_SENT,
    (_P.IN_DOUBT, _V.UNSENT): _P.IN_DOUBT,
    (_P.IN_DOUBT, _V.REFUSED): _P.IN_DOUBT,
    (_P.IN_DOUBT, _V.AMBIGUOUS): _P.IN_DOUBT,
    (_P.IN_DOUBT, _V.FORSAKEN): _P.IN_DOUBT,
    (_P.IN_DOUBT, _V.PROVED): _P.STORED,
}


class Attempt:
    """One sending of a batch, with the view that it was sent under.

    Answers carry no leader epoch, so it is kept here.
    """

    __slots__ = ("earlier_link", "knows_us", "leader_epoch", "leader_id", "link_id", "sent_at")

    def __init__(
        self,
        link_id: int,
        leader_id: int,
        leader_epoch: int,
        sent_at: float,
        *,
        knows_us: bool,
        earlier_link: int | None = None,
    ) -> None:
        self.link_id = link_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.sent_at = sent_at
        # Whether the leader had proved, when this was sent, that it holds state for our identity:
        # by the open gate, or by an OUT_OF_ORDER answer. Only then does a success here prove the
        # batches below it.
        self.knows_us = knows_us
        # The one connection on which every earlier attempt was made, or None (`retention`).
        self.earlier_link = earlier_link

    def disbelieve(self) -> None:
        """Let a success of this attempt prove nothing of the batches below it."""
        self.knows_us = False


class Batch:
    """Records sealed under one identity.

    `ordinal` counts batches of the partition in drain order.
    """

    __slots__ = (
        "appended",
        "astray",
        "attempt",
        "attempts",
        "base",
        "count",
        "data",
        "deadline",
        "doubted_at",
        "first_attempt",
        "forsaken",
        "identity",
        "max_timestamp_ms",
        "ordinal",
        "oversized",
        "persistence",
        "records",
        "state",
    )

    def __init__(
        self,
        *,
        ordinal: int,
        records: Sequence[PendingRecord],
        data: bytes,
        identity: ProducerIdentity | None,
        base: int,
        deadline: float,
        max_timestamp_ms: int,
    ) -> None:
        self.ordinal = ordinal
        self.records = records
        self.count = len(records)
        self.data = data
        self.identity = identity
        self.base = base
        self.deadline = deadline
        self.max_timestamp_ms = max_timestamp_ms
        self.state = BatchState.SEALED
        self.persistence = Persistence.NEVER_SENT
        self.attempt: Attempt | None = None
        self.first_attempt: Attempt | None = None
        self.attempts = 0
        self.doubted_at: float | None = None
        # Set by DUPLICATE_SEQUENCE_NUMBER: the leader has it, but has not said that it is
        # committed.
        self.appended = False
        # In doubt for more than a refusal by a code that no table names: an attempt was never
        # answered, or by what is also said after an append. Then a copy may turn up yet.
        self.astray = False
        # Set under `in_doubt="resend"` only: it may get a new identity although it is in doubt, and
        # another one after that if no attempt was made under the first.
        self.forsaken = False
        # Set when it was refused for its size, and never appended: it goes on in parts.
        self.oversized = False

    def move(self, event: BatchEvent) -> None:
        """Take one step of the life cycle.

        Raises:
            InternalError: the table has no such step; the state is left as it was.
        """
        self.state = transition(BATCH_TRANSITIONS, self.state, event, self)

    def learn(self, evidence: Evidence, now: float) -> None:
        """Note what an ended attempt told.

        Raises:
            InternalError: the table has no such row: anything after a proof, new numbers for a
            batch in doubt.
        """
        self.persistence = transition(PERSISTENCE_TRANSITIONS, self.persistence, evidence, self)
        if self.persistence is Persistence.IN_DOUBT and self.doubted_at is None:
            self.doubted_at = now
        if evidence in (Evidence.REFUSED, Evidence.AMBIGUOUS):
            self.forsaken = False

    def send(self, attempt: Attempt) -> None:
        """Begin an attempt.

        Raises:
            InternalError: the batch is in flight or settled.
        """
        self.move(BatchEvent.SEND)
        self.attempt = attempt
        self.first_attempt = self.first_attempt or attempt
        self.attempts += 1

    def go_astray(self) -> None:
        """Take note that a copy may turn up yet."""
        self.astray = True

    def find_appended(self) -> None:
        """Take note that the leader has it, and has not said that it is committed."""
        self.appended = True

    def forsake(self) -> None:
        """Let it get another identity although it is in doubt (`in_doubt="resend"`)."""
        self.forsaken = True

    def refuse_size(self) -> None:
        """Keep it to be sent again in parts: it was refused for its size, and never appended."""
        self.oversized = True
        self.move(BatchEvent.RETRY)

    def shift(self, places: int) -> None:
        """Move back in drain order: a batch in front of it was split."""
        self.ordinal += places

    def renumber(self, identity: ProducerIdentity, base: int, data: bytes, ordinal: int) -> None:
        """Take another identity, with the bytes restamped for it.

        Never done to a batch in doubt, unless it was forsaken; then it stays in doubt.

        Raises:
            InternalError: the batch is in doubt, in flight or settled.
        """
        self.learn(Evidence.FORSAKEN if self.forsaken else Evidence.RENUMBERED, 0.0)
        self.move(BatchEvent.RENUMBER)
        self.identity, self.base, self.data, self.ordinal = identity, base, data, ordinal
        self.first_attempt = None

    @property
    def due(self) -> bool:
        """Whether it waits to be sent."""
        return self.state is BatchState.SEALED or self.state is BatchState.WAITING

    @property
    def settled(self) -> bool:
        """Whether its life is over."""
        return self.state in _FINAL

    @property
    def in_doubt(self) -> bool:
        """Whether an attempt that ended may have been appended."""
        return self.persistence is Persistence.IN_DOUBT

    @property
    def wire_last(self) -> int:
        """The last record's sequence as the broker sees it."""
        return wire_sequence(self.base + self.count - 1)

    @property
    def wire_base(self) -> int:
        """The first sequence as the broker sees it; -1 without idempotence."""
        return -1 if self.identity is None else wire_sequence(self.base)

    def __repr__(self) -> str:
        return (
            f"<Batch #{self.ordinal} {self.state.value}, {self.persistence.value}, "
            f"seq {self.base}+{self.count}, attempts {self.attempts}>"
        )
