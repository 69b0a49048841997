"""Plain data: objects of the engine as JSON values, and back, without any code in the file.

A value that is its own JSON value stays as it is: None, numbers, text. Every other value becomes a
list whose first item names its kind:

    ["l", ...] list            ["t", ...] tuple           ["s", ...] set      ["z", ...] frozenset
    ["d", [key, value], ...]   ["q", most, ...] deque     ["u", hex] UUID     ["b", length] bytes
    ["o", [key, value], ...]   ["a", type, numbers] array
    ["e", class, member]       ["n", class, ...] named tuple
    ["x", class, text, status] exception                  ["r", number] an object of the table
    ["m", value, name] method  ["c", class]               ["$", name] what the reader has

Bytes are written as their length, so no payload can be in a file, and are read as zeros. Only
classes of the engine and of what it works with can be named (`ADMITTED`); they are made without
calling their constructors, and get no attribute that their instances do not have. Nothing that a
file names is imported or called.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

from aioidem.errors import ConfigError, FlightRecordError, KafkaError
from aioidem.structs import DeliveryStatus

__all__ = ["MOST_BYTES", "Reader", "Writer", "admitted", "attributes_of", "tidy"]

MOST_BYTES: Final = 1 << 26
"""The most bytes that one value in a file may stand for."""

_MOST_TEXT = 2_000
_DEEPEST = 40

_PACKAGES = ("aioidem._engine", "aioidem._protocol", "aioidem._records", "aioidem._hot")
_MODULES = (
    "aioidem.structs",
    "aioidem.errors",
    "aioidem.partitioner",
    "kio.schema.errors",
    "aioidem._flight.stand_ins",
)

# Compiled classes do not say which attributes they have; these are their names in pure Python.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "QueueFields": ("records", "bytes"),
    "StickyFields": ("left",),
    "TargetFields": ("state", "sticky", "queue"),
    "BudgetFields": ("limit", "used", "waiting"),
    "Appender": ("_effects", "_targets", "_timeout", "_wake", "generation", "ordinal"),
}


@cache
def attributes_of(kind: Any) -> tuple[tuple[str, ...], bool]:
    """Return the names of the slots of a class, and whether its instances have a `__dict__`."""
    names: list[str] = []
    for each in kind.__mro__:
        slots = _FIELDS.get(each.__name__) or each.__dict__.get("__slots__", ())
        names.extend((slots,) if isinstance(slots, str) else slots)
    loose = [name for name in names if name in ("__dict__", "__weakref__")]
    return tuple(n for n in names if n not in loose), bool(kind.__dictoffset__)


@cache
def admitted() -> Mapping[str, type]:
    """Return the classes that a file may name, by name."""
    names: list[str] = [*_MODULES]
    for package in _PACKAGES:
        where = importlib.import_module(package)
        names.append(package)
        names += [
            each.name
            for each in pkgutil.iter_modules(where.__path__, f"{package}.")
            if "_compiled" not in each.name
        ]
    found: dict[str, type] = {}
    for name in names:
        for thing in vars(importlib.import_module(name)).values():
            if isinstance(thing, type) and thing.__module__.startswith(("aioidem", "kio")):
                found[_full_name(thing)] = thing
    return found


def _full_name(kind: type) -> str:
    """Return the name of a class in files; several modules of the engine share class names."""
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("aioidem.")


def tidy(text: str) -> str:
    """Return a text that is not longer than a line or two."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _damaged(why: str) -> FlightRecordError:
    return FlightRecordError(f"the flight record is damaged: {why}")


class Writer:
    """Turns values into JSON values.

    Args:
        replaced: for some classes, what is written in the place of an object's attributes.
        named: by the identity of an object: the name under which the reader has it.
        table: whether objects are written into `things`, so that they may refer to each other.
    """

    def __init__(
        self,
        replaced: Mapping[type, Callable[[Any], dict[str, Any]]] | None = None,
        named: Mapping[int, str] | None = None,
        *,
        table: bool = False,
    ) -> None:
        self._replaced = replaced or {}
        self._named = named or {}
        self._table = table
        self._numbers: dict[int, int] = {}
        # Keeps what has a number alive, so that no other object gets its identity.
        self._held: list[Any] = []
        self._todo: deque[Any] = deque()
        self.things: list[Any] = []

    def finish(self) -> list[Any]:
        """Write the objects that were referred to, and return the table of all objects."""
        while self._todo:
            self.things.append(self._thing(self._todo.popleft()))
        return self.things

    def value(self, thing: Any) -> Any:
        """Return a value as a JSON value."""
        kind: Any = type(thing)
        if kind in _AS_IT_IS:
            return thing
        if kind is str:
            return tidy(thing)
        if self._named and id(thing) in self._named:
            return ["$", self._named[id(thing)]]
        if kind is tuple:
            return ["t", *map(self.value, thing)]
        if issubclass(kind, bytes | bytearray | memoryview):
            return ["b", len(thing)]
        if issubclass(kind, str) and _name_of(kind) is None:
            return tidy(str.__str__(thing))  # a class of the program's, such as a StrEnum of topics
        if issubclass(kind, enum.Enum):
            return ["e", _full_name(kind), thing.name]
        if issubclass(kind, UUID):
            return ["u", thing.hex]
        if issubclass(kind, int):
            return int(thing)
        if issubclass(kind, BaseException):
            status = getattr(thing, "status", None)
            shown = status.name if isinstance(status, DeliveryStatus) else None
            name = _name_of(kind) or kind.__name__
            # The text of a ConfigError may have the path of a certificate or key.
            text = "" if issubclass(kind, ConfigError) else tidy(str(thing))
            return ["x", name, text, shown]
        if issubclass(kind, type):
            return ["$", "class"]
        if kind is types.MethodType and id(thing.__self__) in self._named:
            return ["$", self._named[id(thing.__self__)]]
        if kind is types.MethodType and _name_of(_class_of(thing.__self__)) is None:
            return ["$", "nothing"]
        if kind is types.MethodType:
            return ["m", self.value(thing.__self__), thing.__name__]
        if kind is array:
            return ["a", thing.typecode, thing.tolist()]
        if kind not in _CONTAINERS and _name_of(kind) is None:
            return ["$", "nothing"]
        if self._table:
            return ["r", self._number(thing)]
        return self._thing(thing)

    def _number(self, thing: Any) -> int:
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._numbers)
            self._held.append(thing)
            self._todo.append(thing)
        return number

    def _thing(self, thing: Any) -> Any:
        kind: Any = type(thing)
        value = self.value
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return ["n", _name_of(kind), *map(value, thing)]
        if kind is list:
            return ["l", *map(value, thing)]
        if issubclass(kind, dict):
            ordered = ["o"] if issubclass(kind, OrderedDict) else ["d"]
            return [*ordered, *([value(key), value(each)] for key, each in thing.items())]
        if kind in (set, frozenset):
            return ["s" if kind is set else "z", *map(value, thing)]
        if kind is deque:
            return ["q", thing.maxlen, *map(value, thing)]
        name = _name_of(kind)
        if name is None:
            raise FlightRecordError(f"an object of {kind!r} is no plain data")
        known = _admitted_base(kind)
        replaced = self._replaced.get(known)
        if replaced is not None:
            attributes = replaced(thing)
        else:
            names, loose = attributes_of(known)
            attributes = {each: getattr(thing, each) for each in names if hasattr(thing, each)}
            if loose:
                attributes.update(vars(thing))
        return ["i", name, {key: value(each) for key, each in attributes.items()}]


_AS_IT_IS = {type(None), bool, int, float}
_CONTAINERS = {list, dict, OrderedDict, set, frozenset, deque}


def _class_of(thing: Any) -> Any:
    return type(thing)


@cache
def _name_of(kind: Any) -> str | None:
    """Return the name by which a class is admitted, or its first base that is; None: none is."""
    for each in kind.__mro__:
        if each.__module__.startswith(_PACKAGES) or each.__module__ in _MODULES:
            return _full_name(each)
    return None


@cache
def _admitted_base(kind: Any) -> Any:
    """Return the class that `_name_of` names."""
    name = _name_of(kind)
    return next(each for each in kind.__mro__ if _full_name(each) == name)


class Reader:
    """Turns JSON values back into values.

    Args:
        named: what a file may refer to by ``$``.
        things: the table of objects that ``r`` refers to.

    Raises:
        FlightRecordError: from every method: the file is damaged.
    """

    def __init__(
        self, named: Mapping[str, Any] | None = None, things: list[Any] | None = None
    ) -> None:
        self._named = dict(named or {})
        self._written = things or []
        self._made: dict[int, Any] = {}
        self._todo: deque[tuple[Any, Any]] = deque()
        self._size = 0

    def value(self, plain: Any, depth: int = 0) -> Any:
        """Return the value of a JSON value."""
        if plain is None or isinstance(plain, bool | int | float | str):
            return plain
        if not isinstance(plain, list) or not plain or depth > _DEEPEST:
            raise _damaged("a value has no kind")
        kind, *rest = plain
        if not isinstance(kind, str) or kind not in _KINDS:
            raise _damaged("a value has an unknown kind")
        least = _KINDS[kind]
        if len(rest) < least:
            raise _damaged("a value is incomplete")
        try:
            return getattr(self, f"_read_{_NAMES[kind]}")(rest, depth + 1)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise _damaged(f"a value of kind {kind!r}: {error!r}") from None

    def _all(self, rest: list[Any], depth: int) -> list[Any]:
        return [self.value(each, depth) for each in rest]

    def _read_list(self, rest: list[Any], depth: int) -> Any:
        return self._all(rest, depth)

    def _read_tuple(self, rest: list[Any], depth: int) -> Any:
        return tuple(self._all(rest, depth))

    def _read_set(self, rest: list[Any], depth: int) -> Any:
        return set(self._all(rest, depth))

    def _read_frozenset(self, rest: list[Any], depth: int) -> Any:
        return frozenset(self._all(rest, depth))

    def _read_deque(self, rest: list[Any], depth: int) -> Any:
        return deque(self._all(rest[1:], depth), rest[0])

    def _read_dict(self, rest: list[Any], depth: int) -> Any:
        return {self.value(key, depth): self.value(each, depth) for key, each in rest}

    def _read_ordered(self, rest: list[Any], depth: int) -> Any:
        return OrderedDict(self._read_dict(rest, depth))

    def _read_uuid(self, rest: list[Any], _depth: int) -> Any:
        return UUID(hex=rest[0])

    def _read_array(self, rest: list[Any], _depth: int) -> Any:
        typecode, numbers = rest
        if typecode not in ("i", "q", "d"):
            raise _damaged("an array of an unknown type")
        return array(typecode, numbers)

    def _read_bytes(self, rest: list[Any], _depth: int) -> Any:
        (length,) = rest
        self.charge(length)
        return bytes(length)

    def charge(self, size: int) -> None:
        """Count bytes that are made from a file, which may name any number."""
        if not isinstance(size, int) or size < 0:
            raise _damaged("a length is not a number")
        self._size += size
        if self._size > 4 * MOST_BYTES:
            raise _damaged("it stands for more bytes than a producer can have in flight")

    def _class(self, name: Any, base: type) -> Any:
        kind = admitted().get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, base):
            raise _damaged(f"it names the class {str(name)[:60]!r}, which this version has not")
        return kind

    def _read_enum(self, rest: list[Any], _depth: int) -> Any:
        name, member = rest
        return self._class(name, enum.Enum)[member]

    def _read_named(self, rest: list[Any], depth: int) -> Any:
        name, *values = rest
        # A file of an earlier version may lack the last fields, which have defaults then.
        return self._class(name, tuple)(*self._all(values, depth))

    def _read_exception(self, rest: list[Any], _depth: int) -> Any:
        name, text, status = rest
        kind = admitted().get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, KafkaError):
            return ConnectionError(f"{str(name)[:60]}: {text}")
        made = kind.__new__(kind)
        made.args = (str(text),)
        made.status = None if status is None else DeliveryStatus[status]
        return made

    def _read_method(self, rest: list[Any], depth: int) -> Any:
        owner, name = rest
        made = self.value(owner, depth)
        if _name_of(_class_of(made)) is None or not isinstance(
            getattr(type(made), name, None), types.FunctionType
        ):
            raise _damaged(f"there is no method {str(name)[:60]!r}")
        return types.MethodType(getattr(type(made), name), made)

    def _read_class(self, rest: list[Any], _depth: int) -> Any:
        raise _damaged(f"a class as a value: {rest!r:.60}")

    def _read_known(self, rest: list[Any], _depth: int) -> Any:
        (name,) = rest
        if name not in self._named:
            raise _damaged(f"it needs {str(name)[:60]!r}, which a replay has not")
        return self._named[name]

    # -- objects that refer to each other

    def _read_ref(self, rest: list[Any], depth: int) -> Any:
        (number,) = rest
        if number in self._made:
            return self._made[number]
        if not isinstance(number, int) or not 0 <= number < len(self._written):
            raise _damaged("a reference leads nowhere")
        plain = self._written[number]
        if not isinstance(plain, list) or not plain:
            raise _damaged("an object has no kind")
        empty = _EMPTY.get(plain[0])
        if plain[0] == "q":
            made: Any = deque(maxlen=plain[1])
        elif empty is not None:
            made = empty()
        elif plain[0] == "i":
            made = self._shell(plain)
        else:
            made = self.value(plain, depth)
            self._made[number] = made
            return made
        self._made[number] = made
        self._todo.append((made, plain))
        return made

    def _shell(self, plain: list[Any]) -> Any:
        _, name, attributes = plain
        kind = self._class(name, object)
        if issubclass(kind, BaseException | enum.Enum | tuple) or not isinstance(attributes, dict):
            raise _damaged(f"an object of the class {str(name)[:60]!r}")
        return kind.__new__(kind)

    def _read_instance(self, rest: list[Any], depth: int) -> Any:
        made = self._shell(["i", *rest])
        self._fill(made, rest[1], depth)
        return made

    def _fill(self, made: Any, attributes: dict[str, Any], depth: int) -> None:
        kind: Any = type(made)
        slots, loose = attributes_of(kind)
        for name, plain in attributes.items():
            if name not in slots and (not loose or hasattr(kind, name) or name[:2] == "__"):
                raise _damaged(f"{kind.__name__} has no attribute {name[:60]!r}")
            object.__setattr__(made, name, self.value(plain, depth))

    @property
    def made(self) -> list[Any]:
        """The objects of the table that were made."""
        return list(self._made.values())

    def finish(self) -> None:
        """Give the objects that were read their attributes and items."""
        while self._todo:
            made, plain = self._todo.popleft()
            try:
                self._complete(made, plain)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise _damaged(f"an object: {error!r:.200}") from None

    def _complete(self, made: Any, plain: list[Any]) -> None:
        kind, *rest = plain
        match kind:
            case "i":
                self._fill(made, rest[1], 0)
            case "l":
                made.extend(self._all(rest, 0))
            case "q":
                made.extend(self._all(rest[1:], 0))
            case "s":
                made.update(self._all(rest, 0))
            case _:
                made.update(self._read_dict(rest, 0))


_EMPTY: Final[Mapping[str, Callable[[], Any]]] = {
    "l": list,
    "d": dict,
    "o": OrderedDict,
    "s": set,
}
_NAMES: Final[Mapping[str, str]] = {
    "l": "list",
    "t": "tuple",
    "s": "set",
    "z": "frozenset",
    "d": "dict",
    "o": "ordered",
    "q": "deque",
    "u": "uuid",
    "a": "array",
    "b": "bytes",
    "e": "enum",
    "n": "named",
    "x": "exception",
    "m": "method",
    "c": "class",
    "r": "ref",
    "i": "instance",
    "$": "known",
}
# The least number of values that follow the kind.
_KINDS: Final[Mapping[str, int]] = dict.fromkeys(_NAMES, 0) | {
    "q": 1,
    "u": 1,
    "a": 2,
    "b": 1,
    "e": 2,
    "n": 1,
    "x": 3,
    "m": 2,
    "r": 1,
    "i": 2,
    "$": 1,
}
