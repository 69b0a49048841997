"""CRC-32C comes from the package crc32c, whose compiled module is loaded without the package."""

from __future__ import annotations

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records.checksum import crc32c, load


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_checksums_are_those_of_the_package(data: bytes, start: int) -> None:
    """The function that batches use returns what the package's does, from any first value."""
    assert crc32c(data, start) == package.crc32c(data, start)
    with memoryview(data) as view:
        assert crc32c(view) == package.crc32c(data)


def test_the_check_value() -> None:
    """The checksum of the digits 1 to 9 is the published check value of CRC-32C (RFC 3720)."""
    assert crc32c(b"123456789") == 0xE3069283


def test_the_compiled_module_is_loaded_without_the_package() -> None:
    """`load` returns the compiled module crc32c._crc32c, not the package crc32c around it."""
    assert load().__name__ == "crc32c._crc32c"


@pytest.mark.parametrize("name", ["a_module_of_another_release", "_cli.not_a_module"])
def test_a_release_without_that_module_is_imported_as_usual(name: str) -> None:
    """Without a module of this name the package itself is imported, which has the function too."""
    assert load(name) is package
