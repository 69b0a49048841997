"""The drop-in producer with aiokafka's own exceptions and structs, beside aiokafka's consumer.

This `AIOKafkaProducer` raises aiokafka's exceptions and returns aiokafka's structs, so that
`except aiokafka.errors.KafkaError` and `isinstance` keep working. `install` puts this
class in place of aiokafka's, for frameworks that make the producer themselves.

Invariants: an exception is of aiokafka's class of the same name. Where aiokafka has no such class,
the nearest ancestor that aiokafka has takes its place. The exception's `status` says NOT_WRITTEN or
UNKNOWN, and its `__cause__` is aioidem's own exception. The constructor's errors are ValueError and
TypeError in both libraries and are not translated.

Rejected: exceptions that belong to both class trees (their `str` and `__reduce__` would be those of
one tree, and `type(error)` would be a class of neither).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

from aioidem._admin.committed import committed_offsets
from aioidem._aiokafka import AIOKafkaProducer as _AIOKafkaProducer
from aioidem._aiokafka import Translation
from aioidem._aiokafka.translation import reason_of
from aioidem.errors import BrokerResponseError, KafkaError
from aioidem.integrations._extras import missing_library
from aioidem.structs import ConsumerGroupMetadata, RecordMetadata, TopicPartition

try:
    import aiokafka
    import aiokafka.errors
    import aiokafka.structs
except ModuleNotFoundError as error:
    raise missing_library(error, "compat") from error

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
            translated.errno = reason.errno  # UnknownError stands for codes without a class
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
    """`aioidem.AIOKafkaProducer` with aiokafka's own classes of exceptions and results."""

    _translation: ClassVar[Translation] = _ToAiokafka()


def group_metadata(consumer: aiokafka.AIOKafkaConsumer) -> ConsumerGroupMetadata:
    """Return a consumer's membership in its group for `send_offsets_to_transaction` (KIP-447).

    Call this right after `getmany`, with no `await` in between. aiokafka's consumer rebalances in
    the background, and after a rebalance the consumer may no longer own the partitions of the
    records that `getmany` returned. Brokers refuse offsets that come with an outdated membership.

    Args:
        consumer: A started consumer with a group id.

    Raises:
        TypeError: The consumer has no group, or was not started.
        CommitFailedError: (aiokafka's) The consumer is not in its group now, and another one may
            read the same records.
    """
    # aiokafka has no public names for the generation and the member id.
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
        # The consumer has left its group or not joined yet. To brokers a negative generation means
        # a consumer that assigns its partitions itself, so they would accept the offsets unchecked.
        raise aiokafka.errors.CommitFailedError
    return place


async def committed(
    producer: AIOKafkaProducer,
    group_id: str,
    partitions: Collection[aiokafka.TopicPartition],
    timeout_ms: float = 120_000,
) -> dict[aiokafka.TopicPartition, int]:
    """Return a group's committed offsets, once no open transaction can change them (KIP-447).

    aiokafka's consumer starts at the committed offset without waiting for open transactions. If a
    partition moves to the consumer while a transaction is being committed, the consumer reads again
    the records whose offsets the transaction commits. Compare the consumer's position with these
    offsets before copying the first records.

    Args:
        producer: The producer whose options say how to connect.
        group_id: The consumers' group.
        partitions: The partitions to ask for.
        timeout_ms: How many milliseconds to wait for transactions and for brokers that are down;
            the default is twice the default of `transaction_timeout_ms`.

    Returns:
        The next offset to read by partition, without those for which nothing is committed.

    Raises:
        KafkaTimeoutError: (aiokafka's) A transaction did not end in time, or no broker answered.
        KafkaError: (aiokafka's) The brokers refuse, or are older than Kafka 2.5.
    """
    config = producer._config  # noqa: SLF001 - a part of the drop-in
    with producer._translation:  # noqa: SLF001
        places = [TopicPartition(*each) for each in partitions]
        found = await committed_offsets(config, group_id, places, timeout_ms / 1000)
    return {aiokafka.TopicPartition(*place): committed.offset for place, committed in found.items()}


def install() -> None:
    """Replace `aiokafka.AIOKafkaProducer` by this module's, for the whole process.

    The name is also replaced in every loaded module that has imported it. So `install` may be
    called before or after a framework is imported, but must be called before the framework makes
    its producer.
    """
    for name, module in list(sys.modules.items()):
        # Anything may stand there: None, for a module that must not be imported, or a stub.
        if name != __name__ and getattr(module, "__dict__", {}).get(_NAME) is _THEIRS:
            setattr(module, _NAME, AIOKafkaProducer)
            _replaced.append(module)


def uninstall() -> None:
    """Undo `install`; producers that exist are not changed."""
    while _replaced:
        setattr(_replaced.pop(), _NAME, _THEIRS)


@contextmanager
def installed() -> Iterator[None]:
    """Return a context manager that calls `install`, and `uninstall` at its end."""
    install()
    try:
        yield
    finally:
        uninstall()
