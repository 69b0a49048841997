"""Varints are those of protocol buffers, and as long as `varint_size` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._hot import encoding

EDGES = sorted({edge + i for bits in range(65) for edge in (2**bits,) for i in (-1, 0, 1)})


def reference_varint(number: int) -> bytes:
    """Return a number's varint as protocol buffers define it: zigzag, then 7 bits in each byte."""
    zigzag = abs(number) * 2 - (number < 0)
    bits = f"{zigzag:b}"
    groups = [bits[max(i - 7, 0) : i] for i in range(len(bits), 0, -7)]
    last = len(groups) - 1
    return bytes(int(group, 2) | (0x80 if i < last else 0) for i, group in enumerate(groups))


@pytest.mark.parametrize("sign", [1, -1])
def test_varints_are_right_at_every_change_of_size(sign: int) -> None:
    for edge in EDGES:
        number = sign * edge
        if -(2**63) <= number < 2**63:
            assert encoding.varint(number) == reference_varint(number)
            assert encoding.varint_size(number) == len(reference_varint(number))
        else:
            with pytest.raises(OverflowError):
                encoding.varint(number)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_varint_is_right_and_of_the_computed_size(number: int) -> None:
    """`varint` returns the bytes of the definition, and `varint_size` their number."""
    assert encoding.varint(number) == reference_varint(number)
    assert encoding.varint_size(number) == len(reference_varint(number))


def test_a_varint_takes_one_to_ten_bytes() -> None:
    assert encoding.varint(0) == b"\x00"
    assert encoding.varint(-1) == b"\x01"
    assert len(encoding.varint(-(2**63))) == len(encoding.varint(2**63 - 1)) == 10
