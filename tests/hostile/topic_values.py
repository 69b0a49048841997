"""Fuzz target: record values and offset metadata that audits and Spark tasks read.

Anybody with write access may have written them. The first byte of an input selects its kind:

- a record's value;
- a record's value in which magic, CRC and lengths are first corrected, because hardly any other
  input gets past them;
- a producer's name that Spark has read from a record's value;
- the metadata of a committed offset. A task of the Spark sink reads that metadata as its marker:
  the note of what an earlier attempt of the task has written.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from rich.console import Console

from aioidem._cli.audit import example_lines, findings_table
from aioidem._spark.examples import example
from aioidem._spark.marker import Marker
from aioidem.testing import Anomaly, LogRecord, ValueId, check_history, make_value, parse_value

from .parsers import check_text, declared

__all__ = ["topic_values", "value_of", "values"]

_HEAD: Final = struct.Struct(">4sIiQHH")
_TOPIC: Final = "t"


class _Place(NamedTuple):
    partition: int | None
    offset: int | None


class _Row(NamedTuple):
    """A row of Spark's audit for a record that no ledger (list of sent records) contains."""

    producer: str | None
    call: int | None
    status: str | None
    told: _Place | None
    found: _Place | None
    copies: int


def topic_values(data: bytes) -> None:
    """Read the input as an audit or a Spark task reads it, and format the findings."""
    if not data:
        return
    chosen, rest = data[0] % 4, data[1:]
    if chosen == 3:
        _marker(rest)
    elif chosen == 2:
        _show(_Row(rest.decode("utf-8", "replace"), len(rest), None, None, _Place(0, 7), 1))
    else:
        _value(value_of(data))


def value_of(data: bytes) -> bytes:
    """Make a record's value from an input, with a right magic and CRC if its first byte is odd."""
    rest = data[1:]
    if not data[:1] or not data[0] & 1:
        return rest
    body = rest[:16].ljust(16, b"\0") + rest[16:]
    if rest[:1] > b"\x7f":
        # Give the two names (producer and topic) lengths for which the body has enough bytes.
        sizes = len(rest) % 97, len(rest) % 31
        body = body[:12] + struct.pack(">HH", *sizes) + body[16:].ljust(sum(sizes), b"n")
    return b"aiv1" + struct.pack(">I", crc32(body)) + body


def _value(value: bytes) -> None:
    said = parse_value(value)
    violations = check_history([], [LogRecord(_TOPIC, 0, 7, value)])
    assert [each.anomaly for each in violations] == [
        Anomaly.TORN if said is None else Anomaly.FOREIGN
    ]
    for each in violations:
        check_text(str(each))
    if said is not None:
        check_text(str(said))
        _show(_Row(said.producer, said.call, None, _Place(None, None), _Place(0, 7), 2))


def _show(row: _Row) -> None:
    """Format the text, the table and the JSON as the command writes them."""
    text = example(row)
    found = {"topic": _TOPIC, "anomalies": {"foreign": 1}, "examples": {"foreign": [text]}}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        console = Console(file=out, highlight=False)
        console.print(findings_table(found))
        for line in example_lines(found):
            console.print(line, markup=False, soft_wrap=True)
    for line in out.getvalue().split("\n"):
        check_text(line)


def _marker(metadata: bytes) -> None:
    with declared():
        marker = Marker.read(5, metadata.decode("utf-8", "replace"))
        assert Marker.read(5, marker.metadata) == marker


# --- seeds: the inputs that a run begins with -----------------------------------------------------


def values() -> Iterator[bytes]:
    """Yield values of producers with all kinds of names, and markers."""
    for name in ("p", "", "caf\u00e9", "\x1b[2J\r\n", "\u202e", "n" * 400, "[red]x[/red]", "[/]"):
        value = make_value(ValueId(name, _TOPIC, -1, 3), 60)
        yield b"\0" + value
        yield b"\1" + value[8:]
        yield b"\1\xff" + value[9:]
        yield b"\2" + name.encode()
    yield b"\0" + make_value(ValueId("p", _TOPIC, -1, 3), 60)[:30]
    yield b"\1" + _HEAD.pack(b"", 0, 0, 2**64 - 1, 3, 2)[8:] + b"\xff\xfe\xfdt\xc3"
    yield b"\3" + Marker(6, 10, 99, "run", 1.5).metadata.encode()
    for odd in (b"1e999", b"null", b'"7"', b"NaN", b"9" * 400, b"[" * 50, b"{}"):
        yield b'\3{"v":1,"rows":' + odd + b',"digest":1,"run":"","at":1}'
        yield b'\3{"v":1,"rows":1,"digest":1,"run":"","at":' + odd + b"}"
    yield b"\3[1]"
    yield b"\3" + b"[" * 2000
