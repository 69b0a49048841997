"""LogSearch: looks for one batch that ended UNKNOWN in its partition's log; `judge` decides.

The batches of the log are passed in as they are read. `LogSearch` keeps only what the verdict
needs, so a log of any length may be read. `judge` is the rule; DESIGN.md has its proof ("UNKNOWN is
not the last word").

Invariants

- WRITTEN needs the batch itself: its producer id, epoch, first sequence, number of records and, if
  the broker had no reason to change it, its checksum.
- ABSENT needs three things. The log was read without a gap from a place that certainly precedes
  each copy. No copy is there. The last state that the log gives the producer makes every leader
  refuse a copy, and is so young that no leader has dropped it (KIP-854).
- Everything else is UNDECIDED.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from aioidem._records import RecordBatch
from aioidem.incident import Incident
from aioidem.resolution import Resolution, UndecidedReason, Verdict

__all__ = ["LogFacts", "LogSearch", "LoggedBatch", "judge", "logged_batch"]

_SEQUENCES = 1 << 31
_ABORT = b"\x00\x00\x00\x00"
"""The beginning of the key of a control record that ends an aborted transaction (version, type)."""
_COMMIT = b"\x00\x00\x00\x01"


class LoggedBatch(NamedTuple):
    """The header of a batch in the log.

    `commits` is True or False in the batch of a transaction marker (commit or abort), and None in a
    batch of data or with another control record; `control` is True for all control records.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    max_timestamp_ms: int
    crc: int
    codec: int
    log_append: bool = False
    transactional: bool = False
    control: bool = False
    commits: bool | None = None

    @property
    def size(self) -> int:
        """The number of records that the batch had when it was appended."""
        return self.last_offset - self.base_offset + 1


def logged_batch(batch: RecordBatch) -> LoggedBatch:
    """Return what a search needs of a batch that was read.

    Raises:
        ProtocolError: the batch is a transaction marker that cannot be decoded.
    """
    commits = None
    if batch.control:
        commits = {_ABORT: False, _COMMIT: True}.get(batch.control_key()[:4])
    return LoggedBatch(
        batch.base_offset,
        batch.last_offset,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.max_timestamp_ms,
        batch.crc,
        int(batch.codec),
        batch.log_append,
        batch.transactional,
        batch.control,
        commits,
    )


class LogFacts(NamedTuple):
    """What a verdict needs besides the batches.

    Attributes:
        topic_id: the id of the topic that was read; None if the broker named none.
        now_ms: the time of day when the last page was read, in milliseconds since the Unix epoch.
        expiration: seconds after which brokers forget a producer (`producer.id.expiration.ms`).
        log_start: the first offset that the log still has, as far as is known.
        obstacle: why the log was not read to its end; None if it was.
        detail: the failure behind the obstacle, in words.
    """

    topic_id: UUID | None
    now_ms: float
    expiration: float
    log_start: int = 0
    obstacle: UndecidedReason | None = None
    detail: str = ""


class LogSearch:
    """The search for one batch in a part of its partition's log.

    Everything that is read must come from one leader epoch: then the log only grows meanwhile, and
    what was read is a part of one history.

    Args:
        incident: the batch that is looked for.
        begin: the first offset that is read.
    """

    __slots__ = (
        "_anchored",
        "_begin",
        "_data",
        "_incident",
        "_newest",
        "end",
        "ended",
        "found",
        "gap",
        "impostor",
    )

    def __init__(self, incident: Incident, begin: int) -> None:
        self._incident = incident
        # The first offset that counts: what is before the acknowledged record says nothing.
        self._begin = begin if incident.after is None else max(begin, incident.after.offset)
        # The offset of the next batch to be read.
        self.end = self._begin
        # Where offsets are missing in what was read; None if there is no gap.
        self.gap: int | None = None
        # The batch that is looked for; or another one with its producer id, epoch and sequence.
        self.found: LoggedBatch | None = None
        self.impostor: LoggedBatch | None = None
        # The marker that ended the transaction of the batch that was found.
        self.ended: LoggedBatch | None = None
        # The last batch of the producer id, and the last one of them with data.
        self._newest: LoggedBatch | None = None
        self._data: LoggedBatch | None = None
        # Whether the record that was acknowledged before the batch is where it was.
        self._anchored = False

    def read(self, page: Iterable[LoggedBatch]) -> None:
        """Take in the batches that follow those that were read before."""
        for batch in page:
            if batch.last_offset < self._begin:
                continue
            if batch.base_offset > self.end and self.gap is None:
                self.gap = self.end
            self.end = max(self.end, batch.last_offset + 1)
            self._anchored = self._anchored or self._is_anchor(batch)
            if batch.producer_id == self._incident.producer_id:
                self._take(batch)

    def _is_anchor(self, batch: LoggedBatch) -> bool:
        after = self._incident.after
        return after is not None and after == (
            type(after)(
                offset=batch.last_offset,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                last_sequence=batch.last_sequence,
            )
        )

    def _take(self, batch: LoggedBatch) -> None:
        incident = self._incident
        self._newest = batch
        if batch.control:
            if self.found is not None and self.ended is None and batch.commits is not None:
                self.ended = batch
            return
        self._data = batch
        identity = (batch.producer_epoch, batch.base_sequence)
        if identity == (incident.producer_epoch, incident.base_sequence):
            if _same_bytes(incident, batch):
                self.found = self.found or batch
            else:
                self.impostor = self.impostor or batch

    @property
    def settled(self) -> bool:
        """Whether nothing that follows in the log could change the verdict: it is WRITTEN."""
        found = self.found
        return found is not None and (not found.transactional or self.ended is not None)

    @property
    def precedes_every_copy(self) -> bool:
        """Whether each copy of the batch would be in the part of the log that was read.

        That is so if the reading began at the record that was acknowledged before the batch was
        first sent, and this record is still there; or at the very first offset of the topic.
        """
        return self._anchored or self._begin == 0

    @property
    def fence(self) -> LoggedBatch | None:
        """The producer's last batch in the log, if it makes each leader refuse the batch.

        A newer epoch does so, and a later sequence under the same epoch.
        """
        newest, data, incident = self._newest, self._data, self._incident
        if newest is None:
            return None
        if newest.producer_epoch != incident.producer_epoch:
            return newest if newest.producer_epoch > incident.producer_epoch else None
        if data is None or data.producer_epoch != incident.producer_epoch:
            return None
        ahead = (data.last_sequence - incident.base_sequence) % _SEQUENCES
        return newest if ahead < _SEQUENCES // 2 else None


def _same_bytes(incident: Incident, batch: LoggedBatch) -> bool:
    """Return whether a batch with the wanted identity is the wanted one, as far as can be told.

    A broker changes the checksum only if it puts in its own time (LogAppendTime) or compresses the
    records again.
    """
    if batch.size != incident.count:
        return False
    rewritten = batch.log_append or batch.codec != incident.codec
    return incident.crc is None or batch.crc == incident.crc or rewritten


def judge(incident: Incident, search: LogSearch | None, facts: LogFacts) -> Resolution:
    """Return the verdict about a batch.

    Args:
        incident: the batch.
        search: what was read of the log; None if nothing could be read.
        facts: when and where it was read, and what kept it from being read to its end.
    """
    if search is not None and search.found is not None:
        return _written(incident, search, search.found, facts)
    reason, detail = _undecided(incident, search, facts)
    if reason is not None:
        return Resolution(
            verdict=Verdict.UNDECIDED, reason=reason, detail=detail, incident=incident
        )
    return Resolution(verdict=Verdict.ABSENT, detail=detail, incident=incident)


def _written(
    incident: Incident, search: LogSearch, found: LoggedBatch, facts: LogFacts
) -> Resolution:
    committed: bool | None = True
    seen = ""
    if found.transactional:
        ended = search.ended
        committed = None if ended is None else ended.commits
        became = "is open" if ended is None else "was committed" if committed else "was aborted"
        seen = f"; its transaction {became}"
        if ended is None and facts.obstacle is not None:
            seen = f"; it is not known whether its transaction was committed: {facts.detail}"
    return Resolution(
        verdict=Verdict.WRITTEN,
        detail=f"its batch is in the log at offset {found.base_offset}{seen}",
        incident=incident,
        offset=found.base_offset + (incident.index or 0),
        committed=committed,
    )


def _undecided(
    incident: Incident, search: LogSearch | None, facts: LogFacts
) -> tuple[UndecidedReason | None, str]:
    """Return why a batch that was not found cannot be called absent; the reason is None if it can.

    The second value says the same in words.
    """
    reasons = UndecidedReason
    where = f"{incident.topic}-{incident.partition}"
    if facts.obstacle is not None or search is None:
        return facts.obstacle or reasons.TIMED_OUT, facts.detail
    if search.impostor is not None:
        at = search.impostor.base_offset
        return reasons.OTHER_BYTES, (
            f"the batch at offset {at} of {where} has the same producer id, epoch and sequence, "
            "but other bytes"
        )
    if facts.topic_id is None or incident.topic_id is None:
        return reasons.NO_TOPIC_ID, f"{where} has no topic id, so it may be another topic by now"
    if facts.topic_id != incident.topic_id:
        return reasons.TOPIC_GONE, f"{where} now belongs to another topic with the same name"
    if (lacking := _lacking(incident, search, facts, where)) is not None:
        return lacking
    read = f"the batch is not in {where}, which " + (
        f"was read up to offset {search.end - 1}" if search.end else "is empty"
    )
    if incident.renumbered:
        return reasons.RENUMBERED, f"{read}, but it was sent under another identity before"
    return _may_still_arrive(search, facts, read)


def _lacking(
    incident: Incident, search: LogSearch, facts: LogFacts, where: str
) -> tuple[UndecidedReason, str] | None:
    """Return which part of the log was not read where a copy could be; None if none is lacking."""
    reasons, after = UndecidedReason, incident.after
    if search.end < facts.log_start:
        return reasons.RETENTION, f"{where} was deleted up to offset {facts.log_start}"
    if not search.precedes_every_copy and after is None:
        return reasons.RETENTION, (
            f"nothing was acknowledged in {where} before the batch, and the log does not begin at "
            "offset 0 any more, so a copy may have been deleted"
        )
    if not search.precedes_every_copy and after is not None:
        if after.offset < facts.log_start:
            return reasons.RETENTION, f"{where} was deleted up to offset {facts.log_start}"
        return reasons.TRUNCATED, (
            f"{where} does not have the record any more that was acknowledged before the batch, at "
            f"offset {after.offset}"
        )
    if search.gap is not None:
        deleted = search.gap < facts.log_start
        reason = reasons.RETENTION if deleted else reasons.COMPACTION
        return reason, f"{where} has no record at offset {search.gap} any more"
    return None


def _may_still_arrive(
    search: LogSearch, facts: LogFacts, read: str
) -> tuple[UndecidedReason | None, str]:
    fence = search.fence
    if fence is None:
        return UndecidedReason.NOT_FENCED, (
            f"{read}, but a broker that still has a request with it would append it. Send another "
            "record to the partition with the same producer, or close the producer and ask again "
            "after its successor with the same transactional id has written there"
        )
    if facts.now_ms - fence.max_timestamp_ms > facts.expiration * 1000.0 / 2:
        return UndecidedReason.FORGOTTEN, (
            f"{read}; the producer's last batch there, at offset {fence.base_offset}, is so old "
            "that brokers may have forgotten the producer, and would append a copy that one of "
            "them has kept until now"
        )
    return None, (
        f"{read}, and the producer's later batch at offset {fence.base_offset} makes brokers "
        "refuse it"
    )
