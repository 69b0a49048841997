"""The kinds of values that options accept: flags, counts, times, texts, secrets, words, objects.

Each kind is a small immutable class that says in words what it allows, checks a native (Python)
value, and reads the text of a property in Java's style. A kind does not know an option's name: it
raises `RefusedValue`, and `names.illegal` makes the `ConfigError` that names the option.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

from aioidem._config.secret import Secret, in_utf8

__all__ = [
    "Acks",
    "Choice",
    "Count",
    "Flag",
    "Function",
    "Hidden",
    "Instance",
    "Kind",
    "Pem",
    "RefusedValue",
    "Seconds",
    "Text",
]

_INT32_MAX: Final = 2**31 - 1
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class RefusedValue(Exception):  # noqa: N818 - not an error yet: the caller knows the option's name
    """A `Kind` refuses a value; the caller turns this into a ConfigError that names the option."""


class Kind(Protocol):
    """The values that an option accepts, as Python objects and as the text of a Java property."""

    @property
    def allowed(self) -> str:
        """Describe the legal native values, for documentation and error messages."""
        ...

    @property
    def allowed_text(self) -> str:
        """Describe the legal texts of a property, for documentation and error messages."""
        ...

    def accept(self, value: object) -> object:
        """Check a native value, and return it in the form in which `ProducerConfig` stores it.

        Raises:
            RefusedValue: The value is illegal.
        """
        ...

    def parse(self, text: str) -> object:
        """Return the native value that a property's text stands for; `accept` checks it.

        Raises:
            RefusedValue: The text does not stand for any value of this kind.
        """
        ...


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise RefusedValue
    return int(text)


class Flag(NamedTuple):
    """True or False; in a property "true" or "false" in upper or lower case, as in Java."""

    allowed: str = "True or False"
    allowed_text: str = "true or false"

    def accept(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise RefusedValue
        return value

    def parse(self, text: str) -> bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise RefusedValue from None


class Count(NamedTuple):
    """A whole number within bounds, or None if ``nullable``; ``high`` None is no upper bound."""

    low: int
    high: int | None = _INT32_MAX
    nullable: bool = False

    @property
    def allowed(self) -> str:
        bounds = f"of at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return f"a whole number {bounds}{' or None' if self.nullable else ''}"

    @property
    def allowed_text(self) -> str:
        return self.allowed.removesuffix(" or None")

    def accept(self, value: object) -> int | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < self.low:
            raise RefusedValue
        if self.high is not None and value > self.high:
            raise RefusedValue
        return value

    def parse(self, text: str) -> int:
        return _whole_number(text)


class Seconds(NamedTuple):
    """A time in seconds, or None if ``nullable``; in a property a whole number of milliseconds.

    ``positive`` excludes 0. The upper bound is that of Kafka, which stores times as an int32 of
    milliseconds.
    """

    positive: bool = True
    nullable: bool = False

    @property
    def allowed(self) -> str:
        bounds = "above 0, at most" if self.positive else "from 0 to"
        none = " or None" if self.nullable else ""
        return f"a number of seconds {bounds} {_INT32_MAX / 1000}{none}"

    @property
    def allowed_text(self) -> str:
        off = ", or -1 for none" if self.nullable else ""
        return f"a whole number of milliseconds {int(self.positive)} to {_INT32_MAX}{off}"

    @property
    def allowed_milliseconds(self) -> str:
        """Describe the legal values of an argument in milliseconds, which is a Python object."""
        none = " or None" if self.nullable else ""
        return f"a number of milliseconds {int(self.positive)} to {_INT32_MAX}{none}"

    def accept(self, value: object) -> float | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise RefusedValue
        if not 0 <= value <= _INT32_MAX / 1000 or (self.positive and value == 0):  # NaN fails too
            raise RefusedValue
        return float(value)

    def parse(self, text: str) -> float | None:
        milliseconds = _whole_number(text)
        if milliseconds == -1 and self.nullable:
            return None
        return milliseconds / 1000


class Text(NamedTuple):
    """Text that fits a string of the protocol (its length is an int16), or None if ``nullable``."""

    nullable: bool = False

    @property
    def allowed(self) -> str:
        return f"a string of 1 to 32767 bytes in UTF-8{' or None' if self.nullable else ''}"

    @property
    def allowed_text(self) -> str:
        return self.allowed.removesuffix(" or None")

    def accept(self, value: object) -> str | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, str):
            raise RefusedValue
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise RefusedValue from None
        if not 1 <= size <= 32767:
            raise RefusedValue
        return str.__str__(value)

    def parse(self, text: str) -> str:
        return text


class Pem(NamedTuple):
    """A file's path or PEM text, of any length, or None."""

    allowed: str = "a string that is not empty, or None"
    allowed_text: str = "a text that is not empty"

    def accept(self, value: object) -> str | None:
        if value is None:
            return None
        if isinstance(value, str) and value:
            return str.__str__(value)
        raise RefusedValue

    def parse(self, text: str) -> str:
        return text


class Hidden(NamedTuple):
    """A secret, stored as a `Secret` and never quoted in a message; or None."""

    allowed: str = "a string in UTF-8 or an aioidem.Secret of one, not empty, or None"
    allowed_text: str = "a text in UTF-8 that is not empty"

    def accept(self, value: object) -> Secret[str] | None:
        if value is None:
            return None
        if not isinstance(value, str | Secret):
            raise RefusedValue
        return _readable(Secret(value))

    def parse(self, text: str) -> Secret[str]:
        return _readable(Secret(text))


def _readable(secret: Secret[str]) -> Secret[str]:
    """Return the secret if it is text that can be encoded in UTF-8.

    The check comes this early because a later `UnicodeEncodeError` would quote the text.

    Raises:
        RefusedValue: The secret is empty, is not text, or has a lone surrogate.
    """
    text = secret.reveal()
    if not isinstance(text, str) or not text or not in_utf8(text):
        raise RefusedValue
    return secret


class Choice(NamedTuple):
    """One of a few words, spelt alike in a native value and a property; or None if ``nullable``."""

    words: tuple[str, ...]
    nullable: bool = False

    @property
    def allowed(self) -> str:
        none = " or None" if self.nullable else ""
        return f"one of {', '.join(map(repr, self.words))}{none}"

    @property
    def allowed_text(self) -> str:
        return "one of " + ", ".join(word or "(empty)" for word in self.words)

    def accept(self, value: object) -> str | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, str) or value not in self.words:
            raise RefusedValue
        return str.__str__(value)

    def parse(self, text: str) -> str:
        return text


class Acks(NamedTuple):
    """How many replicas must store a batch before the leader answers: "all" (as -1), 1 or 0."""

    allowed: str = "'all' (or -1), 1 or 0"
    allowed_text: str = "all (or -1), 1 or 0"

    def accept(self, value: object) -> int:
        if value == "all":
            return -1
        if not isinstance(value, int) or isinstance(value, bool) or value not in {-1, 0, 1}:
            raise RefusedValue
        return int(value)

    def parse(self, text: str) -> str | int:
        return text if text == "all" else _whole_number(text)


class Function(NamedTuple):
    """A partitioner function, or None for the built-in one. No text can express a function."""

    allowed: str = "a callable (see aioidem.Partitioner) or None"
    allowed_text: str = "nothing: it has no text form"

    def accept(self, value: object) -> object:
        if value is not None and not callable(value):
            raise RefusedValue
        return value

    def parse(self, text: str) -> object:  # noqa: ARG002 - the protocol's name
        raise RefusedValue


class Instance(NamedTuple):
    """A callable, an object with a certain method, or None. No text can express such a value.

    Args:
        allowed: The legal values in words.
        method: The method that the object must have if it is not callable itself.
        type: The class that the value must be an instance of; None: any class.
        allowed_text: The legal texts in words.
    """

    allowed: str
    method: str
    type: type | None = None
    allowed_text: str = "nothing: it has no text form"

    def accept(self, value: object) -> object:
        if value is None:
            return None
        fits = callable(getattr(value, self.method, None)) or callable(value)
        if not fits or (self.type is not None and not isinstance(value, self.type)):
            raise RefusedValue
        return value

    def parse(self, text: str) -> object:  # noqa: ARG002 - the protocol's name
        raise RefusedValue
