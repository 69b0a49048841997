"""The spelling in which an error about several options writes their names and values.

A caller who gave properties of Java, or arguments of `AIOKafkaProducer`, reads those names there,
and times in milliseconds. `ProducerConfig` checks its options after they were converted, so the
spelling is a context variable that its constructors set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Final

from aioidem._config.names import both_names, keyword
from aioidem._config.options import OPTIONS

__all__ = ["Spelling", "argument", "assigned", "duration", "named", "spelled", "unit"]


class Spelling(Enum):
    """Whose names of options the caller used."""

    NATIVE = "aioidem's names, times in seconds"
    PROPERTY = "the names of Java's properties, values as text, times in milliseconds"
    KEYWORD = "the arguments of AIOKafkaProducer, times in milliseconds"


_spelling: Final = ContextVar("aioidem_spelling", default=Spelling.NATIVE)


@contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Write options in this spelling until the block ends."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)


def named(name: str) -> str:
    """Return the caller's name of the option with this native name, to report what is wrong.

    A native name is followed by Java's, if that differs.
    """
    return both_names(name) if _spelling.get() is Spelling.NATIVE else _plain(name)


def argument(name: str) -> str:
    """Return the name by which a program passes an option: a native one, or the drop-in's."""
    return keyword(name) if _spelling.get() is Spelling.KEYWORD else name


def assigned(name: str, value: object) -> str:
    """Return an option and a value as the caller would write them: `enable.idempotence=false`."""
    text = str(value)
    is_property = _spelling.get() is Spelling.PROPERTY
    return f"{_plain(name)}={text.lower() if is_property and isinstance(value, bool) else text}"


def duration(seconds: float) -> str:
    """Return a time in the caller's unit, as a number."""
    if _spelling.get() is Spelling.NATIVE:
        return str(seconds)
    return f"{seconds * 1000:.15g}"


def unit() -> str:
    """Return the unit of the caller's times."""
    return "seconds" if _spelling.get() is Spelling.NATIVE else "milliseconds"


def _plain(name: str) -> str:
    match _spelling.get():
        case Spelling.NATIVE:
            return name
        case Spelling.PROPERTY:
            return OPTIONS[name].java or name
        case Spelling.KEYWORD:
            return keyword(name)
