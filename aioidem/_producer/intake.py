"""RecordIntake: make records from the arguments of a send, and queue them in the engine.

`RecordIntake` checks the arguments, waits for room in `buffer_memory`, and queues the record.
`Producer` uses it for its own sends. So does the `send` of the drop-in for aiokafka's producer,
which must return before the record has its outcome.

Invariants: bad arguments raise before a record exists. A call that is cancelled while it waits for
room has queued nothing. A call that has waited for room queues its record without another await, so
that records are queued in the order of the calls.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import anyio
import anyio.lowlevel

from aioidem import errors
from aioidem._config import ProducerConfig, validate_topic
from aioidem._engine import ProducerCore
from aioidem._engine.record import RECORD_MEMORY, RecordGroup
from aioidem._engine.record_block import Columns, RecordBlock, SharedHeaders
from aioidem._engine.transactions import Outcome as TransactionOutcome
from aioidem._hot import PlainSends
from aioidem._network.cancellation import may_be_cancelled
from aioidem._network.waiting import new_signal
from aioidem._producer.arguments import (
    Headers,
    check_records,
    checked_headers,
    checked_partition,
    checked_payload,
    checked_timestamp,
)
from aioidem._producer.deliveries import BulkDeliveries
from aioidem._producer.delivery import DeliveryContext
from aioidem._producer.life import ProducerLife
from aioidem._producer.observer import BatchReporter
from aioidem._producer.pieces import pieces_of
from aioidem._producer.queued import QueuedBatch, QueuedDelivery
from aioidem._producer.resolver import Resolver
from aioidem._producer.sender import Sender
from aioidem._records import BATCH_OVERHEAD, NewRecord, record_size_bound
from aioidem.structs import DeliveryStatus, Record

__all__ = ["RecordIntake", "not_queued", "with_status"]

_EMPTY_RECORD = record_size_bound(None, b"", ())
_ONE_BYTE_LENGTH, _TWO_BYTE_LENGTH = 64, 8192
"""The payload sizes from which the varint of the length has two bytes, and from which three."""


def not_queued(error: errors.KafkaError) -> errors.KafkaError:
    """Return an error that ended a call before its record was queued, with the status NOT_WRITTEN.

    The given error may be that of the whole producer, so it is not changed. Its own status may be
    the outcome of a commit (UNKNOWN).
    """
    return with_status(error, DeliveryStatus.NOT_WRITTEN)


def with_status(error: errors.KafkaError, status: DeliveryStatus) -> errors.KafkaError:
    """Return an error with another status: a copy, unless it has that one already."""
    if error.status is status:
        return error
    told = copy.copy(error)
    told.__cause__ = error.__cause__  # and not the error that it is a copy of
    told.status = status
    return told.with_traceback(error.__traceback__)


class RecordIntake:
    """Checks a producer's records, waits for room, and queues the records in the engine.

    Args:
        core: The engine that takes the records.
        sender: The loop that is woken when there is something to send.
        life: Says whether the producer may be used.
        config: The producer's options.
        observer: Receives how long callers waited for room; None if the producer has no observer.
    """

    __slots__ = (
        "_accumulator",
        "_budget",
        "_config",
        "_life",
        "_meters",
        "_most",
        "_observer",
        "_sender",
        "_topics",
        "_transactions",
        "_wakeup",
        "_watch",
        "context",
        "queue_plain",
    )

    def __init__(
        self,
        core: ProducerCore,
        sender: Sender,
        life: ProducerLife,
        config: ProducerConfig,
        observer: BatchReporter | None,
        resolver: Resolver | None = None,
    ) -> None:
        self._accumulator = core.accumulator
        self._topics = self._accumulator.topics
        self._budget = core.budget
        self._transactions = core.transactions
        self._meters = core.meters
        self._watch = core.watch
        self._sender = sender
        self._wakeup = sender.wakeup
        self._life = life
        self.context = DeliveryContext(life.home, sender.unseen, resolver or Resolver())
        self._config = config
        self._most = min(config.max_request_size - BATCH_OVERHEAD, config.buffer_memory)
        self._observer = observer
        # The fast path for a record that has nothing but a value. It handles the most frequent case
        # only; if it returns None, the slower path (`record` and `queue`) must be used.
        self.queue_plain: Callable[[str, bytes | None], QueuedDelivery | None] = PlainSends(
            QueuedDelivery,
            self.context,
            asyncio.get_running_loop,
            time.time,
            life,
            self._budget,
            self._budget.release,
            self._accumulator.append,
            self._accumulator.appender,
            self._topics,
            self._wakeup,
            most=min(_TWO_BYTE_LENGTH, self._most - _EMPTY_RECORD) - 1,
            empty=_EMPTY_RECORD,
            memory=RECORD_MEMORY,
        ).queue

    async def enqueue(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        block_until: float | None = None,
    ) -> QueuedDelivery:
        """Wait for room, queue a record and return its delivery: the first half of a `send`.

        Args:
            topic: The topic's name.
            value: The payload; None is a tombstone.
            key: Decides the partition; None leaves the choice to the partitioner.
            headers: (name, value) pairs.
            partition: The partition's number; None lets the key or the partitioner decide.
            timestamp_ms: Milliseconds since the epoch; None is now.
            block_until: The time at which `max_block` ends for the caller, on the event loop's
                clock (see `ProducerLife.block_until`); None is `max_block` seconds from now.

        Raises:
            KafkaError: As for `Producer.send`; the record was not queued.
            TypeError: An argument has the wrong type; the record was not queued.
        """
        try:
            self._life.check_open()
            record = self.record(topic, value, key, headers, partition, timestamp_ms)
            if may_be_cancelled():
                await anyio.lowlevel.checkpoint_if_cancelled()
            charge = record.charge()
            if not self._budget.try_take(charge):
                block_until = await self.wait_for_bytes(
                    charge, topic, record.partition, block_until
                )
            self.queue(topic, record, block_until)
        except errors.KafkaError as error:
            raise not_queued(error) from error.__cause__
        return record

    async def enqueue_batch(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        partition: int,
        size: int | None,
        block_until: float | None = None,
    ) -> QueuedBatch:
        """Wait for room and queue records of one partition, with no other record between them.

        Args:
            topic: The topic's name.
            records: The records, in order.
            partition: The partition's number.
            size: The bytes, before compression and with the header, of the batch that the records
                form by themselves; None if they may share batches with others. A batch that is
                larger than the topic allows is split nevertheless.
            block_until: As for `enqueue`.

        Raises:
            KafkaError: As for `Producer.send`; none of the records was queued.
            TypeError: An argument has the wrong type; none of the records was queued.
        """
        try:
            return await self._enqueue_batch(topic, records, partition, size, block_until)
        except errors.KafkaError as error:
            raise not_queued(error) from error.__cause__

    async def _enqueue_batch(
        self,
        topic: str,
        records: Sequence[NewRecord],
        partition: int,
        size: int | None,
        block_until: float | None,
    ) -> QueuedBatch:
        self._life.check_open()
        group = None if size is None else RecordGroup(size)
        deliveries = QueuedBatch()
        pending: deque[QueuedDelivery] = deque()
        for new in records:
            record = self.record(
                topic, new.value, new.key, new.headers, partition, new.timestamp_ms, deliveries
            )
            record.group = group
            pending.append(record)
            deliveries.add(record)
        await anyio.lowlevel.checkpoint_if_cancelled()
        total = sum(record.charge() for record in pending)
        if not self._budget.try_take(total):
            place = pending[0].partition  # an int, whatever was given
            block_until = await self.wait_for_bytes(total, topic, place, block_until)
        now = self._life.clock()  # once: records with one deadline are not torn at it
        try:
            while pending:
                self._accumulator.append(topic, pending[0], now, block_until)
                pending.popleft()
        finally:
            self._budget.release(sum(record.charge() for record in pending))
            self._wakeup.set()
        return deliveries

    def partition_without_key(self, topic: str) -> int:
        """Return the partition that the partitioner chooses for a batch of a topic that is known.

        Raises:
            RecordError: The partitioner raised an exception, or chose no partition of the topic.
        """
        return self._accumulator.ask_partitioner(topic, None)

    def pieces(
        self,
        topic: str,
        values: Iterable[bytes | None] | Iterable[Record],
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Iterator[Columns]:
        """Check the arguments that all records of a `send_many` share; return the records' reader.

        Raises:
            RecordError: The topic, partition, a header or the timestamp is illegal.
            TypeError: An argument has the wrong type. Bad records raise when they are read.
        """
        check_records(values)
        key = checked_payload("key", key)
        shared = self._shared(topic, key, headers, partition)
        return pieces_of(
            values,
            key=key,
            headers=shared,
            timestamp_ms=timestamp_ms,
            most=self._most,
            too_large=partial(self._too_large, topic),
            asks=self._asks(partition),
        )

    def table_pieces(
        self,
        topic: str,
        table: object,
        value: str,
        key: str | bytes | None,
        headers: str | Headers,
        partition: int | None,
        timestamp: str | int | None,
    ) -> Iterator[Columns]:
        """Check the columns of a table, and return an iterator that reads its records.

        Raises:
            ImportError: pyarrow is not installed.
            RecordError: The topic, partition, a header, a column's name or a timestamp is illegal.
            TypeError: An argument or a column has the wrong type.
        """
        from aioidem._producer.table import TableColumns  # here, because few programs send tables

        key = key if isinstance(key, str) else checked_payload("key", key)
        alone = None if isinstance(key, str) else key
        named = headers if isinstance(headers, str) else None
        shared = self._shared(topic, alone, () if isinstance(headers, str) else headers, partition)
        columns = TableColumns(
            table, value=value, key=key, headers=named or shared, timestamp=timestamp
        )
        return columns.pieces(self._most, partial(self._too_large, topic), self._asks(partition))

    def _asks(self, partition: int | None) -> bool:
        """Return whether the user's own partitioner is called for each record of a call."""
        return partition is None and self._config.partitioner is not None

    def _shared(
        self, topic: str, key: bytes | None, headers: Headers, partition: int | None
    ) -> SharedHeaders:
        """Check what all records of a call share, and return the headers.

        Raises:
            RecordError: The topic, partition or a header is illegal.
            TypeError: An argument has the wrong type.
        """
        if type(topic) is not str or topic not in self._topics:
            validate_topic(topic)
        shared = tuple(checked_headers(headers)) if headers else ()
        if partition is not None:
            checked_partition(partition)
        record_size_bound(key, None, shared)  # raises if a header's name cannot be encoded
        return shared

    async def queue_piece(
        self, topic: str, columns: Columns, partition: int | None, deliveries: BulkDeliveries
    ) -> None:
        """Queue some records of one `send_many` or `send_table`, bit by bit as room becomes free.

        Args:
            topic: The topic's name.
            columns: The records.
            partition: The partition's number; None lets the keys or the partitioner decide.
            deliveries: Receives the outcomes of the records.

        Raises:
            KafkaError: There was no room for the next record in time, or `queue` would raise for
                it. The records that were queued before are counted in `deliveries`.
        """
        piece = deliveries.piece(columns.stamps)
        block = RecordBlock(columns, piece, partition)
        if self._asks(partition):
            for index in range(block.count):
                await self._queue_part(topic, block.part(index, index + 1), deliveries)
            return
        while block.count:
            await self._queue_part(topic, block, deliveries)

    async def _queue_part(self, topic: str, block: RecordBlock, deliveries: BulkDeliveries) -> None:
        """Queue the first records of a block, as many as there is room for, and at least one."""
        budget, block_until, taken = self._budget, None, 0
        count = 0 if budget.waiting else block.affordable(budget.limit - budget.used)
        if not count:
            taken = block.part(0, 1).charge()
            block_until = await self.wait_for_bytes(taken, topic, block.partition)
            if not budget.waiting:
                count = block.affordable(taken + budget.limit - budget.used)
        part = block.take(max(count, 1))
        count, charge = part.count, part.charge()
        budget.used += charge - taken
        own = self._asks(block.partition)
        try:
            if own:
                self._accumulator.append(topic, part.record(0), self._life.clock(), block_until)
            else:
                self._accumulator.append_block(topic, part, self._life.clock(), block_until)
        except BaseException:  # a partitioner may raise anything
            budget.release(charge)
            raise
        deliveries.queued(count)
        self._wakeup.set()

    def record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        siblings: QueuedBatch | None = None,
    ) -> QueuedDelivery:
        """Check the arguments of a send and return its record; queue nothing.

        The common case is fast: a value in bytes is checked without a call, and also measured
        without one if the record has neither key nor headers.

        Raises:
            RecordError: The topic, partition, a header or the timestamp is illegal.
            MessageSizeTooLargeError: The record exceeds `max_request_size` or `buffer_memory`.
            TypeError: An argument has the wrong type.
        """
        if type(topic) is not str or topic not in self._topics:
            validate_topic(topic)
        if type(value) is not bytes:
            value = checked_payload("value", value)
        if key is not None and type(key) is not bytes:
            key = checked_payload("key", key)
        if headers:
            headers = checked_headers(headers)
        if partition is not None:
            partition = checked_partition(partition)
        if timestamp_ms is None:
            timestamp_ms = round(time.time() * 1000)
        else:
            timestamp_ms = checked_timestamp(timestamp_ms)
        size = -1 if value is None or key is not None or headers else len(value)
        if 0 <= size < _ONE_BYTE_LENGTH:
            size += _EMPTY_RECORD
        elif 0 <= size < _TWO_BYTE_LENGTH:
            size += _EMPTY_RECORD + 1
        else:
            size = record_size_bound(key, value, headers)
        if size > self._most:
            raise self._too_large(topic, size)
        return QueuedDelivery(
            key, value, headers, timestamp_ms, partition, size, self.context, siblings
        )

    def _too_large(self, topic: str, size: int) -> errors.MessageSizeTooLargeError:
        config = self._config
        if size + BATCH_OVERHEAD > config.max_request_size:
            limit = f"max_request_size ({config.max_request_size}) allows"
        else:
            limit = f"buffer_memory ({config.buffer_memory})"
        error = errors.MessageSizeTooLargeError(
            f"a record for topic {topic!r} has {size} bytes, more than {limit}: nothing was queued"
        )
        self._meters.failed(topic, 1, error, self._life.clock())
        return error

    def queue(self, topic: str, record: QueuedDelivery, block_until: float | None = None) -> None:
        """Queue a record for which there is room.

        Args:
            topic: The topic's name.
            record: The record; its bytes have been taken from the budget (of `buffer_memory`).
            block_until: When the wait for the topic's metadata ends, on the event loop's clock;
                None ends it `max_block` seconds from now.

        Raises:
            KafkaError: The producer has ended, the transaction's state forbids records, or the
                partitioner has failed. Nothing was queued; the bytes are back in the budget.
        """
        try:
            self._accumulator.append(topic, record, self._life.clock(), block_until)
        except BaseException:  # a partitioner may raise anything
            self._budget.release(record.charge())
            raise
        self._wakeup.set()

    async def wait_for_bytes(
        self, size: int, topic: str, partition: int | None, block_until: float | None = None
    ) -> float:
        """Wait until the buffer has room for `size` bytes, and reserve them.

        Returns:
            The time at which the caller's `max_block` ends, on the event loop's clock.

        Raises:
            KafkaTimeoutError: There was no room in time.
            ProducerClosed: The producer was closed meanwhile.
            TransactionAborted: The transaction ended meanwhile, and another one was begun.
            KafkaError: No transaction is open.
        """
        began = self._life.clock()
        until = began + self._config.max_block if block_until is None else block_until
        transaction = self.transaction()
        try:
            await self._granted(size, until, _place(topic, partition))
            try:
                self.check_transaction(transaction, topic, partition)
            except errors.KafkaError:
                self._budget.release(size)
                raise
        except errors.KafkaTimeoutError as error:
            now = self._life.clock()
            self._meters.exhausted.record(1, now)
            self._meters.failed(topic, 1, error, now)
            raise
        finally:
            now = self._life.clock()
            self._meters.room.record(now - began, now)
            if self._observer is not None:
                self._observer.on_waited(topic, partition, now - began)
        return until

    def transaction(self) -> TransactionOutcome:
        """Return the outcome of the open transaction, before a call waits; each has one of its own.

        Raises:
            KafkaError: Transactions are used, and none is open.
        """
        self._transactions.need_open()
        return self._transactions.outcome

    def check_transaction(
        self, begun: TransactionOutcome, topic: str, partition: int | None
    ) -> None:
        """Check after a wait that no other transaction has followed the one a call began in.

        Raises:
            TransactionAborted: It was.
        """
        if self._transactions.outcome is not begun:
            raise errors.TransactionAborted(
                f"{_place(topic, partition)}: the transaction ended while the record waited to be "
                "queued, and another one was begun; nothing was queued"
            )

    def no_room(self, topic: str, partition: int | None, size: int) -> errors.BufferFullError:
        """Note that a call found no room and does not wait for it, and return its error.

        Args:
            topic: The record's topic.
            partition: The partition that the caller chose; None if it chose none.
            size: How many bytes the record needs, in memory.
        """
        now = self._life.clock()
        self._meters.exhausted.record(1, now)
        self._watch.no_room(now)
        return errors.BufferFullError(
            f"{_place(topic, partition)}: no room for {size} bytes: {self._budget.usage()}; "
            "nothing was queued. Await wait_for_room() or an earlier delivery, and send again; a "
            "larger buffer_memory helps against bursts only"
        )

    async def _granted(self, size: int, until: float, where: str) -> None:
        budget = self._budget
        room = new_signal()
        waiter = budget.wait(size, room.set)
        try:
            with anyio.CancelScope(deadline=until):
                await room.wait()
                # If the call was cancelled after the room was granted, the record is not queued.
                await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            budget.abandon(waiter)
            raise
        if self._life.closed:
            budget.abandon(waiter)
            raise errors.ProducerClosed("the producer was closed while the record waited for room")
        if not waiter.granted:
            budget.abandon(waiter)
            raise self._life.timed_out(
                f"{where}: no room for {size} bytes within max_block "
                f"({self._config.max_block:g} s): {budget.usage()}; nothing was queued"
            )
        # From `claim` until the record is queued nothing is awaited, so that records keep the order
        # of the calls.
        budget.claim(waiter)

    async def wait_for_room(self, nbytes: int = 0) -> None:
        """Wait until a quarter of the room for records is free and no `send` waits for room.

        Args:
            nbytes: The size in bytes of the next record. It matters only if the record may be
                larger than that quarter.

        Raises:
            KafkaTimeoutError: There was no room within `max_block`.
            ProducerClosed: The producer was closed meanwhile.
        """
        self._life.check_open()
        budget = self._budget
        record = nbytes + record_size_bound(None, None, ()) + RECORD_MEMORY
        wanted = max(record, budget.limit // 4)

        def has_room() -> bool:
            return self._life.closed or (not budget.waiting and budget.fits(wanted))

        with anyio.move_on_after(self._config.max_block) as scope:
            await self._sender.until(has_room)
        if self._life.closed:
            raise errors.ProducerClosed("the producer was closed")
        if scope.cancelled_caught:
            raise self._life.timed_out(
                f"no room within max_block ({self._config.max_block:g} s): {budget.usage()}"
            )


def _place(topic: str, partition: int | None) -> str:
    """Return the topic, with the partition if the caller chose one, for a message."""
    return f"topic {topic!r}" if partition is None else f"{topic}-{partition}"
