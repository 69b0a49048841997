"""AIOKafkaProducer: aiokafka's constructor and members, implemented by `aioidem.Producer`.

Invariants: this module decides nothing about how records are sent. A `send` that is cancelled
before it returns has queued nothing, and cancelling the future that it returned does not affect the
record. A producer that is dropped without `stop()` is garbage collected, with a ResourceWarning.

Rejected: a subclass of `Producer`, because the `send` of `Producer` waits for the outcome and the
`send` of aiokafka does not. Also rejected: aiokafka's internal attributes, except those few that
other libraries use.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, Unpack

from aioidem._aiokafka.batches import (
    BatchBuilder,
    Serializer,
    being_sent,
    whole_milliseconds,
)
from aioidem._aiokafka.client import ProducerClient
from aioidem._aiokafka.collecting import CollectorObserver, check_collector
from aioidem._aiokafka.futures import DeliveryFuture, batch_future, done_future, record_future
from aioidem._aiokafka.offsets import Offsets, Place, checked_group, checked_offsets
from aioidem._aiokafka.options import OMITTED, MoreOptions, Omitted, check_serializer, config_from
from aioidem._aiokafka.translation import OWN, Translation
from aioidem._config import SecurityProtocol, TokenProvider
from aioidem._config.secret import without_frames
from aioidem._network.cancellation import may_be_cancelled
from aioidem._producer.arguments import Headers, checked_partition, whole_number
from aioidem._producer.intake import not_queued
from aioidem._producer.native import Producer, internals
from aioidem.abc import ProducerMetricsCollector
from aioidem.errors import (
    ConfigError,
    KafkaError,
    ProducerClosed,
    RecordError,
    WrongLoopError,
)
from aioidem.partitioner import DefaultPartitioner, Partitioner
from aioidem.structs import ConsumerGroupMetadata, RecordMetadata, TopicPartition

__all__ = ["AIOKafkaProducer", "TransactionContext"]

_DEFAULT_PARTITIONER = DefaultPartitioner()
_FACE_ONLY = (
    *("self", "loop", "api_version", "key_serializer", "value_serializer", "metrics_collector"),
    "more",
)


class AIOKafkaProducer:
    """A Kafka producer with aiokafka's interface.

    Every argument of aiokafka's producer has the same meaning here. docs/aiokafka.md lists the
    defaults that differ, and `MoreOptions` has the arguments that aiokafka lacks. Times are in
    milliseconds, sizes in bytes. Unlike aiokafka's producer this one may be made outside a running
    event loop.

    Args:
        loop: Deprecated. If it is given, `start` must be called on this loop.
        bootstrap_servers: "host[:port]", several joined by commas or in a list. The port is 9092
            when left out.
        client_id: The name under which brokers log this producer; None makes it
            `aioidem-producer-N`.
        metadata_max_age_ms: The time after which metadata is asked for again even if nothing has
            failed.
        request_timeout_ms: The time that a broker may take to answer. Unless `max_block_ms` is
            given, `send` waits as long for metadata and for room in the buffer.
        api_version: Deprecated. It has no effect.
        acks: How many replicas must store a batch before the leader answers: 0, 1, or all of those
            in sync (-1 or "all").
        key_serializer: A function that is called with each key, None included, and returns bytes or
            None.
        value_serializer: A function that is called with each value, None included, and returns
            bytes or None.
        compression_type: The codec: "gzip", "snappy", "lz4", "zstd" or None.
        max_batch_size: The size before compression at which a batch is full.
        partitioner: `f(key bytes, all partitions, available partitions)`, which returns one of the
            partitions. The default is aiokafka's: by the key's hash, and at random without a key.
            None sends the records without a key to one partition until they fill a batch, and then
            to another partition (KIP-794), which makes fuller batches.
        max_request_size: The size of the largest request, and so of the largest record.
        linger_ms: The time for which a batch that is not full waits for more records.
        retry_backoff_ms: The pause before the first retry.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_context: The TLS context, as `aioidem.helpers.create_ssl_context` makes it; None trusts
            the authorities of the operating system.
        connections_max_idle_ms: The time after which an unused connection is closed; None keeps it
            open.
        enable_idempotence: Whether batches carry sequence numbers, so that a retry is stored once
            (KIP-98).
        transactional_id: The producer's identity across restarts. If it is given, every record
            belongs to a transaction, and the producer is idempotent.
        transaction_timeout_ms: The time after which the coordinator aborts a transaction.
        sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM.
        sasl_plain_password: The password for PLAIN and SCRAM.
        sasl_plain_username: The user name for PLAIN and SCRAM.
        sasl_kerberos_service_name: The brokers' Kerberos service for GSSAPI.
        sasl_kerberos_domain_name: The host in the service's principal for GSSAPI, if it is not the
            one that the producer connects to.
        sasl_oauth_token_provider: An `aioidem.abc.AbstractTokenProvider`, or aiokafka's.
        metrics_collector: An `aioidem.abc.ProducerMetricsCollector`.
        more: The arguments of `MoreOptions`.

    Raises:
        ConfigError: A value is illegal or contradicts another one. It is a ValueError.
        TypeError: An argument is unknown.
    """

    _producer: Producer | None = None  # for __del__, if the constructor raises
    _translation: ClassVar[Translation] = OWN

    @without_frames
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: float = 300000,
        request_timeout_ms: float = 40000,
        api_version: object = None,
        acks: int | Literal["all"] | Omitted = OMITTED,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        compression_type: Literal["gzip", "snappy", "lz4", "zstd"] | None = None,
        max_batch_size: int = 16384,
        partitioner: Partitioner | None = _DEFAULT_PARTITIONER,
        max_request_size: int = 1048576,
        linger_ms: float = 0,
        retry_backoff_ms: float = 100,
        security_protocol: SecurityProtocol = "PLAINTEXT",
        ssl_context: ssl.SSLContext | None = None,
        connections_max_idle_ms: float | None = 540000,
        enable_idempotence: bool | Omitted = OMITTED,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = 60000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: TokenProvider | None = None,
        metrics_collector: ProducerMetricsCollector | None = None,
        **more: Unpack[MoreOptions],
    ) -> None:
        arguments = dict(locals())  # must come first, while the arguments are the only locals
        for name in _FACE_ONLY:
            del arguments[name]
        if loop is not None:
            _deprecated("loop", "start() runs on the loop that calls it")
        if api_version is not None:
            _deprecated("api_version", "it has no effect")
        check_serializer("key_serializer", key_serializer)
        check_serializer("value_serializer", value_serializer)
        check_collector(metrics_collector)
        self._config = config_from(arguments, more)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._collector = metrics_collector
        self._loop = loop
        # The loop of futures: that on which `start` was called, from the call on.
        self._home = loop
        self._bootstrap_servers = bootstrap_servers
        self._source_traceback = _where_made(loop)
        self._started = self._stopped = False
        self._renew()

    def _renew(self) -> Producer:
        collector = self._collector
        observer = None if collector is None else CollectorObserver(collector, self._translation)
        self._producer = Producer(config=self._config, observer=observer)
        self._inside = internals(self._producer)
        self._client = ProducerClient(
            self._producer, self._inside.topics, self._bootstrap_servers, self._translation
        )
        return self._producer

    @property
    def _native(self) -> Producer:
        if self._producer is None:
            raise ProducerClosed("the producer was not made")
        return self._producer

    @property
    def _closed(self) -> bool:
        # FastStream reads this attribute, under this name.
        return self._stopped

    @property
    def client(self) -> ProducerClient:
        """The producer's view of the cluster, under the names of aiokafka's client."""
        return self._client

    # -- start and stop ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and, with idempotence, get a producer id; after a failure call `start` again.

        Raises:
            KafkaConnectionError: No broker could be reached.
            KafkaTimeoutError: There is no metadata or no producer id within `max_block_ms`.
            ProducerClosed: The producer is running already, or was stopped.
            ConfigError: The running loop is not the one that was given to the constructor.
            AuthenticationFailedError: The broker refused the client's credentials, or the client
                could not authenticate the broker.
            BrokerResponseError: The cluster refuses to give a producer id.
        """
        running = _running_loop()
        with self._translation:
            self._inside.life.check_process()
            if self._stopped:
                raise ProducerClosed("the producer was stopped")
            if self._loop is not None and running is not self._loop:
                raise ConfigError("start() was called on another loop than `loop`")
            self._home = running
            try:
                await self._native.start()
            except ProducerClosed:
                raise  # the producer was started before, and keeps running
            except BaseException:
                self._home = self._loop
                self._renew()
                raise
        self._loop = running
        self._started = True

    async def stop(self) -> None:
        """Deliver what is queued, within `delivery_timeout_ms`, and close the producer.

        `stop` may be called again, and by another task than the one that called `start`.

        Raises:
            WrongLoopError: The call comes from another thread or event loop than that of `start`.
                The producer was not closed.
            ForkedProducerError: The call comes from a child process.
        """
        before, self._stopped = self._stopped, True
        with self._translation:
            try:
                await self._native.close()
            except WrongLoopError:
                self._stopped = before
                raise

    async def flush(self) -> None:
        """Wait until every record that was queued before this call has its outcome.

        The records' batches are sent without waiting for `linger_ms`. Errors of records are in
        their futures. Before `start` and after `stop` the call returns at once.

        Raises:
            ProducerClosed: A fatal error or the end of the event loop has ended the producer.
            ForkedProducerError: The call comes from a child process.
        """
        if not self._started or self._stopped:
            return
        with self._translation:
            await self._native.flush()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    def __del__(self, _warnings: Any = warnings) -> None:
        if self._producer is None:
            return
        described = repr(self)
        if not self._inside.life.abandon():
            return
        _warnings.warn(f"Unclosed AIOKafkaProducer {described}", ResourceWarning, source=self)
        if self._loop is None or self._loop.is_closed():
            return
        context: dict[str, Any] = {"producer": self, "message": "Unclosed AIOKafkaProducer"}
        if self._source_traceback is not None:
            context["source_traceback"] = self._source_traceback
        self._loop.call_exception_handler(context)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._producer!r}>"

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of Java's producer, and some of aioidem's own, by group and name.

        aiokafka's producer has no such method; the name and the shape are kafka-python's:
        ``metrics()["producer-metrics"]["record-send-total"]``. See `aioidem.Producer.metrics`.
        """
        return self._native.metrics()

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Headers | None = None,
    ) -> DeliveryFuture:
        """Wait for metadata and for room in the buffer, queue a record, and return its future.

        If the call is cancelled before it returns, nothing was queued. Cancelling the future does
        not cancel the record.

        Args:
            topic: The topic's name.
            value: Bytes, or what the value serialiser takes; None is a tombstone and needs a key.
            key: Bytes, or what the key serialiser takes; it decides the partition.
            partition: The partition's number; None lets the partitioner decide.
            timestamp_ms: Milliseconds since the epoch, up to the year 5138, fractions dropped; None
                is now.
            headers: (name, value) pairs.

        Returns:
            A future of the record's `RecordMetadata`. If the record fails, the future has an error
            whose `status` says whether the record may be in the log. With acks=0 the future is done
            when the record was sent, and its result is None.

        Raises:
            KafkaTimeoutError: There was no metadata, or no room in the buffer, within
                `max_block_ms`.
            UnknownTopicOrPartitionError: The cluster does not have the topic or partition.
            TopicAuthorizationFailedError: The client is not authorised to use the topic.
            MessageSizeTooLargeError: The record exceeds `max_request_size`.
            RecordError: An argument has an illegal value.
            TypeError: An argument has the wrong type.
            ProducerClosed: The producer is not started, or was stopped.
        """
        inside = self._inside
        # `_translation.reraise` below translates errors, as `with self._translation` would. But the
        # `with` would call `__enter__` and `__exit__` for each record.
        try:
            if value is None and key is None:
                raise RecordError("need at least one: key or value")
            block_until = None
            if not inside.topics.knows(topic, partition):
                block_until = await self._await_partition(topic, partition)
            if self._value_serializer is not None:
                value = self._value_serializer(value)
            if self._key_serializer is not None:
                key = self._key_serializer(key)
            delivery = None
            # The same shortcut as in `Producer.send`, for a record that has nothing but a value.
            if (
                key is None
                and partition is None
                and timestamp_ms is None
                and block_until is None
                and not headers
                and not may_be_cancelled()
            ):
                delivery = inside.intake.queue_plain(topic, value)
            if delivery is None:
                delivery = await inside.intake.enqueue(
                    topic,
                    value,
                    key=key,
                    headers=headers or (),
                    partition=partition,
                    timestamp_ms=None if timestamp_ms is None else whole_milliseconds(timestamp_ms),
                    block_until=block_until,
                )
        except KafkaError as error:
            self._translation.reraise(not_queued(error))
        return record_future(self._home, delivery, self._translation)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its outcome: `await (await send(...))`."""
        future = await self.send(topic, value, key, partition, timestamp_ms, headers)
        return await future

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch of at most `max_batch_size` bytes, for `send_batch`."""
        return BatchBuilder(
            self._config.batch_size,
            key_serializer=self._key_serializer,
            value_serializer=self._value_serializer,
            reraise=self._translation.reraise,
        )

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int | None
    ) -> DeliveryFuture:
        """Wait for metadata and for room in the buffer, queue a batch, and return its future.

        Args:
            batch: A batch of `create_batch`. A closed batch is sent as one batch of exactly its
                records. No more records can be added from the beginning of this call on, unless it
                fails or is cancelled: then nothing was queued, and the batch is as it was before.
            topic: The topic's name.
            partition: The partition's number; None lets the partitioner decide, as for a record
                without a key.

        Returns:
            A future of the first record's `RecordMetadata`. If records fail, the future has the
            error of the first one that failed.

        Raises:
            KafkaError: As for `send`.
            RecordError: The batch was sent before, or another call is sending it.
            TypeError: `batch` is not a `BatchBuilder`.
        """
        # aiokafka does not check the type, and fails later in its background task.
        given: object = batch
        if not isinstance(given, BatchBuilder):
            raise TypeError(f"batch must be a BatchBuilder, not {type(given).__name__}")
        with self._translation:
            # A batch that is being sent is closed, so this is asked before.
            size = batch.size() if batch.closed() else None
            with being_sent(batch) as records:
                block_until = await self._await_partition(topic, partition)
                place = partition
                if place is None:
                    place = self._inside.intake.partition_without_key(topic)
                if not records:
                    self._check_open()
                    nowhere = _nowhere(topic, checked_partition(place))
                    return done_future(self._home, nowhere, self._translation)
                deliveries = await self._inside.intake.enqueue_batch(
                    topic, records, partition=place, size=size, block_until=block_until
                )
        return batch_future(self._home, deliveries, self._translation)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions, asking for metadata if they are not known.

        Raises:
            KafkaError: As for `send`.
        """
        with self._translation:
            return await self._native.partitions_for(topic)

    async def _await_partition(self, topic: str, partition: int | None) -> float | None:
        """Wait until a partition is known.

        Returns:
            The time at which the call's `max_block_ms` ends, on the event loop's clock; None if the
            partition was known, so that the call did not wait.
        """
        if self._inside.topics.knows(topic, partition):
            return None
        if partition is not None:
            partition = whole_number(partition, "partition must be int or None")
        block_until = self._inside.life.block_until()
        try:
            transaction = self._inside.intake.transaction()
            await self._inside.topics.await_partition(topic, partition, block_until)
            self._inside.intake.check_transaction(transaction, topic, partition)
        except KafkaError as error:
            raise not_queued(error) from error.__cause__
        return block_until

    def _check_open(self) -> None:
        """Raise an error, which says NOT_WRITTEN, unless records may be sent now."""
        try:
            self._inside.life.check_open()
            if self._config.transactional_id is not None:
                self._inside.check_transaction()
        except KafkaError as error:
            raise not_queued(error) from error.__cause__

    def _partition(self, _topic: str, partition: int | None, *_record: object) -> int | None:
        # OpenTelemetry's instrumentation calls this method before `send`, to note the partition.
        # The answer is only what the caller chose: if the partitioner were called here too, it
        # could choose another partition than in `send`.
        return partition

    # -- transactions ------------------------------------------------------------------------------
    #
    # docs/transactions.md says what transactions guarantee, and what their errors mean.

    async def begin_transaction(self) -> None:
        """Begin a transaction; the records that are sent from now on belong to it.

        Raises:
            IllegalOperation: There is no transactional id.
            IllegalStateError: A transaction is open, or a commit is still going on.
            KafkaTimeoutError: The end of the last transaction takes longer than `max_block_ms`;
                call again.
            KafkaError: The last transaction failed with this error and must be aborted first; or
                the error is fatal, such as `ProducerFenced`.
        """
        with self._translation:
            await self._native.begin_transaction()

    async def commit_transaction(self) -> None:
        """Deliver every record of the transaction, then commit it.

        Cancelling the call does not stop the commit.

        Raises:
            IllegalOperation: There is no transactional id.
            IllegalStateError: No transaction is open.
            KafkaTimeoutError: The result is not known within `delivery_timeout_ms`. The commit goes
                on; call again.
            KafkaError: The transaction failed with this error and must be aborted; or the error is
                fatal, and its `status` says whether the transaction may have been committed.
        """
        with self._translation:
            await self._native.commit_transaction(self._limit)

    async def abort_transaction(self) -> None:
        """Abort the transaction; records without an outcome fail with `TransactionAborted`.

        Cancelling the call does not stop the abort.

        Raises:
            IllegalOperation: There is no transactional id.
            IllegalStateError: No transaction is open, or its commit may have taken place.
            KafkaTimeoutError: The result is not known within `delivery_timeout_ms`. The abort goes
                on; call again.
            KafkaError: A fatal error has ended the producer.
        """
        with self._translation:
            await self._native.abort_transaction(self._limit)

    def transaction(self) -> TransactionContext:
        """Return a context manager that begins a transaction and ends it with the block.

        The transaction is committed at the end of the block, and aborted if the block raises or
        the commit fails.
        """
        return TransactionContext(self)

    async def send_offsets_to_transaction(
        self, offsets: Offsets[Place], group_id: str | ConsumerGroupMetadata
    ) -> None:
        """Commit a consumer group's offsets as a part of the transaction.

        Args:
            offsets: The next offset to be read in each partition, alone or in a pair with
                metadata.
            group_id: The group's id, or better the consumer's `ConsumerGroupMetadata`, with which
                brokers refuse the offsets of a consumer that has lost its partitions (KIP-447).

        Raises:
            IllegalOperation: There is no transactional id, or no transaction is open.
            ValueError: There are no offsets, or the group or an offset is illegal.
            TypeError: A partition or metadata has the wrong type.
            KafkaTimeoutError: The result is not known within `delivery_timeout_ms`; call again with
                the same arguments.
            KafkaError: The offsets were refused, and the transaction can only be aborted; or a
                fatal error has ended the producer.
        """
        with self._translation:
            self._inside.check_transaction()
            await self._native.send_offsets_to_transaction(
                checked_offsets(offsets), checked_group(group_id), self._limit
            )

    @property
    def _limit(self) -> float:
        # Seconds that a call may wait for the transaction; aiokafka waits without limit. A commit
        # needs the outcome of every record, so the limit is not below the delivery timeout.
        return max(self._config.delivery_timeout, self._config.max_block)


class TransactionContext:
    """The context manager behind `async with producer.transaction()`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._block = AsyncExitStack()

    async def __aenter__(self) -> Self:
        producer = self._producer
        with producer._translation:  # noqa: SLF001 - a part of the producer
            block = producer._native.transaction(producer._limit)  # noqa: SLF001
            await self._block.enter_async_context(block)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._producer._translation:  # noqa: SLF001
            await self._block.__aexit__(exc_type, exc_value, traceback)


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(
        f"AIOKafkaProducer: the argument `{name}` is deprecated: {instead}",
        DeprecationWarning,
        stacklevel=4,  # the line that calls the constructor, which has a wrapper around it
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # trio
        return None


def _where_made(loop: asyncio.AbstractEventLoop | None) -> traceback.StackSummary | None:
    loop = loop or _running_loop()
    if loop is None or not loop.get_debug():
        return None
    return traceback.extract_stack(sys._getframe(3))  # noqa: SLF001 - as asyncio does itself


def _nowhere(topic: str, partition: int) -> RecordMetadata:
    """Return the metadata for an empty batch: no offset and no timestamp."""
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), -1, None, 0, None)
