"""Whether a broker retains as many batches as it says (KIP-1269), judged by its answers.

If a broker says that it retains N batches, it must recognise a retry of each of the last N batches
as a duplicate (and answer error NONE with the batch's offset). A broker that retains fewer answers
some retries with OUT_OF_ORDER_SEQUENCE_NUMBER. No record is lost, because the producer then probes
which batches are stored, but that costs offsets and round trips at every lost connection. So such a
broker is detected and reported once, and its window (the most batches in flight per partition) is
limited to what it was seen to deduplicate.

What counts as proof? Positions are counted in batches of one partition under one producer id and
epoch; the newest batch sent is at distance 1.

- *Recognised at distance d*: a retry was answered NONE although a later batch is known to be
  stored. So the retry was not appended just now, but recognised as a duplicate. d is counted from
  the newest batch that is known to be stored by then, so the true distance is d or larger: the
  broker retains at least d batches.
- *Refused at distance d*: a retry was answered OUT_OF_ORDER_SEQUENCE_NUMBER although its batch was
  stored. The proof that it was stored: later batches were recognised before, on this connection. d
  is counted from the newest batch that had been sent when the retry was sent, and a request sent
  later on a connection is served later. So the true distance is d or smaller: the broker retains
  fewer than d batches.

A refusal without that proof shows nothing: a batch that was never appended is refused as well,
because it is ahead of the log. Later batches that are recognised only after the refusal prove
nothing about it. Requests of a lost connection may still be served while their batches are resent
on this one, so the refused batch may have been stored after the refusal. It may be resent as
evidence again, because the refused attempt has appended nothing.

Why a restart is no explanation: after a restart, clean or not, a broker remembers the newest batch
of each producer and nothing else. So a refusal alone proves nothing. Two rules exclude a restart:

- A batch counts only if all earlier attempts at it were made on one connection, under the present
  leader and leader epoch. A batch is compared only with batches whose earlier attempts were made on
  the same connection, so one broker process appended them all.
- Two batches must be recognised first that are later than the refused one and earlier than the
  newest stored one. Both had been appended before they were resent on this connection, because a
  later batch is stored. A broker that had restarted since then would know at most the later of the
  two. So it has not restarted, and its memory held every earlier batch of that connection. Only
  trimming removes a batch from it.

Why a change of leader is no explanation: followers rebuild their memory when they truncate. So a
verdict waits for metadata that is requested after it, and is dropped if the leader epoch has
changed.

Why a changed config is no explanation: the number that the broker says is taken from an answer on
the present connection. If the config was lowered, the answer shows the lower number.

The consequence: the windows of all partitions at that broker are limited to the largest distance
that was recognised, or to 5 batches if that is more. The limit ends after ten minutes the first
time, and after twice as long each further time, up to a day. It ends because the rules cannot
exclude everything (a config that was lowered and raised while a batch was in doubt, a proxy that
moves a connection to another process). An error must cost throughput only, and only for a time.

Not detected: a broker that retains fewer than three batches (it cannot be told from a broker that
has restarted), and any broker in transactions, where doubt is not resolved by probing.

Rejected: resending acknowledged batches as a test. If the broker has forgotten the producer, such a
batch is written twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED

__all__ = ["BrokerMemory", "Disproof", "RetentionEvidence", "Witness", "earlier_link"]

_WITNESSES = 2
"""A refusal counts only if this many later batches were recognised as duplicates before it.

The newest stored batch is not one of them. A broker that has restarted recognises fewer batches, so
such a refusal does not come from a restart.
"""

_FIRST_DOUBT = 600.0
_LONGEST_DOUBT = 86400.0


class Disproof(NamedTuple):
    """The proof that a broker retains fewer batches than it says."""

    said: int
    """The number of batches that the broker says it retains."""
    proved: int
    """The distance from the newest batch to the oldest one of which a retry was recognised."""
    refused: int
    """The smallest distance above `proved` from the newest batch to one whose retry was refused."""


class _Retry(NamedTuple):
    """A resent batch that the leader has not answered yet, on the present connection."""

    link: int
    """The one connection on which the batch may have been appended before."""
    distance: int
    """The batch's distance from the newest batch sent, when it was resent; the newest one has 1."""


class Witness(NamedTuple):
    """A retry that the leader recognised as a duplicate.

    The leader answered NONE although a later batch is known to be stored. It would have refused to
    append the retry behind that batch (out of order), so it has recognised the retry.
    """

    ordinal: int
    distance: int


class RetentionEvidence:
    """The evidence, from the retries of one partition, of how many batches its leader retains.

    It is collected on one connection.
    """

    __slots__ = ("_awaited", "_early", "_recognised", "_refused")

    def __init__(self) -> None:
        # The retries that are not answered yet, by batch.
        self._awaited: dict[Batch, _Retry] = {}
        # The batches whose retry was refused too early to count: fewer than two later batches had
        # been recognised as duplicates by then. The key is the batch's ordinal; the value is the id
        # of the connection on which all earlier attempts at the batch were made.
        self._early: dict[int, int] = {}
        # The recognised retries, and the distances of the refused ones. The keys are the ids of the
        # connections on which all earlier attempts at those batches were made.
        self._recognised: dict[int, list[Witness]] = {}
        self._refused: dict[int, list[int]] = {}

    @property
    def none(self) -> bool:
        """Whether there is nothing to judge: no retry is unanswered, and no retry was refused."""
        return not (self._awaited or self._refused)

    def clear(self) -> None:
        """Forget all evidence: route, producer id or epoch changed, or a batch was replaced."""
        self._awaited.clear()
        self._early.clear()
        self._recognised.clear()
        self._refused.clear()

    def sent(self, batch: Batch, distance: int) -> None:
        """Note that a batch is being sent, if it is a retry that can be evidence.

        Args:
            batch: the batch.
            distance: its distance from the newest batch sent so far, in batches; the newest one
            itself has distance 1.
        """
        if batch.attempt is None:
            return
        link = batch.attempt.earlier_link
        # If the batch's last retry was refused too early to count, this retry may count instead.
        # `_early` has the id of the connection on which all attempts before the refused one were
        # made; the refused attempt appended nothing.
        link = self._early.pop(batch.ordinal, None) if link is None else link
        if link is not None:
            self._awaited[batch] = _Retry(link, distance)

    def recognised(self, batch: Batch, distance: int) -> None:
        """Note that a batch was answered with error NONE.

        Args:
            batch: the batch.
            distance: its distance from the newest batch known to be stored, in batches; the newest
            one itself has distance 1.
        """
        retry = self._awaited.pop(batch, None)
        if retry is not None and distance > 1:
            seen = self._recognised.setdefault(retry.link, [])
            seen.append(Witness(batch.ordinal, distance))

    def refused(self, batch: Batch) -> None:
        """Note that a batch was answered with OUT_OF_ORDER_SEQUENCE_NUMBER."""
        retry = self._awaited.pop(batch, None)
        if retry is None:
            return
        seen = self._recognised.get(retry.link, ())
        if sum(each.ordinal > batch.ordinal for each in seen) >= _WITNESSES:
            self._refused.setdefault(retry.link, []).append(retry.distance)
        else:
            self._early[batch.ordinal] = retry.link

    def ended(self, batch: Batch) -> None:
        """Note that an attempt ended without showing how many batches the broker retains."""
        self._awaited.pop(batch, None)

    def verdict(self, said: int) -> Disproof | None:
        """Return the proof that the broker retains fewer batches than it says; None without one.

        While a retry is unanswered, the result is None. Once all retries are answered, this call
        judges them, and also forgets them.

        Args:
            said: the number of batches that the broker says it retains now.
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
    """The limit on one broker's window, set if the broker retains fewer batches than it says.

    The window is the most batches in flight per partition. Usually there is no limit. Once set, it
    applies to every later connection to the broker too, until a back-off has ended.
    """

    __slots__ = ("_backoff", "_told", "_until", "limit")

    def __init__(self, random: Callable[[], float]) -> None:
        self.limit: int | None = None
        self._until = 0.0
        self._told: int | None = None
        self._backoff = Backoff(_FIRST_DOUBT, _LONGEST_DOUBT, random)

    def believed(self, said: int | None, now: float) -> int | None:
        """Return the window to use: the broker's own number, or the limit if that is lower.

        Args:
            said: the number of batches that the broker's answer names; None if it names none.
            now: seconds.
        """
        if self.limit is not None and now >= self._until:
            self.limit = None
        if self.limit is None or said is None:
            return said
        return min(said, self.limit)

    def disprove(self, disproof: Disproof, now: float) -> bool:
        """Limit the broker's window for some time; return whether the limit differs from the last.

        An unchanged limit need not be reported again.
        """
        self.limit = max(DEFAULT_BATCHES_RETAINED, disproof.proved)
        self._until = now + self._backoff.next_delay()
        news, self._told = self.limit != self._told, self.limit
        return news


def earlier_link(batch: Batch, leader: tuple[int, int]) -> int | None:
    """Return the id of the one connection on which all attempts at a batch were made.

    None if there were no attempts or several connections, or if the attempts went to another leader
    or were made in another leader epoch.

    Args:
        batch: the batch.
        leader: the present leader's id and leader epoch.
    """
    first: Attempt | None = batch.first_attempt
    last: Attempt | None = batch.attempt
    if first is None or last is None or last.link_id != first.link_id:
        return None
    return first.link_id if (first.leader_id, first.leader_epoch) == leader else None
