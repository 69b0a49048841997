"""The values of a load's records: random letters, the parts of a file, or the records' numbers.

Invariants:

- A load sends the values in turn: record number n, counted from 0, has `values[n % len(values)]`.
- Values are made or read once, before the first run, so that making them costs the measured run
  nothing. Only numbers are made when they are sent: there may be as many of them as records.
- Every mistake in a flag or a file is raised as `UsageError`, with one line that names the flag.
"""

from __future__ import annotations

import os
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, overload

from aioidem._load.usage import UsageError, reason, whole

__all__ = [
    "DEFAULT_RECORD_SIZE",
    "MAX_RECORD_SIZE",
    "Numbers",
    "choose_values",
    "longest",
    "mean_size",
    "read_payloads",
]

DEFAULT_RECORD_SIZE = 1000
MAX_RECORD_SIZE = 1 << 30
MAX_PAYLOAD_FILE = 256 << 20
_PIECE = 1 << 20

# There are several values, because a codec compresses a repeated value to almost nothing; the bound
# in bytes limits the memory for large records.
_POOL_VALUES = 64
_POOL_BYTES = 4 << 20

_ESCAPES: Mapping[str, str] = MappingProxyType({r"\n": "\n", r"\r\n": "\r\n", r"\t": "\t"})


class Numbers(Sequence[bytes]):
    """The numbers from 0 to `count` - 1, as decimal digits, each made when it is asked for."""

    __slots__ = ("_numbers",)

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return tuple(b"%d" % number for number in self._numbers[at])
        return b"%d" % self._numbers[at]

    @property
    def digits(self) -> int:
        """The digits of all numbers together."""
        total = count = len(self)  # each has a last digit
        power = 10
        while power < count:
            total += count - power  # each from 10 on has another, from 100 on a third
            power *= 10
        return total


def longest(values: Sequence[bytes]) -> bytes:
    """Return one of the longest values."""
    return values[-1] if isinstance(values, Numbers) else max(values, key=len)


def mean_size(values: Sequence[bytes]) -> int:
    """Return the mean size of the values in bytes, rounded."""
    total = values.digits if isinstance(values, Numbers) else sum(map(len, values))
    return round(total / len(values))


def choose_values(
    size: int | None,
    file: Path | None,
    delimiter: str | None,
    *,
    monotonic: bool = False,
    count: int | None = None,
) -> Sequence[bytes]:
    """Return the values that the flags ask for.

    Args:
        size: `--record-size`, in bytes.
        file: `--payload-file`.
        delimiter: `--payload-delimiter`.
        monotonic: `--payload-monotonic`.
        count: `--num-records`, which `monotonic` needs.

    Raises:
        UsageError: a flag is out of range or contradicts another, or the file cannot be used.
    """
    sources = {
        "--record-size": size is not None,
        "--payload-file": file is not None,
        "--payload-monotonic": monotonic,
    }
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other: give one")
    if file is None and delimiter is not None:
        raise UsageError("--payload-delimiter: needs --payload-file")
    if monotonic:
        if count is None:
            raise UsageError("--payload-monotonic: needs --num-records, how many numbers to send")
        return Numbers(count)
    if file is None:
        return _random_values(whole("--record-size", size, DEFAULT_RECORD_SIZE, 1, MAX_RECORD_SIZE))
    if delimiter == "":
        raise UsageError("--payload-delimiter: cannot be empty")
    return read_payloads(file, "\n" if delimiter is None else delimiter)


def _random_values(size: int) -> tuple[bytes, ...]:
    """Return values of `size` random capital letters, from a fixed seed, as Kafka's tool does."""
    letters = string.ascii_uppercase.encode()
    table = bytes(letters[byte % len(letters)] for byte in range(256))
    source = random.Random(size)  # noqa: S311 (it protects nothing)
    count = max(1, min(_POOL_VALUES, _POOL_BYTES // size))
    # In pieces of whole words, because `randbytes` takes no 256 MiB, and needs twice the memory.
    pieces = [min(_PIECE, size - begin) for begin in range(0, size, _PIECE)]
    return tuple(
        b"".join(source.randbytes(piece).translate(table) for piece in pieces) for _ in range(count)
    )


def read_payloads(path: Path, delimiter: str = "\n") -> tuple[bytes, ...]:
    """Read the record values in a file, split at `delimiter`; empty ones are left out.

    Raises:
        UsageError: the file cannot be read, is larger than 256 MiB or has no value.
    """
    try:
        with path.open("rb") as file:
            content = _read_up_to(file, MAX_PAYLOAD_FILE + 1)
    except OSError as error:
        raise UsageError(f"--payload-file: {path}: {reason(error)}") from error
    if len(content) > MAX_PAYLOAD_FILE:
        raise UsageError(f"--payload-file: {path} is larger than {MAX_PAYLOAD_FILE >> 20} MiB")
    # fsencode restores the bytes that the shell passed, which need not be valid UTF-8.
    separator = os.fsencode(_ESCAPES.get(delimiter, delimiter))
    values = tuple(value for value in content.split(separator) if value)
    if not values:
        raise UsageError(f"--payload-file: {path} is empty")
    return values


def _read_up_to(file: BinaryIO, most: int) -> bytes:
    """Read a file, or its first `most` bytes, in pieces.

    A single `read(most)` would allocate `most` bytes even for a small file.
    """
    content = bytearray()
    while piece := file.read(min(_PIECE, most - len(content))):
        content += piece
    return bytes(content)
