"""Where the embedded transaction coordinator is not as Apache Kafka's, on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from .differential import Allowed, Difference
from .differential_allowed import ALLOWED as IN_GENERAL
from .differential_transactions import TRANSACTIONAL_WORLDS

__all__ = ["ALLOWED"]

_WORLDS: Final = frozenset(each.world.name for each in TRANSACTIONAL_WORLDS)
_NEW: Final = _WORLDS - {"3.9.1"}
# What the scripts meet by the way: topics are created, and logs are read.
_BY_THE_WAY: Final = {
    "configs": _WORLDS,
    "retention.bytes": _WORLDS,
    "min.insync.replicas": _NEW,
    "message.timestamp.after.max.ms": _WORLDS - _NEW,
}


def _log_was_asked(found: Difference) -> bool:
    """Of a write with another epoch, where the script says so or the random sequences may."""
    label, produce = found.step.label, found.step.api == 0
    if "a later epoch" in label:
        return produce and found.path.endswith((".error_code", ".log_start_offset"))
    older = any(each in label for each in ("an older epoch", "somebody else", "again"))
    return produce and older and found.path.endswith(".log_start_offset")


ALLOWED: Final[Sequence[Allowed]] = (
    *(
        dataclasses.replace(each, worlds=_BY_THE_WAY[each.name])
        for each in IN_GENERAL
        if each.name in _BY_THE_WAY
    ),
    Allowed(
        "other epochs within a transaction",
        "Where a producer id has a transaction open, 3.9.1 asks the log and not the coordinator,"
        " whatever the epoch; so the answer says where the log starts, a later epoch is out of"
        " order, and if it begins at 0 it is taken, and the transaction can never be ended.",
        _log_was_asked,
        _WORLDS - _NEW,
    ),
)
