"""The data source `aioidem` for Spark's Python API; `writing.py` does the work.

    aioidem.spark.register(spark)
    writer = df.write.format("aioidem").mode("append")
    writer.option("kafka.bootstrap.servers", ...).option("topic", ...).save()
    df.writeStream.format("aioidem")...start()

Invariants:

- Options and columns are checked on the driver, when the write is planned.
- A write is atomic at most per task, because Spark commits after each task has committed its own
  transaction. If a write fails for good, `abort` logs how many tasks had written.
- For exactly-once, a task's identity is made of Spark's local properties. Their names are internal
  to Spark, so a missing property is an error. A plan is refused if a repeated task may get other
  rows.
- Only plain data goes to the executors, and no repr contains a password.

Batch writes and streams get Arrow's record batches, which go to the producer without an object for
each row. Spark 4.0 has no class for a stream writer that gets them (4.1 has one), but passes them
to any writer that is a `DataSourceArrowWriter` too, in every version.

Rejected: a data source that can also read, because Spark has one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from aioidem._spark.marker import TaskIdentity
from aioidem._spark.options import EXACTLY_ONCE, SinkOptions, check_columns
from aioidem._spark.python_worker import make_next_task_cheap
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import Effort, Written, check_identity, write_rows
from aioidem.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "AioidemArrowWriter",
    "AioidemDataSource",
    "AioidemStreamWriter",
    "TaskDone",
    "UnsafePlanError",
]

# Local properties of a Spark task. The first two names are internal to Spark, the others are those
# of public settings.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_SPECULATION: Final = "spark.speculation"

_LOOP: Final = TaskLoop()
"""The event loop of this Python worker."""

logger = logging.getLogger("aioidem.spark")
report = logging.getLogger("aioidem.spark.report")
"""The logger of what each write has done; nobody sees it if Spark does not collect logs."""


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """A finished task's report to the driver; see `Written`."""

    rows: int
    skipped: bool = False
    effort: Effort = field(default_factory=Effort)


class UnsafePlanError(KafkaError):
    """Exactly-once is not possible with this Spark or this query; the message says why."""


class AioidemDataSource(DataSource):
    """The data source `format("aioidem")`, which writes to Kafka with aioidem's producer."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "aioidem"

    def writer(self, schema: StructType, overwrite: bool) -> AioidemArrowWriter:
        """Make the writer for `df.write`.

        Raises:
            ConfigError: an option or a column is missing, unknown or illegal.
            IdentityUsedError: the identity was used before.
        """
        if overwrite:
            raise ConfigError('mode("overwrite"): a topic is appended to: mode("append")')
        options = self._checked(schema, streaming=False)
        if options.mode == EXACTLY_ONCE:
            check_identity(options, _LOOP)
        return AioidemArrowWriter(options)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - mode "complete" appends the whole result each time
    ) -> AioidemStreamWriter:
        """Make the writer for `df.writeStream`.

        Raises:
            ConfigError: an option or a column is missing, unknown or illegal.
        """
        return AioidemStreamWriter(self._checked(schema, streaming=True))

    def _checked(self, schema: StructType, *, streaming: bool) -> SinkOptions:
        make_next_task_cheap()  # Spark plans in Python workers too, and keeps them
        options = SinkOptions.read(dict(self.options), streaming=streaming)
        check_columns({field.name: field.dataType.simpleString() for field in schema}, options)
        return options


class AioidemArrowWriter(DataSourceArrowWriter):
    """Writes the rows of a batch DataFrame to Kafka."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write this task's rows; called in the task."""
        task = None
        if self._options.mode == EXACTLY_ONCE:
            context = _task_context(self._options)
            query = self._options.identity or ""
            task = TaskIdentity(query, 0, context.partitionId(), self._run)
        return _done(write_rows(self._options, iterator, task, _LOOP))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the tasks have written: each task has committed its own rows."""
        _tell_commit("a write", messages)
        make_next_task_cheap()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many tasks had written rows, which stay in the topic; called on the driver."""
        _tell_abort("a write", messages)


class AioidemStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes a streaming DataFrame; the second base class makes Spark pass record batches."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write this task's rows; called in the task."""
        task = None
        if self._options.mode == EXACTLY_ONCE:
            context = _task_context(self._options)
            query, batch = _property(context, _QUERY_ID), _property(context, _BATCH_ID)
            task = TaskIdentity(query, int(batch), context.partitionId())
        return _done(write_rows(self._options, iterator, task, _LOOP))

    def commit(  # type: ignore[override]
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Log what the tasks have written: each task has committed its own rows."""
        _tell_commit(f"batch {batchId}", messages)

    def abort(  # type: ignore[override]
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Log how many tasks had written rows, which stay in the topic; called on the driver."""
        _tell_abort(f"batch {batchId}", messages)


def _done(written: Written) -> TaskDone:
    make_next_task_cheap()
    return TaskDone(written.rows, written.skipped, written.effort)


def _task_context(options: SinkOptions) -> TaskContext:
    """Return the task's context, after checking that each attempt at the task gets the same rows.

    Raises:
        UnsafePlanError: attempts at the task may get different rows, or run at the same time.
    """
    context = TaskContext.get()
    if context is None:
        raise UnsafePlanError("this code does not run in a Spark task, which exactly-once needs")
    if not options.speculation and context.getLocalProperty(_SPECULATION) == "true":
        raise UnsafePlanError(
            f"{_SPECULATION} is on: of two attempts at once each fences the other; turn it off,"
            " or pass speculation=allow"
        )
    # Adaptive execution is on unless the property says "false": if the user sets nothing, the
    # property is absent. For streams, Spark before 4.2 switches adaptive execution off itself.
    if not options.adaptive and context.getLocalProperty(_ADAPTIVE) != "false":
        raise UnsafePlanError(
            f"{_ADAPTIVE} is on: a repeated batch may be cut into other tasks, and rows that move"
            " from one to another are lost or written twice; turn it off, or pass adaptive=allow"
        )
    return context


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise UnsafePlanError(
            f"this Spark does not tell its tasks {name}, without which exactly-once is not possible"
        )
    return value


def _tell_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log one line about a finished write, for Spark's table of the logs of Python workers."""
    if report.level == logging.NOTSET:
        report.setLevel(logging.INFO)  # Spark leaves the root logger at WARNING
    done = [message for message in messages if isinstance(message, TaskDone)]
    efforts = [message.effort for message in done]
    report.info(
        "%s: %d rows acknowledged by %d tasks, %d of them skipped because they were written before;"
        " %d bytes in %d batches, %d of them sent again; the slowest task took %.3f s",
        what,
        sum(message.rows for message in done),
        len(done),
        sum(message.skipped for message in done),
        sum(each.bytes for each in efforts),
        sum(each.batches for each in efforts),
        sum(each.retried for each in efforts),
        max((each.seconds for each in efforts), default=0.0),
    )


def _tell_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, TaskDone)]
    logger.warning(
        "%s failed: %d of %d tasks had written %d rows, which stay in the topic",
        what,
        len(done),
        len(messages),
        sum(message.rows for message in done),
    )
