"""A process that copies records from one topic to another, exactly once, until it is killed.

Each transaction reads, changes and writes records, and commits the place in the source.

Run it as ``python -m tests.producer.on_kafka.copier JSON``; JSON has what `copy` needs.

It begins where the group says. A client that waits for stable offsets (KIP-447) asks for that: what
a predecessor left open has ended by then, because the transactional id is the same. It prints a
line when it begins, and ends with `FENCED` when it is fenced.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
import anyio.to_thread
import confluent_kafka
from kio.schema.errors import ErrorCode

from aioidem import Producer, TopicPartition
from aioidem.errors import AbortableTransactionError, ProducerFenced

FENCED: Final = 3
PARTITIONS: Final = 2
_BATCH: Final = 10
_PATIENCE: Final = 20.0
_COORDINATOR_AWAY = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


def changed(value: bytes) -> bytes:
    """Return what becomes of a record's value."""
    return b"copied:" + value


async def committed(
    consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition
) -> confluent_kafka.TopicPartition:
    """Where the group has come to. A broker that has just started does not know yet."""
    with anyio.fail_after(_PATIENCE):
        while True:
            try:
                [found] = await anyio.to_thread.run_sync(consumer.committed, [place], _PATIENCE)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in _COORDINATOR_AWAY:
                    raise
            else:
                return found


async def copy(work: Mapping[str, str]) -> None:
    """Copy for ever."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": work["inner"],
            "group.id": work["group"],
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    async with Producer(
        work["bootstrap"], transactional_id=work["group"], retry_backoff_max=0.2
    ) as producer:
        place = confluent_kafka.TopicPartition(work["source"], 0)
        place = await committed(consumer, place)
        if place.offset < 0:
            place.offset = 0
        consumer.assign([place])
        print("begins at", place.offset, flush=True)  # noqa: T201 - to its parent
        while True:
            found = await anyio.to_thread.run_sync(consumer.consume, _BATCH, 0.5)
            records = [each for each in found if each.error() is None]
            while records:
                try:
                    await copy_some(producer, work, records)
                except AbortableTransactionError as error:
                    print("again:", error, flush=True)  # noqa: T201
                    continue
                break


async def copy_some(producer: Producer, work: Mapping[str, str], records: Sequence[Any]) -> None:
    """One transaction."""
    async with producer.transaction():
        for each in records:
            producer.send_nowait(
                work["target"], changed(each.value()), partition=each.offset() % PARTITIONS
            )
        after = {TopicPartition(work["source"], 0): records[-1].offset() + 1}
        await producer.send_offsets_to_transaction(after, work["group"])


def main() -> int:
    """Copy until killed or fenced."""
    try:
        anyio.run(copy, json.loads(sys.argv[1]))
    except ProducerFenced:
        return FENCED
    return 1


if __name__ == "__main__":
    sys.exit(main())
