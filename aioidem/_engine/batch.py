"""A batch to which no record is added any more: its life cycle, and whether it is in the log.

Such a batch is called sealed. An attempt is one sending of a batch. There are two small state
machines, each a table. `BatchState` says whether the batch waits, is in flight or has an outcome;
`Persistence` says what all attempts that have *ended* show about the log. They are separate because
they answer different questions: "may the batch be sent now?" and "may it be renumbered, split or
reported as NOT_WRITTEN?".

Invariants
- Doubt is sticky: once an attempt may have been appended, no refusal clears the doubt (brokers have
  answered MESSAGE_TOO_LARGE and INVALID_TIMESTAMP for batches that they had stored). The doubt is
  cleared only by a proof that the batch is stored: error NONE, or the batch is found in the log.
- A final state is final. A late answer for a settled batch is dropped before it reaches the tables.
- The bytes of a batch never change while its identity is the same, so a retry is byte-identical.

Rejected: one status with an in-doubt flag beside it. Such a design permits a batch that is failed
and in doubt at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from aioidem._engine.draft import Draft
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
    "LogEnd",
    "Persistence",
]

LogEnd: TypeAlias = "tuple[int, ProducerIdentity | None, int]"
"""The last record of a partition that is known to be stored: its offset, the producer id and epoch
of its batch, and its sequence as on the wire. A tuple, because each acknowledgement makes one.
"""


class BatchState(Named):
    """The state of a batch in its life cycle."""

    SEALED = "sealed"
    """The batch is numbered and built, but was not given to a connection yet."""
    IN_FLIGHT = "in flight"
    """The batch was given to a connection, and its answer has not come yet."""
    WAITING = "waiting"
    """An attempt ended without a final outcome; the batch waits to be sent again."""
    ACKED = "acked"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"
    SPLIT = "split"
    """The records of the batch are now in other batches: smaller ones, or those of another
    partition or topic id.
    """


class BatchEvent(Named):
    """An event that changes the state of a batch."""

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
    # A batch in doubt was renumbered (`in_doubt="resend"`), and ends before it is sent again.
    (_S.SEALED, _E.GIVE_UP): _S.UNKNOWN,
    (_S.SEALED, _E.SPLIT): _S.SPLIT,
    (_S.IN_FLIGHT, _E.ACK): _S.ACKED,
    (_S.IN_FLIGHT, _E.RETRY): _S.WAITING,
    (_S.IN_FLIGHT, _E.REJECT): _S.NOT_WRITTEN,
    (_S.IN_FLIGHT, _E.GIVE_UP): _S.UNKNOWN,
    (_S.IN_FLIGHT, _E.SPLIT): _S.SPLIT,
    (_S.WAITING, _E.SEND): _S.IN_FLIGHT,
    # A later batch's success proves that this batch is stored (implicit acknowledgement), or this
    # batch was read back from the log.
    (_S.WAITING, _E.ACK): _S.ACKED,
    (_S.WAITING, _E.REJECT): _S.NOT_WRITTEN,
    (_S.WAITING, _E.GIVE_UP): _S.UNKNOWN,
    (_S.WAITING, _E.RENUMBER): _S.SEALED,
    (_S.WAITING, _E.SPLIT): _S.SPLIT,
}


_FINAL = frozenset({_S.ACKED, _S.NOT_WRITTEN, _S.UNKNOWN, _S.SPLIT})


class Persistence(Named):
    """Whether the batch is in the log, as far as the ended attempts to send it show."""

    NEVER_SENT = "never sent"
    REJECTED = "rejected"
    """Every attempt that was written was answered with an error, and none was appended."""
    IN_DOUBT = "in doubt"
    """An attempt may have been appended."""
    STORED = "stored"
    """The batch is in the log: error NONE came for the batch itself, or for a later batch whose
    success proves that this one is stored, or the batch was read back from the log.
    """


class Evidence(Named):
    """What one ended attempt shows about the log, or why the batch gets new numbers."""

    UNSENT = "unsent"
    """No byte of the attempt was written to the socket."""
    REFUSED = "refused"
    """The attempt was answered with base offset -1 and a code that then means "not appended"."""
    AMBIGUOUS = "ambiguous"
    """The attempt may have been appended: its connection was lost, the request timed out, or its
    answer does not say whether the append took place.
    """
    PROVED = "proved"
    """The batch is in the log: error NONE came for the batch itself, or for a later batch whose
    success proves that this one is stored, or the batch was read back from the log.
    """
    FORSAKEN = "forsaken"
    """Not an answer: the batch gets new numbers although it is in doubt, because the option
    `in_doubt="resend"` permits a duplicate. The batch stays in doubt.
    """
    RENUMBERED = "renumbered"
    """Not an answer: the batch gets new sequence numbers, so its bytes are new. This
    is impossible for a batch in doubt (`PERSISTENCE_TRANSITIONS` has no row for it), which gets new
    numbers only as FORSAKEN.
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
    """One sending of a batch, with the connection, leader and leader epoch of that moment.

    The leader epoch is kept here because the answer to a Produce request carries none for a batch.
    """

    __slots__ = (
        "after",
        "earlier_link",
        "knows_us",
        "leader_epoch",
        "leader_id",
        "link_id",
        "sent_at",
        "sent_ms",
    )

    def __init__(
        self,
        link_id: int,
        leader_id: int,
        leader_epoch: int,
        sent_at: float,
        *,
        knows_us: bool,
        earlier_link: int | None = None,
        after: LogEnd | None = None,
        sent_ms: float | None = None,
    ) -> None:
        self.link_id = link_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.sent_at = sent_at
        # Whether the leader had proved, when this attempt was sent, that it holds state for the
        # batch's producer id: by error NONE for a batch (`FirstAckGate`), or by OUT_OF_ORDER. Only
        # then does a success of this attempt prove that the earlier batches are stored.
        self.knows_us = knows_us
        # The id of the one connection on which every earlier attempt at the batch was made; None if
        # there were several or none, or if they went to another leader or leader epoch. `retention`
        # needs it to judge how many batches the broker retains.
        self.earlier_link = earlier_link
        # The last record of the partition that was known to be stored when this attempt was sent.
        self.after = after
        # The time of day when it was sent, in milliseconds since the Unix epoch, by the latest time
        # that this process has seen; None where no leader is suspected to forget the producer.
        self.sent_ms = sent_ms

    def disbelieve(self) -> None:
        """Note that a success of this attempt will prove nothing about earlier batches."""
        self.knows_us = False


class Batch:
    """Records of one partition, sealed under one producer id, epoch and base sequence.

    `ordinal` counts the batches of the partition in the order in which their records were taken
    from its queue. `data` is the encoded batch; in a part of a batch that was divided, it is empty
    until the part is first sent (see `build`).
    """

    __slots__ = (
        "appended",
        "astray",
        "attempt",
        "attempts",
        "base",
        "compression",
        "count",
        "data",
        "deadline",
        "doubted_at",
        "doubted_here",
        "draft",
        "extended",
        "first_attempt",
        "forsaken",
        "identity",
        "max_timestamp_ms",
        "ordinal",
        "oversized",
        "persistence",
        "records",
        "renamed",
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
        compression: float = 1.0,
    ) -> None:
        self.ordinal = ordinal
        self.records = records
        self.count = len(records)
        self.data = data
        self.identity = identity
        self.base = base
        self.deadline = deadline
        self.max_timestamp_ms = max_timestamp_ms
        # The bytes of the compressed records per byte that they had before.
        self.compression = compression
        self.state = BatchState.SEALED
        self.persistence = Persistence.NEVER_SENT
        self.attempt: Attempt | None = None
        self.first_attempt: Attempt | None = None
        self.attempts = 0
        self.doubted_at: float | None = None
        # Set by the answer DUPLICATE_SEQUENCE_NUMBER: the leader has the batch in its log, but has
        # not said that it is committed.
        self.appended = False
        # Whether a copy of the batch may still be appended later: an attempt was not answered, or
        # was answered with a code that brokers also return after the append. An error code that is
        # not in the table of `classify` leaves the batch in doubt, but does not set this flag.
        self.astray = False
        # Set only with the option `in_doubt="resend"`: the batch may get a new identity although it
        # is in doubt. Cleared when an attempt under the new identity has ended, unless no byte of
        # the attempt was written.
        self.forsaken = False
        # Set when the batch got a new identity although it was in doubt: a copy with the old one
        # may be in the log.
        self.renamed = False
        # Whether an attempt under the present identity may have been appended. If not, a batch in
        # doubt that was renamed is still missing from the sequences of that identity.
        self.doubted_here = False
        # Set when the batch was refused for its size and was never appended: its records are sent
        # in smaller batches.
        self.oversized = False
        # Whether the batch has one request timeout more, because at its deadline it was in doubt,
        # and the leader had answered a request since the doubt arose.
        self.extended = False
        # The batch's records from the moment when their compression begins until the batch is
        # built; None at any other time.
        self.draft: Draft | None = None

    def move(self, event: BatchEvent) -> None:
        """Change the batch's state as `BATCH_TRANSITIONS` says.

        Raises:
            InternalError: the table has no such step; the state is left as it was.
        """
        self.state = transition(BATCH_TRANSITIONS, self.state, event, self)

    def learn(self, evidence: Evidence, now: float) -> None:
        """Record what an ended attempt shows about the log, or that the batch gets new numbers.

        Raises:
            InternalError: `PERSISTENCE_TRANSITIONS` has no row for this evidence in the batch's
            present state. A stored batch accepts no evidence. A batch in doubt does not accept
            RENUMBERED; after `forsake`, its new numbers are recorded as FORSAKEN.
        """
        self.persistence = transition(PERSISTENCE_TRANSITIONS, self.persistence, evidence, self)
        if self.persistence is Persistence.IN_DOUBT and self.doubted_at is None:
            self.doubted_at = now
        if evidence in (Evidence.REFUSED, Evidence.AMBIGUOUS):
            self.forsaken = False
            self.doubted_here = self.doubted_here or evidence is Evidence.AMBIGUOUS

    def send(self, attempt: Attempt) -> None:
        """Record that an attempt begins.

        Raises:
            InternalError: the batch is in flight or settled.
        """
        self.move(BatchEvent.SEND)
        self.attempt = attempt
        self.first_attempt = self.first_attempt or attempt
        self.attempts += 1

    def go_astray(self) -> None:
        """Note that a copy of the batch may still be appended later."""
        self.astray = True

    def find_appended(self) -> None:
        """Note that the leader has the batch in its log, and has not said that it is committed."""
        self.appended = True

    def forsake(self) -> None:
        """Permit this batch in doubt to be sent under another producer id or epoch.

        The batch may then be stored twice, so this needs the option `in_doubt="resend"`.
        """
        self.forsaken = True

    def refuse_size(self) -> None:
        """Keep the batch until it is split: it was refused for its size, and never appended."""
        self.oversized = True
        self.move(BatchEvent.RETRY)

    def build(self, data: bytes, compression: float = 1.0) -> None:
        """Set the batch's bytes; for a part of a split batch this happens when it is first sent."""
        self.data = data
        self.compression = compression
        self.draft = None

    def shift(self, places: int) -> None:
        """Raise the ordinal by `places`, because an earlier batch was split into smaller ones."""
        self.ordinal += places

    def renumber(self, identity: ProducerIdentity, base: int, data: bytes, ordinal: int) -> None:
        """Give the batch another identity, with its bytes restamped for that identity.

        A batch in doubt is renumbered only if it was forsaken (see `forsake`); it stays in doubt.

        Raises:
            InternalError: the batch is in flight or settled, or is in doubt and was not forsaken.
        """
        self.learn(Evidence.FORSAKEN if self.forsaken else Evidence.RENUMBERED, 0.0)
        self.move(BatchEvent.RENUMBER)
        self.renamed = self.renamed or self.forsaken
        self.doubted_here = False
        self.identity, self.base, self.data, self.ordinal = identity, base, data, ordinal
        self.first_attempt = None

    @property
    def due(self) -> bool:
        """Whether the batch waits to be sent."""
        return self.state is BatchState.SEALED or self.state is BatchState.WAITING

    @property
    def settled(self) -> bool:
        """Whether the batch has reached a final state."""
        return self.state in _FINAL

    @property
    def in_doubt(self) -> bool:
        """Whether it is unknown if the broker appended the batch in an attempt that has ended."""
        return self.persistence is Persistence.IN_DOUBT

    @property
    def keeps_numbers(self) -> bool:
        """Whether the batch must keep its sequence numbers: it may be in the log under them."""
        return self.in_doubt and not self.forsaken

    @property
    def absent_here(self) -> bool:
        """Whether the batch is in doubt only under an earlier identity (`in_doubt="resend"`)."""
        return self.in_doubt and self.renamed and not self.doubted_here

    @property
    def wire_last(self) -> int:
        """The sequence number of the last record, as the broker sees it (modulo 2^31)."""
        return wire_sequence(self.base + self.count - 1)

    @property
    def wire_base(self) -> int:
        """The wire sequence number of the first record (modulo 2^31); -1 without idempotence."""
        return -1 if self.identity is None else wire_sequence(self.base)

    def __repr__(self) -> str:
        return (
            f"<Batch #{self.ordinal} {self.state.value}, {self.persistence.value}, "
            f"seq {self.base}+{self.count}, attempts {self.attempts}>"
        )
