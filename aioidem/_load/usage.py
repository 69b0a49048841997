"""Errors in a command line: range checks, and wording as one line that a terminal can show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aioidem._protocol.foreign_text import printable

__all__ = [
    "UsageError",
    "apart",
    "between",
    "is_device",
    "one_line",
    "output_file",
    "reason",
    "shown",
    "terminal_line",
    "whole",
]

_LONGEST_LINE: Final = 2500
_OF_SYSTEM: Final = frozenset({("dev",), ("proc",)})


class UsageError(ValueError):
    """The command line is wrong; the message is one line that names the flag or property."""


def whole(flag: str, value: int | None, default: int, low: int, high: int) -> int:
    """Return the whole number of a flag, or its default.

    Raises:
        UsageError: The number is not from `low` to `high`.
    """
    number = default if value is None else value
    if not low <= number <= high:
        raise UsageError(f"{flag}: {number} is not from {low} to {high}")
    return number


def between(flag: str, value: float, low: float, high: float) -> float:
    """Return the number of a flag.

    Raises:
        UsageError: The number is not from `low` to `high`.
    """
    if not low <= value <= high:  # NaN is not in the range either
        raise UsageError(f"{flag}: {value:.15g} is not from {low:.15g} to {high:.15g}")
    return value


def output_file(flag: str, path: Path | None) -> Path | None:
    """Return the path after a check that a file can be written there, without creating it.

    Raises:
        UsageError: The path is a directory, or no file can be written there.
    """
    if path is None:
        return None
    try:
        _check_output(flag, path)
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"{flag}: {path}: {reason(error)}") from error
    return path


def is_device(path: Path) -> bool:
    """Return whether a file is written to directly, and not replaced by another one.

    `/dev/stdout` and `/dev/fd/3` are links to what the shell has opened, which may be a file.
    """
    return (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in _OF_SYSTEM


def _check_output(flag: str, path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{flag}: {path} is a directory")
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(f"{flag}: {parent} is not a directory")
    # `write_whole` replaces a regular file by another one, and so must be able to make one.
    asked = [path] if path.exists() else []
    if not asked or not is_device(path):
        asked.append(Path(os.path.realpath(path)).parent)
    if not all(os.access(each, os.W_OK) for each in asked):
        raise UsageError(f"{flag}: {path} cannot be written")


def apart(files: Mapping[str, Path | None]) -> None:
    """Check that no two flags name the same file: what is written would take the other's place.

    Such as `/dev/stdout` is no file here: all that is written there arrives.

    Raises:
        UsageError: two flags name the same file.
    """
    seen: dict[str, str] = {}
    for flag, path in files.items():
        # These functions raise nothing, such as for a name that is too long.
        if path is None or (os.path.exists(path) and not os.path.isfile(path)):  # noqa: PTH110, PTH113
            continue
        other = seen.setdefault(os.path.realpath(path), flag)
        if other != flag:
            raise UsageError(f"{other} and {flag}: both name {path}; give each a file of its own")


def shown(text: str, limit: int = 60) -> str:
    """Quote text that a user gave, shortened to `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def reason(error: OSError) -> str:
    """Return why a file could not be read, as the operating system says it."""
    return error.strerror or type(error).__name__


def one_line(error: Exception) -> str:
    """Return an error's text on one line, without the name of its class."""
    text = " ".join(str(error).split())
    return text.removeprefix(f"{type(error).__name__}: ") or type(error).__name__


def terminal_line(text: str) -> str:
    """Turn any text into one line that is safe to print on a terminal.

    Messages quote text from files, paths and servers, which must not move the cursor. A text of
    more than 2500 characters is shortened.
    """
    line = printable(" ".join(text.split()), len(text))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
