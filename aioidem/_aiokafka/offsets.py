"""The offsets that `send_offsets_to_transaction` takes, in all forms that aiokafka allows.

Invariant: illegal offsets raise what aiokafka raises, ValueError and TypeError, and they do so
before they reach the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from aioidem.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = ["Offsets", "Place", "checked_group", "checked_offsets"]

# The TopicPartition of aiokafka and that of aioidem are subclasses of tuple[str, int]. Mapping is
# invariant in its key type, so only a type variable lets either of them be the key.
Place = TypeVar("Place", bound=tuple[str, int])
Offsets = Mapping[Place, int | tuple[int, str] | OffsetAndMetadata]


def checked_group(group: object) -> str | ConsumerGroupMetadata:
    """Return the argument if it is a group's id or a `ConsumerGroupMetadata`.

    Raises:
        ValueError: The argument is neither, or is an empty id.
    """
    if isinstance(group, ConsumerGroupMetadata) or (isinstance(group, str) and group):
        return group
    raise ValueError(f"group_id={group!r}: expected the name of a group")


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets in aioidem's classes; a key may be any object with a topic and a partition.

    Raises:
        ValueError: The offsets are empty or not a mapping, or a value is neither an offset nor a
            pair of offset and metadata.
        TypeError: A key has no topic and partition, or metadata is not a string.
    """
    if not isinstance(offsets, Mapping) or not offsets:
        raise ValueError(f"offsets={offsets!r}: expected the offset of at least one partition")
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
