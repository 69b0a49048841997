"""Requests that get no answer, and what is compared after anything has happened."""

from __future__ import annotations

from random import Random

from aioidem._engine.batch import Batch
from aioidem._engine.links import Link
from aioidem._engine.requests import Outstanding, RequestKind

from .produce_bench import ProduceBench

__all__ = ["LossBench", "state_of"]


class LossBench(ProduceBench):
    """The bench of Produce requests, and what follows if one is lost."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self._throttles: dict[int, list[float]] = {}
        self._largest: dict[tuple[int, str], int] = {}
        """The largest batch of each topic that was acknowledged on a connection."""
        self._ceilings: dict[str, int] = {}
        """Half the size of the smallest batch of each topic that was refused for its size."""

    # -- requests without an answer ----------------------------------------------------------------

    def _written(self, link: Link, request: Outstanding) -> str | None:
        """Let a request be written to which no answer comes (acks=0)."""
        meters, batches = self._parts.core.meters, [b for _, b in request.entries.values()]
        self._part.on_written_unanswered(link.link_id, 10**6, self._now)
        ended = [batch for batch in batches if batch.settled]
        self._part.on_written_unanswered(link.link_id, request.token, self._now + 1.0)
        if meters.now != self._now + 1.0:
            return f"the outcome is measured at {meters.now}"
        left = [batch for batch in batches if batch not in ended]
        if request.token in link.outstanding or any(state_of(b) != "unknown" for b in left):
            return "a batch that was written is not unknown"
        return None

    def _withdraw(self) -> str | None:
        """Take back a request that was not written: no batch is in doubt because of it."""
        for link in self._links():
            for request in list(link.outstanding.values()):
                if request.kind is RequestKind.PRODUCE:
                    self._parts.requests.withdrawn(link.link_id, request.token)
                    return self._lost(request)
        return None

    def _lose(self) -> str | None:
        """Lose a connection: what was in flight on it is in doubt."""
        links = self._links()
        if not links:
            return None
        link = self._dice.choice(links)
        requests = [r for r in link.outstanding.values() if r.kind is RequestKind.PRODUCE]
        batches = [batch for each in requests for _, batch in each.entries.values()]
        left = [batch for batch in batches if not batch.settled]
        self._parts.lose(link, self._now)
        told = [state_of(batch) for batch in left]
        return None if all(each == "in doubt" for each in told) else f"{told} on a lost connection"

    def _lost(self, request: Outstanding) -> str | None:
        batches = [batch for _, batch in request.entries.values() if not batch.settled]
        due = ["in doubt" if batch.in_doubt else "waits" for batch in batches]
        self._part.on_lost(request, written=False, now=self._now)
        told = [state_of(batch) for batch in batches]
        return None if told == due else f"{told} after a request is lost, not {due}"

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        parts = self._parts
        parts.outcomes.take_settled()
        for topic in parts.accumulator.topics:
            ceiling = parts.accumulator.topics[topic].ceiling(10**6, self._now)
            if ceiling != self._ceilings.get(topic, 10**6):
                return f"batches of {topic} may have {ceiling} bytes"
        for link in self._links():
            throttles = parts.core.meters.nodes[link.node_id].throttles
            if throttles != self._throttles.get(link.node_id, []):
                return f"throttles of {throttles} are measured"
            for topic in parts.accumulator.topics:
                largest = self._largest.get((link.link_id, topic), 0)
                if link.limits.of(topic).acknowledged != largest:
                    return f"{link.limits.of(topic).acknowledged} bytes are acknowledged"
        for row in self._rows:
            if row.state.window.limit != row.said:
                return f"a window of {row.state.window.limit}, not {row.said}"
            if row.state.queue.count != len(row.queue):
                return f"{row.state.queue.count} records are queued, not {len(row.queue)}"
        return None


def state_of(batch: Batch) -> str:
    """Return what is known of a batch, in a word."""
    if batch.settled:
        return batch.state.value
    if not batch.due:
        return "in flight"
    return "in doubt" if batch.in_doubt else "waits"
