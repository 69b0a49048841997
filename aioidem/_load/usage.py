"""What is wrong with a command line, in one line."""

from __future__ import annotations

from typing import Final

from aioidem._protocol.foreign_text import printable

__all__ = ["UsageError", "one_line", "reason", "shown", "terminal_line"]

_LONGEST_LINE: Final = 2500


class UsageError(ValueError):
    """The command line cannot be obeyed; the message is one line and names the flag."""


def shown(text: str, limit: int = 60) -> str:
    """Text that a user gave, quoted and cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def reason(error: OSError) -> str:
    """The system's own words for why a file could not be read."""
    return error.strerror or type(error).__name__


def one_line(error: Exception) -> str:
    """What an error says, without its class: the flag in front says where to look."""
    text = " ".join(str(error).split())
    return text.removeprefix(f"{type(error).__name__}: ") or type(error).__name__


def terminal_line(text: str) -> str:
    """Text of whatever origin as one line that a terminal shows as it is, cut if it is very long.

    Messages quote files, paths and servers, and none of them is to move a cursor.
    """
    line = printable(" ".join(text.split()), len(text))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
