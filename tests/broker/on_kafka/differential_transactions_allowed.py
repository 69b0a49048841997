"""All intended differences between the embedded transaction coordinator and Apache Kafka's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from .differential import Allowed, Difference, Plain
from .differential_allowed import ALLOWED as IN_GENERAL
from .differential_transactions import TRANSACTIONAL_WORLDS

__all__ = ["ALLOWED"]

_WORLDS: Final = frozenset(each.world.name for each in TRANSACTIONAL_WORLDS)
_NEW: Final = _WORLDS - {"3.9.1"}
# The differences of `differential_allowed` that the transactional scripts meet, too, because these
# scripts also use topics and logs; and the worlds (kinds of real broker) in which they do.
_BY_THE_WAY: Final = {
    "configs": _WORLDS,
    "retention.bytes": _WORLDS,
    "min.insync.replicas": _NEW,
    "message.timestamp.after.max.ms": _WORLDS - _NEW,
}


def _log_was_asked(found: Difference) -> bool:
    """Match a Produce with an epoch or a transactional id that is not the open transaction's."""
    label, produce = found.step.label, found.step.api == 0
    if found.ours == "invalid_producer_epoch" and found.real == "invalid_producer_id_mapping":
        return produce and ("misnamed" in label or "somebody else" in label)
    if "a later epoch" in label:
        return produce and found.path.endswith((".error_code", ".log_start_offset"))
    older = any(each in label for each in ("an older epoch", "somebody else", "again"))
    return produce and older and found.path.endswith(".log_start_offset")


def _aborted_behind(found: Difference) -> bool:
    """Match a Fetch in which Kafka lists more aborted transactions while one is still open.

    The answers to steps labelled "all ended" must be the same.
    """
    return (
        found.step.api == 1
        and ".aborted_transactions" in found.path
        and not found.step.label.startswith("all ended")
        and _named(found.ours) < _named(found.real)
    )


def _named(aborted: Plain) -> set[str]:
    """Return the aborted transactions that one of the two answers lists, each as its text."""
    match aborted:
        case {"first_offset": _}:
            return {str(aborted)}
        case dict():
            return {str(each) for each in aborted.values()}
        case list():
            return {str(each) for each in aborted}
    return set()


ALLOWED: Final[Sequence[Allowed]] = (
    *(
        dataclasses.replace(each, worlds=_BY_THE_WAY[each.name])
        for each in IN_GENERAL
        if each.name in _BY_THE_WAY
    ),
    Allowed(
        "aborted transactions behind the stable ones",
        "Kafka lists those up to the next entry of its index, or to the end of the log; the"
        " embedded broker lists only those of which the answer has records. Readers need no more.",
        _aborted_behind,
        _WORLDS,
    ),
    Allowed(
        "other epochs within a transaction",
        "If a producer id has an open transaction, 3.9.1 verifies a batch against its log and does"
        " not ask the coordinator, whatever the batch's epoch: its answer has a log start offset, a"
        " later epoch is OUT_OF_ORDER, and a later epoch with sequence 0 is accepted, after which"
        " the transaction can never end. If none is open, it asks the coordinator even about an"
        " older epoch, and the coordinator may not know the transactional id.",
        _log_was_asked,
        _WORLDS - _NEW,
    ),
)
