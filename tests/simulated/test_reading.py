"""Tests of the judge of reading: a reader that finds something else is noticed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._engine import steps
from aioidem._records import RecordBatch, _decode, build_batch, read_batches
from aioidem._testing.wire_frames import Record

from . import reading
from .reading import Reading
from .strange_batches import MalformedError, strange_batch, whole_records

LOG = [b"%d" % number * 9 for number in range(8)]


def judged() -> list[str]:
    told: list[str] = []
    judge = Reading(told.append)
    for value in LOG:
        records = [
            SimpleNamespace(key=b"k", headers=(("h", None),), timestamp_ms=5, value=value)
            for _ in range(3)
        ]
        data = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0).data
        topics = [steps.TopicData("t", None, [(0, data)])]
        judge.sent(steps.SendProduce(1, 1, 13, -1, 1000, None, topics))
    return told


def test_what_is_read_well_is_nothing_to_tell() -> None:
    assert not judged()


def _without_the_last(read: Callable[..., list[RecordBatch]]) -> Callable[..., list[RecordBatch]]:
    return lambda data, **options: read(data, **options)[:-1]


def _without_error(read: Callable[..., list[RecordBatch]]) -> Callable[..., list[RecordBatch]]:
    return lambda data, **_: read(data, partial=True)


@pytest.mark.parametrize("wrong", [_without_the_last, _without_error])
def test_a_reader_of_batches_that_is_wrong_is_noticed(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_batches", wrong(read_batches))
    assert judged()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crc_ok", lambda _: True),
        ("crc_ok", lambda _: False),
        ("iter_records", lambda _: iter(())),
        ("last_offset", property(lambda _: 0)),
    ],
)
def test_a_batch_that_is_read_wrongly_is_noticed(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordBatch, name, value)
    assert judged()


def strangers(count: int) -> list[str]:
    """Return what the judge says of so many batches of others."""
    told: list[str] = []
    judge = Reading(told.append)
    for seed in range(count):
        judge.read_strange(
            strange_batch([Record(0, 0, b"v", b"k", (("h", b""),))] * 2, Random(seed))
        )
    return told


def test_batches_of_others_are_read_as_the_format_says() -> None:
    """Whole batches of others are read, and of damaged ones what precedes the damage."""
    assert not strangers(300)
    kinds = set[object]()
    for seed in range(300):
        try:
            kinds.add(
                len(list(whole_records(strange_batch([Record(0, 0, b"", None, ())], Random(seed)))))
            )
        except MalformedError as error:
            kinds.add(str(error))
    assert len(kinds) >= 8, kinds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_INT64_MAX", 1 << 80),
        ("MIN_RECORD_SIZE", 70),
        ("_headers", lambda _, pos, count: ((), pos + 4 * count)),
        ("_nullable", lambda _, pos: (b"", pos + 1)),
    ],
)
def test_a_reader_of_others_batches_that_is_wrong_is_noticed(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_decode, name, value)
    assert strangers(300)
