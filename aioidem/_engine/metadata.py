"""MetadataRefresher: decides when metadata is requested; the module `cluster` holds the metadata.

Metadata is requested when a topic is wanted that is not known, when an answer or a lost connection
shows that what is known is stale, and when it is older than `metadata_max_age`. One request is
outstanding at a time. After each answer, and after a failure, the next request waits for a
back-off, which grows while requests fail or their answers lack something, so that a cluster without
leaders is not flooded. Only a topic that no request has named yet is requested without a back-off,
as in Java and aiokafka, unless the last request has failed. Such a request is out of turn: what its
answer lacks does not make the back-off longer, nor is it one more answer in a row that says the
same, because new topics may come one after another.
"""

from __future__ import annotations

from aioidem._engine.backoff import Backoff

__all__ = ["MetadataRefresher"]


class MetadataRefresher:
    """Decides when the next Metadata request is due."""

    __slots__ = (
        "_backoff",
        "_failed",
        "_max_age",
        "_next_at",
        "_unnamed",
        "in_flight",
        "out_of_turn",
        "refreshed_at",
        "requests",
        "wanted",
    )

    def __init__(self, max_age: float, backoff: Backoff) -> None:
        self._max_age = max_age
        self._backoff = backoff
        self._next_at = 0.0
        # Whether the last request has failed.
        self._failed = False
        # Whether a topic is wanted that no request has named.
        self._unnamed = False
        self.wanted = True
        self.in_flight = False
        # Whether the latest request was for a topic that none had named, without a back-off.
        self.out_of_turn = False
        # The number of Metadata requests sent so far, which is also the number of the latest one. A
        # record that waits for metadata notes this number when it comes. Only the answer to a
        # request with a higher number is certainly younger than the record.
        self.requests = 0
        self.refreshed_at: float | None = None

    def want(self) -> None:
        """Ask for new metadata, because the known metadata is stale or incomplete.

        The request becomes due as soon as the back-off allows it.
        """
        self.wanted = True

    def want_unnamed(self) -> None:
        """Ask for a topic that no request has named yet: at once, if requests are answered."""
        self.wanted = self._unnamed = True

    @property
    def _at_once(self) -> bool:
        return self._unnamed and not self._failed

    def due(self, now: float) -> bool:
        """Return whether a Metadata request should be sent now."""
        if self.in_flight or (now < self._next_at and not self._at_once):
            return False
        refreshed = self.refreshed_at
        return self.wanted or refreshed is None or now >= refreshed + self._max_age

    def due_at(self) -> float | None:
        """Return when the next Metadata request is due, in seconds; None if one is outstanding."""
        if self.in_flight:
            return None
        if self._at_once:
            return 0.0
        if self.wanted or self.refreshed_at is None:
            return self._next_at
        return max(self._next_at, self.refreshed_at + self._max_age)

    def sent(self) -> None:
        """Note that a Metadata request is being sent."""
        self.requests += 1
        self.in_flight = True
        self.out_of_turn = self._at_once
        self.wanted = self._unnamed = False

    def failed(self, now: float) -> None:
        """Begin a back-off: the request got no answer, or the answer came from another cluster."""
        self.in_flight = False
        self.wanted = self._failed = True
        self._next_at = now + self._backoff.next_delay()

    def answered(self, now: float, *, enough: bool) -> None:
        """Note that a Metadata answer was merged into the producer's view of the cluster.

        Args:
            now: seconds.
            enough: False if the answer lacks brokers, the leader of a partition, or a topic or
            partition that records wait for. Then metadata is requested again after the back-off.
        """
        self.in_flight = self._failed = False
        self.refreshed_at = now
        backoff = self._backoff
        self._next_at = now + (backoff.last_delay() if self.out_of_turn else backoff.next_delay())
        if enough:
            self._backoff.reset()
        else:
            self.wanted = True
