"""Producer: the native API, which queues records and waits for their outcomes.

What the producer guarantees:

- Every record ends ACKED, NOT_WRITTEN or UNKNOWN within `delivery_timeout`, or one
  `request_timeout` later if its batch is in doubt and brokers are being asked whether they have
  stored it. No call waits without a limit.
- A `send` that is cancelled before its record is queued sends nothing. Cancelled later, it only
  stops waiting.
- Bad arguments raise at the call, before the record gets a sequence number.
- In a child process after `fork()` a producer refuses to work. It would use the same
  producer id as the parent's producer, and the broker would drop the records of one of them as
  duplicates.
- A call from another thread or event loop than that of `start()` raises and has no effect.
- A failed record is logged if the caller never looks at its outcome.
"""

from __future__ import annotations

import functools
import os
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

import anyio
import anyio.lowlevel

from aioidem import errors
from aioidem._config import (
    OPTIONS,
    ProducerConfig,
    ProducerOptions,
    add_section,
    native_help,
)
from aioidem._config.secret import Secret, without_frames
from aioidem._engine import ProducerCore
from aioidem._engine.flushing import FlushCount
from aioidem._engine.outcomes import Counters
from aioidem._engine.record_block import Columns
from aioidem._flight.dumping import Dumping
from aioidem._flight.recorder import Draws, FlightRecorder
from aioidem._network.cancellation import may_be_cancelled
from aioidem._network.threads import run_alone
from aioidem._network.transport import Connector, TcpConnector
from aioidem._producer.arguments import Headers, check_timeout, checked_partition, milliseconds
from aioidem._producer.deliveries import BulkDeliveries, Deliveries
from aioidem._producer.delivery import Delivery
from aioidem._producer.intake import RecordIntake, not_queued
from aioidem._producer.life import ProducerLife
from aioidem._producer.observer import BatchReporter, Observer
from aioidem._producer.resolver import Resolver
from aioidem._producer.runtime import BackgroundTask, loop_clock
from aioidem._producer.sender import Sender
from aioidem._producer.topic_lookup import TopicLookup
from aioidem._producer.transactional import TransactionCalls
from aioidem.structs import DeliveryCounts, Record, RecordMetadata

if TYPE_CHECKING:
    from concurrent.futures import Future

    from aioidem._flight.dump import Dump
    from aioidem._producer.metric_table import Reading
    from aioidem._producer.metrics import ProducerStatistics
    from aioidem._protocol.metadata import BrokerAddress
    from aioidem.resolution import Resolution

__all__ = ["Internals", "Producer", "internals"]

_DEFAULT_SERVERS = "localhost:9092"

_GRACEFUL_END = 5.0
"""The seconds that `close` waits for the background task, even if `close` itself is cancelled."""


class Producer(TransactionCalls):
    """An idempotent Kafka producer for asyncio and trio.

    Use it with `async with`, or with `start()` and `stop()`, which different tasks may call. With a
    `transactional_id` every record belongs to a transaction.

    Call it only on the event loop (and thus in the thread) on which `start()` was called. A call
    from elsewhere raises `WrongLoopError` and has no effect. To send from another thread, hand
    the call over to the loop:
    `asyncio.run_coroutine_threadsafe(producer.send(...), loop).result()`, or, in a thread that
    anyio has started, `anyio.from_thread.run(producer.send, ...)`.

    Args:
        bootstrap_servers: "host:port", several joined by commas, or a sequence of them.
        connector: Opens the connections; None opens TCP connections.
        config: Ready-made options, instead of `bootstrap_servers` and `options`.
        observer: Receives facts about batches, for metrics.
        options: The options below, by name; times are in seconds, sizes in bytes.

    Raises:
        ConfigError: An option is unknown, illegal or contradicts another one.
    """

    @without_frames
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Sequence[tuple[str, int]] = _DEFAULT_SERVERS,
        *,
        connector: Connector | None = None,
        config: ProducerConfig | None = None,
        observer: Observer | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if config is not None and options:
            raise errors.ConfigError("pass either config or options, not both")
        if config is not None and bootstrap_servers != _DEFAULT_SERVERS:
            raise errors.ConfigError(
                f"pass either bootstrap_servers ({bootstrap_servers!r}) or config, which has the "
                "addresses that are used, not both"
            )
        if isinstance(bootstrap_servers, ProducerConfig):
            raise errors.ConfigError(
                "bootstrap_servers is a ProducerConfig: pass it as config=..., by name"
            )
        self.config = config or ProducerConfig.build(bootstrap_servers, **options)
        draws = Draws(random.random)
        self._core = ProducerCore(self.config, random=draws.random, choice=random.random)
        self._flight: FlightRecorder | None = None
        self._dumping: Dumping | None = None
        if self.config.flight_recorder:
            self._flight = FlightRecorder(self._core, draws, self.config.flight_recorder)
            self._dumping = Dumping(self._flight, self.config)
        self._budget = self._core.budget
        reporter = None if observer is None else BatchReporter(observer)
        connector = connector or TcpConnector()
        self._sender = Sender(
            self._core, self.config, connector, observer=reporter, flight=self._flight
        )
        self._life = ProducerLife(self._core, self._sender, self.config)
        self._resolver = Resolver(self.config, connector)
        self._intake = RecordIntake(
            self._core, self._sender, self._life, self.config, reporter, self._resolver
        )
        self._topics = TopicLookup(self._core, self._sender, self._life, self.config)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the cluster and, with idempotence, get a producer id.

        With a `transactional_id`, `start` fences an older producer that has the same id.

        Raises:
            AuthenticationFailedError: The broker rejected the client, or the client the broker.
            KafkaConnectionError: No bootstrap address could be reached; `NotKafkaError` if one of
                them speaks another protocol.
            BrokerResponseError: The cluster refuses to give a producer id.
            KafkaTimeoutError: There is no metadata or no producer id within `max_block`.
            ProducerClosed: The producer was started or closed before, or is closed meanwhile.
            ConfigError: `flight_record_signal` is set, and this is not the main thread.
        """
        self._life.check_process()
        if self._life.closed or self._life.background is not None:
            raise errors.ProducerClosed("this producer was started before: make a new one")
        self._life.clock = self._sender.clock = loop_clock()
        background = BackgroundTask(
            self._sender.run, _crash_handler(self._core), _ending(self._life, self._dumping)
        )
        if self._dumping is not None:
            self._dumping.listen(background.soon)
        background.start(f"aioidem sender of {self.config.client_id}")
        self._life.begin(background)
        try:
            if self.config.transactional_id is None:
                await self._bootstrap()
            else:
                with self._life.timed("txn-init"):
                    await self._bootstrap()
        except BaseException:
            await self._end()
            raise

    async def _bootstrap(self) -> None:
        core = self._core

        def settled() -> bool:
            return (
                (core.knows_cluster and self._identified())
                or core.bootstrap_failure() is not None
                or core.identity_error is not None
                or core.fatal_error is not None
                or self._life.ended
            )

        with anyio.move_on_after(self.config.max_block):
            await self._sender.until(settled)
        failure = core.bootstrap_failure() or core.identity_error or core.fatal_error
        if failure is not None:
            raise failure
        if self._life.closed:
            raise errors.ProducerClosed("the producer was closed while it was being started")
        if self._life.ended:
            self._life.check_open()
        if not core.knows_cluster and not self._life.ended:
            raise self._life.no_metadata()
        if not core.knows_cluster or not self._identified():
            what = "no producer id" if core.knows_cluster else "no metadata"
            raise self._life.timed_out(
                f"{what} within max_block ({self.config.max_block:g} s){self._last_refusal()}"
            )

    def _identified(self) -> bool:
        return not self.config.enable_idempotence or self._core.current_identity is not None

    @without_frames
    def set_sasl_credentials(self, username: str, password: str | Secret[str]) -> None:
        """Authenticate with another user name and password from now on (PLAIN and SCRAM).

        New connections use them at once. An open connection uses the new password when its session
        is renewed (KIP-368). If the user name has changed, an open connection is closed once all
        its requests are answered, and opened again. To have credentials fetched instead, use the
        option `sasl_credentials`.

        Args:
            username: The user name.
            password: The password.

        Raises:
            ConfigError: The producer does not authenticate with `sasl_username` and
                `sasl_password`, or one of the arguments is empty or not a text that UTF-8 can
                encode.
        """
        if self._sender.sasl is None:
            raise errors.ConfigError("this producer uses no SASL")
        self._sender.sasl.set_credentials(username, password)
        self._sender.on_new_credentials()

    async def stop(self) -> None:
        """Deliver the queued records, then end the producer: `close()` without a timeout."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:
        """Deliver the queued records, then end the producer. An open transaction is aborted.

        Records that fail raise nothing here: their deliveries have the errors, and errors that the
        caller never looks at are logged. If the producer's event loop was closed before, records
        without an outcome end NOT_WRITTEN or UNKNOWN and are logged.

        Args:
            timeout: How many seconds to wait for outcomes. Records that have no outcome by then end
                NOT_WRITTEN or UNKNOWN. 0 does not wait; None waits until the last record's
                `delivery_timeout`.

        Raises:
            WrongLoopError: The call comes from another thread or event loop. The producer stays
                open.
            ForkedProducerError: The call comes from a child process.
            TypeError: The timeout is not a number.
            ValueError: The timeout is NaN.
        """
        check_timeout(timeout)
        life, background = self._life, self._life.background
        if life.closed:
            if background is not None and life.in_own_process:
                await self._await_end(background, timeout)
            return
        life.check_process()
        if background is not None:
            if life.home.closed:
                life.close_calls()
                if not background.finished:
                    self._sender.end_without_loop()
                    _ending(life, self._dumping)()
                await anyio.lowlevel.checkpoint()
                return
            if not background.finished:
                life.home.check(True)
        life.close_calls()
        for waiter in self._budget.wake_all():
            waiter.granted = False
        try:
            if background is not None and timeout != 0:
                with anyio.move_on_after(timeout):
                    await self._end_transaction()
                    await self._flush()
        finally:
            await self._end()

    async def _await_end(self, background: BackgroundTask, timeout: float | None) -> None:
        """Wait for another task's `close`; end the producer if that takes more than `timeout`."""
        if background.finished or self._life.home.closed:
            await anyio.lowlevel.checkpoint()
            return
        self._life.home.check(True)
        with anyio.move_on_after(timeout):
            await background.wait()
            return
        await self._end()

    async def _end(self) -> None:
        """Give every record an outcome and end the background task.

        A plain function (`Sender.shut`) sets the outcomes, so that cancelling the call cannot skip
        them.
        """
        self._life.close_calls()
        try:
            self._sender.shut()
        finally:
            if self._life.background is not None:
                self._life.background.cancel()
                with anyio.move_on_after(_GRACEFUL_END, shield=True):
                    await self._life.background.wait()

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
        life = getattr(self, "_life", None)  # the finaliser also runs if the constructor raised
        if life is None or life.background is None or life.background.finished:
            return
        described = repr(self)
        if life.abandon():
            warnings.warn(f"{described} was not closed", ResourceWarning, source=self, stacklevel=2)

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

        If the call is cancelled while it waits for room in the buffer, nothing is sent. If it is
        cancelled later, the record is sent, and only the wait for its outcome ends.

        Args:
            topic: The topic's name.
            value: The payload; None is a tombstone.
            key: Decides the partition; None leaves the choice to the partitioner.
            headers: (name, value) pairs.
            partition: The partition's number; None lets the key or the partitioner decide.
            timestamp: Seconds since the epoch, up to the year 5138; None is now.

        Returns:
            Where the record is in the log. Its `offset` is -1 if the broker proved that the record
            is stored without saying where (see `RecordMetadata.has_offset`).

        Raises:
            KafkaError: The record failed; the error's `status` is NOT_WRITTEN or UNKNOWN.
            KafkaTimeoutError: There was no room in the buffer, or no metadata of the topic, within
                `max_block`.
            UnknownTopicOrPartitionError: The topic does not have that partition.
            RecordError: An argument has an illegal value; nothing was queued.
            MessageSizeTooLargeError: The record exceeds `max_request_size`; nothing was queued.
            TypeError: An argument has the wrong type; nothing was queued.
            ProducerClosed: The producer is closed, or not started yet; nothing was queued.
            WrongLoopError: The call comes from another thread or event loop; nothing was queued.
        """
        if key is None and partition is None and timestamp is None and not headers:
            plain = None if may_be_cancelled() else self._intake.queue_plain(topic, value)
            if plain is not None:
                # This does what `await plain` does, without a check that is not needed here: the
                # current task is known to run on the producer's loop.
                waiter = plain.begin_wait()
                try:
                    await waiter
                except BaseException:
                    plain.stop_waiting(waiter)
                    raise
                return plain.metadata
        delivery = await self._intake.enqueue(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=None if timestamp is None else milliseconds(timestamp),
        )
        return await delivery

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
        """Queue one record and return its `Delivery` at once.

        Args:
            topic: The topic's name.
            value: The payload; None is a tombstone.
            key: Decides the partition; None leaves the choice to the partitioner.
            headers: (name, value) pairs.
            partition: The partition's number; None lets the key or the partitioner decide.
            timestamp: Seconds since the epoch, up to the year 5138; None is now.

        Raises:
            BufferFullError: There is no room; `await wait_for_room()` and call again.
            KafkaError: As for `send`; nothing was queued.
            TypeError: An argument has the wrong type; nothing was queued.
        """
        if key is None and partition is None and timestamp is None and not headers:
            plain = self._intake.queue_plain(topic, value)
            if plain is not None:
                return plain
        try:
            self._life.check_open(False)
            timestamp_ms = None if timestamp is None else milliseconds(timestamp)
            record = self._intake.record(topic, value, key, headers, partition, timestamp_ms)
            if not self._budget.try_take(record.charge()):
                raise self._intake.no_room(topic, record.partition, record.charge())
            self._intake.queue(topic, record)
        except errors.KafkaError as error:
            raise not_queued(error) from error.__cause__
        return record

    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None] | Iterable[Record],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Deliveries:
        """Send many records, and wait for all outcomes.

        Pass plain values, or `Record` objects if the records differ in more than their values. The
        records are queued in order. Each may wait for room for up to `max_block`, so a long call
        continues as long as room becomes free within that time. After every 10,000 records, or
        fewer if they take long, other tasks run, and what they send is queued in between. If the
        call is cancelled, the records that were queued before are sent, and the others are not.

        No object is made for a record that has only a value, so a call with many records costs a
        fraction of what as many calls of `send` do.

        Args:
            topic: The topic's name.
            values: The payloads, where None is a tombstone; or `Record` objects.
            key: The key of each record that has none of its own: decides the partition. None leaves
                the choice to the partitioner.
            headers: (name, value) pairs of each record that has none of its own.
            partition: The partition's number; None lets the key or the partitioner decide.
            timestamp: Seconds since the epoch, up to the year 5138, for each record that has no
                timestamp of its own; None is now.

        Returns:
            The deliveries, all of them acknowledged.

        Raises:
            PartialDeliveryError: Some records failed, or the call had to stop before the last one
                (no room within `max_block`, a bad value, an exception of the iterable, which is the
                ``__cause__``). The error's `deliveries` has the outcome of each record that was
                queued.
            KafkaError: As for `send`; nothing was queued.
            TypeError: An argument has the wrong type; nothing was queued.
            Exception: Whatever the iterable raises before its first record; nothing was queued.
        """
        self._check_open()
        timestamp_ms = None if timestamp is None else milliseconds(timestamp)
        pieces = self._intake.pieces(topic, values, key, headers, partition, timestamp_ms)
        return await self._send_pieces(topic, pieces, partition)

    async def send_table(
        self,
        topic: str,
        table: object,
        *,
        value: str = "value",
        key: str | bytes | None = None,
        headers: str | Headers = (),
        partition: int | None = None,
        timestamp: str | float | None = None,
    ) -> Deliveries:
        """Send each row of an Arrow table as a record, and wait for all outcomes.

        The records are encoded from the table's buffers, without an object for each row (except for
        a column of headers), and queued in order as by `send_many`. This needs pyarrow, from the
        extra `arrow`.

        Args:
            topic: The topic's name.
            table: A `pyarrow.Table` or `pyarrow.RecordBatch`, or an object with
                `__arrow_c_stream__`, such as a data frame.
            value: The name of the column of payloads, binary or string; null is a tombstone.
            key: A str is the name of the column of keys, binary or string; bytes are the key of
                every record. For a null key, as for None, the partitioner chooses the partition.
            headers: The name of the column of headers, lists of (name, value) structs or maps of
                string to binary; or the headers of every record.
            partition: The partition's number; None lets the key or the partitioner decide.
            timestamp: The name of the column of timestamps, where null is now; or the timestamp of
                every record, in seconds since the epoch; None is now.

        Returns:
            The deliveries, in the order of the rows, all of them acknowledged.

        Raises:
            PartialDeliveryError: Some records failed, or the call had to stop before the last one
                (no room within `max_block`, a row that is too large, an exception of the table,
                which is the ``__cause__``). The error's `deliveries` has the outcome of each record
                that was queued.
            RecordError: The table lacks a column, or an argument is illegal (see `send`); nothing
                was queued.
            KafkaError: For the same reasons as in `send`; nothing was queued.
            TypeError: An argument or a column has the wrong type; nothing was queued.
            ImportError: pyarrow is not installed.
        """
        self._check_open()
        if timestamp is not None and not isinstance(timestamp, str):
            timestamp = milliseconds(timestamp)
        pieces = self._intake.table_pieces(topic, table, value, key, headers, partition, timestamp)
        return await self._send_pieces(topic, pieces, partition)

    def _check_open(self) -> None:
        """Raise an error, which says NOT_WRITTEN, unless this call may send."""
        try:
            self._life.check_open()
        except errors.KafkaError as error:
            raise not_queued(error) from error.__cause__

    async def _send_pieces(
        self,
        topic: str,
        pieces: Iterator[Columns],
        partition: int | None,
        deliveries: BulkDeliveries | None = None,
    ) -> Deliveries:
        index = None if partition is None else checked_partition(partition)
        if deliveries is None:
            deliveries = BulkDeliveries(self._intake.context)
        await anyio.lowlevel.checkpoint_if_cancelled()
        deliveries.watched = True
        try:
            for number, columns in enumerate(pieces):
                if number:
                    await anyio.lowlevel.checkpoint()  # other tasks run between two pieces
                self._life.check_open()
                await self._intake.queue_piece(topic, columns, index, deliveries)
        except Exception as error:
            # The caller's iterable may have raised anything, from a closed file for example.
            if not deliveries:
                if not isinstance(error, errors.KafkaError):
                    raise
                raise not_queued(error) from error.__cause__
            await deliveries.settled()
            told = error if isinstance(error, errors.KafkaError | TypeError) else repr(error)
            raise errors.PartialDeliveryError(
                f"stopped after {len(deliveries)} records: {told}", deliveries=deliveries
            ) from error
        except BaseException:
            deliveries.unwatch()  # the call was cancelled, so no caller sees the deliveries
            raise
        await deliveries.settled()
        deliveries.raise_for_status()
        return deliveries

    async def wait_for_room(self, nbytes: int = 0) -> None:
        """Wait until `send_nowait` has room again, after it raised BufferFullError.

        The wait ends once no `send` waits for room and a quarter of the room for records is free
        (`buffer_memory` less what batches in flight take). With a quarter free, callers send in
        bursts instead of record by record.

        Args:
            nbytes: The size in bytes of the next record (key, value and headers). It matters only
                if the record may be larger than that quarter.

        Raises:
            KafkaTimeoutError: There was no room within `max_block`.
            ProducerClosed: The producer was closed meanwhile.
        """
        await self._intake.wait_for_room(nbytes)

    # -- waiting and asking ------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> DeliveryCounts:
        """Wait until every record that was queued before this call has its outcome.

        These records are sent without waiting for `linger`. Failed records raise nothing here.

        Args:
            timeout: How many seconds to wait; None waits until the last record's
                `delivery_timeout`.

        Returns:
            How many of the records without an outcome at the beginning of the call ended with each
            status.

        Raises:
            KafkaTimeoutError: Some records have no outcome after `timeout` seconds.
            ProducerClosed: The producer is closed, or not started yet.
            TypeError: The timeout is not a number.
            ValueError: The timeout is NaN.
        """
        check_timeout(timeout)
        self._life.check_open()
        with self._life.timed("flush"):
            counts = await self._flush(timeout)
        if counts is None:
            raise self._life.timed_out(
                f"flush: {self._core.unsettled + self._sender.settled.untold} records have no "
                f"outcome after {timeout:g} s"
            )
        return counts

    async def _flush(self, timeout: float | None = None) -> DeliveryCounts | None:
        """Flush, and return the counts; None if records have no outcome after `timeout`."""
        accumulator, outcomes = self._core.accumulator, self._core.outcomes
        if self._flight is not None:
            self._flight.flushed(self._life.clock())
        untold = self._sender.settled.untold_by_status()
        counted = FlushCount(accumulator.begin_flush(), untold)
        outcomes.count_for(counted)
        self._sender.wakeup.set()

        def flushed() -> bool:
            return outcomes.flushed(counted.generation) or self._life.ended

        try:
            with anyio.move_on_after(timeout) as scope:
                await self._sender.until(flushed)
            # With a timeout of 0 the wait ends before it has looked.
            if scope.cancelled_caught and (not flushed() or self._sender.settled.untold):
                return None
        finally:
            outcomes.stop_counting(counted)
        return counted.counts

    async def resolve(
        self,
        failed: errors.KafkaError | Iterable[errors.KafkaError | errors.RecordOutcome],
        timeout: float | None = None,
    ) -> list[Resolution]:
        """Look in the log for records that ended UNKNOWN.

        Reads the headers of the partition's committed batches, on connections of its own, from the
        record on that was acknowledged before the failed one was sent. Needs the ACL READ on the
        topic. It also works on a producer that is closed, and changes nothing: producing an ABSENT
        record again is up to the caller.

        A record is ABSENT only if no copy of it can be appended any more. That takes a later batch
        of the same producer in the partition, so while there is none, this method reads on until
        `timeout`. Send further records meanwhile, or before.

        Args:
            failed: The error of a record; or a `PartialDeliveryError`, deliveries or errors, of
                which those that ended UNKNOWN are looked for.
            timeout: Seconds for everything; None is `request_timeout`.

        Returns:
            A `Resolution` for each failed record, in their order; acknowledged ones are left out.

        Raises:
            AuthenticationFailedError: A broker refuses the credentials.
            RecordError: The argument is no failed record's error.
            TypeError: The timeout is not a number.
            ValueError: The timeout is NaN.
        """
        check_timeout(timeout)
        from aioidem._producer.resolving import failures_of  # here, because few producers ask

        records: Iterable[errors.KafkaError | errors.RecordOutcome] = (
            failed.deliveries
            if isinstance(failed, errors.PartialDeliveryError)
            else [failed]
            if isinstance(failed, errors.KafkaError)
            else failed
        )
        if isinstance(records, Deliveries):
            records = [error for _, error in records.failures()]
        return await self._resolver.resolve(failures_of(records), timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions, asking for metadata if they are not known.

        Args:
            topic: The topic's name.

        Raises:
            RecordError: The name is illegal.
            KafkaError: The cluster refuses to describe the topic, or does not know it within
                `max_block`.
        """
        return await self._topics.partitions_for(topic)

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of what the producer is doing, with its counters."""
        from aioidem._producer.metrics import snapshot  # here, because few producers are asked

        return snapshot(self._core, self._sender.now())

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of Java's producer, and some of aioidem's own, by group and name.

        The shape is kafka-python's: `metrics()["producer-metrics"]["record-send-total"]`. Groups of
        a broker, topic or partition end with its name, as `producer-node-metrics.node-1`,
        `producer-topic-metrics.orders` and `aioidem-partition-metrics.orders-0` do. A rate, average
        or maximum is that of the last 30 to 60 seconds, as in Java, and NaN where there was
        nothing. `docs/metrics.md` lists all metrics with their units, which are Java's (ms, ns,
        bytes). Call this on the producer's event loop, at any time.
        """
        from aioidem._producer.metrics import shaped  # here, because few producers are asked

        return shaped(self._core, self._sender.now())

    def _readings(self) -> Future[list[Reading]]:
        from aioidem._producer.metric_table import readings

        return self._life.on_loop(lambda: list(readings(self._core, self._sender.now())))

    async def dump_flight_record(self, path: str | os.PathLike[str]) -> None:
        """Write what the producer was told and decided lately to a file, for `aioidem replay`.

        The file has topics, addresses of brokers, options and the sizes and times of records; it
        has no payload, key, header or credential. Only its owner may read it.

        Args:
            path: The file's name, which by convention ends in ``.flight.gz``.

        Raises:
            FlightRecordError: The file cannot be written, or the option `flight_recorder` is 0.
        """
        with anyio.CancelScope(shield=True):  # the file is written to its end
            await run_alone(partial(self._dump("asked for").save, path))

    def _dump(self, reason: str) -> Dump:
        from aioidem._flight.dump import Dump  # here, because few producers are asked

        if self._flight is None:
            raise errors.FlightRecordError("nothing is recorded: flight_recorder is 0")
        return Dump(self._flight, reason, time.time())

    def __repr__(self) -> str:
        if not hasattr(self, "_life"):
            return "<aioidem.Producer (not configured)>"
        core = self._core
        state = (
            "new" if self._life.background is None else "closed" if self._life.closed else "open"
        )
        identity, counters = core.current_identity, core.counters
        who = "" if identity is None else f", id {identity.producer_id} epoch {identity.epoch}"
        return (
            f"<aioidem.Producer {self.config.client_id} {state}{who}, {core.unsettled} records "
            f"queued, {counters.records_acked} acked>"
        )


add_section(
    Producer,
    "Options",
    functools.partial(native_help, [name for name in OPTIONS if name != "bootstrap_servers"]),
)


class Internals(NamedTuple):
    """The parts of a producer that the drop-in and the Spark sink use, and users do not."""

    life: ProducerLife
    intake: RecordIntake
    topics: TopicLookup
    check_transaction: Callable[[], None]
    """Raises if records and offsets may not be sent now: no transaction is open, or it failed."""
    change_id: Callable[[str, float], Awaitable[None]]
    """Makes the producer use another transactional id, between two transactions."""
    may_change_id: Callable[[], bool]
    """Whether the last transaction is over, and nothing of its transactional id is to be sent."""
    learn_coordinator: Callable[[str, BrokerAddress], None]
    """Makes the producer take a broker for the coordinator of a group."""
    readings: Callable[[], Future[list[Reading]]]
    """Has all metrics read on the producer's event loop, from any thread."""
    counters: Counters
    """What the producer has done; reading them takes no time, as `statistics` does."""


def internals(producer: Producer) -> Internals:
    """Return the parts that the drop-in and the Spark sink use, and users do not."""
    return Internals(
        producer._life,  # noqa: SLF001 - the one way in from outside
        producer._intake,  # noqa: SLF001
        producer._topics,  # noqa: SLF001
        producer._check_transaction,  # noqa: SLF001
        producer._change_id,  # noqa: SLF001
        producer._may_change_id,  # noqa: SLF001
        producer._learn_coordinator,  # noqa: SLF001
        producer._readings,  # noqa: SLF001
        producer._core.counters,  # noqa: SLF001
    )


def _ending(life: ProducerLife, dumping: Dumping | None) -> Callable[[], None]:
    """Return what to call when the background task has ended; it does not refer to the producer."""

    def end() -> None:
        life.forbid()
        if dumping is not None:
            dumping.stop_listening()

    return end


def _crash_handler(core: ProducerCore) -> Callable[[BaseException], None]:
    def on_crash(error: BaseException) -> None:
        core.fatal(errors.InternalError(f"the background task failed: {error!r}"))

    return on_crash
