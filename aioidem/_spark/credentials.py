"""Credentials that only the executors know: options with the value `env:NAME` or `file:PATH`.

Such an option is sent to the tasks as it was given, and each task looks its value up on its own
machine. So no plan, event log or pickle contains a password, and no process on the driver knows it.

Invariants:

- No value is looked up while options are checked; `stand_ins` returns placeholders instead.
- No message contains a value.

Rejected: references as values of other options (a number that only the executors know cannot be
checked before a task starts); options such as `kafka.sasl.password.file` (two options for one value
could contradict each other).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from aioidem._config.named_values import NamedValueError, is_named, look_up
from aioidem.errors import ConfigError

__all__ = ["look_up_named", "stand_ins", "take_named"]

_JAAS: Final = "sasl.jaas.config"
_CLIENT: Final = "sasl.oauthbearer.client.credentials.client"
_PASSWORD: Final = ("sasl.username", "sasl.password")
_NAMEABLE: Final = (
    *_PASSWORD,
    _JAAS,
    f"{_CLIENT}.id",
    f"{_CLIENT}.secret",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.certificates",
)
_IN_JAAS: Final[Mapping[str, tuple[str, ...]]] = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": (f"{_CLIENT}.id", f"{_CLIENT}.secret"),
}
"""The properties whose values a `sasl.jaas.config` contains, by SASL mechanism."""


def take_named(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split properties into those with a value and those with a reference to a value.

    A reference is `env:NAME` or `file:PATH`.

    Raises:
        ConfigError: a property that is no credential has a reference.
    """
    # A value that is not a string is refused later, when the properties are checked.
    named = {n: text for n, text in properties.items() if is_named(text)}
    given = {name: text for name, text in properties.items() if name not in named}
    for name in named:
        if name not in _NAMEABLE:
            raise ConfigError(
                f"kafka.{name}: a value can only be named for credentials (env:NAME, file:PATH):"
                f" {', '.join(_NAMEABLE)}"
            )
    return given, named


def stand_ins(given: Mapping[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """Return all properties, with placeholders for referenced values, so that they can be checked.

    Args:
        given: the properties with a value.
        named: the properties with a reference (`env:NAME` or `file:PATH`).
    """
    unknown = dict.fromkeys(named, "unknown")
    if unknown.pop(_JAAS, None) is not None:
        inside = _IN_JAAS.get(given.get("sasl.mechanism", "").strip(), ())
        unknown |= dict.fromkeys(inside, "unknown")
    return {**unknown, **given}


def look_up_named(named: Mapping[str, str]) -> dict[str, str]:
    """Replace references by their values: environment variables or contents of local files.

    Reading a file blocks.

    Args:
        named: the properties with a reference (`env:NAME` or `file:PATH`).

    Raises:
        ConfigError: a value does not exist, cannot be read, or is empty.
    """
    return {name: _looked_up(name, text) for name, text in named.items()}


def _looked_up(name: str, text: str) -> str:
    try:
        value = look_up(text)
    except NamedValueError as error:
        raise ConfigError(f"kafka.{name}: {error}{_where()}") from error
    if not value:
        raise ConfigError(f"kafka.{name}: {text} is empty{_where()}")
    return value


def _where() -> str:
    return f", on {platform.node()}: every executor needs it where its tasks run"
