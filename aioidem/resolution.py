"""Resolution: what a partition's log says about a batch or record that ended UNKNOWN."""

from __future__ import annotations

import dataclasses
import enum

from aioidem.incident import Incident

__all__ = ["Resolution", "UndecidedReason", "Verdict"]


class Verdict(enum.Enum):
    """Whether a record that ended UNKNOWN is in the log."""

    WRITTEN = "written"
    """It is in the committed part of the log."""

    ABSENT = "absent"
    """It is not in the log, and no copy of it can be appended as long as the brokers remember the
    producer (``producer.id.expiration.ms``, a day by default). Producing it again cannot duplicate
    it."""

    UNDECIDED = "undecided"
    """The log does not say. `Resolution.reason` and `Resolution.detail` say why."""


class UndecidedReason(enum.Enum):
    """Why a verdict is UNDECIDED."""

    NOT_FENCED = "a copy may still arrive"
    """The batch is not in the log, but a broker that still has a request with it would append it:
    no later batch of the producer in this partition makes brokers refuse it."""

    FORGOTTEN = "the brokers may have forgotten the producer"
    """The batch is not in the log, but the producer's last batch in this partition is so old that
    brokers may have forgotten the producer (KIP-854). They would append a copy that a broker has
    kept until now."""

    RETENTION = "the log was deleted up to a later offset"
    """The part of the log in which the batch would be was deleted: by retention, or by a call."""

    COMPACTION = "the log has gaps"
    """Offsets are missing in the part of the log that was read: compaction has removed records."""

    TRUNCATED = "the log lost its end"
    """The record that was acknowledged before the batch is not at its offset any more (an unclean
    election, a lost disk), so it is not known where the batch would be."""

    TOPIC_GONE = "the topic was deleted"
    """The topic does not exist, or one with this name was created after the batch was sent, or the
    servers belong to another cluster."""

    NO_TOPIC_ID = "the topic cannot be told from a recreated one"
    """The brokers name topics by no ids (before Kafka 3.1), or the incident has none."""

    NO_PERMISSION = "no permission to read the topic"
    """The ACLs READ or DESCRIBE on the topic are missing."""

    OTHER_BYTES = "another batch has its place"
    """A batch with the same producer id, epoch and sequence is in the log, but its checksum or its
    number of records is another: it is another client's, or a broker has changed it."""

    RENUMBERED = "it was sent under two identities"
    """With ``in_doubt="resend"`` the batch was sent again under another sequence, and it is not
    known any more under which one a first copy may be in the log."""

    NO_IDENTITY = "it was sent without an identity"
    """The producer was not idempotent, so nothing in the log identifies the batch."""

    TIMED_OUT = "the log was not read in time"
    """The log could not be read to its end within the timeout; `Resolution.detail` has the last
    failure."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The verdict about one record, or about a batch.

    Attributes:
        verdict: WRITTEN, ABSENT or UNDECIDED.
        detail: the reason in words: what was read, and what it shows.
        incident: the batch that was looked for; None if the record never had an identity, or its
            outcome was not UNKNOWN.
        offset: with WRITTEN, the offset of the record, or of the batch's first record if the
            incident is that of a batch; -1 otherwise.
        reason: why the verdict is UNDECIDED; None with any other verdict.
        committed: with WRITTEN, False if the record's transaction was aborted, so that consumers
            of committed data do not see it, and None if the transaction is still open, or if the
            log behind the record was not read (`detail` says why). True if the transaction was
            committed or if there was none; None without WRITTEN.
    """

    verdict: Verdict
    detail: str
    incident: Incident | None = None
    offset: int = -1
    reason: UndecidedReason | None = None
    committed: bool | None = None
