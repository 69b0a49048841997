"""Batches in which a number here or there is odd.

Damage at random bytes (`strange_batches`) seldom leaves everything else as it was. Here each record
is written field by field, and a field now and then has a value that is just allowed, or just not: a
length that is one too long, an offset delta that repeats the last one, a varint of more bytes than
it may have. `whole_records` decides whether such a batch can be read.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.simulated.strange_batches import StrangeBatch, framed

__all__ = ["odd_batch"]

_ODD: Final = 0.04
"""The share of numbers that are odd."""
_FIRST_STAMPS: Final = (1_000, 1_000, 2**63 - 2, 2 - 2**63)
"""Timestamps of first records in milliseconds, to which some deltas cannot be added."""
_STAMP_DELTAS: Final = (*[0, 1, -1, 63, -64, 64] * 3, -2, -3, 2**40, -(2**63), 2**63 - 1)
_TEXTS: Final = (None, b"", b"x", bytes(63), bytes(64))


def odd_batch(dice: Random) -> StrangeBatch:
    """Return an uncompressed batch of up to three records, some of whose numbers are odd."""
    count, last, body = dice.randrange(4), 0, b""
    delta = -1
    for _ in range(count):
        delta += 1 if dice.random() < 1 - 2 * _ODD else dice.choice((0, -1, 2))
        last = max(last, delta)
        body += _record(delta, dice)
    number = count + (dice.choice((-1, 1, 3)) if dice.random() < _ODD else 0)
    last += dice.choice((-1, 1)) if dice.random() < 3 * _ODD else 0
    if dice.random() < _ODD:
        body += b"\0"
    codec = dice.choice((1, 4, 5, 7)) if dice.random() < _ODD and not body else 0
    offset = dice.choice((0, 2**40))
    fields = (codec, last, dice.choice(_FIRST_STAMPS), 5, 9, 0, 3, number)
    acceptable = number >= 0 and last >= 0 and codec <= 4
    data = framed(fields, body, offset, leader_epoch=-1)
    return StrangeBatch(data, offset, *fields, body, acceptable)


def _record(delta: int, dice: Random) -> bytes:
    """Return a record with its length."""
    fields = b"\0" + _number(dice.choice(_STAMP_DELTAS), 10, dice) + _number(delta, 5, dice)
    fields += _text(dice) + _text(dice)
    count = dice.randrange(3)
    headers = b"".join(_name(dice) + _text(dice) for _ in range(count))
    fields += _number(count, 5, dice) + headers
    size = len(fields)
    if dice.random() < _ODD:
        fields += b"\0"
    if dice.random() < _ODD:
        size += dice.choice((-1, 1))
    return _number(size, 5, dice) + fields


def _text(dice: Random) -> bytes:
    """Return a key or value with its length; -1 stands for none."""
    text = dice.choice(_TEXTS)
    size = -1 if text is None else len(text)
    if dice.random() < _ODD:
        size += dice.choice((-1, -2, 1, 5))
    return _number(size, 5, dice) + (text or b"")


def _name(dice: Random) -> bytes:
    """Return the name of a header with its length."""
    return _text(dice) if dice.random() < _ODD else _number(1, 5, dice) + b"h"


def _number(number: int, most: int, dice: Random) -> bytes:
    """Return a number as a varint in zigzag, now and then another one, or in too many bytes.

    Args:
        number: the number.
        most: the most bytes that it may have.
        dice: decides what is odd.
    """
    if dice.random() < _ODD / 2:
        number = -number - 1
    rest = 2 * number if number >= 0 else -2 * number - 1
    groups = [rest & 0x7F]
    while rest := rest >> 7:
        groups.append(rest & 0x7F)
    if dice.random() < 2 * _ODD:
        size = dice.choice((len(groups) + 1, most - 1, most, most + 1))
        groups += [0] * (size - len(groups))
        if dice.random() < 0.3:
            groups[-1] = dice.choice((1, 15, 16))  # the last byte, at and beyond the range
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])
