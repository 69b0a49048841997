"""Conversion of Java's properties, or `AIOKafkaProducer`'s arguments, for `ProducerConfig`.

Under Java's and `AIOKafkaProducer`'s names, times are in milliseconds. Under native names, which
are those of `ProducerConfig`, they are in seconds. Java's properties are strings, so each is parsed
and checked here. aioidem's `AIOKafkaProducer`, which replaces aiokafka's, takes Python values: only
its times are converted and checked here, and `ProducerConfig` checks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioidem._config.compression import LEVELS
from aioidem._config.kinds import Hidden, Kind, RefusedValue, Seconds
from aioidem._config.names import BY_KEYWORD, BY_PROPERTY, both_names, illegal, unknown
from aioidem._config.options import OPTIONS
from aioidem._config.secret import Secret
from aioidem.errors import ConfigError

__all__ = ["read_keywords", "read_properties"]

_JAAS: Final = "sasl.jaas.config"
_LEVEL: Final = "compression.level"


def read_properties(properties: Mapping[str, str]) -> dict[str, object]:
    """Return the options that Java's properties set, under the names of `ProducerConfig`.

    Raises:
        ConfigError: A name is unknown, a value is illegal or not a string, or an option is given
            both as its own property and in sasl.jaas.config, or the level of a codec under two
            names.
    """
    values: dict[str, object] = {}
    for name, text in _one_level(properties).items():
        if name == _JAAS:
            continue
        if name not in BY_PROPERTY:
            raise unknown(name, tuple(BY_PROPERTY))
        field = BY_PROPERTY[name]
        values[field] = _read_property(name, text, OPTIONS[field].kind)
    values |= _jaas(properties, values)
    return values


def read_keywords(keywords: Mapping[str, object]) -> dict[str, object]:
    """Return the options that arguments of `AIOKafkaProducer` set, under `ProducerConfig`'s names.

    Times are converted from milliseconds to seconds.

    Raises:
        ConfigError: A name is unknown, or a time is illegal.
    """
    values: dict[str, object] = {}
    for name, value in keywords.items():
        if name not in BY_KEYWORD:
            raise unknown(name, tuple(BY_KEYWORD))
        field = BY_KEYWORD[name]
        values[field] = _read_keyword(name, value, OPTIONS[field].kind)
    return values


def _jaas(properties: Mapping[str, str], others: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options that sasl.jaas.config contains; no error message quotes that option."""
    if _JAAS not in properties:
        return {}
    # Imported here, because few programs have this property.
    from aioidem._config.jaas import JaasError, read_jaas

    problem = "a text"
    try:
        options = read_jaas(properties[_JAAS])
    except (JaasError, TypeError) as error:
        problem = str(error) if isinstance(error, JaasError) else problem
    else:
        for field in options:
            if field in others:
                raise ConfigError(f"{both_names(field)} is given twice: also in {_JAAS}")
        return {
            field: Secret(text) if isinstance(OPTIONS[field].kind, Hidden) else text
            for field, text in options.items()
        }
    raise ConfigError(f"{_JAAS}: expected {problem}")


def _one_level(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties with compression.level instead of Java's compression.<codec>.level.

    Only the level of the codec in use is kept.

    Raises:
        ConfigError: compression.level is there as well.
    """
    codec = str(properties.get("compression.type", "none")).strip()
    levels = {f"compression.{name}.level": name for name in LEVELS}
    resolved = {name: text for name, text in properties.items() if name not in levels}
    own = f"compression.{codec}.level"
    if codec in LEVELS and own in properties:
        if _LEVEL in resolved:
            raise ConfigError(f"{both_names('compression_level')} is given twice: also as {own}")
        resolved[_LEVEL] = properties[own]
    return resolved


def _read_property(name: str, text: object, kind: Kind) -> object:
    if not isinstance(text, str):
        raise illegal(name, text, f"a string: {kind.allowed_text}")
    try:
        return kind.accept(kind.parse(text.strip()))
    except RefusedValue:
        raise illegal(name, text, kind.allowed_text) from None


def _read_keyword(name: str, value: object, kind: Kind) -> object:
    if not isinstance(kind, Seconds):
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return kind.accept(value / 1000)
        return kind.accept(value)
    except (RefusedValue, OverflowError):
        raise illegal(name, value, kind.allowed_milliseconds) from None
