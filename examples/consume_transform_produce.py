"""Consume, transform and produce exactly once, with aiokafka's consumer and aioidem's producer.

    python examples/consume_transform_produce.py localhost:9092 numbers squares

The program reads `numbers` and writes the square of each to `squares`. Records and offsets are
committed in one transaction: whatever is killed, and however often this program is started, a
reader of committed data sees one square of each number. Several instances share the partitions.
Give each instance a number of its own, which is part of its transactional id, and keep the number
over restarts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from aioidem.integrations.aiokafka import AIOKafkaProducer, committed, group_metadata
from aioidem.structs import ConsumerGroupMetadata

logger = logging.getLogger(__name__)
Found = Mapping[TopicPartition, Sequence[ConsumerRecord]]


def square(value: bytes | None) -> bytes:
    """Return a number's square, which is the work of this example."""
    return b"%d" % int(value or b"0") ** 2


class Copier:
    """A loop that copies what a consumer reads, with the consumer's offsets in each transaction."""

    def __init__(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, target: str) -> None:
        self._consumer = consumer
        self._producer = producer
        self._target = target
        self._place: ConsumerGroupMetadata | None = None
        # The partitions that were copied since the consumer became this member of the group.
        self._begun: set[TopicPartition] = set()

    async def copy_some(self) -> int:
        """Copy in one transaction what can be read within a second; return the number of records.

        Raises:
            KafkaError: it is fatal, so only a new producer can go on.
        """
        found = await self._consumer.getmany(timeout_ms=1000, max_records=500)
        if not found:
            return 0
        try:
            # This is read before the consumer can be assigned other partitions: see
            # `group_metadata`.
            place = group_metadata(self._consumer)
        except CommitFailedError:
            # The consumer has lost its partitions; it starts at the committed offsets of its next
            # ones.
            return 0
        if await self._begin_where_others_ended(place, found):
            return 0
        producer = self._producer
        await producer.begin_transaction()
        try:
            for records in found.values():
                for record in records:
                    # Not awaited: the commit waits for all records, and fails if one of them does.
                    await producer.send(self._target, square(record.value), key=record.key)
            offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
            await producer.send_offsets_to_transaction(offsets, place)
            await producer.commit_transaction()
        except KafkaError as error:
            # This raises IllegalStateError if the commit may have taken place (after its timeout),
            # and fatal errors. The service ends then; its successor begins at what is committed.
            await producer.abort_transaction()
            logger.warning("aborted, and read again: %s", error)
            for partition in found:
                await go_back(self._consumer, partition)
            return 0
        return sum(map(len, found.values()))

    async def _begin_where_others_ended(self, place: ConsumerGroupMetadata, found: Found) -> bool:
        """Skip records that an earlier member was still committing; return whether there were any.

        aiokafka's consumer does not wait for open transactions when it asks for committed offsets.
        Since this consumer became a member, no other member can commit offsets for its partitions.
        """
        if place != self._place:
            self._place, self._begun = place, set()
        new = found.keys() - self._begun
        if not new:
            return False
        ended = await committed(self._producer, place.group_id, new)
        behind = [each for each in new if found[each][0].offset < ended.get(each, 0)]
        if behind:
            # The other partitions are read again, too, because none of these records are copied.
            for each in found:
                start = max(found[each][0].offset, ended.get(each, 0))
                with contextlib.suppress(IllegalStateError):  # the partition is no longer ours
                    self._consumer.seek(each, start)
        else:
            self._begun |= new
        return bool(behind)


async def go_back(consumer: AIOKafkaConsumer, partition: TopicPartition) -> None:
    """Read a partition again from its committed offset."""
    with contextlib.suppress(IllegalStateError):  # the partition is no longer ours
        offset = await consumer.committed(partition)
        if offset is None:
            await consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, offset)


async def run(
    servers: str,
    source: str,
    target: str,
    *,
    group: str,
    number: int,
    partitions: Sequence[int] = (),
) -> None:
    """Copy until this task is cancelled: the given partitions, or those that the group assigns.

    Raises:
        KafkaError: it is fatal; for example ProducerFenced, if another instance uses this number.
    """
    # The producer starts first: it ends a transaction that this number left open, for which the
    # committed offsets would have to wait.
    async with AIOKafkaProducer(
        bootstrap_servers=servers, transactional_id=f"{group}-{number}", linger_ms=5
    ) as producer:
        consumer = AIOKafkaConsumer(
            *(() if partitions else (source,)),
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,  # the transactions commit offsets
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            if partitions:
                consumer.assign([TopicPartition(source, each) for each in partitions])
            copier = Copier(consumer, producer, target)
            while True:
                await copier.copy_some()
        finally:
            await consumer.stop()


async def main() -> None:
    """Parse the command line, and copy until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("servers", help="host:port,...")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--group", default="squares")
    parser.add_argument("--number", type=int, default=1, help="this member's, kept over restarts")
    parser.add_argument("--partitions", type=int, nargs="*", default=(), help="these and no others")
    given = parser.parse_args()
    logging.basicConfig()
    task = asyncio.ensure_future(run(**vars(given)))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    asyncio.run(main())
