"""Consume, transform, produce, exactly once: aiokafka's consumer and aioidem's producer.

    python examples/consume_transform_produce.py localhost:9092 numbers squares

Reads `numbers` and writes the square of each to `squares`. Records and offsets go into one
transaction: whatever is killed, and however often this is started, a reader of committed data sees
one square of each number. The same program on several machines shares the partitions: give each a
number of its own, which is part of its transactional id, and keep it over restarts.
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
    """The work: a number's square."""
    return b"%d" % int(value or b"0") ** 2


class Copier:
    """Copies what a consumer reads, each transaction with its records and where it has come to."""

    def __init__(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, target: str) -> None:
        self._consumer = consumer
        self._producer = producer
        self._target = target
        self._place: ConsumerGroupMetadata | None = None
        self._begun: set[TopicPartition] = set()  # since we have this place

    async def copy_some(self) -> int:
        """One transaction: what can be read within a second. How many records were copied.

        Raises:
            KafkaError: fatal; only a new producer can go on.
        """
        found = await self._consumer.getmany(timeout_ms=1000, max_records=500)
        if not found:
            return 0
        try:
            # At once, before the consumer can be given other partitions: see its docstring.
            place = group_metadata(self._consumer)
        except CommitFailedError:
            return 0  # it lost its partitions, and with the new ones it reads what is committed
        if await self._begin_where_others_ended(place, found):
            return 0
        producer = self._producer
        await producer.begin_transaction()
        try:
            for records in found.values():
                for record in records:
                    # Not awaited: the commit waits for all of them, and fails if one does.
                    await producer.send(self._target, square(record.value), key=record.key)
            offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
            await producer.send_offsets_to_transaction(offsets, place)
            await producer.commit_transaction()
        except KafkaError as error:
            await producer.abort_transaction()  # raises what is fatal
            logger.warning("aborted, and read again: %s", error)
            for partition in found:
                await go_back(self._consumer, partition)
            return 0
        return sum(map(len, found.values()))

    async def _begin_where_others_ended(self, place: ConsumerGroupMetadata, found: Found) -> bool:
        """Go forward to what the member before us was still committing; whether there was any.

        aiokafka's consumer does not wait for transactions that are not over when it asks where to
        begin. Since this place is ours nobody else can commit for the partitions.
        """
        if place != self._place:
            self._place, self._begun = place, set()
        new = found.keys() - self._begun
        if not new:
            return False
        ended = await committed(self._producer, place.group_id, new)
        behind = [each for each in new if found[each][0].offset < ended.get(each, 0)]
        if behind:
            for each in found:  # of the others, too: these records are not copied
                start = max(found[each][0].offset, ended.get(each, 0))
                with contextlib.suppress(IllegalStateError):  # it is not ours any more
                    self._consumer.seek(each, start)
        else:
            self._begun |= new
        return bool(behind)


async def go_back(consumer: AIOKafkaConsumer, partition: TopicPartition) -> None:
    """Read a partition again from what is committed of it."""
    with contextlib.suppress(IllegalStateError):  # it is not ours any more
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
    """Copy until this task is cancelled: these partitions, or those that the group gives us.

    Raises:
        KafkaError: fatal, as ProducerFenced: somebody else uses this number now.
    """
    # The producer first: it ends what this number left open, and committed offsets wait for that.
    async with AIOKafkaProducer(
        bootstrap_servers=servers, transactional_id=f"{group}-{number}", linger_ms=5
    ) as producer:
        consumer = AIOKafkaConsumer(
            *(() if partitions else (source,)),
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,  # the transactions commit
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
    """Read the arguments, copy until Ctrl-C."""
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
