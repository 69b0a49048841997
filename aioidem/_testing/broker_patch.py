"""Patch a real broker to remember N batches per producer and partition instead of five (KIP-1269).

No release of Kafka implements the broker side of KIP-1269. In Kafka the number is one constant:
``ProducerStateEntry.addBatchMetadata`` in the jar kafka-storage drops the oldest batch of a
producer ``if (batchMetadata.size() == 5)``, which javac compiles to an instruction that pushes the
constant, followed by ``if_icmpne``. `patched` replaces the constant. When the directory with the
changed class comes before the jars on the class path, the broker remembers exactly N batches.

The instruction that pushes a constant above 5 is one or two bytes longer than ``iconst_5``. So all
references to later positions in the code have to be changed: branches, exception handlers, line and
variable tables, stack map frames.

Invariants
    The class file is parsed by the rules of its format (JVM specification, chapter 4), never
    searched for byte patterns. A class that does not have the code described above is refused with
    a `BrokerPatchError` that says what was found, because tests with a wrongly patched broker would
    prove nothing. If a patched class is patched again with the former constant, it has the former
    bytes.

Rejected
    An instrumentation agent: it would be Java code to compile, for one constant. A library for
    class files: this module needs only a small part of one, and has it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import Final

from aioidem.errors import KafkaError

__all__ = ["CLASS_NAME", "BrokerPatchError", "patched", "retained", "write_patch"]

CLASS_NAME: Final = "org/apache/kafka/storage/internals/log/ProducerStateEntry"
"""The class that holds the batches that a broker remembers of one producer in one partition."""

_METHOD: Final = b"addBatchMetadata"
_MAGIC: Final = 0xCAFEBABE
_U2: Final = Struct(">H")
_U4: Final = Struct(">I")
_I2: Final = Struct(">h")

# For each tag of a constant in a Java class file: how many bytes follow the tag. Utf8 (tag 1) is
# left out, because a constant of that kind contains its length.
_CONSTANT_SIZES: Final = {
    **dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 4),
    **dict.fromkeys((5, 6), 8),
    **dict.fromkeys((7, 8, 16, 19, 20), 2),
    15: 3,
}
_TWO_SLOTS: Final = frozenset({5, 6})

_ICONST_0: Final = 0x03
_BIPUSH: Final = 0x10
_SIPUSH: Final = 0x11
_IF_ICMPNE: Final = 0xA0
_BRANCHES: Final = frozenset({*range(0x99, 0xA9), 0xC6, 0xC7})
_OPERAND_SIZES: Final = {
    **dict.fromkeys((0x10, 0x12, *range(0x15, 0x1A), *range(0x36, 0x3B), 0xA9, 0xBC), 1),
    **dict.fromkeys((0x11, 0x13, 0x14, 0x84, *range(0xB2, 0xB9), 0xBB, 0xBD, 0xC0, 0xC1), 2),
    **dict.fromkeys(_BRANCHES, 2),
    0xC5: 3,
    **dict.fromkeys((0xB9, 0xBA), 4),
}
# tableswitch, lookupswitch, wide, goto_w and jsr_w, which addBatchMetadata does not contain.
_NOT_EXPECTED: Final = frozenset({0xAA, 0xAB, 0xC4, 0xC8, 0xC9})
_LAST_OPCODE: Final = 0xC9
_MOST: Final = 32767

Moved = Callable[[int], int]
"""A function that returns an instruction's new offset in the code, given the old one."""


class BrokerPatchError(KafkaError):
    """The class is not as the patch expects it, or the number of batches is out of range."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the class file the code of `addBatchMetadata` is, and the constant to replace."""

    attribute: int
    """Offset of the Code attribute's length."""
    code: int
    size: int
    end: int
    push: int
    """Offset, from the start of the code, of the instruction that pushes the constant."""
    push_size: int
    value: int


class _Cursor:
    """Reads a class file from start to end; `at` is the offset of the next byte."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def u1(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def u2(self) -> int:
        self.at += 2
        value: int = _U2.unpack_from(self.data, self.at - 2)[0]
        return value

    def u4(self) -> int:
        self.at += 4
        value: int = _U4.unpack_from(self.data, self.at - 4)[0]
        return value

    def take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise IndexError
        return self.data[self.at - size : self.at]


def retained(class_file: bytes) -> int:
    """Return how many batches a broker with this class remembers.

    Raises:
        BrokerPatchError: The class is not `CLASS_NAME`, or differs from what the patch expects.
    """
    return _find(class_file).value


def patched(class_file: bytes, retain: int) -> bytes:
    """Return the class file changed to remember `retain` batches.

    Args:
        class_file: Bytes of the class file.
        retain: Batches to remember per producer and partition, 1 to 32767.

    Raises:
        BrokerPatchError: The class is not `CLASS_NAME`, or differs from what the patch expects.
    """
    if not 1 <= retain <= _MOST:
        raise BrokerPatchError(f"retain={retain}: it must be 1 to {_MOST}")
    place = _find(class_file)
    try:
        return _replace(class_file, place, _push(retain))
    except (IndexError, StructError, OverflowError) as error:
        raise BrokerPatchError(f"{CLASS_NAME}: the code's tables are malformed") from error


def write_patch(jar: Path, directory: Path, retain: int) -> Path:
    """Read the class from kafka-storage's jar, patch the class, and write it into a directory.

    Args:
        jar: The jar.
        directory: Directory for the class file; it must come before the jars on the class path.
        retain: Batches to remember per producer and partition, 1 to 32767.

    Returns:
        The class file.

    Raises:
        BrokerPatchError: The jar has no such class, or the class is not as expected.
    """
    try:
        with zipfile.ZipFile(jar) as archive:
            original = archive.read(f"{CLASS_NAME}.class")
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise BrokerPatchError(f"{jar.name} has no class {CLASS_NAME}: {error}") from error
    target = directory / f"{CLASS_NAME}.class"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(patched(original, retain))
    return target


# -- finding the constant --------------------------------------------------------------------------


def _find(class_file: bytes) -> _Place:
    try:
        return _find_constant(_Cursor(class_file))
    except (IndexError, StructError) as error:
        raise BrokerPatchError("the file is no class file, or is incomplete") from error


def _find_constant(cursor: _Cursor) -> _Place:
    if cursor.u4() != _MAGIC:
        raise BrokerPatchError("the file is no class file")
    cursor.take(4)
    texts, classes = _constants(cursor)
    cursor.take(2)
    name = texts.get(classes.get(cursor.u2(), -1), b"").decode(errors="replace")
    if name != CLASS_NAME:
        raise BrokerPatchError(f"the class is {name!r} instead of {CLASS_NAME!r}")
    cursor.take(2)
    cursor.take(2 * cursor.u2())
    for _ in range(cursor.u2()):
        _skip_member(cursor)
    found = [place for place in _methods(cursor, texts) if place is not None]
    if len(found) != 1:
        raise BrokerPatchError(
            f"{CLASS_NAME} has {len(found)} methods {_METHOD.decode()} with code"
        )
    return _with_push(cursor.data, found[0])


def _constants(cursor: _Cursor) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return the constant pool's texts by index, and for each class the index of its name."""
    texts: dict[int, bytes] = {}
    classes: dict[int, int] = {}
    count, index = cursor.u2(), 1
    while index < count:
        tag = cursor.u1()
        if tag == 1:
            texts[index] = cursor.take(cursor.u2())
        elif tag == 7:
            classes[index] = cursor.u2()
        elif tag in _CONSTANT_SIZES:
            cursor.take(_CONSTANT_SIZES[tag])
        else:
            raise BrokerPatchError(f"constant {index} is of the unknown kind {tag}")
        index += 2 if tag in _TWO_SLOTS else 1
    return texts, classes


def _skip_member(cursor: _Cursor) -> None:
    cursor.take(6)
    for _ in range(cursor.u2()):
        cursor.take(2)
        cursor.take(cursor.u4())


def _methods(cursor: _Cursor, texts: dict[int, bytes]) -> Iterator[_Place | None]:
    """Yield the place of the code of each addBatchMetadata method; the constant is added later."""
    for _ in range(cursor.u2()):
        cursor.take(2)
        name = texts.get(cursor.u2())
        cursor.take(2)
        for _ in range(cursor.u2()):
            attribute = texts.get(cursor.u2())
            start = cursor.at
            end = start + 4 + cursor.u4()
            if name == _METHOD and attribute == b"Code":
                cursor.take(4)
                size = cursor.u4()
                yield _Place(start, cursor.at, size, end, -1, 0, -1)
            cursor.at = start
            cursor.take(end - start)


def _with_push(data: bytes, place: _Place) -> _Place:
    code = data[place.code : place.code + place.size]
    pairs = list(_instructions(code))
    found = [
        (at, following - at)
        for (at, opcode), (following, next_opcode) in pairwise(pairs)
        if next_opcode == _IF_ICMPNE and _is_push(opcode)
    ]
    if len(found) != 1:
        raise BrokerPatchError(
            f"{_METHOD.decode()} compares with {len(found)} constants, where one was expected"
        )
    at, size = found[0]
    value = _pushed(code, at)
    return _Place(place.attribute, place.code, place.size, place.end, at, size, value)


def _instructions(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and opcode of each instruction."""
    at = 0
    while at < len(code):
        opcode = code[at]
        if opcode in _NOT_EXPECTED or opcode > _LAST_OPCODE:
            raise BrokerPatchError(f"{_METHOD.decode()} has the instruction {opcode:#04x}")
        yield at, opcode
        at += 1 + _OPERAND_SIZES.get(opcode, 0)
    if at != len(code):
        raise BrokerPatchError(f"{_METHOD.decode()} ends in the middle of an instruction")


def _is_push(opcode: int) -> bool:
    return _ICONST_0 <= opcode <= _ICONST_0 + 5 or opcode in {_BIPUSH, _SIPUSH}


def _pushed(code: bytes, at: int) -> int:
    opcode = code[at]
    if opcode == _BIPUSH:
        return int.from_bytes(code[at + 1 : at + 2], "big", signed=True)
    if opcode == _SIPUSH:
        return int.from_bytes(code[at + 1 : at + 3], "big", signed=True)
    return opcode - _ICONST_0


def _push(value: int) -> bytes:
    """Return the shortest instruction that pushes a constant, which is the one javac writes."""
    if value <= 5:
        return bytes([_ICONST_0 + value])
    if value <= 127:
        return bytes([_BIPUSH, value])
    return bytes([_SIPUSH]) + _I2.pack(value)


# -- replacing the constant ------------------------------------------------------------------------


def _replace(data: bytes, place: _Place, push: bytes) -> bytes:
    shift = len(push) - place.push_size

    def moved(at: int) -> int:
        return at if at <= place.push else at + shift

    code = data[place.code : place.code + place.size]
    new_code = _moved_code(code, place, push, moved)
    tables = _moved_tables(data, place, moved)
    header = data[place.attribute + 4 : place.attribute + 8]
    body = b"".join((header, _U4.pack(len(new_code)), new_code, tables))
    return b"".join((data[: place.attribute], _U4.pack(len(body)), body, data[place.end :]))


def _moved_code(code: bytes, place: _Place, push: bytes, moved: Moved) -> bytes:
    out = bytearray(code)
    for at, opcode in _instructions(code):
        if opcode in _BRANCHES:
            target = at + _I2.unpack_from(code, at + 1)[0]
            _I2.pack_into(out, at + 1, moved(target) - moved(at))
    out[place.push : place.push + place.push_size] = push
    return bytes(out)


def _moved_tables(data: bytes, place: _Place, moved: Moved) -> bytes:
    cursor = _Cursor(data, place.code + place.size)
    handlers = cursor.u2()
    out = [_U2.pack(handlers)]
    for _ in range(handlers):
        places = [_U2.pack(moved(cursor.u2())) for _ in range(3)]
        out += (*places, cursor.take(2))
    names = _constants(_Cursor(data, 8))[0]
    count = cursor.u2()
    out.append(_U2.pack(count))
    for _ in range(count):
        index = cursor.u2()
        body = _moved_table(names.get(index, b""), cursor.take(cursor.u4()), moved)
        out += (_U2.pack(index), _U4.pack(len(body)), body)
    if cursor.at != place.end:
        raise BrokerPatchError("the code's tables do not end where the code does")
    return b"".join(out)


def _moved_table(name: bytes, body: bytes, moved: Moved) -> bytes:
    match name:
        case b"LineNumberTable":
            return _moved_lines(_Cursor(body), moved)
        case b"LocalVariableTable" | b"LocalVariableTypeTable":
            return _moved_variables(_Cursor(body), moved)
        case b"StackMapTable":
            return _moved_frames(_Cursor(body), moved)
    raise BrokerPatchError(f"the code has an unknown table {name!r}")


def _moved_lines(cursor: _Cursor, moved: Moved) -> bytes:
    count = cursor.u2()
    rows = [_U2.pack(moved(cursor.u2())) + cursor.take(2) for _ in range(count)]
    return _U2.pack(count) + b"".join(rows)


def _moved_variables(cursor: _Cursor, moved: Moved) -> bytes:
    count = cursor.u2()
    rows: list[bytes] = []
    for _ in range(count):
        start = cursor.u2()
        end = start + cursor.u2()
        rows += (_U2.pack(moved(start)), _U2.pack(moved(end) - moved(start)), cursor.take(6))
    return _U2.pack(count) + b"".join(rows)


def _moved_frames(cursor: _Cursor, moved: Moved) -> bytes:
    """Return the stack map frames with their offsets changed.

    A frame contains the distance from the frame before it, so the distances are computed anew from
    the changed absolute offsets.
    """
    count = cursor.u2()
    out = [_U2.pack(count)]
    was, now = -1, -1
    for _ in range(count):
        tag = cursor.u1()
        delta = cursor.u2() if tag >= 247 else tag & 0x3F
        rest = _moved_types(cursor, tag, moved)
        was += delta + 1
        out.append(_frame(tag, moved(was) - now - 1, rest))
        now = moved(was)
    return b"".join(out)


def _frame(tag: int, delta: int, rest: bytes) -> bytes:
    """Return a stack map frame in its shortest form."""
    if tag >= 248 and tag != 251:
        return bytes([tag]) + _U2.pack(delta) + rest
    has_stack = 64 <= tag <= 127 or tag == 247
    if delta <= 63:
        return bytes([delta + (64 if has_stack else 0)]) + rest
    return bytes([247 if has_stack else 251]) + _U2.pack(delta) + rest


def _moved_types(cursor: _Cursor, tag: int, moved: Moved) -> bytes:
    if 128 <= tag <= 246:
        raise BrokerPatchError(f"the code has a stack map frame of the reserved kind {tag}")
    if 64 <= tag <= 127 or tag == 247:
        return _types(cursor, 1, moved)
    if 252 <= tag <= 254:
        return _types(cursor, tag - 251, moved)
    if tag == 255:
        count = cursor.u2()
        variables = _U2.pack(count) + _types(cursor, count, moved)
        count = cursor.u2()
        return variables + _U2.pack(count) + _types(cursor, count, moved)
    return b""


def _types(cursor: _Cursor, count: int, moved: Moved) -> bytes:
    out = []
    for _ in range(count):
        kind = cursor.u1()
        out.append(bytes([kind]))
        if kind == 7:  # an object; the index of its class follows
            out.append(cursor.take(2))
        elif kind == 8:  # an object before its constructor ran; the offset of its `new` follows
            out.append(_U2.pack(moved(cursor.u2())))
    return b"".join(out)
