"""What is wrong with a command line, in one line."""

from __future__ import annotations

__all__ = ["UsageError", "one_line", "reason", "shown"]


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
