"""The error with which records end: where they were sent, and what to do if they may be written.

An error may be the reason for many outcomes: a producer that ends fails the records of all its
partitions. Each outcome has a copy of it, which names the partition.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from aioidem import errors
from aioidem.structs import DeliveryStatus

if TYPE_CHECKING:
    from aioidem.incident import Incident

__all__ = ["outcome_error"]

_ASK: Final = "producer.resolve(error) or delivery.resolve() looks in the log"
_NOTHING_TO_ASK: Final = "Without idempotence nothing in the log identifies the records"


def outcome_error(
    error: errors.KafkaError, where: str, status: DeliveryStatus, incident: Incident | None
) -> errors.KafkaError:
    """Return the error of records that share an outcome: a copy, so that the reason stays as it is.

    Args:
        error: why the records were not acknowledged.
        where: their topic and partition.
        status: their outcome.
        incident: the batch in which the records may be in the log; None if they cannot be, or
            if nothing identifies their batch.
    """
    own = copy.copy(error)
    own.status = status
    own.incident = incident
    first, *others = error.args or ("",)
    if isinstance(first, str):
        own.args = (_explained(first, where, status, incident), *others)
    return own


def _explained(text: str, where: str, status: DeliveryStatus, incident: Incident | None) -> str:
    if not text:
        text = where
    elif where not in text:
        text = f"{where}: {text}"
    if status is not DeliveryStatus.UNKNOWN:
        return text
    ask = _NOTHING_TO_ASK if incident is None else _ASK
    return f"{text.rstrip('.')}. The records may be written. {ask}"
