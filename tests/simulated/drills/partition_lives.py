"""What becomes of one of a producer's partitions: its options, its batches, and when they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from aioidem._broker.virtual import idempotent_batch
from aioidem._config import ProducerConfig
from aioidem._engine.batch import Attempt, Batch, BatchEvent, Evidence
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.settlement import Settlement
from aioidem.errors import KafkaError, NotEnoughReplicasError

from .leaders import Leaders
from .made_batches import made_batch

__all__ = ["CONFIGS", "RANGE", "is_over", "progress", "queue_record", "untold", "wrong_options"]

_TIMEOUT: Final = 20.0
"""The delivery timeout, in seconds."""
_GRACE: Final = 5.0
"""The request timeout, in seconds: so much longer a batch has that is being asked about."""
_REASONS: Final[tuple[KafkaError | str, ...]] = ("closed", NotEnoughReplicasError("no"))
_DATA: Final = idempotent_batch(0, 1, producer_id=7, epoch=1)
RANGE: Final = 10_000_000
"""How many records a KIP-758 broker deduplicates by default."""
_OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"broker_dedup": "range"},
    {"in_doubt": "resend"},
    {"enable_idempotence": False},
    {"transactional_id": "x"},
)
CONFIGS: Final = [
    ProducerConfig.build(
        "b1:9092",
        client_id="drill",
        delivery_timeout=_TIMEOUT,
        request_timeout=_GRACE,
        retry_backoff=0.25,
        retry_backoff_max=2.0,
        **options,
    )
    for options in _OPTIONS
]


def wrong_options(state: PartitionState, config: ProducerConfig) -> str | None:
    """Return how a partition does not obey its options; None if it does.

    Whether it suspects its leader, and for how long it backs off, is tried; then all is as before.
    """
    state.suspicion.acked(0, -1)
    state.assess_memory(1e9, 1.0)
    suspects = config.enable_idempotence and config.transactional_id is None
    told = state.suspicion.suspect, state.suspicion.forbids_resend
    state.suspicion.renewed()
    due = suspects, suspects and config.in_doubt != "resend"
    waits = []
    for at in (100.0, 200.0, 300.0, 400.0, 500.0):
        state.setbacks.back_off(at)
        waits.append(state.setbacks.retry_at - at)
    state.setbacks.end()
    if told != due or waits != [0.25, 0.5, 1.0, 2.0, 2.0]:
        memory = f"{state} (suspects, forbids to resend): {told}, not {due}"
        return f"{memory}; it backs off for {waits} s"
    return None


def queue_record(state: PartitionState, now: float) -> None:
    """Queue a record."""
    record = PendingRecord(None, b"", (), 0, None, 10)
    record.deadline = now + _TIMEOUT
    state.queue.append(record, now)


def progress(dice: Random, state: PartitionState, leaders: Leaders, now: float) -> None:
    """Let a batch be sealed, sent or answered, or let something else happen to a partition."""
    batches = state.batches.unresolved
    match dice.randrange(7):
        case 0 | 1 if state.active and (state.queue.records or batches):
            batch = made_batch(state.batches.next_ordinal)
            batch.data, batch.deadline = _DATA, now + dice.choice((1.0, 20.0))
            batch.records[0].queued_at = now
            batch.base = state.ledger.take(1)
            state.enlist(batch)
        case 2 | 3 if batches:
            _send_or_answer(dice, state, dice.choice(batches), now)
        case 4:
            state.follow(leaders.route())
            state.gate.hear_none((state.ledger.identity, state.leadership.route), now)
        case 5:
            state.setbacks.failed(dice.choice(_REASONS), now)
        case _ if not batches and state.batches.outstanding:
            state.batches.outstanding = 0
        case _:
            state.queue.expire(now + _TIMEOUT)


def _send_or_answer(dice: Random, state: PartitionState, batch: Batch, now: float) -> None:
    if batch.due:
        batch.send(Attempt(1, 0, 0, now, knows_us=True))
        state.batches.outstanding += 1
        return
    state.batches.outstanding -= 1
    batch.learn(dice.choice((Evidence.AMBIGUOUS, Evidence.REFUSED)), now)
    if batch.in_doubt and dice.random() < 0.4:
        state.batches.unresolved.remove(batch)
        batch.move(BatchEvent.ACK)
    else:
        batch.move(BatchEvent.RETRY)


def is_over(batch: Batch, now: float, answered: float | None) -> bool:
    """Return whether a batch is past its deadline, and past the grace if it has one.

    Args:
        batch: the batch.
        now: seconds.
        answered: when its leader last answered anything; None if it never did. A leader that
            answers after the batch came in doubt is asked about it.
    """
    since = batch.doubted_at
    asked = since is not None and answered is not None and answered > since
    graced = batch.extended or (asked and now >= batch.deadline)
    return now >= batch.deadline + (_GRACE if graced else 0.0)


def untold(settlements: Iterable[Settlement], obstacles: Mapping[str, str]) -> str | None:
    """Return the first error that does not say what its records waited for; None if all do.

    Args:
        settlements: records that have expired.
        obstacles: by partition: what its records waited for.
    """
    for settlement in settlements:
        topic, partition = settlement.outcome.topic_partition
        text, why = str(settlement.outcome.error), obstacles[f"{topic}-{partition}"]
        if f"(20 s): {why}; " not in text:
            return f"the error {text!r} does not say that its records waited for {why!r}"
    return None
