"""The value types have aiokafka's fields, are hashable, and survive pickling."""

from __future__ import annotations

import pickle

import aiokafka.structs
import pytest

from aioidem import structs
from aioidem.structs import DeliveryStatus, OffsetAndMetadata, RecordMetadata, TopicPartition


def _metadata(offset: int) -> RecordMetadata:
    return RecordMetadata("t", 3, TopicPartition("t", 3), offset, 1700000000000, 0, 0)


@pytest.mark.parametrize("name", ["TopicPartition", "OffsetAndMetadata", "RecordMetadata"])
def test_fields_are_aiokafkas_in_aiokafkas_order(name: str) -> None:
    assert getattr(structs, name)._fields == getattr(aiokafka.structs, name)._fields


@pytest.mark.parametrize(("offset", "known"), [(0, True), (2**63 - 1, True), (-1, False)])
def test_an_offset_of_minus_one_is_an_unknown_one(offset: int, known: bool) -> None:
    """An offset of -1 means that the offset is unknown."""
    assert _metadata(offset).has_offset is known


@pytest.mark.parametrize(
    "value", [_metadata(1), TopicPartition("t", 0), OffsetAndMetadata(1, "note"), *DeliveryStatus]
)
def test_values_are_hashable_and_survive_pickling(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    assert again == value
    assert hash(again) == hash(value)


def test_a_statuss_identity_survives_pickling() -> None:
    """A status stays the same object when it is pickled and read again."""
    for status in DeliveryStatus:
        assert pickle.loads(pickle.dumps(status)) is status  # noqa: S301 - our own bytes


def test_the_statuses_are_these_four_and_no_others() -> None:
    """The statuses are PENDING, ACKED, NOT_WRITTEN and UNKNOWN."""
    assert [status.name for status in DeliveryStatus] == [
        *("PENDING", "ACKED", "NOT_WRITTEN", "UNKNOWN")
    ]
