"""A process that copies records from one topic to another, exactly once, until it is killed.

Each of its transactions reads, changes and writes records, and commits the offset that it has
reached in the source topic.

Run it as ``python -m tests.producer.on_kafka.copier JSON``, where JSON holds the keys that `copy`
reads.

The copier begins at the committed offset of the group. Its consumer waits for stable offsets
(KIP-447): transactions that a predecessor left open have ended by then, because the transactional
id is the same. The copier prints a line when it begins, and exits with `FENCED` when it is fenced.
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
    """Return the value that the copier writes for a value that it has read."""
    return b"copied:" + value


async def committed(
    consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition
) -> confluent_kafka.TopicPartition:
    """Return the group's committed offset; ask again while the coordinator is not ready."""
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
    """Copy batches of records in transactions, for ever."""
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
    """Copy these records and commit the offset after them, in one transaction."""
    async with producer.transaction():
        for each in records:
            producer.send_nowait(
                work["target"], changed(each.value()), partition=each.offset() % PARTITIONS
            )
        after = {TopicPartition(work["source"], 0): records[-1].offset() + 1}
        await producer.send_offsets_to_transaction(after, work["group"])


def main() -> int:
    """Copy until killed or fenced, and return the exit code."""
    try:
        anyio.run(copy, json.loads(sys.argv[1]))
    except ProducerFenced:
        return FENCED
    return 1


if __name__ == "__main__":
    sys.exit(main())
