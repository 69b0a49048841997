"""An incident survives JSON, and bad JSON is refused by an error that names the field."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any, SupportsIndex
from uuid import UUID

import pytest

from aioidem.errors import DeliveryTimeoutError
from aioidem.incident import Acknowledged, Incident, incidents_from_json, incidents_to_json

WHOLE = Incident(
    topic="orders",
    partition=3,
    topic_id=UUID(int=7),
    producer_id=4000,
    producer_epoch=2,
    base_sequence=17,
    count=5,
    timestamp_ms=1_700_000_000_000,
    after=Acknowledged(offset=99, producer_id=4000, producer_epoch=2, last_sequence=16),
    crc=0xDEADBEEF,
    codec=4,
    renumbered=True,
    index=4,
)
LEAST = Incident(
    topic="orders",
    partition=0,
    producer_id=0,
    producer_epoch=0,
    base_sequence=0,
    count=1,
    timestamp_ms=-1,
)


@pytest.mark.parametrize("incident", [WHOLE, LEAST])
def test_an_incident_is_the_same_after_json(incident: Incident) -> None:
    """`from_json` returns what `to_json` was called on."""
    assert Incident.from_json(incident.to_json()) == incident


def test_a_file_has_an_array_or_one_object_after_the_other() -> None:
    """Incidents may be appended to a file one by one, or written at once."""
    assert incidents_from_json(incidents_to_json([WHOLE, LEAST])) == [WHOLE, LEAST]
    lines = f"{WHOLE.to_json()}\n{LEAST.to_json()}\n"
    assert incidents_from_json(lines) == [WHOLE, LEAST]
    assert incidents_from_json("") == []


class Uncopied(str):
    """A text of which no part may be copied."""

    __slots__ = ()

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        raise AssertionError(f"{key} is copied")


def test_a_file_of_many_incidents_is_not_copied_for_each_of_them() -> None:
    """It would take minutes for a few megabytes."""
    text = Uncopied(f" {WHOLE.to_json()}\n{WHOLE.to_json()} \n[{WHOLE.to_json()}]\n")
    assert incidents_from_json(text) == [WHOLE] * 3


def test_the_incident_of_a_record_names_the_batch_of_it() -> None:
    """All records of a batch have the same batch, and each has its place in it."""
    batch = WHOLE.batch
    assert batch.index is None
    assert batch.of_record(4) == WHOLE
    assert batch.batch is batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": None}, "the field topic is missing"),
        ({"topic": 5}, "topic is no text"),
        ({"partition": -1}, "partition is no number from 0"),
        ({"partition": True}, "partition is no number from 0"),
        ({"producer_epoch": 1 << 15}, "producer_epoch is no number"),
        ({"base_sequence": 1.5}, "base_sequence is no number"),
        ({"count": 0}, "count is no number from 1"),
        ({"count": None}, "the field count is missing"),
        ({"topic_id": "x"}, "topic_id is no UUID"),
        ({"topic_id": 5}, "topic_id is no UUID"),
        ({"after": 5}, "after: no JSON object"),
        ({"after": {"offset": 5}}, "after: the field producer_id is missing"),
        ({"crc": "x"}, "crc is no number"),
        ({"renumbered": 1}, "renumbered is neither true nor false"),
        ({"index": 5}, "index is not below count"),
        ({"password": "x"}, "there is no field 'password'"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    """Each field has a type and a range."""
    fields = json.loads(WHOLE.to_json()) | change
    with pytest.raises(ValueError, match=message):
        Incident.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["{", "[", "[5]", "5", "null", "[[]]", "{} x", "[" * 100_000, ""])
def test_anything_but_incidents_is_refused(text: str) -> None:
    """Text that is no JSON, or other JSON, raises ValueError and nothing else."""
    with pytest.raises(ValueError, match="incident"):
        Incident.from_json(text)


def test_an_error_keeps_its_incident() -> None:
    """Copies of an error, and those that were pickled, have the same incident."""
    error = DeliveryTimeoutError("late")
    assert error.incident is None
    error.incident = WHOLE
    assert copy.copy(error).incident == WHOLE
    assert pickle.loads(pickle.dumps(error)).incident == WHOLE  # noqa: S301
