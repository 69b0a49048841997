"""Producer: the native API. No protocol logic: it checks arguments, waits for room, and hands
records to the engine.

What is promised
- Every record ends ACKED, NOT_WRITTEN or UNKNOWN within `delivery_timeout`; one `request_timeout`
  later at the latest, while a batch in doubt is being asked about. Nothing here waits for ever.
- A `send` cancelled before its record is queued sends nothing; cancelled later, it only stops
  waiting.
- Bad arguments raise at the call, before a sequence number is taken.
- A producer carried over a `fork()` refuses to work in the child: it would share its producer id
  with the parent, and the broker would drop one's records as the other's duplicates.
- A call from another thread or event loop than the one it was started on raises, and does nothing.
- What failed and nobody looked at is in the log.
"""

from __future__ import annotations

import logging
import os
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

import anyio
import anyio.lowlevel

from aioidem import errors
from aioidem._config import (
    OPTIONS,
    ProducerConfig,
    ProducerOptions,
    add_section,
    native_help,
    validate_topic,
)
from aioidem._config.secret import Secret, without_frames
from aioidem._engine import ProducerCore
from aioidem._engine.accumulator import PendingRecord, RecordGroup
from aioidem._engine.cluster import ClusterView
from aioidem._engine.flushing import FlushCount
from aioidem._network.transport import Connector, TcpConnector
from aioidem._network.waiting import new_signal
from aioidem._producer.arguments import (
    Headers,
    check_partition,
    check_timestamp,
    checked_headers,
    checked_payload,
    milliseconds,
)
from aioidem._producer.delivery import Deliveries, Delivery
from aioidem._producer.home import LOOP_ENDED, HomeLoop
from aioidem._producer.metrics import ProducerStatistics, snapshot
from aioidem._producer.runtime import BackgroundTask, loop_clock
from aioidem._producer.sender import Observer, Sender
from aioidem._producer.transactional import TransactionCalls
from aioidem._records import BATCH_OVERHEAD, NewRecord, record_size_bound
from aioidem.structs import DeliveryCounts, RecordMetadata

__all__ = ["Producer"]

logger = logging.getLogger("aioidem")

_GRACEFUL_END = 5.0


class Producer(TransactionCalls):
    """An idempotent Kafka producer for asyncio and trio.

    Use it with `async with`, or `start()` and `stop()`, which may be called from different tasks.
    With a `transactional_id` every record belongs to a transaction.

    It is used on the event loop, and so in the thread, that `start()` was called on; a call from
    elsewhere raises `WrongLoopError`, and does nothing. To send from another thread hand the call
    to that loop: `asyncio.run_coroutine_threadsafe(producer.send(...), loop).result()`, or in a
    thread that anyio has started `anyio.from_thread.run(producer.send, ...)`.

    Args:
        bootstrap_servers: "host:port", several joined by commas, or a sequence of them.
        connector: how to open connections; None for TCP.
        config: ready-made options, instead of `options`.
        observer: who hears of batches, for metrics.
        options: the options below, by name; times are in seconds, sizes in bytes.

    Raises:
        ConfigError: An option is unknown, illegal or contradicts another one.
    """

    # The finaliser runs also after arguments that no constructor takes.
    _background: BackgroundTask | None = None

    @without_frames
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Sequence[tuple[str, int]] = "localhost:9092",
        *,
        connector: Connector | None = None,
        config: ProducerConfig | None = None,
        observer: Observer | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if config is not None and options:
            raise errors.ConfigError("pass either config or options, not both")
        self.config = config or ProducerConfig.build(bootstrap_servers, **options)
        self._connector = connector or TcpConnector()
        self._core = ProducerCore(self.config, random=random.random)
        self._observer = observer
        self._sender = Sender(self._core, self.config, self._connector, observer=observer)
        self._clock: Callable[[], float] = time.monotonic  # the loop's own, from start() on
        self._pid = os.getpid()
        self._closed = False
        self._home = HomeLoop()

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and with idempotence get a producer id; with a transactional id get that one,
        which fences whoever had it.

        Raises:
            AuthenticationFailedError: a broker and this producer do not accept one another.
            KafkaConnectionError: no bootstrap address could be reached; `NotKafkaError` if one
            speaks something else. BrokerResponseError: the cluster refuses to give a producer id.
            KafkaTimeoutError: not done within `max_block`. ProducerClosed: it was started or closed
            before.
        """
        self._check_process()
        if self._closed or self._background is not None:
            raise errors.ProducerClosed("a producer is started once")
        self._clock = self._sender.clock = loop_clock()
        self._background = BackgroundTask(self._sender.run, _crash_handler(self._core))
        self._background.start(f"aioidem sender of {self.config.client_id}")
        self._home.move_in(self._background.loop)
        try:
            await self._bootstrap()
        except BaseException:
            await self._end()
            raise

    async def _bootstrap(self) -> None:
        core = self._core

        def settled() -> bool:
            return (
                (core.metadata.refreshed_at is not None and self._identified())
                or core.bootstrap_failure() is not None
                or core.identity_error is not None
                or core.fatal_error is not None
                or self._ended
            )

        with anyio.move_on_after(self.config.max_block):
            await self._sender.until(settled)
        failure = core.bootstrap_failure() or core.identity_error or core.fatal_error
        if failure is not None:
            raise failure
        if core.metadata.refreshed_at is None or not self._identified():
            what = "no producer id" if core.metadata.refreshed_at is not None else "no metadata"
            raise errors.KafkaTimeoutError(
                f"{what} within max_block ({self.config.max_block:g} s){self._last_refusal()}"
            )

    def _identified(self) -> bool:
        return not self.config.enable_idempotence or self._core.current_identity is not None

    @property
    def _ended(self) -> bool:
        return self._background is None or self._sender.ended

    @without_frames
    def set_sasl_credentials(self, username: str, password: str | Secret[str]) -> None:
        """Authenticate with these from now on (PLAIN and SCRAM).

        New connections use them at once. A session that is renewed takes a new password; for a new
        user name its connection is closed when nothing is outstanding on it, and opened anew. To
        have credentials fetched instead, pass `sasl_credentials`.

        Raises:
            ConfigError: this producer does not authenticate with the options for name and password,
                or one of them is empty or no text in UTF-8.
        """
        if self._sender.sasl is None:
            raise errors.ConfigError("this producer uses no SASL")
        self._sender.sasl.set_credentials(username, password)

    async def stop(self) -> None:
        """`close()` without a limit of its own: `delivery_timeout` bounds it."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:
        """Deliver what is queued, then end. An open transaction is aborted.

        Args:
            timeout: seconds to wait for deliveries; what is unsettled then ends NOT_WRITTEN or
                UNKNOWN. 0 ends at once; None waits until the last record's deadline.

        Raises nothing for records that fail: look at their deliveries. Failures nobody looked at
        are logged. Where the producer's event loop was closed before, what is unsettled ends
        NOT_WRITTEN or UNKNOWN, and is logged too.

        Raises:
            WrongLoopError: called from another thread or event loop; the producer runs on.
        """
        if self._closed:
            if self._background is not None and self._pid == os.getpid():
                await self._await_end(self._background, timeout)
            return
        self._check_process()
        if self._background is not None:
            if self._home.closed:
                self._closed = True
                if not self._background.finished:
                    self._sender.forsake()
                await anyio.lowlevel.checkpoint()
                return
            if not self._background.finished:
                self._home.check(True)
        self._closed = True
        for waiter in self._core.budget.wake_all():
            waiter.granted = False
        try:
            if self._background is not None and timeout != 0:
                with anyio.move_on_after(timeout):
                    await self._end_transaction()
                    await self._flush()
        finally:
            await self._end()

    async def _await_end(self, background: BackgroundTask, timeout: float | None) -> None:
        """Another call closes it: wait for that, and end it when this call's time is over."""
        if background.finished or self._home.closed:
            await anyio.lowlevel.checkpoint()
            return
        self._home.check(True)
        with anyio.move_on_after(timeout):
            await background.wait()
            return
        await self._end()

    async def _end(self) -> None:
        """Settle everything and end the task. The settling is plain `def`, so that cancellation
        cannot skip it.
        """
        self._closed = True
        self._sender.shut()
        if self._background is not None:
            self._background.cancel()
            with anyio.move_on_after(_GRACEFUL_END, shield=True):
                await self._background.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._background is None or self._background.finished:
            return
        described = repr(self)
        if self.abandon():
            warnings.warn(f"{described} was not closed", ResourceWarning, source=self, stacklevel=2)

    def abandon(self) -> bool:
        """End from a finaliser: without waiting, in whatever thread. Whether it was still open.

        What it loses is logged.
        """
        background, self._background = self._background, None
        if background is None or background.finished or self._pid != os.getpid():
            return False
        if self._closed and self._home.closed:
            return False  # closed after its loop was: nothing ended the task
        lost = self._core.unsettled_by_topic()
        if lost:
            logger.error(
                "%s was not closed: %d records without an outcome are given up (%s); those that "
                "were sent may be in the log",
                self.config.client_id,
                sum(lost.values()),
                ", ".join(f"{count} of {topic!r}" for topic, count in sorted(lost.items())),
            )
            self._sender.unseen.wanted = False
        background.cancel_from_anywhere()
        return True

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged.

        Cancelled while it waits for room in the buffer, nothing was queued; cancelled later, the
        record is sent all the same, and only the wait for its outcome ends.

        Args:
            topic: its name.
            value: the payload; None is a tombstone.
            key: decides the partition; None leaves it to the sticky partitioner.
            headers: (name, value) pairs.
            partition: overrides the key's choice.
            timestamp: seconds since the epoch, up to the year 5138; None is now.

        Returns:
            Where it is. `offset` is -1 where the broker proved it stored without saying where
            (`has_offset`).

        Raises:
            KafkaError: it failed; `status` says NOT_WRITTEN or UNKNOWN.
            KafkaTimeoutError: no room in the buffer within `max_block`, and nothing was queued; or
            no metadata for the topic within `max_block` from the call on.
            UnknownTopicOrPartitionError: the topic does not have that partition.
            RecordError, TypeError, MessageSizeTooLargeError: bad arguments; nothing was queued.
            ProducerClosed, WrongLoopError: nothing was queued.
        """
        delivery = await self.enqueue(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=None if timestamp is None else milliseconds(timestamp),
        )
        return await delivery

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
    ) -> Delivery:
        """`send` without its second half: wait for room, queue the record, return its `Delivery`.

        `timestamp_ms`: milliseconds since the epoch. `block_until`: when `max_block` ends for the
        caller, on the loop's clock (see `block_until`); None: it begins now. All else, and what is
        raised, as for `send`.
        """
        self._check_open()
        record, delivery = self._record(topic, value, key, headers, partition, timestamp_ms)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not self._core.budget.try_take(record.size):
            block_until = await self._wait_for_bytes(record.size, topic, partition, block_until)
        self._queue(topic, record, block_until)
        return delivery

    async def enqueue_batch(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        partition: int,
        size: int | None,
        block_until: float | None = None,
    ) -> Deliveries:
        """Wait for room and queue records of one partition, with nothing in between them.

        `size`: they make a batch of their own, of so many bytes before compression with its header;
        None lets them share batches with others. A batch larger than the topic allows is split all
        the same. `block_until`: as for `enqueue`. What is raised is as for `send`, and then nothing
        was queued.
        """
        self._check_open()
        group = None if size is None else RecordGroup(size)
        deliveries = Deliveries(self._home)
        pending: deque[PendingRecord] = deque()
        for new in records:
            record, delivery = self._record(
                topic, new.value, new.key, new.headers, partition, new.timestamp_ms, deliveries
            )
            record.group = group
            pending.append(record)
            deliveries.add(delivery)
        await anyio.lowlevel.checkpoint_if_cancelled()
        total = sum(record.size for record in pending)
        if not self._core.budget.try_take(total):
            block_until = await self._wait_for_bytes(total, topic, partition, block_until)
        try:
            while pending:
                self._queue(topic, pending.popleft(), block_until)
        finally:
            self._core.budget.release(sum(record.size for record in pending))
        return deliveries

    def send_nowait(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Delivery:
        """Queue one record and return its `Delivery` at once. Arguments as for `send`.

        Raises:
            BufferFullError: there is no room; `await wait_for_room()` and call again.
            RecordError, TypeError, MessageSizeTooLargeError, ProducerClosed, WrongLoopError:
            nothing was queued.
        """
        self._check_open(awaits=False)
        timestamp_ms = None if timestamp is None else milliseconds(timestamp)
        record, delivery = self._record(topic, value, key, headers, partition, timestamp_ms)
        if not self._core.budget.try_take(record.size):
            raise errors.BufferFullError(
                f"{self._core.budget.used} of {self.config.buffer_memory} bytes are in use"
            )
        self._queue(topic, record)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Deliveries:
        """Send many records that differ only in their values, in order, and wait for all of their
        outcomes.

        `max_block` is for each record by itself: a long call goes on as long as there is room again
        within that time.

        Returns:
            Their deliveries, all acknowledged.

        Raises:
            PartialDeliveryError: some failed; its `deliveries` has each outcome. It is also raised
                when the call must stop halfway (no room within `max_block`, a bad value): what was
                queued before is in `deliveries`.
        """
        self._check_open()
        deliveries = Deliveries(self._home)
        timestamp_ms = None if timestamp is None else milliseconds(timestamp)
        await anyio.lowlevel.checkpoint_if_cancelled()
        deliveries.watched = True
        try:
            for value in values:
                self._check_open()
                record, delivery = self._record(
                    topic, value, key, headers, partition, timestamp_ms, deliveries
                )
                block_until = None
                if not self._core.budget.try_take(record.size):
                    block_until = await self._wait_for_bytes(record.size, topic, partition)
                self._queue(topic, record, block_until)
                deliveries.add(delivery)
        except (errors.KafkaError, TypeError) as error:
            if not deliveries:
                raise
            await deliveries.settled()
            raise errors.PartialDeliveryError(
                f"stopped after {len(deliveries)} records: {error}", deliveries=deliveries
            ) from error
        except BaseException:
            deliveries.watched = False  # cancelled: nobody gets to see them
            raise
        await deliveries.settled()
        deliveries.raise_for_status()
        return deliveries

    def _record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        group: Deliveries | None = None,
    ) -> tuple[PendingRecord, Delivery]:
        """Check the arguments and make the record; nothing is queued yet."""
        if type(topic) is not str or topic not in self._core.topics:
            validate_topic(topic)
        value = checked_payload("value", value)
        key = checked_payload("key", key)
        if headers:
            headers = checked_headers(headers)
        if partition is not None:
            check_partition(partition)
        if timestamp_ms is None:
            timestamp_ms = round(time.time() * 1000)
        else:
            check_timestamp(timestamp_ms)
        size = record_size_bound(key, value, headers)
        if size + BATCH_OVERHEAD > self.config.max_request_size:
            raise errors.MessageSizeTooLargeError(
                f"a record of {size} bytes, more than max_request_size "
                f"({self.config.max_request_size}) allows",
            )
        if size > self.config.buffer_memory:
            raise errors.MessageSizeTooLargeError(
                f"a record of {size} bytes, more than buffer_memory ({self.config.buffer_memory})"
            )
        delivery = Delivery(group, self._sender.unseen, self._home)
        return (
            PendingRecord(key, value, headers, timestamp_ms, partition, size, delivery),
            delivery,
        )

    def _queue(self, topic: str, record: PendingRecord, block_until: float | None = None) -> None:
        try:
            self._core.append(topic, record, self._clock(), block_until)
        except errors.KafkaError:
            self._core.budget.release(record.size)
            raise
        self._sender.wakeup.set()

    def block_until(self) -> float:
        """When `max_block` ends for a call that begins now, on the loop's clock.

        Whatever a call waits for one after the other, it waits until then.
        """
        return self._clock() + self.config.max_block

    async def _wait_for_bytes(
        self, size: int, topic: str, partition: int | None, block_until: float | None = None
    ) -> float:
        """Wait for room; until when the call may go on waiting for other things."""
        began = self._clock()
        until = began + self.config.max_block if block_until is None else block_until
        try:
            await self._granted(size, until)
        finally:
            if self._observer is not None:
                self._observer.on_waited(topic, partition, self._clock() - began)
        return until

    async def _granted(self, size: int, until: float) -> None:
        budget = self._core.budget
        room = new_signal()
        waiter = budget.wait(size, room.set)
        try:
            with anyio.CancelScope(deadline=until):
                await room.wait()
                # Cancelled since the room was granted: the record is not queued yet, so not sent.
                await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            budget.abandon(waiter)
            raise
        if self._closed:
            budget.abandon(waiter)
            raise errors.ProducerClosed("the producer was closed while the record waited for room")
        if not waiter.granted:
            budget.abandon(waiter)
            raise errors.KafkaTimeoutError(
                f"no room for {size} bytes within max_block ({self.config.max_block:g} s): "
                f"{budget.used} of {budget.capacity} are in use"
            )
        # Nothing is awaited between this and the record's queueing: call order is kept.
        budget.claim(waiter)

    async def wait_for_room(self, nbytes: int = 0) -> None:
        """Wait until `send_nowait` has room again, after it raised BufferFullError.

        That is a quarter of the buffer, so that its callers work in bursts and not record by
        record, and nobody waiting in `send`.

        Args:
            nbytes: size of the record to be sent (key, value and headers), if it may be larger
                than that quarter.

        Raises:
            KafkaTimeoutError: not within `max_block`.
            ProducerClosed: the producer was closed meanwhile.
        """
        self._check_open()
        budget = self._core.budget
        wanted = max(nbytes + record_size_bound(None, None, ()), budget.capacity // 4)

        def has_room() -> bool:
            return self._closed or (not budget.waiting and budget.fits(wanted))

        with anyio.move_on_after(self.config.max_block) as scope:
            await self._sender.until(has_room)
        if self._closed:
            raise errors.ProducerClosed("the producer was closed")
        if scope.cancelled_caught:
            raise errors.KafkaTimeoutError(
                f"no room within max_block ({self.config.max_block:g} s)"
            )

    # -- waiting and asking ------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> DeliveryCounts:
        """Wait until every record queued before this call has its outcome; ends lingering for them.

        It does not raise for records that failed.

        Args:
            timeout: seconds; None waits until the last deadline.

        Returns:
            What became of the records that it waited for: those without an outcome at the call.

        Raises:
            KafkaTimeoutError: records are still unsettled after `timeout`.
        """
        self._check_open()
        with anyio.move_on_after(timeout) as scope:
            return await self._flush()
        if scope.cancelled_caught:
            raise errors.KafkaTimeoutError(
                f"flush: {self._core.unsettled + self._sender.outcomes.untold} records are "
                f"unsettled after {timeout:g} s"
            )
        raise errors.InternalError("a flush ended without a result")

    async def _flush(self) -> DeliveryCounts:
        core = self._core
        counted = FlushCount(core.begin_flush())
        core.flush_counts.append(counted)
        self._sender.wakeup.set()
        try:
            await self._sender.until(lambda: core.flushed(counted.generation) or self._ended)
        finally:
            core.flush_counts.remove(counted)
        return counted.counts

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic.

        Raises:
            KafkaError: the cluster refuses to tell, or does not know the topic within `max_block`.
        """
        self._check_open()
        validate_topic(topic)
        core = self._core
        if core.cluster.partitions(topic) is None:
            core.metadata.want()
        await self._told(topic, lambda: core.cluster.partitions(topic) is not None, None)
        return set(core.cluster.partitions(topic) or ())

    async def await_partition(
        self, topic: str, partition: int | None, block_until: float | None = None
    ) -> None:
        """Wait until a topic's partitions are known, and the one given is one of them.

        `block_until`: as for `enqueue`.

        Raises:
            UnknownTopicOrPartitionError: metadata that was asked for in this call lacks it.
            KafkaError: as `partitions_for`.
        """
        self._check_open()
        validate_topic(topic)
        if self.knows(topic, partition):
            return
        core = self._core
        core.metadata.want()
        state, asked = core.topic(topic), core.metadata.requests
        await self._told(
            topic,
            lambda: self.knows(topic, partition) or state.described_by > asked,
            block_until,
        )
        if partition is not None and not self.knows(topic, partition):
            raise core.missing_partition(topic, partition)

    async def _told(
        self, topic: str, condition: Callable[[], bool], block_until: float | None
    ) -> None:
        """Wait until metadata has told something of a topic; raise if it does not."""
        state = self._core.topic(topic)
        self._sender.wakeup.set()
        state.waiting += 1
        try:
            until = self.block_until() if block_until is None else block_until
            with anyio.CancelScope(deadline=until):
                await self._sender.until(
                    lambda: condition() or state.refused is not None or self._ended
                )
        finally:
            state.waiting -= 1
        if not condition():
            self._check_open()
            raise state.refused or self._core.unassigned_error(state)

    @property
    def cluster(self) -> ClusterView:
        """Who leads what, as last heard. For looking at only."""
        return self._core.cluster

    async def refresh_metadata(self) -> None:
        """Ask for metadata now, and wait for the answer.

        Raises:
            KafkaTimeoutError: none within `max_block`. ProducerClosed: there is nobody to ask.
        """
        self._check_open()
        refreshed = self._core.metadata.refreshed_at
        self._core.metadata.want()
        self._sender.wakeup.set()
        with anyio.move_on_after(self.config.max_block) as scope:
            await self._sender.until(
                lambda: self._core.metadata.refreshed_at != refreshed or self._ended
            )
        if scope.cancelled_caught:
            raise errors.KafkaTimeoutError(
                f"no metadata within max_block ({self.config.max_block:g} s)"
            )

    def knows(self, topic: str, partition: int | None = None) -> bool:
        """Whether the topic's partitions are known and, if one is given, it is one of them."""
        known = self._core.cluster.partitions(topic)
        return known is not None and (partition is None or partition in known)

    def statistics(self) -> ProducerStatistics:
        """What the producer is doing right now."""
        return snapshot(self._core)

    def __repr__(self) -> str:
        if not hasattr(self, "_core"):
            return "<aioidem.Producer (not configured)>"
        core = self._core
        state = "new" if self._background is None else "closed" if self._closed else "open"
        identity = core.current_identity
        who = "" if identity is None else f", id {identity.producer_id} epoch {identity.epoch}"
        return (
            f"<aioidem.Producer {self.config.client_id} {state}{who}, {core.unsettled} records "
            f"queued, {core.counters.records_acked} acked>"
        )

    def _check_open(self, *, awaits: bool = True) -> None:
        if (
            self._closed
            or self._pid != os.getpid()
            or self._background is None
            or self._background.finished
            or self._core.fatal_error is not None
        ):
            raise self._why_closed()
        self._home.check(awaits)

    def _why_closed(self) -> errors.KafkaError:
        self._check_process()
        if self._core.fatal_error is not None:
            return self._core.fatal_error
        if self._background is None:
            return errors.ProducerClosed("the producer is not started")
        return errors.ProducerClosed("the producer is closed" if self._closed else LOOP_ENDED)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise errors.ForkedProducerError(
                f"this producer belongs to process {self._pid}; make a new one after fork()"
            )


add_section(
    Producer, "Options", native_help(name for name in OPTIONS if name != "bootstrap_servers")
)


def _crash_handler(core: ProducerCore) -> Callable[[Exception], None]:
    def on_crash(error: Exception) -> None:
        core.fatal(errors.InternalError(f"the background task failed: {error!r}"))

    return on_crash
