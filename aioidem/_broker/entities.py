"""Build an answer in any version of its API from one description of all versions.

kio has one class per message and version. A handler gives the fields of the newest version as
nested mappings; `build` uses the fields that the class of the wanted version has. A field that the
mapping does not contain gets the default of kio's schema.

Invariants
    Which fields a version has is known to kio alone: no handler leaves a field out by version.

Rejected
    A handler per version: the fourteen handlers of Metadata would differ by a keyword argument.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import response_type

__all__ = ["ZERO_MS", "Entity", "build", "from_ms", "respond", "timestamp_from_ms"]

Entity: TypeAlias = Any
"""A kio message. The classes share no base and differ by version, so there is no narrower type."""

ZERO_MS: Final = timedelta(0)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Convert: TypeAlias = Callable[[Any], Any]


def from_ms(milliseconds: int) -> timedelta:
    """Return milliseconds as a `timedelta`, the type of durations in kio's messages."""
    return timedelta(milliseconds=milliseconds)


def timestamp_from_ms(milliseconds: int) -> datetime | None:
    """Return ms since the epoch as a `datetime`, the type of kio's timestamps; None for -1."""
    return None if milliseconds < 0 else _EPOCH + timedelta(milliseconds=milliseconds)


def respond(api_key: int, version: int, values: Mapping[str, Any]) -> Entity:
    """Build the answer that ``values`` describes, in one version of an API.

    Raises:
        LookupError: There is no schema for that version.
    """
    schema = response_type(api_key, version)
    if schema is None:
        raise LookupError(f"no answer of API {api_key} in version {version}")
    return build(schema, values)


def build(entity_type: type[Entity], values: Mapping[str, Any]) -> Entity:
    """Build an entity from nested mappings; keys that name none of its fields are ignored."""
    arguments = {}
    for name, convert in _plan(entity_type):  # type: ignore[arg-type]  # classes are hashable
        if name in values:
            value = values[name]
            arguments[name] = value if convert is None else convert(value)
    return entity_type(**arguments)


@cache
def _plan(entity_type: type[Entity]) -> tuple[tuple[str, _Convert | None], ...]:
    hints = typing.get_type_hints(entity_type)
    return tuple((f.name, _converter(hints[f.name])) for f in dataclasses.fields(entity_type))


def _converter(hint: Any) -> _Convert | None:
    for candidate in (hint, *typing.get_args(hint)):
        if typing.get_origin(candidate) is tuple:
            item = typing.get_args(candidate)[0]
            return _tuple_of(item) if dataclasses.is_dataclass(item) else _optional(tuple)
        if dataclasses.is_dataclass(candidate) and isinstance(candidate, type):
            return _one_of(candidate)
        if candidate is ErrorCode:
            return ErrorCode
    return None


def _optional(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _one_of(item: type[Entity]) -> _Convert:
    return lambda value: None if value is None else build(item, value)


def _tuple_of(item: Any) -> _Convert:
    return lambda values: None if values is None else tuple(build(item, v) for v in values)
