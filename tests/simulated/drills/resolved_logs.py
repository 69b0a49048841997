"""Reading logs for batches in doubt: which page is due, and what each page decides."""

from __future__ import annotations

import copy
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.batch import Batch
from aioidem._engine.cluster import NO_LEADER
from aioidem._engine.links import Link
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import AskProducers, ReadBack, Step
from aioidem._engine.suspicion import Suspicion
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import assign_offsets
from aioidem.structs import DeliveryStatus

from .comparing import unequal
from .doubt_bench import PATIENCE, RETRY, DoubtBench
from .doubt_rows import Lane, Stored, key_of

__all__ = ["LogBench", "Question", "found_in", "given_up"]

_MOST: Final = 2
"""The most requests in flight on a connection."""
_PASSING: Final = (-1, 6, 56, 74, 75, 78, 100)
"""UNKNOWN_SERVER_ERROR, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID: the log may be read later.
"""

Question = AskProducers | ReadBack
"""A question about what a leader has stored."""

_Ended = dict[Batch, tuple[DeliveryStatus, int, int]]
"""For each batch that has ended: its outcome, its offset and when it was appended."""


class _Pending(NamedTuple):
    """A page that follows one that was received, and the connection to read it on."""

    lane: Lane
    link: Link
    offset: int


class LogBench(DoubtBench):
    """The bench of doubt, and what is known of the logs that are being read."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self._ahead_ms: float | None = None
        """By how many ms the clock that stamps records was ahead of the engine's, at most."""
        self._tokens = 0
        """How many requests were made."""
        self._warnings = 0
        """How many warnings are due that a leader may have forgotten: one at most."""
        self._warned = False
        self._pending: list[_Pending] = []
        """The pages that are to be requested next."""
        self._behind = dice.random() < 0.2
        """Whether leaders do not hear that what was acknowledged is committed."""

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _free(self, link: Link, more: int = 0) -> bool:
        """Return whether a connection takes a request, after so many more."""
        return self._now >= link.throttled_until and len(link.outstanding) + more < _MOST

    def _paused(self, link: Link, throttle_ms: int) -> float:
        """Return until when a connection is not used after an answer (KIP-219)."""
        until = self._now + throttle_ms / 1000.0 if throttle_ms else 0.0
        return max(link.throttled_until, until)

    def _compare(self, made: list[Step], due: list[Question]) -> str | None:
        """Return how the requests that were made, and what is kept of them, are not those due."""
        if [(type(each), *each) for each in made] != [(type(each), *each) for each in due]:
            return f"{made} are asked, not {due}"
        for step in due:
            request = self._parts.connections.links[step.link_id].outstanding[step.token]
            asks = type(step) is AskProducers
            kind = RequestKind.DESCRIBE_PRODUCERS if asks else RequestKind.READ_BACK
            lane = next(lane for lane in self._lanes if lane.index == step.partition)
            kept = request.kind, request.subject, request.sent_at
            if kept != (kind, lane.state, self._now):
                return f"a request is kept as {kept}, not {(kind, lane.state, self._now)}"
        return None

    def _ended(self) -> _Ended:
        """Take out the outcomes of batches."""
        return {
            self._batches[id(each.records)]: (
                each.outcome.status,
                each.outcome.base_offset,
                each.outcome.log_append_time_ms,
            )
            for each in self._parts.outcomes.take_settled()
        }

    # -- beginning to read -------------------------------------------------------------------------

    def _wants_log(self, lane: Lane, suspicion: Suspicion) -> bool:
        """Return whether a log must be read: a resend could be stored twice, and nobody answers."""
        idle = not lane.flights and lane.reading is None
        return suspicion.forbids_resend and idle and bool(lane.doubts())

    def _begins_at(self, lane: Lane, link: Link) -> int | None:
        """Return where to read the log: behind what was known when each batch was first sent.

        None if nobody can know: no offset is known, or the connection does not permit it.
        """
        ends = [lane.state.log.offset]
        ends += [known for batch in lane.doubts() if (known := lane.known_when_sent[batch]) >= 0]
        return None if not link.may_read or ends[0] < 0 else min(ends) + 1

    def _read(self, lane: Lane, link: Link, offset: int) -> Question:
        """Expect the request for a page."""
        token = self._token()
        lane.reading, lane.awaited = offset, token
        state, route = lane.state, lane.state.leadership.route
        epoch = -1 if route is None else route.leader_epoch
        name = state.topic, state.topic_id
        return ReadBack(link.link_id, token, *name, lane.index, offset, epoch)

    def _read_on(self) -> str | None:
        """Request the pages that follow, each unless its reading has ended."""
        due: list[Question] = []
        pending, self._pending = self._pending, []
        for each in pending:
            lane, link, offset = each
            more = sum(step.link_id == link.link_id for step in due)
            if lane.reading != offset:
                continue
            doubt = any(batch.in_doubt for batch in lane.state.batches.unresolved)
            if link.closed or not doubt:
                lane.end_reading()
            elif self._free(link, more) and self._now >= lane.state.setbacks.retry_at:
                due.append(self._read(lane, link, offset))
            else:
                self._pending.append(each)
        made = self._parts.poll()
        self._part.read_on(self._now)
        return self._compare(made, due)

    def _move(self) -> None:
        """Begin to move to another cluster, which ends all reading; then every connection ends."""
        if self._dice.random() < 0.6:
            return
        self._part.forget_cluster()
        self._pending.clear()
        for link in list(self._parts.connections.links.values()):
            self._lose_link(link)

    # -- pages -------------------------------------------------------------------------------------

    def _page(self, lane: Lane, link: Link, request: Outstanding) -> str | None:
        """Answer with a page of the log, and compare what it decides with what it should."""
        state, metadata = lane.state, self._parts.metadata
        page = self._some_of(lane)
        code = self._dice.choice((0,) * 8 + (self._dice.choice(_PASSING), 1, 29))
        end = self._dice.choice((lane.tail,) * 3 + (lane.tail + 5, state.log.offset, 0))
        end = min(end, state.log.offset) if self._behind else end
        data = b"".join(_as_stored(each) for each in page)
        if page and self._dice.random() < 0.2:
            data, page = data[:-1], page[:-1]  # a page may end within a batch
        answer = ReadBackAnswer(code, end, data, self._dice.choice((0, 0, 500)))
        paused, suspicion = self._paused(link, answer.throttle_ms), copy.copy(state.suspicion)
        retry_at, taken = state.setbacks.retry_at, request.token == lane.awaited
        self._ended()
        metadata.wanted = False
        due: _Ended = {}
        if taken:
            lane.awaited = None
            due, retry_at = self._judge(lane, link, page, answer)
        self._part.on_read_back(link, request, answer, self._now)
        wrong = unequal(
            {
                "batches that end": (self._ended(), due),
                "the partition is asked again from": (state.setbacks.retry_at, retry_at),
                "the connection is throttled until": (link.throttled_until, paused),
                "metadata is wanted": (metadata.wanted, taken and code in _PASSING),
            }
        )
        if wrong is not None:
            batches = [(each.base_offset, each.identity) for each in page]
            return f"{wrong}, after code {code}, end {end} and (offset, identity) {batches}"
        return self._wrong_stamp(lane, suspicion, due)

    def _wrong_stamp(self, lane: Lane, suspicion: Suspicion, ended: _Ended) -> str | None:
        """Check that the suspicion counts the timestamps of batches that were found, or given up.

        Args:
            lane: the partition.
            suspicion: a copy of its suspicion from before the page.
            ended: what became of batches by the page.
        """
        for batch, (status, _, _) in ended.items():
            if status is DeliveryStatus.ACKED:
                suspicion.found(batch.max_timestamp_ms)
            elif status is DeliveryStatus.UNKNOWN:
                suspicion.given_up(batch.max_timestamp_ms)
        both = copy.copy(lane.state.suspicion), suspicion
        for each in both:
            each.assess(0.0, 100.0, lane.state.batches.unresolved)
        return unequal({"suspect from (ms), after the page": (both[0].due_ms, both[1].due_ms)})

    def _some_of(self, lane: Lane) -> list[Stored]:
        """Return some batches of the log, from where it is read."""
        begin = lane.reading or 0
        rest = [each for each in lane.log if each.base_offset >= begin]
        return rest[: self._dice.choice((0, 1, 1, 2, 4))]

    def _judge(
        self, lane: Lane, link: Link, page: list[Stored], answer: ReadBackAnswer
    ) -> tuple[_Ended, float]:
        """Return which batches end by a page, and from when on the partition is asked again."""
        state, retry_at = lane.state, lane.state.setbacks.retry_at
        doubtful = state.suspicion.forbids_resend and state.batches.in_doubt
        if answer.error_code in _PASSING:
            lane.end_reading()
            return {}, self._now + RETRY
        if answer.error_code:
            lane.end_reading()
            return given_up(lane, {}), retry_at
        if self._ahead_ms is None or not doubtful or not self._leads(lane):
            lane.end_reading()  # a page of another leader, or of one that is trusted, shows nothing
            return {}, retry_at
        if answer.high_watermark > state.log.offset:
            lane.behind_since = None
        elif lane.behind_since is None:
            lane.behind_since = self._now
        since, reading = lane.behind_since, lane.reading or 0
        # A new leader does not know for a while that what was acknowledged is committed.
        end = answer.high_watermark if since is None or self._now >= since + PATIENCE else 1 << 40
        if not page and reading < end:
            self._pending.append(_Pending(lane, link, reading))
            return {}, self._now + RETRY
        ended = found_in(lane, page)
        if all(batch in ended for batch in lane.doubts()) or not page:
            last = True
        else:
            last = page[-1].next_offset >= end
        if last:
            lane.end_reading()
            return given_up(lane, ended), retry_at
        lane.reading = page[-1].next_offset
        self._pending.append(_Pending(lane, link, lane.reading))
        return ended, retry_at

    def _leads(self, lane: Lane) -> bool:
        """Return whether a partition's route leads to its present leader, as far as is known."""
        view = self._parts.cluster.leader_of(lane.state.topic, lane.index)
        route = lane.state.leadership.route
        if view is None or route is None:
            return True
        same = view.leader_id in (route.leader_id, NO_LEADER)
        return same and view.leader_epoch == route.leader_epoch


def _as_stored(stored: Stored) -> bytes:
    """Return the bytes of a batch as they are in the log."""
    appended = stored.append_time_ms if stored.append_time_ms >= 0 else None
    return assign_offsets(
        stored.data,
        base_offset=stored.base_offset,
        leader_epoch=0,
        log_append_time_ms=appended,
    )


def _refused_before(lane: Lane, batch: Batch, ended: _Ended) -> _Ended:
    """Return the end of batches before one that has ended: they were not written.

    A leader that has appended a batch appends none that precedes it any more. So those end that
    were refused, or never sent, and have no end yet.
    """
    unresolved = lane.state.batches.unresolved
    below = unresolved[: unresolved.index(batch)]
    refused = [b for b in below if b.due and not b.in_doubt and b not in ended]
    return dict.fromkeys(refused, (DeliveryStatus.NOT_WRITTEN, -1, -1))


def found_in(lane: Lane, page: list[Stored]) -> _Ended:
    """Return the end of the batches in doubt that are in a page, and of those they overtook."""
    ended: _Ended = {}
    for stored in page:
        for batch in lane.doubts():
            if batch not in ended and key_of(batch) == stored.identity:
                ended |= _refused_before(lane, batch, ended)
                ended[batch] = DeliveryStatus.ACKED, stored.base_offset, stored.append_time_ms
    return ended


def given_up(lane: Lane, ended: _Ended) -> _Ended:
    """Return how all batches in doubt end, of which some were found: the others UNKNOWN."""
    left = [batch for batch in lane.doubts() if batch not in ended]
    if not left:
        return ended
    unknown = dict.fromkeys(left, (DeliveryStatus.UNKNOWN, -1, -1))
    return ended | _refused_before(lane, left[-1], ended) | unknown
