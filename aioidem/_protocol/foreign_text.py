"""Text from an untrusted source, in a type that is safe to display.

Brokers send the names of hosts, topics, configs and coordinators, and reasons of errors. Printed
unchanged, such text could forge a line of a log, move a terminal's cursor or fill a disk. So the
decoder turns every string that is long or has unprintable characters into a `ForeignText`, and no
other code has to escape it: printing, formatting, logging and repr show it escaped and shortened.

A `ForeignText` is a str: comparing, hashing and sending use the original text, so that a topic is
found by its name even if the name has unprintable characters.

Invariants: `str()`, `repr()`, `format()`, `%s` and f-strings show no control character, no escape
sequence, no direction mark and at most `SHOWN` characters. The value itself is unchanged.

Rejected: a type that is not a str. Every comparison and every dictionary would have to unwrap it,
and a place that forgot to would fail with a hostile broker only.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SHOWN", "ForeignText", "foreign_text", "printable"]

SHOWN: Final = 300
"""The number of characters of untrusted text that are shown."""


def printable(text: str, limit: int = SHOWN) -> str:
    """Escape what is not printable in untrusted text, and shorten it to `limit` characters."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
    return cut if len(text) <= limit else f"{cut}... ({len(text)} characters)"


def foreign_text(text: str) -> str:
    """Return the text itself if it is short and printable, else as a `ForeignText`."""
    return text if len(text) <= SHOWN and text.isprintable() else ForeignText(text)


class ForeignText(str):
    """A str that is displayed escaped and shortened, and otherwise behaves as the original text."""

    __slots__ = ()

    def __str__(self) -> str:
        return printable(self)

    def __repr__(self) -> str:
        return repr(printable(self))

    def __format__(self, spec: str) -> str:
        return format(printable(self), spec)
