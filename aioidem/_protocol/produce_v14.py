"""Produce v14 (KIP-1269) as dataclasses in kio's style, because kio does not have it yet.

The request equals that of v13. The response adds tagged field 1, an int32 with the number of
batches per producer id that the leader remembers. The KIP's text puts it into
PartitionProduceResponse, its schema into TopicProduceResponse. Here both structs have the field,
and `RETAINED_TAG_IN` says which one the embedded broker writes.

Invariants:

- The field's default is None, not the schema's 5, so that a broker that sent 5 can be distinguished
  from one that sent nothing. `tagged_retained` leaves a 5 out, as Kafka's own writer leaves out
  default values.
- The field is lenient (see `codec`): a value that does not have four bytes counts as absent.
- The annotations are resolved types, because kio's writer does not accept strings.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, TypeVar

from kio.schema.produce.v13.request import ProduceRequest
from kio.schema.produce.v13.response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kio.static.primitive import i16

__all__ = [
    "DEFAULT_RETAINED",
    "RETAINED_TAG_IN",
    "PartitionProduceResponseV14",
    "ProduceRequestV14",
    "ProduceResponseV14",
    "TopicProduceResponseV14",
    "tagged_retained",
]

DEFAULT_RETAINED: Final = 5
"""How many batches per producer id and partition a broker remembers if it sends no number."""

RETAINED_TAG_IN: Final[Literal["partition", "topic"]] = "partition"
"""The struct in which the embedded broker sends the number; clients look for it in both structs."""

_RETAINED: Final[dict[str, Any]] = {"kafka_type": "int32", "tag": 1, "lenient": True}
_VERSION: Final = i16(14)

T = TypeVar("T")


def _resolved(schema: type[T]) -> type[T]:
    hints = typing.get_type_hints(schema)
    for each in fields(schema):  # type: ignore[arg-type]
        each.type = hints[each.name]
    return schema


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequestV14(ProduceRequest):
    """The request of v13; v14 says that the client knows KIP-1269's field in the response."""

    __version__: ClassVar[i16] = _VERSION


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponseV14(PartitionProduceResponse):
    """The struct of v13, plus the number of batches that the leader remembers per producer id."""

    __version__: ClassVar[i16] = _VERSION
    producer_state_batches_to_retain: int | None = field(metadata=_RETAINED, default=None)


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponseV14(TopicProduceResponse):
    """The struct of v13, plus the number of batches remembered per producer id and partition."""

    __version__: ClassVar[i16] = _VERSION
    partition_responses: tuple[PartitionProduceResponseV14, ...]
    producer_state_batches_to_retain: int | None = field(metadata=_RETAINED, default=None)


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseV14(ProduceResponse):
    """The response of v13, with topics and partitions that may have KIP-1269's field."""

    __version__: ClassVar[i16] = _VERSION
    responses: tuple[TopicProduceResponseV14, ...]


def tagged_retained(batches: int, struct: Literal["partition", "topic"]) -> int | None:
    """Return what a broker writes into KIP-1269's tagged field; None if it leaves the field out.

    The broker writes the field only into the topics or only into the partitions of an answer, as
    `RETAINED_TAG_IN` says, and only if it does not retain the default number of batches.

    Args:
        batches: How many batches the broker retains.
        struct: The part of the answer that may have the field.
    """
    return batches if struct == RETAINED_TAG_IN and batches != DEFAULT_RETAINED else None
