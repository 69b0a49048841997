"""Suspicion: whether a broker may have forgotten the producer's state (KIP-854).

A broker drops a producer's state once its clock is `producer.id.expiration.ms` past the maximum
record timestamp of the batch that it appended *last*. Neither the newest record nor idleness
counts. So records with an old CreateTime (back-fills, change data capture) make a broker drop the
state however busy the producer is. A broker without the state accepts any first sequence. A resend
is then written twice, and the success of a later batch proves nothing about earlier ones.

The stamp of a batch is its maximum timestamp, or the log append time if the answer names one. An
unresolved batch has no answer yet. But on a topic with LogAppendTime it can only be appended after
the acknowledged batches. So the unresolved batch's stamp is at least the append time of the last
acknowledged batch, however old the records are. If a topic's timestamp type changes while a batch
is in doubt, the type of the last answer is assumed.

A partition is suspect if its oldest stamp is older than half the expiration. The stamps of its last
acknowledged batch and of all unresolved ones count, and under one identity those of batches that
ended UNKNOWN, since each may be the last one in the log. The other half of the expiration covers
differences between clocks and the time of delivery. A partition that is suspect when its leader
changes stays suspect until the new leader acknowledges a batch.

In a suspect partition one batch is exempt: the only one without an outcome, if it is newer than all
that are stored and its own records are young. It is the newest batch in the log, or is missing
there. If it is in the log, the leader counts the expiration from its records, so it recognises a
second copy. If it is missing, the second copy is the first. Such is the first record after a long
idle time: its resend is safe, although the leader may have forgotten the batches before it. No
batch is exempt if the leader has changed while the partition was suspect, or has refused a resend
by OUT_OF_ORDER then.

Rejected: measuring idleness. It suspects partitions whose state is not dropped, and misses others
whose state is.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem._engine.batch import Batch

__all__ = ["DEFAULT_EXPIRATION", "Suspicion"]

DEFAULT_EXPIRATION = 86400.0
"""Kafka's default of `producer.id.expiration.ms`, in seconds; assumed if the config cannot be read.
"""


class Suspicion:
    """Whether one partition's leader may have forgotten the producer, judged by timestamps.

    Args:
        resend: whether the option `in_doubt="resend"` permits second copies of batches in doubt.
    """

    __slots__ = (
        "_acked_stamp_ms",
        "_appended_ms",
        "_carried",
        "_given_up_ms",
        "_refused",
        "_resend",
        "due_ms",
        "exempt",
        "now_ms",
        "suspect",
    )

    def __init__(self, *, resend: bool = False) -> None:
        self._resend = resend
        self._acked_stamp_ms: int | None = None
        # On topics with LogAppendTime: when the last acknowledged batch was appended, in
        # milliseconds since the Unix epoch. A new identity does not reset it, because it is a fact
        # about the log.
        self._appended_ms: int | None = None
        # The oldest timestamp of the batches that ended UNKNOWN under the present identity, in
        # milliseconds since the Unix epoch; None if none did.
        self._given_up_ms: int | None = None
        self._carried = False
        # Whether a leader has refused a resend by OUT_OF_ORDER since the last acknowledgement.
        self._refused = False
        self.suspect = False
        # Whether the batch in doubt may be resent although the partition is suspect; as of the last
        # `exempt_alone`, which is called for a suspect partition.
        self.exempt = False
        # After which time of day the leader may have forgotten the producer, in milliseconds since
        # the Unix epoch, as of the last `assess`; None without any timestamp.
        self.due_ms: float | None = None
        # The time of day of the last `assess`, in milliseconds since the Unix epoch; None before.
        self.now_ms: float | None = None

    @property
    def forbids_resend(self) -> bool:
        """Whether batches in doubt must not be resent: the leader may have forgotten the producer.

        Such a leader would append a resent batch a second time. The option `in_doubt="resend"`
        permits that, so the property is False then. So it is for a batch that is exempt.
        """
        return self.suspect and not self._resend and not self.exempt

    def acked(self, created_ms: int, appended_ms: int) -> None:
        """Record an acknowledged batch's timestamp, from which the leader counts the expiration.

        Args:
            created_ms: the batch's maximum timestamp, in milliseconds since the Unix epoch.
            appended_ms: the log append time that the answer names, in the same unit; -1 if none.
        """
        # The answer to a duplicate names a time even on a topic with CreateTime: the timestamp of
        # the stored batch. That equals the batch's own timestamp and is not a log append time.
        by_log = appended_ms >= 0 and appended_ms != created_ms
        self._appended_ms = appended_ms if by_log else None
        self._acked_stamp_ms = appended_ms if by_log else created_ms
        self._carried = self._refused = False

    def found(self, created_ms: int) -> None:
        """Count the timestamp of a batch that was found in the log, until one is acknowledged.

        Args:
            created_ms: the batch's maximum timestamp, in milliseconds since the Unix epoch.
        """
        stamp, acked = self._appended_ms, self._acked_stamp_ms
        if stamp is None:
            stamp = created_ms
        if acked is None or stamp < acked:
            self._acked_stamp_ms = stamp

    def given_up(self, created_ms: int) -> None:
        """Count the timestamp of a batch that ended UNKNOWN until the identity changes.

        Args:
            created_ms: the batch's maximum timestamp, in milliseconds since the Unix epoch.
        """
        if self._given_up_ms is None or created_ms < self._given_up_ms:
            self._given_up_ms = created_ms

    def refused(self) -> None:
        """Note that the leader refused a batch in doubt by OUT_OF_ORDER: nothing is exempt now."""
        self._refused = True
        self.exempt = False

    def leader_changed(self) -> None:
        """Keep the suspicion for a new leader: it may have forgotten the producer as well."""
        self._carried = self._carried or self.suspect
        self.exempt = False

    def renewed(self) -> None:
        """End the suspicion: the producer has a new identity, for which old state is irrelevant."""
        self._acked_stamp_ms = self._given_up_ms = None
        self._carried = self._refused = self.suspect = False

    def assess(self, wall_ms: float, expiration: float, unresolved: Iterable[Batch]) -> bool:
        """Decide whether the leader may have forgotten the producer by now; return the answer.

        Args:
            wall_ms: the time of day, in milliseconds since the Unix epoch.
            expiration: seconds after which a broker forgets a producer.
            unresolved: the partition's unresolved batches.
        """
        self.now_ms = wall_ms
        created, oldest = self._given_up_ms, self._acked_stamp_ms
        for batch in unresolved:
            if created is None or batch.max_timestamp_ms < created:
                created = batch.max_timestamp_ms
        if created is not None:
            stamp = created if self._appended_ms is None else self._appended_ms
            if oldest is None or stamp < oldest:
                oldest = stamp
        self.due_ms = None if oldest is None else oldest + expiration * 1000.0 / 2
        self.suspect = self._carried or (self.due_ms is not None and wall_ms > self.due_ms)
        return self.suspect

    def exempt_alone(self, alone: Batch | None, wall_ms: float, expiration: float) -> None:
        """Decide for a suspect partition whether its batch may be resent all the same.

        Args:
            alone: the only batch without an outcome, if it is newer than all that are stored.
            wall_ms: the time of day, in milliseconds since the Unix epoch.
            expiration: seconds after which a broker forgets a producer.
        """
        self.exempt = False
        if alone is None or self._carried or self._refused or self._given_up_ms is not None:
            return
        first = alone.first_attempt
        if first is None or first.sent_ms is None:
            return
        # With LogAppendTime the leader stamps a batch when it comes, whatever its records say. That
        # it does so is not known for certain, so records from the future are never counted as such.
        due_ms = min(alone.max_timestamp_ms, first.sent_ms) + expiration * 1000.0 / 2
        if wall_ms <= due_ms:
            self.exempt, self.due_ms = True, due_ms
