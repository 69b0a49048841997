"""Option values given by reference: `env:NAME` and `file:PATH`.

A password given as `env:NAME` or `file:PATH` is the name of an environment variable or the path of
a file. The value is looked up where it is used, so that it appears in no command line, query plan
or log.

Invariant: no error contains a value, neither in its message nor in the frames of its traceback.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from aioidem._config.secret import without_frames

__all__ = ["NamedValueError", "is_named", "look_up"]

_SOURCES: Final = ("env:", "file:")
_MAX_VALUE: Final = 1 << 16


class NamedValueError(ValueError):
    """A variable or file cannot be read; the message has its name, and never its contents."""


def is_named(value: object) -> bool:
    """Return whether a value is a reference, `env:NAME` or `file:PATH`, to the value to use."""
    return isinstance(value, str) and value.startswith(_SOURCES)


@without_frames
def look_up(text: str) -> str:
    """Return the value that `env:NAME` or `file:PATH` refers to, or any other text unchanged.

    Reading a file blocks. A line end at the end of the file is not part of the value, nor is the
    mark with which editors on Windows begin a file.

    Raises:
        NamedValueError: The variable does not exist; or the file cannot be read, is not UTF-8, or
            is larger than 64 KiB.
    """
    if not is_named(text):
        return text
    source, _, where = text.partition(":")
    if source == "file":
        return _content(Path(where))
    with suppress(UnicodeEncodeError):  # a name that cannot be encoded names no variable
        if where in os.environ:
            return os.environ[where]
    raise NamedValueError(f"the environment has no variable {_shown(where)}")


def _content(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            value = file.read(_MAX_VALUE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise NamedValueError(f"{path}: {reason}") from error
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError):  # the path has a NUL
            raise NamedValueError(f"{_shown(str(path))}: {error}") from error
        value = None  # a new error is raised below, because this one holds the bytes of the file
    if value is None:
        raise NamedValueError(f"{path} is not text in UTF-8")
    if len(value) > _MAX_VALUE:
        raise NamedValueError(f"{path} is larger than {_MAX_VALUE >> 10} KiB")
    return value.removesuffix("\n").removesuffix("\r")


def _shown(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")
