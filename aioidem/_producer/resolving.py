"""What became of failed records: of most it is known, the others are looked for in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from aioidem import errors
from aioidem._admin.log_reading import resolve_incidents
from aioidem._config import ProducerConfig
from aioidem._network.transport import Connector
from aioidem.incident import Incident
from aioidem.resolution import Resolution, UndecidedReason, Verdict
from aioidem.structs import DeliveryStatus

__all__ = ["Failed", "failures_of", "resolve_failed"]

Failed = errors.KafkaError | errors.RecordOutcome
"""A failed record: its error, or its delivery."""

_NEVER_WRITTEN: Final = "the record was refused before the append, or was never sent"
_NOTHING_TO_FIND: Final = (
    "the record was sent without a producer id (acks=0, or enable_idempotence=False), so nothing "
    "in the log identifies it"
)


async def resolve_failed(
    config: ProducerConfig,
    connector: Connector | None,
    failed: Iterable[Failed],
    timeout: float | None,
) -> list[Resolution]:
    """Return what the log says about records, in the same order; read it only if needed.

    Args:
        config: how to connect.
        connector: opens the connections.
        failed: the records, whose outcomes are known.
        timeout: seconds for all of them; None is the configuration's `request_timeout`.
    """
    known = [_known(each) for each in failed]
    incidents = [each for each in known if not isinstance(each, Resolution)]
    found: Sequence[Resolution] = ()
    if incidents:
        found = await resolve_incidents(
            config,
            incidents,
            timeout=config.request_timeout if timeout is None else timeout,
            wait_for_fence=True,
            connector=connector,
        )
    read = iter(found)
    return [each if isinstance(each, Resolution) else next(read) for each in known]


def failures_of(records: Iterable[Failed]) -> list[Failed]:
    """Return the records that have failed, in the same order.

    Raises:
        RecordError: The outcome of a record is not known yet, or an argument is no record's
            outcome.
    """
    try:
        failed = list(records)
    except TypeError:
        raise errors.RecordError(
            f"expected errors or deliveries, not {type(records).__name__}"
        ) from None
    for each in failed:
        if not hasattr(each, "status"):
            raise errors.RecordError(
                f"expected the error or the delivery of a record, not {type(each).__name__}"
            )
        if each.status in (None, DeliveryStatus.PENDING):
            raise errors.RecordError(
                f"there is no outcome that could be looked for: {each!r}", status=None
            )
    return [each for each in failed if each.status is not DeliveryStatus.ACKED]


def _known(failed: Failed) -> Resolution | Incident:
    """Return what is known about a record without reading the log, or what to look for there."""
    if failed.status is DeliveryStatus.ACKED and not isinstance(failed, errors.KafkaError):
        return Resolution(
            verdict=Verdict.WRITTEN,
            detail="the record was acknowledged",
            offset=failed.metadata.offset,
        )
    if failed.status is DeliveryStatus.NOT_WRITTEN:
        return Resolution(verdict=Verdict.ABSENT, detail=_NEVER_WRITTEN)
    error = failed if isinstance(failed, errors.KafkaError) else failed.exception()
    if error is None or error.incident is None:
        return Resolution(
            verdict=Verdict.UNDECIDED, reason=UndecidedReason.NO_IDENTITY, detail=_NOTHING_TO_FIND
        )
    return error.incident
