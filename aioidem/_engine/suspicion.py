"""Whether a broker may have forgotten our producer state (KIP-854).

A broker drops a producer's state once its clock is `producer.id.expiration.ms` past the maximum
record timestamp of the batch it appended *last*: not of the newest record, and not from idleness.
Old CreateTime (back-fills, change capture) therefore loses the state however busy the producer is,
and without state any first sequence is accepted: a resend is a duplicate, an implicit
acknowledgement a lie.

A batch's stamp is its maximum timestamp, replaced by the answer's log append time where there is
one. On a topic that stamps by LogAppendTime what is unresolved has no answer yet, but it can only
be appended after what was acknowledged: that one's append time bounds its stamp from below, however
old its records are. (A topic whose stamping changes while something is in doubt is judged by what
its last answer said.)

A partition is suspect when the oldest stamp among its last acknowledged, outstanding and in-doubt
batches is more than half the expiration ago (the other half absorbs clock skew and delivery), or
when its leader changed while it was suspect.

Rejected: measuring idleness. It fires where nothing is lost and not where something is.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem._engine.batch import Batch

__all__ = ["DEFAULT_EXPIRATION", "Suspicion"]

DEFAULT_EXPIRATION = 86400.0
"""Seconds: what brokers have unless somebody changed it, and what we assume when we may not ask."""


class Suspicion:
    """The age of one partition's producer state, as far as we can tell."""

    __slots__ = ("_acked_stamp_ms", "_appended_ms", "_carried", "suspect")

    def __init__(self) -> None:
        self._acked_stamp_ms: int | None = None
        # LogAppendTime only: when the last acknowledged batch was appended. Kept from one identity
        # to the next, because it is a fact of the log.
        self._appended_ms: int | None = None
        self._carried = False
        self.suspect = False

    def acked(self, created_ms: int, appended_ms: int) -> None:
        """Handle error NONE to a batch: the leader's state of us is as young as that.

        Args:
            created_ms: the batch's maximum timestamp.
            appended_ms: the answer's log append time, or -1.
        """
        # The answer to a copy names the stored stamp, which with CreateTime is the batch's own.
        by_log = appended_ms >= 0 and appended_ms != created_ms
        self._appended_ms = appended_ms if by_log else None
        self._acked_stamp_ms = appended_ms if by_log else created_ms
        self._carried = False

    def leader_changed(self) -> None:
        """Note that another leader took over: what it holds of us is not known yet."""
        self._carried = self._carried or self.suspect

    def renewed(self) -> None:
        """Another identity: nothing of the old state matters any more."""
        self._acked_stamp_ms = None
        self._carried = self.suspect = False

    def assess(self, wall_ms: float, expiration: float, unresolved: Iterable[Batch]) -> bool:
        """Decide anew. `wall_ms`: milliseconds since the epoch; `expiration`: seconds."""
        floor = self._appended_ms
        stamps = [batch.max_timestamp_ms if floor is None else floor for batch in unresolved]
        if self._acked_stamp_ms is not None:
            stamps.append(self._acked_stamp_ms)
        oldest = min(stamps, default=None)
        self.suspect = self._carried or (
            oldest is not None and wall_ms - oldest > expiration * 1000.0 / 2
        )
        return self.suspect
