"""The data source `aioidem-topic` for Spark's Python API: reads a topic, for the audit.

The audit reads with Spark's own Kafka source where its jars can be found, and otherwise with this
one, so that it runs on every Spark. It offers what the audit needs: all records of one topic, as a
batch or as a stream, in Arrow's record batches. The columns have the names and types of Spark's
source; `headers` are there with `includeHeaders`.

Invariants:

- A task reads at most `_ROWS_PER_TASK` offsets of one partition, so that many tasks share a topic.
- A batch read ends where the topic ended when it was planned.
- The rows of many of the log's batches, which often have a hundred records, are in one of Arrow's.
- With the option `columns`, the other columns are not made; without key, value, timestamp and
  headers, records are not even decoded (except where compaction has left gaps).

Rejected: a general Kafka source (Spark has one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import anyio
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from aioidem._admin.topic_log import LogPart, TopicLog
from aioidem._config import ProducerConfig, validate_topic
from aioidem._config.secret import without_frames
from aioidem.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from aioidem._records._decode import ReadRecord
    from aioidem._records.reader import RecordBatch

__all__ = ["TopicDataSource", "topic_format"]

_KAFKA: Final = "kafka."
_ISOLATION: Final = "isolation.level"
_OWN: Final = ("subscribe", "includeheaders", "startingoffsets", "columns", "path")
_ROWS_PER_TASK: Final = 1_000_000
_ROWS_PER_BATCH: Final = 10_000
_SECONDS: Final = 60.0
_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_FIELDS: Final = ("offset", "timestamp", "key", "value", "headers")
"""The columns of which a decoded record (`ReadRecord`) has the values, in its order."""
_OF_RECORDS: Final = {"key", "value", "timestamp", "headers"}
"""The columns for which a record must be decoded."""
_ARROW: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
}


def topic_format(spark: SparkSession) -> str:
    """Return the source to read topics with in this session: Spark's own, if it has that.

    Otherwise `aioidem-topic` is registered.
    """
    try:
        found = spark.read.format("kafka").options(**{f"{_KAFKA}bootstrap.servers": "none:1"})
        found.option("subscribe", "none").load()  # plans a read, and connects to nothing
    except AnalysisException:
        spark.dataSource.register(TopicDataSource)
        return TopicDataSource.name()
    return "kafka"


class TopicDataSource(DataSource):
    """The data source `format("aioidem-topic")`, which reads a topic from its beginning."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "aioidem-topic"

    def schema(self) -> str:
        """Return the columns, as those of Spark's Kafka source."""
        named = self._columns()
        return ", ".join(f"{name} {kind}" for name, kind in _TYPES.items() if name in named)

    def reader(self, schema: StructType) -> _TopicReader:
        """Make the reader for `spark.read`.

        Raises:
            ConfigError: an option is missing, unknown or illegal.
        """
        return _TopicReader(self._log(), schema.names)

    def streamReader(self, schema: StructType) -> _TopicStream:  # noqa: N802 - Spark's name
        """Make the reader for `spark.readStream`.

        Raises:
            ConfigError: an option is missing, unknown or illegal.
        """
        return _TopicStream(self._log(), schema.names)

    def _columns(self) -> set[str]:
        options = dict(self.options)
        if "columns" in options:
            named = {name.strip() for name in options["columns"].split(",")}
            if not named <= _TYPES.keys():
                known = ", ".join(_TYPES)
                raise ConfigError(f"columns: {options['columns']!r}: not all of {known}")
            return named
        with_headers = options.get("includeheaders", "false").lower() == "true"
        return set(_TYPES) - (set() if with_headers else {"headers"})

    @without_frames
    def _log(self) -> _Source:
        options = {name.lower(): value for name, value in dict(self.options).items()}
        self._columns()
        for name in options:
            if not name.startswith(_KAFKA) and name not in _OWN:
                raise ConfigError(f"{name}: not an option of this source: {', '.join(_OWN)}")
        if options.get("startingoffsets", "earliest") != "earliest":
            raise ConfigError("startingOffsets: this source reads from the earliest offset")
        if "subscribe" not in options:
            raise ConfigError("subscribe: needed")
        validate_topic(options["subscribe"])
        kafka = {
            name.removeprefix(_KAFKA): value
            for name, value in options.items()
            if name.startswith(_KAFKA)
        }
        level = kafka.pop(_ISOLATION, "read_uncommitted")
        if level not in ("read_committed", "read_uncommitted"):
            raise ConfigError(f"{_KAFKA}{_ISOLATION}: {level!r} is no isolation level")
        if "bootstrap.servers" not in kafka:
            raise ConfigError(f"{_KAFKA}bootstrap.servers: needed")
        ProducerConfig.from_properties(kafka)
        return _Source(options["subscribe"], kafka, level == "read_committed")


class _Source:
    """A topic and how to read it; it is sent to the tasks."""

    def __init__(self, topic: str, properties: Mapping[str, str], committed: bool) -> None:
        self.topic = topic
        self._properties = properties  # may contain passwords
        self._committed = committed

    def log(self) -> TopicLog:
        config = ProducerConfig.from_properties(self._properties)
        return TopicLog(config, self.topic, committed=self._committed, timeout=_SECONDS)

    def parts(self) -> list[LogPart]:
        return anyio.run(self.log().parts)


class _Slice(InputPartition):
    """The offsets that one task reads."""

    def __init__(self, part: LogPart) -> None:
        super().__init__(tuple(part))


def _sliced(parts: list[LogPart]) -> list[InputPartition]:
    slices: list[InputPartition] = [
        _Slice(LogPart(part.partition, begin, min(begin + _ROWS_PER_TASK, part.end)))
        for part in parts
        for begin in range(part.begin, part.end, _ROWS_PER_TASK)
    ]
    return slices or [_Slice(LogPart(0, 0, 0))]


def _rows(source: _Source, names: list[str], wanted: LogPart) -> Iterator[pa.RecordBatch]:
    from anyio.from_thread import start_blocking_portal

    pages = source.log().pages(wanted)
    with start_blocking_portal() as portal:
        while True:
            page = portal.call(_next, pages)
            if page is None:
                return
            yield from _as_columns(source.topic, names, wanted, page)


async def _next(pages: Any) -> list[RecordBatch] | None:
    found: list[RecordBatch] | None = await anext(pages, None)
    return found


def _as_columns(
    topic: str, names: list[str], wanted: LogPart, page: list[RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for log_append, batches in groupby(page, attrgetter("log_append")):
        columns: dict[str, Sequence[Any]] = {}
        if _OF_RECORDS.intersection(names):
            records = list(chain.from_iterable(_within(each, wanted) for each in batches))
            fields = zip(*records, strict=True) if records else repeat(())
            columns = dict(zip(_FIELDS, fields, strict=False))
        else:
            offsets = (_offsets(each, wanted) for each in batches)
            columns["offset"] = list(chain.from_iterable(offsets))
        constant = {"topic": topic, "partition": wanted.partition, "timestampType": int(log_append)}
        for begin in range(0, len(columns["offset"]), _ROWS_PER_BATCH):
            some = {
                name: values[begin : begin + _ROWS_PER_BATCH] for name, values in columns.items()
            }
            count = len(some["offset"])
            arrays = [
                pa.repeat(pa.scalar(constant[name], _ARROW[name]), count)
                if name in constant
                else _array(name, some[name])
                for name in names
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _within(batch: RecordBatch, wanted: LogPart) -> Iterable[ReadRecord]:
    """Return the records of a batch that belong to a part of the log."""
    if wanted.begin <= batch.base_offset and batch.last_offset < wanted.end:
        return batch.iter_records()
    return (each for each in batch.iter_records() if wanted.begin <= each.offset < wanted.end)


def _offsets(batch: RecordBatch, wanted: LogPart) -> Iterable[int]:
    """Return the offsets of the records of a batch that belong to a part of the log."""
    if batch.count <= batch.last_offset_delta:  # compaction has removed records
        return (each.offset for each in _within(batch, wanted))
    return range(max(batch.base_offset, wanted.begin), min(batch.last_offset + 1, wanted.end))


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    """Return the values of a column of records as Arrow's."""
    if name == "timestamp":
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(_ARROW[name])
    if name == "headers":
        values = [[{"key": key, "value": value} for key, value in each] or None for each in values]
    return pa.array(values, _ARROW[name])


class _TopicReader(DataSourceReader):
    def __init__(self, source: _Source, names: list[str]) -> None:
        self._source = source
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """Return the tasks' offsets; called on the driver."""
        return _sliced(self._source.parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task; called in the task."""
        return _rows(self._source, self._names, LogPart(*partition.value))


class _TopicStream(DataSourceStreamReader):
    def __init__(self, source: _Source, names: list[str]) -> None:
        self._source = source
        self._names = names

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where each partition begins."""
        return {str(part.partition): part.begin for part in self._source.parts()}

    def latestOffset(self, *_: Any, **__: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where each partition ends now; Spark 4.2 and later pass the start and a limit."""
        return {str(part.partition): part.end for part in self._source.parts()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks' offsets, of partitions that came later from 0 on."""
        return _sliced(
            [LogPart(int(name), start.get(name, 0), until) for name, until in end.items()]
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task; called in the task."""
        return _rows(self._source, self._names, LogPart(*partition.value))
