"""Where the embedded transaction coordinator is not as Apache Kafka's, on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from .differential import Allowed
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

ALLOWED: Final[Sequence[Allowed]] = tuple(
    dataclasses.replace(each, worlds=_BY_THE_WAY[each.name])
    for each in IN_GENERAL
    if each.name in _BY_THE_WAY
)
