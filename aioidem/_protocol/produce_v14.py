"""Produce v14 (KIP-1269) as dataclasses of kio's kind; no library has it.

The request is v13's. The response is v13's plus tagged field 1, an int32 that says how many
batches per producer id the leader remembers. The KIP's prose puts it into
PartitionProduceResponse, its listing into TopicProduceResponse: both structs have it here, and
`RETAINED_TAG_IN` says which one the embedded broker writes.

Invariants:

- The field's default is None, not the schema's 5: whether a broker said anything must stay
  visible. `tagged_retained` leaves a 5 out, as Kafka's own writer leaves out what equals the
  default.
- The field is lenient (see `codec`): a value that is not four bytes counts as absent.
- The annotations are resolved, because kio's writer does not accept text.
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
"""How many batches per producer id and partition a broker remembers that says nothing."""

RETAINED_TAG_IN: Final[Literal["partition", "topic"]] = "partition"
"""The struct the embedded broker writes the tagged field into; readers look into both."""

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
    """The same as v13; the version only says that the client understands the new field."""

    __version__: ClassVar[i16] = _VERSION


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponseV14(PartitionProduceResponse):
    """v13's, and how many batches the leader retains for this partition (None: not said)."""

    __version__: ClassVar[i16] = _VERSION
    producer_state_batches_to_retain: int | None = field(metadata=_RETAINED, default=None)


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponseV14(TopicProduceResponse):
    """v13's, and how many batches the leader retains for each of these partitions."""

    __version__: ClassVar[i16] = _VERSION
    partition_responses: tuple[PartitionProduceResponseV14, ...]
    producer_state_batches_to_retain: int | None = field(metadata=_RETAINED, default=None)


@_resolved
@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseV14(ProduceResponse):
    """v13's, of topics that may carry the new field."""

    __version__: ClassVar[i16] = _VERSION
    responses: tuple[TopicProduceResponseV14, ...]


def tagged_retained(batches: int, struct: Literal["partition", "topic"]) -> int | None:
    """The tagged field's value in `struct` for a broker that retains `batches`; None: left out."""
    return batches if struct == RETAINED_TAG_IN and batches != DEFAULT_RETAINED else None
