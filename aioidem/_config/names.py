"""The names of options (aioidem's, Java's, aiokafka's), and the errors about names and values.

Every option has a native name, which is aioidem's own. If Java's producer or aiokafka has the same
option, it can also be given by the name used there. Error messages use the name that the caller
wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aioidem._config.kinds import Hidden
from aioidem._config.options import OPTIONS, SOURCES_OF_SECRETS, Option
from aioidem._config.quoting import quoted
from aioidem.errors import ConfigError

__all__ = ["BY_KEYWORD", "BY_PROPERTY", "both_names", "illegal", "keyword", "unknown"]


def keyword(name: str) -> str:
    """Return an option's name among the arguments of aioidem's `AIOKafkaProducer`.

    That is aiokafka's name, or Java's in snake_case where aiokafka lacks the option.
    """
    option = OPTIONS[name]
    return option.aiokafka or (option.java or name).replace(".", "_")


BY_PROPERTY: Final[Mapping[str, str]] = MappingProxyType(
    {option.java: name for name, option in OPTIONS.items() if option.java is not None}
)
"""The native name of each option, by the name of Java's property."""

BY_KEYWORD: Final[Mapping[str, str]] = MappingProxyType({keyword(name): name for name in OPTIONS})
"""The native name of each option, by the name of the argument of `AIOKafkaProducer`."""

_ALIKE: Final = 0.75
"""How similar two names must be (difflib's ratio) for the message to suggest one for the other.

A lower ratio would suggest "client.id" for "client.dns.lookup".
"""

_BYTES: Final = "keys and values are bytes here: serialize them before you send, and leave it out"
_SOCKETS: Final = "the operating system sizes the buffers of sockets: leave it out"

_NEEDLESS: Final = MappingProxyType(
    {
        "retries": "records are retried until {}: set that",
        "client.dns.lookup": "every address of a host is tried already: leave it out",
        "key.serializer": _BYTES,
        "value.serializer": _BYTES,
        "partitioner.class": (
            "partitions are chosen as Java does: leave it out; for another choice make the "
            "producer in Python, with the option partitioner"
        ),
        "interceptor.classes": (
            "there are no interceptors: wrap send(), or pass Producer(observer=...) for facts "
            "about batches"
        ),
        "metrics.recording.level": "every metric is always recorded: leave it out",
        "send.buffer.bytes": _SOCKETS,
        "receive.buffer.bytes": _SOCKETS,
        "ssl.protocol": (
            "the newest version that both sides know is used, TLS 1.2 or later: leave it out"
        ),
        "ssl.truststore.password": (
            "the trust store is a PEM file of certificates, which has no password: leave it out"
        ),
        "ssl.keystore.password": (
            "the key store is a PEM file; if its private key is encrypted, its password is {}"
        ),
    }
)
"""Java's properties that have no counterpart here, and what to do instead."""

_NAMED_IN_ADVICE: Final = MappingProxyType(
    {"retries": "delivery_timeout", "ssl.keystore.password": "ssl_key_password"}
)
"""The options that stand for {} in `_NEEDLESS`."""


def illegal(name: str, value: object, allowed: str) -> ConfigError:
    """Return the error for an illegal value, under the name that the caller used.

    The value of a secret is not shown, nor what was given in place of the source of a secret.
    """
    field = BY_PROPERTY.get(name) or BY_KEYWORD.get(name) or name
    hidden = field in OPTIONS and isinstance(OPTIONS[field].kind, Hidden)
    if field in SOURCES_OF_SECRETS:
        shown = f"<{type(value).__name__}>"
    else:
        shown = "***" if hidden else quoted(value)
    return ConfigError(f"{name}={shown}: expected {allowed}")


def both_names(name: str) -> str:
    """Return an option's native name, followed by Java's name in parentheses if that differs."""
    java = OPTIONS[name].java
    return name if java is None or java == name else f"{name} ({java})"


def unknown(name: object, known: tuple[str, ...]) -> ConfigError:
    """Return the error for a name that is not an option; its message suggests the intended name.

    Args:
        name: What the caller wrote.
        known: All legal names: the native ones, Java's, or those of `AIOKafkaProducer`.
    """
    if not isinstance(name, str):
        return ConfigError(f"unknown option {quoted(name)}: expected a name, a string")
    for native, option in OPTIONS.items():
        here = native if native in known else option.java
        if name in {native, option.java, option.aiokafka} and here in known:
            return ConfigError(f"unknown option {name!r}: write {here!r}, {_values(option, here)}")
    needless = name.replace("_", ".")
    if needless in _NEEDLESS:
        instead = _NAMED_IN_ADVICE.get(needless)
        if instead is not None and instead not in known:
            java = OPTIONS[instead].java
            instead = java if java in known else keyword(instead)
        return ConfigError(f"unknown option {name!r}: {_NEEDLESS[needless].format(instead)}")
    import difflib  # only here, because few programs name options that do not exist

    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
    if nearest:
        return ConfigError(f"unknown option {name!r}: did you mean {nearest[0]!r}?")
    if set(known) == set(BY_KEYWORD):
        listed = "docs/aiokafka.md and help(aioidem.AIOKafkaProducer)"
    else:
        listed = "docs/options.md and help(aioidem.ProducerConfig)"
    return ConfigError(f"unknown option {name!r}: all options are listed in {listed}")


def _values(option: Option, name: str) -> str:
    return option.kind.allowed if name in OPTIONS else option.kind.allowed_text
