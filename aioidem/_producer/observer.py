"""Observer: what a producer reports of its batches, for metrics.

`Observer` and the facts that it receives are public. `BatchReporter` converts the engine's batches
and outcomes to those facts.

Invariants: an observer's exception is logged and goes no further. `BatchReporter` forgets a batch
when its records have their outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from aioidem._engine.requests import Entry
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine, write_raised
from aioidem.errors import InternalError, KafkaError
from aioidem.structs import DeliveryStatus

__all__ = ["BatchReporter", "Observer", "SentBatch", "SettledBatch"]


_MOST_DIVIDED: Final = 100
"""How many batches of which some records have their outcome are remembered for the others."""


class SentBatch(NamedTuple):
    """A batch that was written to a connection. Times are seconds on the event loop's clock."""

    topic: str
    partition: int

    records: int
    """How many records the batch has."""

    size: int
    """The batch's size in bytes, after compression."""

    attempt: int
    """1 for the first time that the batch is sent, and one more for each retry."""

    queued_at: float
    """When the batch's first record was queued."""

    sent_at: float
    """When this attempt was written."""


class SettledBatch(NamedTuple):
    """Records of one partition that got the same outcome at the same time.

    Times are seconds on the event loop's clock.
    """

    topic: str

    partition: int
    """The partition's number, or -1 if none was chosen before the records failed."""

    records: int
    """How many records there are."""

    status: DeliveryStatus
    """ACKED, NOT_WRITTEN or UNKNOWN; with ``acks=0`` sent records are UNKNOWN with no error."""

    error: KafkaError | None
    """Why the records failed; None if they did not."""

    queued_at: float
    """When the first record entered the queue of its partition; 0 if it ended before that."""

    sent_at: float | None
    """When the records were sent for the last time; None if they were never sent."""

    settled_at: float
    """When the outcome became known."""


class Observer(Protocol):
    """Receives facts about batches, for metrics.

    The methods are called on the event loop and must not block. Exceptions are logged and have no
    other effect.
    """

    def on_batch_sent(self, batch: SentBatch, /) -> None:
        """Take note of a batch that was sent, for the first time or again."""
        ...

    def on_batch_settled(self, batch: SettledBatch, /) -> None:
        """Take note of records that have just got their outcome."""
        ...

    def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
        """Take note of a call that has waited for room in the buffer, with or without success.

        Args:
            topic: The topic of the record.
            partition: The partition that the caller chose; None if it chose none.
            seconds: How long the call waited.
        """
        ...


class _Sent(NamedTuple):
    """The last time that a batch was sent, and the ordinals of its first and last records."""

    topic: str
    partition: int
    first: int
    last: int
    records: int
    sent_at: float


class BatchReporter:
    """Reports one producer's batches to an observer.

    Args:
        observer: Receives the facts.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        # When each batch was last sent; the key is the `ordinal` of its first record.
        self._sent: dict[int, _Sent] = {}
        # Batches of which some records have an outcome: others may get theirs without being sent
        # again (KIP-467).
        self._divided: deque[_Sent] = deque(maxlen=_MOST_DIVIDED)

    def on_dispatched(self, entry: Entry) -> None:
        """Report a batch that was written to a connection."""
        state, batch = entry
        first = batch.records[0]
        if batch.attempt is None:
            return
        sent_at, last = batch.attempt.sent_at, batch.records[-1]
        self._sent[first.ordinal] = _Sent(
            state.topic, state.partition, first.ordinal, last.ordinal, batch.count, sent_at
        )
        _report(
            self._observer.on_batch_sent,
            SentBatch(
                state.topic,
                state.partition,
                batch.count,
                len(batch.data),
                batch.attempts,
                first.queued_at,
                sent_at,
            ),
        )

    def on_settled(self, settlement: Settlement, now: float) -> None:
        """Report records that have just got their outcome."""
        first, outcome = settlement.records[0], settlement.outcome
        error = outcome.error
        if error is not None and not isinstance(error, KafkaError):
            error = InternalError(error)
        _report(
            self._observer.on_batch_settled,
            SettledBatch(
                outcome.topic,
                outcome.partition,
                len(settlement.records),
                outcome.status,
                error,
                first.queued_at,
                self._sent_at(settlement),
                now,
            ),
        )

    def _sent_at(self, settlement: Settlement) -> float | None:
        """Return when the records were sent for the last time; None if they never were."""
        ordinal, outcome = settlement.records[0].ordinal, settlement.outcome
        sent = self._sent.pop(ordinal, None)
        if sent is not None:
            if len(settlement.records) < sent.records:
                self._divided.append(sent)
            return sent.sent_at
        if not outcome.attempts:
            return None
        for each in (*self._sent.values(), *reversed(self._divided)):
            where = each.topic, each.partition
            if where == (outcome.topic, outcome.partition) and each.first <= ordinal <= each.last:
                return each.sent_at
        return None

    def on_waited(self, topic: str, partition: int | None, seconds: float) -> None:
        """Report a call that waited for room in the buffer."""
        _report(self._observer.on_waited, topic, partition, seconds)


def _report(method: Callable[..., None], *facts: object) -> None:
    try:
        method(*facts)
    except BaseException as error:  # noqa: BLE001 - it is logged
        write_raised(LogLine.OBSERVER_RAISED, "an observer raised", error)
