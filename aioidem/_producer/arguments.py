"""Checks of arguments, shared by `Producer` and the drop-in for aiokafka's producer.

Invariant: whatever passes these checks can be encoded. A wrong type raises TypeError, a value that
Kafka does not accept raises `RecordError`, both before anything is queued. A number of another type
than int that is an integer, such as numpy's, is accepted, and goes on as an int.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from aioidem import errors
from aioidem.structs import Record

__all__ = [
    "Headers",
    "check_records",
    "check_timeout",
    "checked_headers",
    "checked_partition",
    "checked_payload",
    "checked_timestamp",
    "milliseconds",
    "whole_number",
]

Headers = Sequence[tuple[str, bytes | None]]

_LATEST_SECONDS = 100_000_000_000
"""The first second since the epoch that is refused as a timestamp, in the year 5138.

A larger number is almost certainly in a smaller unit than seconds. Brokers refuse such a timestamp
(message.timestamp.after.max.ms), and with it the other records of the batch.
"""


def checked_payload(name: str, data: object) -> bytes | None:
    """Return a key or value as bytes, or None.

    Raises:
        TypeError: `data` is neither bytes, bytearray or memoryview, nor None.
    """
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{name} must be bytes or None, not {type(data).__name__}")


def check_records(values: object) -> None:
    """Check that the records of a call are not one record, which would be read as its fields.

    Raises:
        TypeError: The value is a `Record`, which is a tuple.
    """
    if isinstance(values, Record):
        raise TypeError("values must be records, not one Record: write [record]")


def checked_headers(headers: Headers) -> Headers:
    """Return headers as a tuple of pairs.

    Raises:
        TypeError: A header is not a pair of a str and either bytes or None.
    """
    checked = []
    if not isinstance(headers, Iterable):
        raise TypeError(f"headers must be (str, bytes | None) pairs, not {type(headers).__name__}")
    for header in headers:
        try:
            name, value = header
        except (TypeError, ValueError):
            raise TypeError("headers must be (str, bytes | None) pairs") from None
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        checked.append((name, checked_payload(f"the value of header {name!r}", value)))
    return tuple(checked)


def checked_partition(partition: object) -> int:
    """Return a partition's number as an int.

    Raises:
        TypeError: The value is not an integer.
        RecordError: The value is negative or does not fit an int32.
    """
    if type(partition) is not int:
        partition = whole_number(partition, "partition must be int or None")
    if not 0 <= partition < 2**31:
        raise errors.RecordError(f"partition {partition}: expected 0 to {2**31 - 1}")
    return partition


def checked_timestamp(timestamp_ms: object) -> int:
    """Return a number of milliseconds since the epoch, up to the year 5138, as an int.

    Raises:
        TypeError: The value is not an integer.
        RecordError: The value is negative or after the year 5138.
    """
    if type(timestamp_ms) is not int:
        timestamp_ms = whole_number(
            timestamp_ms, "timestamp_ms must be milliseconds since the epoch as int"
        )
    if timestamp_ms < 0:
        raise errors.RecordError(
            f"timestamp_ms {timestamp_ms}: expected milliseconds since the epoch, not negative"
        )
    if timestamp_ms >= _LATEST_SECONDS * 1000:
        raise errors.RecordError(
            f"timestamp_ms {timestamp_ms}: expected milliseconds since the epoch; this is after "
            "the year 5138, as microseconds or nanoseconds are"
        )
    return timestamp_ms


def milliseconds(timestamp: object) -> int:
    """Return seconds since the epoch, up to the year 5138, as whole milliseconds.

    Raises:
        TypeError: The timestamp is not a number.
        RecordError: The timestamp is negative, NaN or after the year 5138.
    """
    if not isinstance(timestamp, int | float) or isinstance(timestamp, bool):
        timestamp = whole_number(timestamp, "timestamp must be seconds since the epoch")
    if timestamp >= _LATEST_SECONDS:
        raise errors.RecordError(
            f"timestamp {timestamp!r}: expected seconds since the epoch, as time.time() gives "
            "them; this is after the year 5138, as milliseconds are: divide them by 1000"
        )
    if not timestamp >= 0:  # NaN fails as well
        raise errors.RecordError(
            f"timestamp {timestamp!r}: expected seconds since the epoch, not negative"
        )
    return round(timestamp * 1000)


def whole_number(number: Any, expected: str) -> int:
    """Return an integer of any type but bool, such as numpy's, as an int.

    Args:
        number: The integer.
        expected: What the argument must be, for the error's message.

    Raises:
        TypeError: The value is not an integer.
    """
    if not isinstance(number, bool):
        try:
            return operator.index(number)
        except TypeError:
            pass  # the error below says more
    raise TypeError(f"{expected}, not {type(number).__name__}")


def check_timeout(timeout: object) -> None:
    """Check that a value can be a timeout: a number of seconds, or None.

    What is left until a time that has passed is negative, and means no wait, as 0 does.

    Raises:
        TypeError: The value is neither a number nor None.
        ValueError: The value is NaN.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout must be seconds or None, not {type(timeout).__name__}")
    if math.isnan(timeout):
        raise ValueError("timeout is NaN: expected seconds")
