"""Consumer offsets as `send_offsets_to_transaction` takes them, in all the shapes aiokafka allows.

Invariant: what is refused here is refused with aiokafka's classes, ValueError and TypeError, and so
before the transaction knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from aioidem.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = ["Offsets", "Place", "checked_group", "checked_offsets"]

# A variable, because a mapping's keys are invariant: aiokafka's TopicPartition is one as well.
Place = TypeVar("Place", bound=tuple[str, int])
Offsets = Mapping[Place, int | tuple[int, str] | OffsetAndMetadata]


def checked_group(group: object) -> str | ConsumerGroupMetadata:
    """The group, if it is one.

    Raises:
        ValueError: no name, or an empty one.
    """
    if isinstance(group, ConsumerGroupMetadata) or (isinstance(group, str) and group):
        return group
    raise ValueError(f"group_id={group!r}: expected the name of a group")


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets in one shape. Keys may be aiokafka's `TopicPartition`, or anything that has its
    fields.

    Raises:
        ValueError: none at all, no mapping, or neither an offset nor a pair. TypeError: a key that
        is no partition, metadata that is no text.
    """
    if not isinstance(offsets, Mapping) or not offsets:
        raise ValueError(f"offsets={offsets!r}: expected a partition's offset at least")
    return {_place(place): _offset(each) for place, each in offsets.items()}


def _place(place: Any) -> TopicPartition:
    try:
        return TopicPartition(place.topic, place.partition)
    except AttributeError as error:
        raise TypeError(f"{place!r}: expected a TopicPartition") from error


def _offset(each: Any) -> OffsetAndMetadata:
    if isinstance(each, int):
        return OffsetAndMetadata(each, "")
    try:
        offset, metadata = each
    except (TypeError, ValueError) as error:
        raise ValueError(f"{each!r}: expected an offset, or one with metadata") from error
    if not isinstance(metadata, str):
        raise TypeError(f"metadata {metadata!r}: expected a str")
    return OffsetAndMetadata(offset, metadata)
