"""The verdict about a batch that ended UNKNOWN, derived a second time from all that was read.

`LogSearch` takes in page by page and keeps little; this looks at the whole of what was read. It has
the rule from DESIGN.md ("UNKNOWN is not the last word"), and the order in which reasons count from
`UndecidedReason`. The words of a verdict are compared by the offsets that they name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from aioidem._engine.log_search import LogFacts, LoggedBatch
from aioidem.incident import Incident
from aioidem.resolution import Resolution, UndecidedReason, Verdict

__all__ = ["Reading", "complaint_about"]

_NEAR = 1 << 30
"""Sequences that are less than this ahead are later ones (they begin again after 2^31 - 1)."""


class _Due(NamedTuple):
    """What a verdict must say."""

    verdict: Verdict
    reason: UndecidedReason | None = None
    names: frozenset[int] = frozenset()
    """The offsets that its words name."""
    offset: int = -1
    committed: bool | None = None


class Reading(NamedTuple):
    """What was read of the log for a batch.

    Attributes:
        begin: the first offset that was read; None if nothing could be read.
        batches: the batches that were read, in their order.
        facts: when and where they were read.
    """

    begin: int | None
    batches: Sequence[LoggedBatch]
    facts: LogFacts


def complaint_about(resolution: Resolution, incident: Incident, reading: Reading) -> str | None:
    """Return what a verdict should have said of what was read; None if it says that."""
    due = _due(incident, reading)
    where = f"{incident.topic}-{incident.partition}"
    names = frozenset(map(int, re.findall(r"\d+", resolution.detail.replace(where, ""))))
    said = _Due(
        resolution.verdict, resolution.reason, names, resolution.offset, resolution.committed
    )
    if said != due:
        return f"of what was read, it should say {due}"
    ours = where in resolution.detail or due.verdict is Verdict.WRITTEN
    untold = reading.facts.obstacle is not None and due.reason is reading.facts.obstacle
    if not ours and not untold:
        return f"its words do not name {where}"
    if resolution.incident is not incident:
        return "it is about another batch"
    open_ended = due.verdict is Verdict.WRITTEN and due.committed is None
    if open_ended and reading.facts.detail not in resolution.detail:
        return "it does not say why the end of the transaction is not known"
    return None


def _due(incident: Incident, reading: Reading) -> _Due:
    facts, begin = reading.facts, reading.begin
    if begin is None:
        return _Due(Verdict.UNDECIDED, facts.obstacle or UndecidedReason.TIMED_OUT)
    after = incident.after
    begin = begin if after is None else max(begin, after.offset)
    read = [batch for batch in reading.batches if batch.last_offset >= begin]
    own = [batch for batch in read if batch.producer_id == incident.producer_id]
    alike = [batch for batch in own if _has_identity(batch, incident)]
    copies = [batch for batch in alike if _has_bytes(batch, incident)]
    if copies:
        return _written(copies[0], own, incident)
    if facts.obstacle is not None:
        return _Due(Verdict.UNDECIDED, facts.obstacle)
    reason, *names = _undecided(incident, facts, begin, read, alike) or (None,)
    if reason is not None:
        return _Due(Verdict.UNDECIDED, reason, frozenset(names))
    return _about_copies_to_come(incident, facts, _end(begin, read), own)


def _has_identity(batch: LoggedBatch, incident: Incident) -> bool:
    wanted = incident.producer_epoch, incident.base_sequence
    return not batch.control and (batch.producer_epoch, batch.base_sequence) == wanted


def _has_bytes(batch: LoggedBatch, incident: Incident) -> bool:
    if batch.last_offset - batch.base_offset != incident.count - 1:
        return False
    if batch.log_append or batch.codec != incident.codec or incident.crc is None:
        return True
    return batch.crc == incident.crc


def _written(copy: LoggedBatch, own: Sequence[LoggedBatch], incident: Incident) -> _Due:
    committed: bool | None = True
    if copy.transactional:
        markers = [
            batch.commits
            for batch in own
            if batch.control and batch.commits is not None and batch.base_offset > copy.base_offset
        ]
        committed = markers[0] if markers else None
    at = copy.base_offset
    return _Due(Verdict.WRITTEN, None, frozenset({at}), at + (incident.index or 0), committed)


def _end(begin: int, read: Sequence[LoggedBatch]) -> int:
    """Return the offset behind the last batch that was read."""
    return max([begin, *(batch.last_offset + 1 for batch in read)])


def _undecided(
    incident: Incident,
    facts: LogFacts,
    begin: int,
    read: Sequence[LoggedBatch],
    alike: Sequence[LoggedBatch],
) -> tuple[UndecidedReason, *tuple[int, ...]] | None:
    """Return why a copy may be in the log although none was read, and the offsets to be named."""
    reasons, after, start = UndecidedReason, incident.after, facts.log_start
    if alike:
        return reasons.OTHER_BYTES, alike[0].base_offset
    if None in (facts.topic_id, incident.topic_id):
        return (reasons.NO_TOPIC_ID,)
    if facts.topic_id != incident.topic_id:
        return (reasons.TOPIC_GONE,)
    if _end(begin, read) < start:
        return reasons.RETENTION, start
    if begin != 0 and after is None:
        return reasons.RETENTION, 0
    anchors = {
        (batch.last_offset, batch.producer_id, batch.producer_epoch, batch.last_sequence)
        for batch in read
    }
    if begin != 0 and after is not None:
        acknowledged = after.offset, after.producer_id, after.producer_epoch, after.last_sequence
        if acknowledged not in anchors and after.offset < start:
            return reasons.RETENTION, start
        if acknowledged not in anchors:
            return reasons.TRUNCATED, after.offset
    ends = [begin, *(batch.last_offset + 1 for batch in read)]
    for end, batch in zip(ends, read, strict=False):
        if batch.base_offset > end:
            return (reasons.RETENTION if end < start else reasons.COMPACTION), end
    return None


def _about_copies_to_come(
    incident: Incident, facts: LogFacts, end: int, own: Sequence[LoggedBatch]
) -> _Due:
    """Return the verdict if no copy is in the log: a later one may still be appended, or not."""
    names = frozenset({end - 1} if end else ())
    if incident.renumbered:
        return _Due(Verdict.UNDECIDED, UndecidedReason.RENUMBERED, names)
    last = own[-1] if own else None
    if last is None or not _refuses(last, own, incident):
        return _Due(Verdict.UNDECIDED, UndecidedReason.NOT_FENCED, names)
    names |= {last.base_offset}
    age = (facts.now_ms - last.max_timestamp_ms) / 1000.0
    if age > facts.expiration / 2:
        return _Due(Verdict.UNDECIDED, UndecidedReason.FORGOTTEN, names)
    return _Due(Verdict.ABSENT, None, names)


def _refuses(last: LoggedBatch, own: Sequence[LoggedBatch], incident: Incident) -> bool:
    """Return whether a leader whose log ends so refuses the batch."""
    if last.producer_epoch != incident.producer_epoch:
        return last.producer_epoch > incident.producer_epoch
    data = [batch for batch in own if not batch.control][-1:]
    return any(
        batch.producer_epoch == incident.producer_epoch
        and (batch.last_sequence - incident.base_sequence) % (2 * _NEAR) < _NEAR
        for batch in data
    )
