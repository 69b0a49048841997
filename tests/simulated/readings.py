"""The judge of reading back: whether a leader's log could have shown what became of a batch.

A batch in doubt whose leader may have forgotten the producer is looked for in the log, from the
last offset on that was acknowledged before its first attempt. It may end UNKNOWN only if nothing
there could show it: it is not below the high watermark that the leader named last, or the leader
refused to be read for good, or no offset had been acknowledged. A high watermark that is not above
what was acknowledged is that of a leader that was just elected, for a request timeout. The page
that ends it must come from the partition's present connection, and have been asked for when the
batch was in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._protocol.read_back import ReadBackAnswer

__all__ = ["Readings"]

_Place = tuple[str, int]


class _Page(NamedTuple):
    """A page that has reached the producer, and when the producer has asked for it."""

    link_id: int
    asked_at: float
    code: int
    high_watermark: int
    since: float
    """When the producer asked for the first page of this connection that named no more."""


class Readings:
    """Judges the reading of logs.

    Args:
        link_of: Returns the connection on which a partition is sent now; None if there is none.
        awaits: Returns whether a request on a connection is still unanswered.
        patience: How long a leader may not know that what was acknowledged is committed, in
            seconds.
    """

    def __init__(
        self,
        link_of: Callable[[_Place], int | None],
        awaits: Callable[[int, int], bool],
        patience: float,
    ) -> None:
        self._link_of = link_of
        self._awaits = awaits
        self._patience = patience
        # By connection and token: the partition that is read, and since when, in seconds.
        self._asked: dict[tuple[int, int], tuple[_Place, float]] = {}
        self._pages: dict[_Place, _Page] = {}
        # The connections on which a topic may not be read.
        self._denied: set[tuple[int, str]] = set()

    def asked(self, step: steps.ReadBack, now: float) -> None:
        """Note that the producer asks for a page."""
        self._asked[step.link_id, step.token] = (step.topic, step.partition), now

    def heard(self, step: steps.ReadBack, answer: ReadBackAnswer) -> None:
        """Note that a page has reached the producer, which has waited for it."""
        place, at = self._asked.pop((step.link_id, step.token))
        if answer.error_code == ErrorCode.topic_authorization_failed:
            self._denied.add((step.link_id, step.topic))
        if step.link_id != self._link_of(place):
            return
        before, since, end = self._pages.get(place), at, answer.high_watermark
        if before is not None and before.link_id == step.link_id and before.high_watermark >= end:
            since = before.since
        self._pages[place] = _Page(step.link_id, at, answer.error_code, end, since)

    def complaint(
        self, place: _Place, doubted_at: float, offsets: Collection[int], after: int, now: float
    ) -> str | None:
        """Return what is wrong if a batch ends UNKNOWN now because its leader may have forgotten.

        An offset must have been acknowledged before the batch was first sent.

        Args:
            place: Its partition.
            doubted_at: Since when it is in doubt, in seconds.
            offsets: At which offsets it is in the leader's log.
            after: The last offset that was acknowledged before the batch was first sent. A batch
                that is not after it is in a log that has lost what was acknowledged.
            now: Seconds.
        """
        link_id = self._link_of(place)
        if link_id is not None and (link_id, place[0]) in self._denied:
            return None
        for (link, token), (read, at) in self._asked.items():
            if read == place and link == link_id and at < now and self._awaits(link, token):
                return "its leader's log is being read"
        page = self._pages.get(place)
        if page is None or page.asked_at < doubted_at:
            return "its leader's log was not read"
        if page.code:
            code = ErrorCode(page.code)
            passes = code is ErrorCode.unknown_server_error or code.retriable
            return f"its leader's log could not be read just then ({page.code})" if passes else None
        if page.high_watermark <= after and now < page.since + self._patience:
            return "its leader did not know yet what is committed"
        found = [offset for offset in offsets if after < offset < page.high_watermark]
        if found:
            return f"it is at offset {found[0]}, below the high watermark {page.high_watermark}"
        return None
