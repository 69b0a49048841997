"""Kafka's rule for the names of topics."""

from __future__ import annotations

import re
from typing import Final

from aioidem._config.quoting import quoted
from aioidem.errors import RecordError

__all__ = ["validate_topic"]

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def validate_topic(name: str) -> None:
    """Check that a topic's name is legal in Kafka.

    A legal name has 1 to 249 characters of ``a-z A-Z 0-9 . _ -`` and is neither "." nor "..".

    Raises:
        RecordError: The name is illegal, or not a string.
    """
    if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise RecordError(
            f"topic {quoted(name)}: expected 1 to 249 characters of a-z, A-Z, 0-9, '.', '_', "
            "'-', and neither '.' nor '..'"
        )
