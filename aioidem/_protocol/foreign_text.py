"""ForeignText: text that somebody else wrote, which is harmless wherever it is shown.

A broker names hosts, topics, configurations, coordinators and reasons. Shown as they come they
could forge a line of a log, move a terminal's cursor or fill a disk. So the reader of answers makes
a `ForeignText` of every string that is not plain already, and no later code has to remember to
escape it: printing, formatting, logging and repr show it escaped and cut.

It is a str: comparing, hashing and sending it use the text as it is, so that a topic is found by
its name whatever that is.

Invariants: `str()`, `repr()`, `format()`, `%s` and f-strings show no control character, no escape
sequence, no direction mark and at most `SHOWN` characters; the value itself is unchanged.

Rejected: a type that is no str. Every comparison and every dictionary would have to unwrap it, and
where one forgot to the error would show only with a hostile broker.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SHOWN", "ForeignText", "foreign_text", "printable"]

SHOWN: Final = 300
"""Characters of a stranger's text that are shown."""


def printable(text: str, limit: int = SHOWN) -> str:
    """Escape what cannot be printed in a stranger's text, and cut it at `limit` characters."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
    return cut if len(text) <= limit else f"{cut}... ({len(text)} characters)"


def foreign_text(text: str) -> str:
    """Return the text itself if it is short and printable, else a `ForeignText` of it."""
    return text if len(text) <= SHOWN and text.isprintable() else ForeignText(text)


class ForeignText(str):
    """A str that is shown escaped and cut, and is otherwise the text it was made of."""

    __slots__ = ()

    def __str__(self) -> str:
        return printable(self)

    def __repr__(self) -> str:
        return repr(printable(self))

    def __format__(self, spec: str) -> str:
        return format(printable(self), spec)
