"""Metadata v4 to v13: the producer's request, and the answer as plain data without kio's types.

An empty list of topics asks for the brokers only; brokers obey `allow_auto_create` since v4. A
broker with an impossible address (see `BrokerAddress.possible`) is left out of the answer, and so
is a partition whose index is out of range.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload
from uuid import UUID

from aioidem._protocol.codec import MAX_ITEMS
from aioidem._protocol.messages import request_type, throttle_ms
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "BrokerAddress",
    "MetadataUpdate",
    "PartitionColumns",
    "PartitionUpdate",
    "TopicUpdate",
    "metadata_request",
    "metadata_update",
]

API_KEY = 3
_NO_ID = UUID(int=0)
_LONGEST_HOST: Final = 255
# Matches ASCII host names (any other name must be in its IDNA form, which is ASCII), and IP
# addresses, also with a zone.
_HOST: Final = re.compile(r"[A-Za-z0-9_:%-][A-Za-z0-9._:%-]*")


class BrokerAddress(NamedTuple):
    """The address at which a broker listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def possible(self) -> bool:
        """Whether a broker can have this address.

        An impossible host may be any text of a hostile broker, so it must not even be logged.
        """
        return (
            self.node_id >= 0
            and 0 < self.port < 65536
            and 0 < len(self.host) <= _LONGEST_HOST
            and _HOST.fullmatch(self.host) is not None
        )


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """One partition of a Metadata answer; leader id and leader epoch are -1 if there is none."""

    index: int
    leader_id: int
    leader_epoch: int
    error_code: int = 0


class PartitionColumns(Sequence[PartitionUpdate]):
    """A sequence of partitions that stores four numbers each and makes the objects on access.

    Half a million objects would take ten times the memory, and slow down every garbage collection.
    """

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("i")

    def append(self, index: int, leader_id: int, leader_epoch: int, error_code: int) -> None:
        """Append a partition."""
        self._numbers.extend((index, leader_id, leader_epoch, error_code))

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionColumns):
            return self._numbers == other._numbers
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, place: int) -> PartitionUpdate: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PartitionUpdate]: ...
    def __getitem__(self, place: int | slice) -> PartitionUpdate | Sequence[PartitionUpdate]:
        """Return the partition at this place, or a list of those in a slice."""
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        at = 4 * range(len(self))[place]
        return PartitionUpdate(*self._numbers[at : at + 4])


class TopicUpdate(NamedTuple):
    """One topic of a Metadata answer; `topic_id` is None before v10."""

    name: str
    topic_id: UUID | None
    error_code: int
    partitions: Sequence[PartitionUpdate]


class MetadataUpdate(NamedTuple):
    """A Metadata answer as plain data."""

    cluster_id: str | None
    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicUpdate, ...]
    throttle_ms: int = 0


def metadata_request(
    version: int, topics: Sequence[str], *, allow_auto_create: bool
) -> RequestPayload:
    """Make a Metadata request that names these topics.

    Raises:
        InternalError: The library kio has no such version.
    """
    schema = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no Metadata version {version}")
    fields = {field.name: field for field in dataclasses.fields(schema)}
    topic_type = _item_type(schema)
    with_id = any(field.name == "topic_id" for field in dataclasses.fields(topic_type))
    values: dict[str, Any] = {
        "topics": tuple(
            topic_type(topic_id=None, name=name) if with_id else topic_type(name=name)
            for name in topics
        ),
        "allow_auto_topic_creation": allow_auto_create,
    }
    for flag in ("include_cluster_authorized_operations", "include_topic_authorized_operations"):
        if flag in fields:
            values[flag] = False
    return schema(**values)


def _item_type(schema: type[RequestPayload]) -> Any:
    module = importlib.import_module(schema.__module__)
    return module.MetadataRequestTopic


def metadata_update(response: Any) -> MetadataUpdate:
    """Convert a Metadata answer, an object of kio's schema, to plain data.

    `read_metadata` makes the same data directly from the frame, for the topics that were asked for,
    and is faster.
    """
    return MetadataUpdate(
        cluster_id=getattr(response, "cluster_id", None),
        brokers=tuple(
            address
            for broker in response.brokers
            if (
                address := BrokerAddress(int(broker.node_id), broker.host, broker.port, broker.rack)
            ).possible
        ),
        topics=tuple(_topic(topic) for topic in response.topics if topic.name is not None),
        throttle_ms=throttle_ms(getattr(response, "throttle_time", 0)),
    )


def _topic(topic: Any) -> TopicUpdate:
    topic_id = getattr(topic, "topic_id", None)
    return TopicUpdate(
        name=topic.name,
        topic_id=None if topic_id is None or topic_id == _NO_ID else topic_id,
        error_code=int(topic.error_code),
        partitions=tuple(
            PartitionUpdate(
                index=partition.partition_index,
                leader_id=int(partition.leader_id),
                leader_epoch=getattr(partition, "leader_epoch", -1),
                error_code=int(partition.error_code),
            )
            for partition in topic.partitions
            if 0 <= partition.partition_index < MAX_ITEMS
        ),
    )
