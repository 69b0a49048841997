"""For services that keep aiokafka for consuming: our producer in aiokafka's own types.

`AIOKafkaProducer` here is the drop-in, but what it raises are aiokafka's exceptions and what it
returns aiokafka's structs, so that `except aiokafka.errors.KafkaError` and `isinstance` go on
working. `install` puts it in aiokafka's place for frameworks that make the producer themselves.

Invariants: an exception has the class of the same name, or of its nearest ancestor that aiokafka
has; its `status` says NOT_WRITTEN or UNKNOWN, and its cause is aioidem's own. Constructor errors
are ValueError and TypeError in both, and are left alone.

Rejected: exceptions that are of both trees (their `str` and `__reduce__` would be one tree's, and
`type(error)` neither's).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import aiokafka
import aiokafka.errors
import aiokafka.structs

from aioidem._admin.committed import committed_offsets
from aioidem._aiokafka import AIOKafkaProducer as _AIOKafkaProducer
from aioidem._aiokafka import Translation
from aioidem._aiokafka.translation import reason_of
from aioidem.errors import BrokerResponseError, KafkaError
from aioidem.structs import ConsumerGroupMetadata, RecordMetadata, TopicPartition

__all__ = ["AIOKafkaProducer", "committed", "group_metadata", "install", "installed", "uninstall"]

_NAME = "AIOKafkaProducer"
_THEIRS = aiokafka.AIOKafkaProducer
_replaced: list[ModuleType] = []


class _ToAiokafka(Translation):
    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        reason = reason_of(error)
        translated: Any = _class_for(type(reason))(*reason.args)
        translated.status = error.status
        if isinstance(reason, BrokerResponseError):
            translated.errno = reason.errno  # aiokafka has no class for some codes
        translated.__cause__ = error
        return translated  # type: ignore[no-any-return]

    def metadata(self, metadata: RecordMetadata) -> Any:
        place = aiokafka.structs.TopicPartition(*metadata.topic_partition)
        return aiokafka.structs.RecordMetadata._make((*metadata[:2], place, *metadata[3:]))


def _class_for(ours: type[KafkaError]) -> Any:
    for cls in ours.__mro__:
        if cls is BrokerResponseError:
            return aiokafka.errors.UnknownError
        theirs = getattr(aiokafka.errors, cls.__name__, None)
        if isinstance(theirs, type) and issubclass(theirs, Exception):
            return theirs
    return aiokafka.errors.KafkaError


class AIOKafkaProducer(_AIOKafkaProducer):
    """`aioidem.AIOKafkaProducer`, raising `aiokafka.errors` and returning `aiokafka.structs`."""

    _translation: ClassVar[Translation] = _ToAiokafka()


def group_metadata(consumer: aiokafka.AIOKafkaConsumer) -> ConsumerGroupMetadata:
    """The place of aiokafka's consumer in its group, for `send_offsets_to_transaction` (KIP-447).

    Take it with the records, nothing awaited since `getmany` returned: aiokafka's consumer
    rebalances in the background, and the place that it has later may be one without these records'
    partitions. Brokers refuse the offsets of a place that is no more.

    Raises:
        TypeError: the consumer has no group, or was not started. CommitFailedError (aiokafka's): it
        is not in its group now, and what it has read may be read by another.
    """
    # aiokafka has no public names for any of it.
    coordinator: Any = getattr(consumer, "_coordinator", None)
    if getattr(coordinator, "group_id", None) is None:
        raise TypeError("the consumer was not started, or has no group_id")
    place = ConsumerGroupMetadata(
        coordinator.group_id,
        coordinator.generation,
        coordinator.member_id,
        coordinator._group_instance_id,  # noqa: SLF001
    )
    if place.generation_id < 0 and coordinator._subscription.partitions_auto_assigned():  # noqa: SLF001
        # Brokers take it for a consumer with partitions of its own choice, and check nothing.
        raise aiokafka.errors.CommitFailedError
    return place


async def committed(
    producer: AIOKafkaProducer,
    group_id: str,
    partitions: Collection[aiokafka.TopicPartition],
    timeout_ms: float = 120_000,
) -> dict[aiokafka.TopicPartition, int]:
    """Read a group's committed offsets, once no open transaction can change them (KIP-447).

    aiokafka's consumer begins at what is committed without waiting for transactions: a partition
    that changes hands while a commit is being carried out would be read again from before it.
    Compare with this before the first records of a partition are copied.

    Args:
        producer: says how to connect.
        group_id: the consumers' group.
        partitions: which.
        timeout_ms: how long transactions, and brokers that are away, are waited for; by default
            twice the default of `transaction_timeout_ms`.

    Returns:
        The next offset to read of each partition; without those for which nothing is committed.

    Raises:
        KafkaTimeoutError: (aiokafka's) a transaction was not over in time, or no broker answered.
        KafkaError: (aiokafka's) refused, or the brokers are older than 2.5.
    """
    config = producer._config  # noqa: SLF001 - a part of it
    with producer._translation:  # noqa: SLF001
        places = [TopicPartition(*each) for each in partitions]
        found = await committed_offsets(config, group_id, places, timeout_ms / 1000)
    return {aiokafka.TopicPartition(*place): committed.offset for place, committed in found.items()}


def install() -> None:
    """Put this class in the place of `aiokafka.AIOKafkaProducer`, for the whole process.

    Every loaded module that has imported the name gets it too, so this may be called before or
    after a framework was imported, but before it makes its producer.
    """
    for name, module in list(sys.modules.items()):
        if name != __name__ and vars(module).get(_NAME) is _THEIRS:
            setattr(module, _NAME, AIOKafkaProducer)
            _replaced.append(module)


def uninstall() -> None:
    """Undo `install`. Producers that exist stay what they are."""
    while _replaced:
        setattr(_replaced.pop(), _NAME, _THEIRS)


@contextmanager
def installed() -> Iterator[None]:
    """`install` for the body of a `with`."""
    install()
    try:
        yield
    finally:
        uninstall()
