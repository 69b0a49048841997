"""What one task of the sink does: a producer, its rows, and an end that is certain.

`TaskWriter` has the steps of a task:

1. `open`: start the producer, as soon as there is a row or it is certain that there is none.
   Exactly-once: that fences every other attempt at these rows, and ends the transaction it may have
   left.
2. `begin`: True if the rows are to be written, False if an earlier attempt has done so. Exactly
   once: the marker says so, and only now, with the twin fenced in 1, is it true and stays true.
3. `write`: a few rows at a time, each queued; raises as soon as one of them has failed.
4. `finish`: every row is acknowledged, or it raises. Exactly-once: marker and rows are committed in
   one transaction.

Invariants:

* A task succeeds only if every row of it was acknowledged. NOT_WRITTEN and UNKNOWN fail it, with
  their numbers and the first reason; Spark then tries it again. At-least-once: what was written is
  written twice. Exactly-once: it was aborted, or the marker is there and the rows are skipped.
* Exactly-once is atomic per task. A batch that fails for good leaves the tasks that finished.
* Rows of one partition are written in the order the task has them.
* An attempt whose rows cannot be computed fences nobody: Spark fails it and starts its successor
  without waiting for its Python, which may still be connecting. One that fails after its first rows
  while it is still opening can fence its successor yet; that costs one of `spark.task.maxFailures`.
* Memory is the producer's buffer: `write` waits for room. No outcome is kept but counts.
* Spark's iterator is read by the thread Spark called; the producer's loop runs in another one, so
  that answers are read and deadlines kept while Spark works on the next rows.

Rejected: the loop in Spark's thread (an upstream that computes for two minutes would let every
record in flight end UNKNOWN), and a future per row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel
from anyio.from_thread import start_blocking_portal

from aioidem._admin.committed import committed_offsets
from aioidem._config import ProducerConfig
from aioidem._producer.delivery import Delivery
from aioidem._producer.native import Producer
from aioidem._spark.marker import (
    PREFIX,
    Answer,
    IdentityUsedError,
    Marker,
    RowsChangedError,
    RowSum,
    TaskIdentity,
    decide,
)
from aioidem._spark.options import SinkOptions
from aioidem.errors import (
    BufferFullError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aioidem.structs import DeliveryStatus, OffsetAndMetadata, TopicPartition

__all__ = [
    "ExactlyOnceWriter",
    "SinkRow",
    "SinkTaskError",
    "TaskWriter",
    "Written",
    "check_identity",
    "chunked",
    "read_marker",
    "write_rows",
]

_ROWS_PER_TURN: Final = 256
_MARGIN: Final = 10.0
_ABORT_SECONDS: Final = 10.0
_ASK_SECONDS: Final = 60.0
_NEAR: Final = 0.9
"""Of the transaction's timeout: a task that has not begun to commit by then would not be done."""
_ACLS: Final[Mapping[type[KafkaError], str]] = {
    TransactionalIdAuthorizationFailed: "WRITE on transactional ids with the prefix {prefix}.",
    GroupAuthorizationFailedError: "READ on groups with the prefix {prefix}.",
    TopicAuthorizationFailedError: "WRITE on the topics of the rows, and READ on {marker}",
}
"""What the mode exactly-once needs of the cluster's rules."""


class SinkTaskError(KafkaError):
    """Rows of this task were not acknowledged; the message counts them and names the first reason.

    `status` is UNKNOWN if any row may have been written, else NOT_WRITTEN.
    """


class SinkRow(NamedTuple):
    """One row, as the producer takes it; `timestamp` in seconds since the epoch, None for now."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    timestamp: float | None


@dataclass(frozen=True, slots=True)
class Written:
    """What a task did; `skipped` if an earlier attempt had."""

    rows: int
    skipped: bool = False


class TaskWriter:
    """A task's producer, and what became of its rows."""

    def __init__(self, options: SinkOptions, transactional_id: str | None = None) -> None:
        self._producer = Producer(config=options.config(transactional_id))
        self._rows = 0
        self._open = 0
        self._failed: dict[DeliveryStatus, int] = {}
        self._first: KafkaError | None = None

    async def open(self) -> None:
        """Connect. Raises what `Producer.start` does."""
        await self._producer.start()

    async def begin(self) -> bool:
        """Whether the rows are to be written."""
        await anyio.lowlevel.checkpoint()
        return True

    def look_at(self, rows: Sequence[SinkRow]) -> None:
        """See rows in Spark's thread, before they are written or skipped."""

    async def write(self, rows: Sequence[SinkRow]) -> None:
        """Queue rows.

        Raises:
            SinkTaskError: a row failed; it need not be of these.
            KafkaError: a row cannot be sent as it is.
        """
        for number, row in enumerate(rows):
            if number % _ROWS_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()
                self._raise_failure()
            await self._queue(row)

    async def _queue(self, row: SinkRow) -> None:
        while True:
            try:
                delivery = self._producer.send_nowait(
                    row.topic,
                    row.value,
                    key=row.key,
                    headers=row.headers,
                    partition=row.partition,
                    timestamp=row.timestamp,
                )
            except BufferFullError:
                await self._producer.wait_for_room(len(row.value or b"") + len(row.key or b""))
                self._raise_failure()
                continue
            self._rows += 1
            self._open += 1
            delivery.add_done_callback(self._ended)
            return

    def _ended(self, delivery: Delivery) -> None:
        self._open -= 1
        if delivery.status is DeliveryStatus.ACKED:
            return
        self._failed[delivery.status] = self._failed.get(delivery.status, 0) + 1
        if self._first is None:
            self._first = delivery.exception()

    def _raise_failure(self) -> None:
        if not self._failed:
            return
        unknown = self._failed.get(DeliveryStatus.UNKNOWN, 0)
        not_written = self._failed.get(DeliveryStatus.NOT_WRITTEN, 0)
        raise SinkTaskError(
            f"of {self._rows} rows {not_written} were not written and {unknown} are unknown, "
            f"{self._open} were still open; the first: {self._first}",
            status=DeliveryStatus.UNKNOWN if unknown else DeliveryStatus.NOT_WRITTEN,
        ) from self._first

    async def finish(self) -> Written:
        """Wait until every row is acknowledged.

        Raises:
            SinkTaskError: one is not.
        """
        config = self._producer.config
        # Past every record's deadline and its grace: it ends because the records do.
        await self._producer.flush(config.delivery_timeout + config.request_timeout + _MARGIN)
        self._raise_failure()
        return Written(self._rows)

    async def close(self, *, failed: bool) -> None:
        """End the producer: at once if the task has failed."""
        await self._producer.close(0 if failed else None)


class ExactlyOnceWriter(TaskWriter):
    """A task whose rows and marker are one transaction.

    Args:
        options: in the mode exactly-once.
        task: which rows these are.
    """

    def __init__(self, options: SinkOptions, task: TaskIdentity) -> None:
        super().__init__(options, task.name)
        self._options = options
        self._task = task
        self._place = TopicPartition(options.marker_topic, 0)
        self._sum = RowSum()
        self._done: Marker | None = None
        self._began = time.monotonic()

    async def begin(self) -> bool:
        """Read the marker, decide.

        Raises:
            MarkerError: it is not safe to write, see `decide`.
        """
        own = await self._marker(self._task)
        first = own
        # Of a stream's first batch there can be no marker; nor of a batch write the driver saw to.
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
        return await read_marker(config, task, self._place, config.transaction_timeout)

    def look_at(self, rows: Sequence[SinkRow]) -> None:
        """Sum them up."""
        self._sum.add(rows)

    async def write(self, rows: Sequence[SinkRow]) -> None:
        """Queue rows of the transaction. Raises as in the other mode."""
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
        """Commit rows and marker; or, skipped, check that they are the same rows.

        Raises:
            RowsChangedError: other rows were written for this batch.
            SinkTaskError, KafkaError: nothing is committed; or, with `status` UNKNOWN, it may be,
            and the next attempt will see.
        """
        if self._done is not None:
            if not self._done.holds(self._sum):
                raise RowsChangedError(
                    f"{self._task.name}: batch {self._task.batch} was written with"
                    f" {self._done.rows} rows, and now has {self._sum.rows} or others: the source"
                    " or the plan is not deterministic"
                )
            return Written(self._sum.rows, skipped=True)
        await super().finish()
        self._check_time()
        marker = Marker(self._task.batch + 1, self._sum.rows, self._sum.digest, run=self._task.run)
        offset = OffsetAndMetadata(marker.batch, marker.metadata)
        await self._producer.send_offsets_to_transaction({self._place: offset}, self._task.name)
        await self._producer.commit_transaction()
        return Written(self._sum.rows)

    async def close(self, *, failed: bool) -> None:
        """End the producer; an open transaction is aborted, now or when the next attempt starts."""
        await self._producer.close(_ABORT_SECONDS if failed else None)


async def read_marker(
    config: ProducerConfig, task: TaskIdentity, place: TopicPartition, timeout: float
) -> Marker | None:
    """A task's marker; None if there is none.

    Raises:
        MarkerError: the group's offset is not a marker. KafkaError: see `committed_offsets`.
    """
    committed = (await committed_offsets(config, task.name, [place], timeout)).get(place)
    return None if committed is None else Marker.read(*committed)


def check_identity(options: SinkOptions) -> None:
    """Refuse a batch write's identity that was used; blocks.

    It looks at task 0, which every write has. Each task looks at its own again. Where only the
    executors have the credentials, nobody looks here, and each task at task 0's, too.

    Raises:
        IdentityUsedError: there is a marker. KafkaError: see `committed_offsets`.
    """
    if options.by_tasks:
        return
    task = TaskIdentity(options.identity or "", 0, 0)
    config = options.config(task.name)
    place = TopicPartition(options.marker_topic, 0)
    if anyio.run(read_marker, config, task, place, _ASK_SECONDS) is not None:
        raise IdentityUsedError(f"identity {options.identity}: there was a write under it")


def write_rows(
    options: SinkOptions,
    chunks: Iterable[Sequence[SinkRow]],
    task: TaskIdentity | None = None,
) -> Written:
    """Do all that a task does; blocks.

    Args:
        options: the sink's.
        chunks: the rows, as they come.
        task: which they are; None where the mode is at-least-once.

    Raises:
        SinkTaskError: not every row was acknowledged.
        MarkerError: it is not safe to write.
        ConfigError: a credential that an option names is not there.
        KafkaError: the cluster cannot be reached, or a row cannot be sent as it is. Where it does
            not allow what the mode needs, a note says which ACL is missing.
    """
    try:
        return _written(options.looked_up(), chunks, task)
    except KafkaError as error:
        if task is not None:
            _note_acl(error, options)
        raise


def _note_acl(error: KafkaError, options: SinkOptions) -> None:
    """Say what to allow, if that is why it failed."""
    cause: BaseException | None = error
    while cause is not None:
        for kind, needed in _ACLS.items():
            if isinstance(cause, kind):
                told = needed.format(prefix=PREFIX, marker=options.marker_topic)
                error.add_note(f"mode exactly-once needs these ACLs: {told}")
                return
        cause = cause.__cause__


def _written(
    options: SinkOptions, chunks: Iterable[Sequence[SinkRow]], task: TaskIdentity | None
) -> Written:
    chunks = _begun(chunks)
    with start_blocking_portal("asyncio") as portal:
        # Made in the loop, and closed there whatever happens.
        writer = portal.call(_writer, options, task)
        failed = True
        try:
            portal.call(writer.open)
            write = portal.call(writer.begin)
            for chunk in chunks:
                writer.look_at(chunk)
                if write:
                    portal.call(writer.write, chunk)
            written = portal.call(writer.finish)
            failed = False
        finally:
            portal.call(_close, writer, failed)
    return written


def _begun(chunks: Iterable[Sequence[SinkRow]]) -> Iterable[Sequence[SinkRow]]:
    """The same chunks, once the first of them is there. Raises what computing it did."""
    rest = iter(chunks)
    return chain(list(islice(rest, 1)), rest)


async def _writer(options: SinkOptions, task: TaskIdentity | None) -> TaskWriter:
    await anyio.lowlevel.checkpoint()
    return TaskWriter(options) if task is None else ExactlyOnceWriter(options, task)


async def _close(writer: TaskWriter, failed: bool) -> None:
    with anyio.CancelScope(shield=True):
        await writer.close(failed=failed)


def chunked(rows: Iterable[SinkRow], size: int = 1000) -> Iterator[list[SinkRow]]:
    """Rows, so many at a time: each chunk costs a change of threads."""
    chunk: list[SinkRow] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
