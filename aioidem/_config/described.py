"""Documentation that is written from the table of options: `help()` and docs/options.md.

Each text takes the meaning, the legal values and the names from `OPTIONS` and the default from
`ProducerConfig`, so it cannot differ from what the code does.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping

from aioidem._config.kinds import Seconds
from aioidem._config.names import BY_KEYWORD
from aioidem._config.options import OPTIONS, SECTIONS
from aioidem._config.producer_config import ProducerConfig

__all__ = ["add_section", "keyword_help", "native_help", "option_tables"]

_WIDTH = 92
_FIELDS = {field.name: field for field in dataclasses.fields(ProducerConfig)}


class _LongDocstring:
    """The docstring of a class, with one section that is written whenever the docstring is read.

    A class whose ``__doc__`` is a descriptor shows what its ``__get__`` returns: `help()`, pydoc
    and `inspect.getdoc` read it like any other.
    """

    def __init__(self, written: str, heading: str, body: Callable[[], str]) -> None:
        self._written = inspect.cleandoc(written)
        self._heading = heading
        self._body = body

    def __get__(self, instance: object, owner: type) -> str:
        return f"{self._written}\n\n{self._heading}:\n{self._body()}\n"


def add_section(documented: type, heading: str, body: Callable[[], str]) -> None:
    """Append a section to a class's docstring, unless Python runs without docstrings (-OO).

    Args:
        documented: The class.
        heading: The section's heading, such as "Attributes".
        body: Writes the section. It is called each time the docstring is read, because most
            programs never read it and writing it takes a millisecond.
    """
    if documented.__doc__ is not None:
        text = _LongDocstring(documented.__doc__, heading, body)
        documented.__doc__ = text  # type: ignore[assignment]


def native_help(names: Iterable[str] = OPTIONS) -> str:
    """Return the body of a docstring's section about options of `ProducerConfig`."""
    return "\n".join(line for name in names for line in _native(name))


def keyword_help(names: Iterable[str], defaults: Mapping[str, str]) -> str:
    """Return the body of a docstring's section about the arguments of `AIOKafkaProducer`.

    Args:
        names: Arguments of aioidem's `AIOKafkaProducer`, which replaces aiokafka's.
        defaults: The defaults that differ from those of `ProducerConfig`, in words.
    """
    return "\n".join(line for name in names for line in _keyword(name, defaults))


def option_tables() -> str:
    """Describe all options as Markdown: one table for each section, for docs/options.md."""
    lines: list[str] = []
    for heading, section in SECTIONS.items():
        lines += [f"## {heading}", "", "| option | default | property | what it means |"]
        lines += ["|---|---|---|---|", *map(_row, section), ""]
    return "\n".join(lines)


def _row(name: str) -> str:
    option = OPTIONS[name]
    java = "" if option.java is None else f"`{option.java}`{' *' if option.own else ''}"
    text = f"{option.text} Legal: {option.kind.allowed}."
    return f"| `{name}` | {_default(name)} | {java} | {text} |".replace("*", r"\*")


def _native(name: str) -> Iterator[str]:
    option = OPTIONS[name]
    facts = f"Allowed: {option.kind.allowed}. Default: {_default(name)}."
    if option.java is not None:
        milliseconds = " (milliseconds)" if isinstance(option.kind, Seconds) else ""
        whose = "Property, which Java lacks" if option.own else "Java"
        facts += f" {whose}: {option.java}{milliseconds}."
    yield from _entry(name, option.text, facts)


def _keyword(name: str, defaults: Mapping[str, str]) -> Iterator[str]:
    native = BY_KEYWORD[name]
    option = OPTIONS[native]
    kind = option.kind
    times = isinstance(kind, Seconds)
    text = option.text.replace("in seconds", "in milliseconds")
    default = _FIELDS[native].default
    shown = f"{default * 1000:g}" if times and isinstance(default, float) else _default(native)
    facts = (
        f"Allowed: {kind.allowed_milliseconds if isinstance(kind, Seconds) else kind.allowed}. "
        f"Default: {defaults.get(name, shown)}. In ProducerConfig: {native}."
    )
    yield from _entry(name, text, facts)


def _default(name: str) -> str:
    field = _FIELDS[name]
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return "none, it is required" if name == "bootstrap_servers" else "a name of its own"


def _entry(name: str, *paragraphs: str) -> Iterator[str]:
    yield f"    {name}:"
    for paragraph in paragraphs:
        yield textwrap.fill(
            paragraph,
            _WIDTH,
            initial_indent=" " * 8,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
            break_long_words=False,
        )
