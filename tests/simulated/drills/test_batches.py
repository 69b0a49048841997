"""The drill of batches finds nothing wrong, and notices bytes that are written or read wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from aioidem._records import RecordBatch, _decode, builder, layout, reader
from tests.simulated.strange_batches import MalformedError, whole_records

from .batches import drill_batches
from .odd_sections import odd_batch

SEEDS = range(60)


def wrong() -> list[str]:
    """Return what the drill says of some seeds, and which errors it meets."""
    told: list[str] = []
    for seed in SEEDS:
        try:
            told += drill_batches(Random(f"batches {seed}"))
        except Exception as error:  # noqa: BLE001 - a broken part may raise anything
            told.append(repr(error))
    return told


def test_batches_are_built_changed_and_read_as_the_format_says() -> None:
    assert not wrong()


def outcomes() -> Iterator[str]:
    for seed in range(400):
        batch = odd_batch(Random(seed))
        try:
            yield f"{len(list(whole_records(batch)))} records" if batch.acceptable else "header"
        except MalformedError as error:
            yield str(error)


def test_odd_batches_are_of_all_kinds() -> None:
    """A third of them is whole, and the others have each fault that the format knows."""
    told = list(outcomes())
    assert len(set(told)) >= 12, set(told)
    assert sum(each.endswith("records") for each in told) > 100


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (layout, "TRANSACTIONAL", 0x40),
        (layout, "IDENTITY_AT", 44),
        (builder, "_sealed", bytes),
        (reader, "_SEQUENCES", 2**31 - 1),
        (reader, "_too_short", lambda _data, _pos, length: reader._of_magic(length)),
        (reader, "_MAX_CONTROL_BYTES", 8192),
        (_decode, "_INT64_MAX", 2**63),
        (_decode, "MIN_RECORD_SIZE", 8),
        (RecordBatch, "crc_ok", lambda _: False),
        (RecordBatch, "last_offset", property(lambda batch: batch.base_offset + batch.count)),
        (RecordBatch, "__eq__", lambda _, other: isinstance(other, RecordBatch)),
    ],
)
def test_a_broken_part_is_noticed(
    owner: Any, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert wrong()
