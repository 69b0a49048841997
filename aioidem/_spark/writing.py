"""Run one Spark task of the sink: start a producer, write the task's rows, and report the result.

`TaskWriter` has the steps of a task:

1. `open` starts the producer, or takes that of an earlier task, once the first rows are computed or
   there turn out to be no rows. For exactly-once this takes the task's transactional id, which
   fences all other attempts at these rows, and ends a transaction that one of them left open.
2. `begin` returns True if the rows must be written, False if an earlier attempt has written them.
   For exactly-once it reads the marker, a committed offset that says which rows are written
   (`marker.py`). The marker is final, because step 1 has fenced the earlier attempts.
3. `write` queues the rows of a record batch, and raises as soon as one row has failed.
4. `finish` returns when every row is acknowledged, or raises. For exactly-once it commits marker
   and rows in one transaction.

Invariants:

- A task succeeds only if all of its rows were acknowledged. If a row is NOT_WRITTEN or UNKNOWN, the
  task fails with the counts and the first reason, and Spark repeats it. With at-least-once, rows
  that were written are then written again. With exactly-once they were aborted, or the marker
  exists and the repeated task skips them.
- Exactly-once is atomic per task. When a batch fails for good, the rows of finished tasks remain.
- Rows for one partition are written in the order in which the task has them.
- A topic with options of its own has a producer of its own; topics with the same options share one
  (`TopicsWriter`).
- An attempt that fails to compute its first rows does not fence the next attempt, because it has
  not started its producer yet. (Spark starts the next attempt without waiting for the failed one's
  Python worker. So a producer of the failed attempt that is still starting would fence the next
  attempt.) If the computation fails after the first rows, the next attempt can still be fenced,
  which costs one of `spark.task.maxFailures`.
- Memory is bounded by the producer's buffer and one record batch of Spark's, because `write` waits
  for room. A piece's outcomes are forgotten once all of its rows are acknowledged.
- Spark's thread reads its iterator, and the producer's event loop runs in another thread. So
  answers are read and deadlines are kept while Spark computes the next rows.

Rejected: running the event loop in Spark's thread (while an upstream step computes for two minutes,
every record in flight would end UNKNOWN); a future per row; `send_table` itself (it waits for the
outcomes, and nothing would be in flight while Spark makes the next record batch).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from aioidem._admin.asking import Ask, ask
from aioidem._admin.committed import committed_offsets
from aioidem._config import ProducerConfig
from aioidem._engine.record_block import Columns
from aioidem._producer.deliveries import BulkDeliveries
from aioidem._producer.native import Producer, internals
from aioidem._spark.columns import Part, RowSum, parts
from aioidem._spark.marker import (
    PREFIX,
    Answer,
    IdentityUsedError,
    Marker,
    RowsChangedError,
    TaskIdentity,
    decide,
)
from aioidem._spark.options import SinkOptions
from aioidem._spark.task_loop import ProducerKind, TaskLoop
from aioidem.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aioidem.structs import DeliveryStatus, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from aioidem._protocol.metadata import BrokerAddress

__all__ = [
    "Effort",
    "ExactlyOnceWriter",
    "Kept",
    "SinkTaskError",
    "TaskWriter",
    "TopicsWriter",
    "Written",
    "check_identity",
    "read_marker",
    "write_rows",
]

_MARGIN: Final = 10.0
_ABORT_SECONDS: Final = 10.0
_ASK_SECONDS: Final = 60.0
_NEAR: Final = 0.9
"""The share of the transaction's timeout after which a task fails if it has not begun to commit."""
_ACLS: Final[Mapping[type[KafkaError], str]] = {
    TransactionalIdAuthorizationFailed: "WRITE on transactional ids with the prefix {prefix}.",
    GroupAuthorizationFailedError: "READ on groups with the prefix {prefix}.",
    TopicAuthorizationFailedError: "WRITE on the topics of the rows, and READ on {marker}",
}
"""The ACLs that the mode exactly-once needs, by the error of a client that lacks them."""


Kept = tuple[ProducerKind, Producer]
"""A producer that a later task can use if it wants one of this kind."""


class SinkTaskError(KafkaError):
    """Some rows of a task were not acknowledged; the message has the counts and the first reason.

    `status` is UNKNOWN if any of the rows may have been written, else NOT_WRITTEN.
    """


@dataclass(frozen=True, slots=True)
class Effort:
    """What it took to write a task's rows.

    Attributes:
        seconds: from the first rows until the last one was acknowledged.
        bytes: the bytes of the acknowledged record batches.
        batches: how many record batches were sent.
        retried: how many of them were sent more than once.
    """

    seconds: float = 0.0
    bytes: int = 0
    batches: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task.

    Attributes:
        rows: how many rows the task has, which are all acknowledged.
        skipped: whether an earlier attempt had written the rows.
        effort: what writing them took.
    """

    rows: int
    skipped: bool = False
    effort: Effort = field(default_factory=Effort, compare=False)


class TaskWriter:
    """A task's producer, and the outcomes of its rows.

    Args:
        options: the options of the sink.
        transactional_id: that of the producer, for exactly-once.
        kept: the producer of an earlier task, which has no records any more; it is used again.
    """

    def __init__(
        self,
        options: SinkOptions,
        transactional_id: str | None = None,
        kept: Producer | None = None,
    ) -> None:
        self._started = kept is not None
        self._kind = ProducerKind(options.properties, transactional_id is not None)
        self._topic = options.topic
        self._acked = 0
        """How many rows were acknowledged of those that are not in `_open` any more."""
        self._opened = time.monotonic()
        self._open: list[BulkDeliveries] = []
        self._use(kept or Producer(config=options.config(transactional_id)))

    def _use(self, producer: Producer) -> None:
        parts = internals(producer)
        self._producer, self._intake, self._counters = producer, parts.intake, parts.counters
        self._before = self._counted()

    async def open(self) -> None:
        """Start the producer, unless it runs; raise what `Producer.start` raises."""
        if not self._started:
            if self._topic is not None:
                internals(self._producer).topics.expect(self._topic)
            await self._producer.start()

    async def begin(self) -> bool:
        """Return True (write the rows): with at-least-once every attempt writes all rows."""
        await anyio.lowlevel.checkpoint()
        return True

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Do nothing; a subclass may inspect the rows here before they are written or skipped.

        This runs in Spark's thread, not in the event loop.
        """

    async def write(self, rows: pa.RecordBatch) -> None:
        """Queue rows; this waits for room, but not for outcomes.

        Raises:
            SinkTaskError: one of these or of the earlier rows has failed.
            KafkaError: a row cannot be sent as it is.
            TypeError: a header has no name.
        """
        self.settle()
        for part in parts(rows, self._topic):
            await self.write_part(part)

    async def write_part(self, part: Part) -> None:
        """Queue rows for one topic; see `write`."""
        names = part.rows.schema.names
        pieces = self._intake.table_pieces(
            part.topic,
            part.rows,
            "value",
            "key" if "key" in names else None,
            "headers" if "headers" in names else (),
            part.partition,
            "timestamp" if "timestamp" in names else None,
        )
        await self._queue(part.topic, pieces, part.partition)

    async def _queue(self, topic: str, pieces: Iterable[Columns], partition: int | None) -> None:
        for piece in pieces:
            await anyio.lowlevel.checkpoint()
            deliveries = BulkDeliveries(self._intake.context)
            deliveries.watched = True  # the task's error tells of failures: they are not logged
            self._open.append(deliveries)
            await self._intake.queue_piece(topic, piece, partition, deliveries)
            self.settle()

    def settle(self) -> int:
        """Forget the pieces of which all rows are acknowledged; return how many rows are in all.

        Raises:
            SinkTaskError: a row has failed.
        """
        counts = [each.counts for each in self._open]
        if any(each.acked < each.total for each in counts):
            self._raise_failure()
        open_ = [(each, n.acked) for each, n in zip(self._open, counts, strict=True)]
        self._acked += sum(acked for each, acked in open_ if acked == len(each))
        self._open = [each for each, acked in open_ if acked < len(each)]
        return self._acked + sum(acked for each, acked in open_ if acked < len(each))

    def _raise_failure(self) -> None:
        unknown = sum(each.counts.unknown for each in self._open)
        not_written = sum(each.counts.not_written for each in self._open)
        pending = sum(each.count(DeliveryStatus.PENDING) for each in self._open)
        first = next(error for each in self._open for _, error in each.failures())
        raise SinkTaskError(
            f"of {self._acked + sum(map(len, self._open))} rows {not_written} were not written"
            f" and {unknown} are unknown, {pending} were still open; the first: {first}",
            status=DeliveryStatus.UNKNOWN if unknown else DeliveryStatus.NOT_WRITTEN,
        ) from first

    async def finish(self) -> Written:
        """Wait until every row is acknowledged.

        Raises:
            SinkTaskError: a row was not acknowledged.
        """
        config = self._producer.config
        # Every record has an outcome before this timeout, so flush does not time out.
        await self._producer.flush(config.delivery_timeout + config.request_timeout + _MARGIN)
        return Written(self.settle(), effort=self._effort())

    def _counted(self) -> tuple[int, int, int]:
        counters = self._counters
        return counters.bytes_acked, counters.batches_sent, counters.batches_retried

    def _effort(self) -> Effort:
        """Return what the task took until now; a producer that was kept has counted before."""
        counted = zip(self._counted(), self._before, strict=True)
        return Effort(time.monotonic() - self._opened, *(now - before for now, before in counted))

    async def close(self, *, failed: bool) -> list[Kept]:
        """Close the producer at once if the task has failed; else return it for another task."""
        if not failed:
            return [(self._kind, self._producer)]
        await self._producer.close(0)
        return []


class TopicsWriter:
    """Writes the rows of topics that have options of their own, with a producer for each set.

    A producer starts with the first row that needs it.

    Args:
        options: the options of the sink, in the mode at-least-once.
        loop: keeps the producers between tasks.
    """

    def __init__(self, options: SinkOptions, loop: TaskLoop) -> None:
        self._options = options
        self._loop = loop
        self._opened = time.monotonic()
        self._writers: list[tuple[Mapping[str, str], TaskWriter]] = []

    async def open(self) -> None:
        """Do nothing: each producer starts when there are rows for it."""
        await anyio.lowlevel.checkpoint()

    async def begin(self) -> bool:
        """Return True (write the rows): with at-least-once every attempt writes all rows."""
        await anyio.lowlevel.checkpoint()
        return True

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Do nothing; see `TaskWriter.look_at`."""

    async def write(self, rows: pa.RecordBatch) -> None:
        """Queue rows, each topic's with its own producer; see `TaskWriter.write`."""
        for _, each in self._writers:
            each.settle()
        for part in parts(rows, self._options.topic):
            writer = await self._of_topic(part.topic)
            await writer.write_part(part)

    async def _of_topic(self, topic: str) -> TaskWriter:
        options = self._options.of_topic(topic)
        for properties, writer in self._writers:
            if properties == options.properties:
                return writer
        made = TaskWriter(options, kept=await self._loop.take(ProducerKind(options.properties)))
        self._writers.append((options.properties, made))
        await made.open()
        return made

    async def finish(self) -> Written:
        """Wait until every row is acknowledged; see `TaskWriter.finish`."""
        done = [await writer.finish() for _, writer in self._writers]
        efforts = [each.effort for each in done]
        effort = Effort(
            time.monotonic() - self._opened,
            sum(each.bytes for each in efforts),
            sum(each.batches for each in efforts),
            sum(each.retried for each in efforts),
        )
        return Written(sum(each.rows for each in done), effort=effort)

    async def close(self, *, failed: bool) -> list[Kept]:
        """Close all producers at once if the task has failed; else return them for another task."""
        closed = [await writer.close(failed=failed) for _, writer in self._writers]
        return list(chain.from_iterable(closed))


class ExactlyOnceWriter(TaskWriter):
    """Writes a task's rows and the task's marker in one transaction.

    The marker is a committed offset that says which rows the task has written (`marker.py`).

    Args:
        options: the options of the sink, in the mode exactly-once.
        task: the identity of the rows.
        asking: sends the requests for the marker; by default each on a connection of its own.
        kept: the producer of an earlier task, whose transaction is over; it is used again.
    """

    def __init__(
        self,
        options: SinkOptions,
        task: TaskIdentity,
        asking: Ask = ask,
        kept: Producer | None = None,
    ) -> None:
        super().__init__(options, task.name, kept)
        self._asking = asking
        self._options = options
        self._task = task
        self._place = TopicPartition(options.marker_topic, 0)
        self._sum = RowSum()
        self._done: Marker | None = None
        self._began = time.monotonic()

    async def open(self) -> None:
        """Take the task's transactional id, with the kept producer, or else with a new one.

        If the kept one does not get the id, a new producer finds out why, as in a new process.

        Raises:
            KafkaError: as `Producer.start`.
        """
        if self._started:
            took = internals(self._producer).change_id
            try:
                await took(self._task.name, self._producer.config.request_timeout)
            except KafkaError:
                await self._producer.close(0)
                self._started = False
                self._use(Producer(config=self._options.config(self._task.name)))
        await super().open()

    async def begin(self) -> bool:
        """Read the marker and return whether the rows must be written.

        Raises:
            MarkerError: writing could lose or repeat rows, see `decide`.
        """
        own = await self._marker(self._task)
        first = own
        # Task 0's marker is read only if there can be one: not in a stream's first batch, nor in a
        # batch write for which the driver has found none (`check_identity`).
        asked = self._task.batch > 0 or self._options.by_tasks
        if own is None and asked and self._task.task > 0:
            first = await self._marker(self._task.first())
        answer = decide(
            self._task,
            own,
            first,
            now=time.time(),
            retention=self._options.retention,
            missing_ok=self._options.missing_ok,
        )
        if answer is Answer.SKIP:
            self._done = own
            return False
        await self._producer.begin_transaction()
        self._began = time.monotonic()
        return True

    async def _marker(self, task: TaskIdentity) -> Marker | None:
        config = self._producer.config
        timeout = config.transaction_timeout
        # The marker will be sent to the same coordinator.
        found = partial(internals(self._producer).learn_coordinator, task.name)
        return await read_marker(config, task, self._place, timeout, self._asking, found)

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Add the rows to the digest that the task's marker contains."""
        self._sum.add(rows, self._topic)

    async def write(self, rows: pa.RecordBatch) -> None:
        """Queue rows in the transaction.

        Raises:
            SinkTaskError: a row has failed, or the transaction would time out before the commit.
            KafkaError: a row cannot be sent as it is.
        """
        self._check_time()
        await super().write(rows)

    def _check_time(self) -> None:
        timeout = self._producer.config.transaction_timeout
        if time.monotonic() - self._began > _NEAR * timeout:
            raise SinkTaskError(
                f"{self._sum.rows} rows have taken almost the {timeout:g} s of a transaction:"
                " raise kafka.transaction.timeout.ms (and the cluster's"
                " transaction.max.timeout.ms), or repartition the rows into more tasks",
                status=DeliveryStatus.NOT_WRITTEN,
            )

    async def finish(self) -> Written:
        """Commit rows and marker, unless an earlier attempt at the task has committed the batch.

        If one has, this attempt only checks that it has the same rows: that the marker of the
        earlier attempt has the digest of these rows.

        Raises:
            RowsChangedError: an earlier attempt has committed other rows for this batch.
            SinkTaskError: a row was not acknowledged; nothing is committed.
            KafkaError: the commit failed. With `status` UNKNOWN the transaction may be committed;
                the next attempt finds out by reading the marker.
        """
        if self._done is not None:
            if not self._done.holds(self._sum):
                raise RowsChangedError(
                    f"{self._task.name}: batch {self._task.batch} was written with"
                    f" {self._done.rows} rows, and now has {self._sum.rows} or others: the source"
                    " or the plan is not deterministic"
                )
            return Written(self._sum.rows, skipped=True)
        await self._send_marker()
        await super().finish()
        self._check_time()
        await self._producer.commit_transaction()
        return Written(self._sum.rows, effort=self._effort())

    async def _send_marker(self) -> None:
        """Add the marker to the transaction, while the last rows are still being written."""
        marker = Marker(self._task.batch + 1, self._sum.rows, self._sum.digest, run=self._task.run)
        offset = OffsetAndMetadata(marker.batch, marker.metadata)
        try:
            await self._producer.send_offsets_to_transaction({self._place: offset}, self._task.name)
        except KafkaError:
            self.settle()  # if it is a row that has failed, its error says more
            raise

    async def close(self, *, failed: bool) -> list[Kept]:
        """Close the producer if the task has failed; else return it for another task.

        An open transaction is aborted, now or by the next attempt.
        """
        if not failed and internals(self._producer).may_change_id():
            return [(self._kind, self._producer)]
        await self._producer.close(_ABORT_SECONDS if failed else None)
        return []


async def read_marker(
    config: ProducerConfig,
    task: TaskIdentity,
    place: TopicPartition,
    timeout: float,
    asking: Ask = ask,
    found: Callable[[BrokerAddress], None] | None = None,
) -> Marker | None:
    """Return a task's marker (the offset that says which rows it wrote); None without a marker.

    `found` is called with the broker that has the marker.

    Raises:
        MarkerError: the group's offset is not a marker.
        KafkaError: the offset cannot be read, see `committed_offsets`.
    """
    offsets = await committed_offsets(config, task.name, [place], timeout, asking, found)
    committed = offsets.get(place)
    return None if committed is None else Marker.read(*committed)


def check_identity(options: SinkOptions, loop: TaskLoop | None = None) -> None:
    """Refuse the identity of a batch write if it was used before; this blocks.

    The marker of task 0 is checked here, because every write has a task 0; each task later checks
    its own marker. If only the executors have the credentials, nothing is checked here, and each
    task checks the marker of task 0 too.

    Args:
        options: the options of the sink.
        loop: the event loop that the Python worker keeps; None starts and stops one.

    Raises:
        IdentityUsedError: there is a marker.
        KafkaError: the marker cannot be read, see `committed_offsets`.
    """
    if options.by_tasks:
        return
    task = TaskIdentity(options.identity or "", 0, 0)
    config = options.config(task.name)
    place = TopicPartition(options.marker_topic, 0)
    used = loop or TaskLoop()

    async def read() -> Marker | None:
        asking = used.connections(options.properties).ask
        return await read_marker(config, task, place, _ASK_SECONDS, asking)

    try:
        marker = used.call(read)
    finally:
        if loop is None:
            used.stop()
    if marker is not None:
        raise IdentityUsedError(f"identity {options.identity}: an earlier batch write has used it")


def write_rows(
    options: SinkOptions,
    chunks: Iterable[pa.RecordBatch],
    task: TaskIdentity | None = None,
    loop: TaskLoop | None = None,
) -> Written:
    """Run all steps of a task, and return the result; this blocks.

    Args:
        options: the options of the sink.
        chunks: the rows, as Spark computes them.
        task: the identity of the rows; None for at-least-once.
        loop: the event loop that the Python worker keeps; None starts and stops one.

    Raises:
        SinkTaskError: a row was not acknowledged.
        MarkerError: writing could lose or repeat rows.
        ConfigError: a credential that an option names does not exist.
        KafkaError: the cluster cannot be reached, or a row cannot be sent as it is. If an ACL is
            missing that the mode needs, a note names it.
    """
    used = loop or TaskLoop()
    try:
        return _written(options.looked_up(), chunks, task, used)
    except KafkaError as error:
        if task is not None:
            _note_acl(error, options)
        raise
    finally:
        if loop is None:
            used.stop()


def _note_acl(error: KafkaError, options: SinkOptions) -> None:
    """Add a note that names the missing ACL, if the error is one of authorization."""
    cause: BaseException | None = error
    while cause is not None:
        for kind, needed in _ACLS.items():
            if isinstance(cause, kind):
                told = needed.format(prefix=PREFIX, marker=options.marker_topic)
                error.add_note(f"mode exactly-once needs these ACLs: {told}")
                return
        cause = cause.__cause__


def _written(
    options: SinkOptions,
    chunks: Iterable[pa.RecordBatch],
    task: TaskIdentity | None,
    loop: TaskLoop,
) -> Written:
    if not options.headers:
        chunks = map(_without_headers, chunks)
    chunks = _begun(chunks)
    # A call into the loop costs two switches of threads: so there are as few as possible.
    writer, write = loop.call(_opened, options, task, loop)
    try:
        for chunk in chunks:
            writer.look_at(chunk)
            if write:
                loop.call(writer.write, chunk)
        return loop.call(_finished, writer, loop)
    except BaseException:
        loop.call(_close, writer, loop, True)
        raise


def _without_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != "headers"])


def _begun(chunks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Compute the first chunk, and return all chunks; raise what computing the first one raises."""
    rest = iter(chunks)
    return chain(list(islice(rest, 1)), rest)


async def _writer(
    options: SinkOptions, task: TaskIdentity | None, loop: TaskLoop
) -> TaskWriter | TopicsWriter:
    kind = ProducerKind(options.properties, task is not None)
    own = [ProducerKind(options.of_topic(topic).properties) for topic in options.topics]
    await loop.keep_only([kind, *own])
    if task is not None:
        asking = loop.connections(options.properties).ask
        return ExactlyOnceWriter(options, task, asking, await loop.take(kind))
    if own:
        return TopicsWriter(options, loop)
    return TaskWriter(options, kept=await loop.take(kind))


async def _opened(
    options: SinkOptions, task: TaskIdentity | None, loop: TaskLoop
) -> tuple[TaskWriter | TopicsWriter, bool]:
    """Return a task's writer, and whether the rows must be written.

    The producer must be made, and later closed, in the event loop in which it runs.
    """
    writer = await _writer(options, task, loop)
    try:
        await writer.open()
        return writer, await writer.begin()
    except BaseException:
        await _close(writer, loop, True)
        raise


async def _finished(writer: TaskWriter | TopicsWriter, loop: TaskLoop) -> Written:
    written = await writer.finish()
    await _close(writer, loop, False)
    return written


async def _close(writer: TaskWriter | TopicsWriter, loop: TaskLoop, failed: bool) -> None:
    with anyio.CancelScope(shield=True):
        for properties, producer in await writer.close(failed=failed):
            loop.keep(properties, producer)
        if failed:
            await loop.disconnect()
