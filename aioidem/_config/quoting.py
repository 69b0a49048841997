"""How an error quotes a value that a caller gave: shortly, whatever it is."""

from __future__ import annotations

import reprlib
from typing import Final

__all__ = ["quoted"]


class _Quoting(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write an integer of more than some 4,300 digits as text.
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<an int of {x.bit_length()} bits>"


_QUOTING: Final = _Quoting()


def quoted(value: object) -> str:
    """Return the value as it is written in Python, with the middle of a long one left out."""
    return _QUOTING.repr(value)
