"""Whether a broker retains as many batches as it says (KIP-1269), as far as its answers tell.

A broker says N; a retry of a batch at most N batches back must be recognised (error NONE and its
offset). One that keeps fewer loses no record: its OUT_OF_ORDER_SEQUENCE_NUMBER is resolved by
probing. But it costs offsets and round trips at every lost connection, so it is noticed, said once,
and sent no more ahead than it was seen to deduplicate.

What is a proof? Positions are counted in batches of one partition and one identity; the newest one
sent is at distance 1.

- *Recognised at distance d*: a retry was answered NONE though a later batch is known to be stored.
  It cannot have been appended just now. d counts from the newest batch that is known to be stored
  by then, so it is at most the true distance: at least d are remembered.
- *Refused at distance d*: a retry was answered OUT_OF_ORDER_SEQUENCE_NUMBER, and is proved to have
  been stored by then: batches after it were recognised earlier on this connection. d counts from
  the newest batch that had been sent when the retry was (what is sent later on a connection is
  served later), so it is at least the true distance: fewer than d are remembered.

A refusal before that proves nothing. What was never appended is refused as well, being ahead of the
log and not behind the memory; and a later recognition does not say when it was stored, because
requests of a lost connection may still be served while their batches are asked about on this one.
Such a batch may be asked about once more: a refused attempt has appended nothing.

Why a restart does not explain it. After a restart, clean or not, a broker remembers the newest
batch of each producer and nothing else, so a refusal alone convicts nobody. Evidence counts only of
batches each of which was sent before on one and the same connection, the same for all, under the
leader and epoch of now: one process appended them. And two batches *below* the newest stored one
and above the refused one must be recognised first. Both were appended before they were asked about
on this connection (what is stored above them was appended later), so the memory is older than the
last of them, and whatever came before that on the same connection was in it. Only trimming removes
it.

Why a change of leader does not explain it. Followers rebuild what they remember when they truncate.
So a verdict waits for metadata that was asked for after it, and falls with the leader's epoch.

Why a changed config does not explain it. What the broker says is taken from an answer on the
present connection: a window that was made smaller is said to be smaller there.

What follows: for every partition at that broker the window is at most the largest distance that was
recognised, and at least 5, for ten minutes, then for twice as long each time, up to a day. The
verdict is not for ever, because what this rule cannot exclude (a memory that was made smaller and
larger while something was in doubt, a proxy that moves a connection to another process) must cost
throughput only, and for a time.

Not noticed: a broker that keeps fewer than three (it looks as if it had been restarted), and any in
transactions, where doubt is not resolved by probing.

Rejected: resending acknowledged batches as a test. Where the broker has forgotten us, that
is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED

__all__ = ["BrokerMemory", "Disproof", "RetentionEvidence", "Witness", "earlier_link"]

_WITNESSES = 2
"""Recognised batches between the newest stored one and a refused one that exclude a restart."""

_FIRST_DOUBT = 600.0
_LONGEST_DOUBT = 86400.0


class Disproof(NamedTuple):
    """A broker's word about its memory does not hold."""

    said: int
    """Batches that it said it retains."""
    proved: int
    """The largest distance at which a retry was recognised."""
    refused: int
    """The smallest one above it at which a retry was refused."""


class _Retry(NamedTuple):
    """A retry that was sent on the present connection."""

    link: int
    """The one connection on which it may have been appended before."""
    distance: int
    """From the newest batch that had been sent by then."""


class Witness(NamedTuple):
    """A retry that was answered NONE, below the newest batch that is known to be stored."""

    ordinal: int
    distance: int


class RetentionEvidence:
    """What the retries of one partition have shown, on its present connection."""

    __slots__ = ("_awaited", "_early", "_recognised", "_refused")

    def __init__(self) -> None:
        # By the batch.
        self._awaited: dict[int, _Retry] = {}
        # By the ordinal of what was refused before two were recognised: `_Retry.link`.
        self._early: dict[int, int] = {}
        # By the connection on which all earlier attempts were made.
        self._recognised: dict[int, list[Witness]] = {}
        self._refused: dict[int, list[int]] = {}

    def clear(self) -> None:
        """Another connection, leader or identity: what was seen belongs to the one before."""
        self._awaited.clear()
        self._early.clear()
        self._recognised.clear()
        self._refused.clear()

    def sent(self, batch: Batch, distance: int) -> None:
        """Note that a batch was sent; only retries that can be evidence are waited for.

        `distance`: from the newest batch sent by now.
        """
        if batch.attempt is None:
            return
        link = batch.attempt.earlier_link
        # An attempt that was refused here has appended nothing: what was true before it still is.
        link = self._early.pop(batch.ordinal, None) if link is None else link
        if link is not None:
            self._awaited[id(batch)] = _Retry(link, distance)

    def recognised(self, batch: Batch, distance: int) -> None:
        """Note that a retry was answered with error NONE.

        `distance`: from the newest batch that is known to be stored.
        """
        retry = self._awaited.pop(id(batch), None)
        if retry is not None and distance > 1:
            seen = self._recognised.setdefault(retry.link, [])
            seen.append(Witness(batch.ordinal, distance))

    def refused(self, batch: Batch) -> None:
        """Note that a retry was answered OUT_OF_ORDER_SEQUENCE_NUMBER."""
        retry = self._awaited.pop(id(batch), None)
        if retry is None:
            return
        seen = self._recognised.get(retry.link, ())
        if sum(each.ordinal > batch.ordinal for each in seen) >= _WITNESSES:
            self._refused.setdefault(retry.link, []).append(retry.distance)
        else:
            self._early[batch.ordinal] = retry.link

    def ended(self, batch: Batch) -> None:
        """Note that a retry ended in a way that shows nothing of the broker's memory."""
        self._awaited.pop(id(batch), None)

    def verdict(self, said: int) -> Disproof | None:
        """Return what is proved once every retry is answered.

        `said`: how many batches the broker says it retains now.
        """
        if self._awaited or not self._refused:
            return None
        refused, recognised = self._refused, self._recognised
        self._refused, self._recognised = {}, {}
        for link, distances in refused.items():
            proved = max(each.distance for each in recognised[link])
            beyond = min((d for d in distances if d > proved), default=said + 1)
            if beyond <= said:
                return Disproof(said, proved, beyond)
        return None


class BrokerMemory:
    """What one broker is believed to remember per partition, across its connections."""

    __slots__ = ("_backoff", "_told", "_until", "limit")

    def __init__(self, random: Callable[[], float]) -> None:
        self.limit: int | None = None
        self._until = 0.0
        self._told: int | None = None
        self._backoff = Backoff(_FIRST_DOUBT, _LONGEST_DOUBT, random)

    def believed(self, said: int | None, now: float) -> int | None:
        """Return what to take for the window that an answer names."""
        if self.limit is not None and now >= self._until:
            self.limit = None
        if self.limit is None or said is None:
            return said
        return min(said, self.limit)

    def disprove(self, disproof: Disproof, now: float) -> bool:
        """Believe no more than what was proved, for a time; whether that is news to a user."""
        self.limit = max(DEFAULT_BATCHES_RETAINED, disproof.proved)
        self._until = now + self._backoff.next_delay()
        news, self._told = self.limit != self._told, self.limit
        return news


def earlier_link(batch: Batch, leader: tuple[int, int]) -> int | None:
    """Return the one connection on which every earlier attempt at a batch was made.

    None when there was more than one, or another leader or epoch.
    """
    first: Attempt | None = batch.first_attempt
    last: Attempt | None = batch.attempt
    if first is None or last is None or last.link_id != first.link_id:
        return None
    return first.link_id if (first.leader_id, first.leader_epoch) == leader else None
