"""Read a topic's log: the offsets at which its partitions begin and end, and what is in between.

The producer reads logs only to settle doubts about its own batches (`_protocol/read_back.py`). This
module is for the audit on Spark where Spark's own Kafka source is not available.

Invariants:

- With `committed`, the records of aborted and of open transactions are left out, as a consumer with
  `isolation.level=read_committed` leaves them out.
- Records come in the order of their offsets, and each once. Where the log has gaps, there are none.
- Every batch's CRC is checked.

Rejected: Fetch sessions and one connection for many requests (a page of 8 MiB pays for both).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._admin.asking import Place, ask, until_known
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._protocol.list_offsets import (
    EARLIEST,
    LATEST,
    MAX_VERSION,
    MIN_VERSION,
    list_offsets_request,
    listed_offset,
)
from aioidem._protocol.messages import request_type
from aioidem._protocol.metadata import metadata_request, metadata_update
from aioidem._protocol.versions import ApiKey
from aioidem._records.reader import RecordBatch, read_batches

__all__ = ["LogPart", "TopicLog"]

_NAMES_TOPICS: Final = 12
"""The last version of Fetch that names topics, and not only their ids."""
_PAGE_BYTES: Final = 8 << 20
_ABORT: Final = b"\x00\x00\x00\x00"
"""The beginning of a control record's key: version 0, and type 0, the end of an aborted one."""


class LogPart(NamedTuple):
    """Offsets of one partition, from `begin` up to but without `end`."""

    partition: int
    begin: int
    end: int


class TopicLog:
    """The log of one topic.

    Args:
        config: how to connect.
        topic: the topic's name.
        committed: whether to leave out the records of aborted and open transactions.
        timeout: seconds for each question, with its repetitions.
    """

    def __init__(
        self, config: ProducerConfig, topic: str, *, committed: bool, timeout: float
    ) -> None:
        self._config = config
        self._topic = topic
        self._isolation = int(committed)
        self._timeout = timeout

    async def parts(self) -> list[LogPart]:
        """Return where each partition begins and ends now, by number.

        Raises:
            KafkaTimeoutError: the leaders did not all answer in time.
            KafkaError: the topic does not exist, or may not be read.
        """

        async def find(server: Place) -> list[LogPart]:
            return [
                LogPart(
                    partition,
                    await self._offset(leader, partition, EARLIEST),
                    await self._offset(leader, partition, LATEST),
                )
                for partition, leader in sorted((await self._leaders(server)).items())
            ]

        return await until_known(self._config, f"offsets of {self._topic}", self._timeout, find)

    async def pages(self, part: LogPart) -> AsyncIterator[list[RecordBatch]]:
        """Yield the batches of a part of the log, page by page.

        A batch may also have records before or after the part.

        Raises:
            KafkaTimeoutError: the leader did not answer in time.
            KafkaError: the partition may not be read, or its records are not in the log any more.
            ProtocolError: a batch is malformed.
        """
        offset = part.begin
        while offset < part.end:

            async def find(server: Place, at: int = offset) -> Any:
                leaders = await self._leaders(server)
                if part.partition not in leaders:
                    raise errors.KafkaConnectionError(f"no leader of {self._named(part.partition)}")
                return await self._fetch(leaders[part.partition], part.partition, at)

            what = f"records of {self._named(part.partition)}"
            answer = await until_known(self._config, what, self._timeout, find)
            batches = read_batches(bytes(answer.records or b""), partial=True)
            for batch in batches:
                if not batch.crc_ok():
                    raise errors.ProtocolError(f"{what}: a wrong CRC at {batch.base_offset}")
            if not batches:
                raise errors.KafkaTimeoutError(f"{what}: none from offset {offset} on")
            if batches[-1].last_offset < offset:  # the same page would be asked for again for ever
                raise errors.ProtocolError(
                    f"{what}: none from offset {offset} on, but earlier ones"
                )
            offset = batches[-1].last_offset + 1
            wanted = self._wanted(batches, answer.aborted_transactions or ())
            yield [batch for batch in wanted if batch.last_offset >= part.begin]

    def _wanted(
        self, batches: Iterable[RecordBatch], aborted: Iterable[Any]
    ) -> Iterable[RecordBatch]:
        """Yield the batches with records for a reader, which control batches do not have."""
        begins = deque(sorted((int(each.first_offset), int(each.producer_id)) for each in aborted))
        open_: set[int] = set()
        for batch in batches:
            while begins and begins[0][0] <= batch.last_offset:
                open_.add(begins.popleft()[1])
            if batch.control:
                if batch.control_key().startswith(_ABORT):
                    open_.discard(batch.producer_id)
            elif not (self._isolation and batch.transactional and batch.producer_id in open_):
                yield batch

    def _named(self, partition: int) -> str:
        return f"partition {partition} of {self._topic!r}"

    async def _leaders(self, server: Place) -> Mapping[int, Place]:
        def make(connection: Connection) -> Any:
            version = connection.versions.choose(ApiKey.METADATA)
            return metadata_request(version, (self._topic,), allow_auto_create=False)

        update = metadata_update(await ask(self._config, server, ApiKey.METADATA, make))
        brokers = {each.node_id: Place(each.host, each.port) for each in update.brokers}
        topic = next((each for each in update.topics if each.name == self._topic), None)
        if topic is None:
            raise errors.KafkaConnectionError(f"an answer without the topic {self._topic!r}")
        _check(topic.error_code, f"the topic {self._topic!r}")
        for each in topic.partitions:
            if each.leader_id not in brokers:
                raise errors.KafkaConnectionError(f"no leader of {self._named(each.index)}")
        return {each.index: brokers[each.leader_id] for each in topic.partitions}

    async def _offset(self, leader: Place, partition: int, timestamp: int) -> int:
        def make(connection: Connection) -> Any:
            version = connection.versions.choose(
                ApiKey.LIST_OFFSETS, at_least=MIN_VERSION, at_most=MAX_VERSION
            )
            return list_offsets_request(
                version, self._topic, partition, timestamp, isolation=self._isolation
            )

        answer = await ask(self._config, leader, ApiKey.LIST_OFFSETS, make)
        listed = listed_offset(answer, partition)
        _check(listed.error_code, self._named(partition))
        return listed.offset

    async def _fetch(self, leader: Place, partition: int, offset: int) -> Any:
        def make(connection: Connection) -> Any:
            schema = self._schema(connection, ApiKey.FETCH, 4, _NAMES_TOPICS)
            module = importlib.import_module(schema.__module__)
            wanted = _make(
                module.FetchPartition,
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=_PAGE_BYTES,
            )
            topic = _make(module.FetchTopic, topic=self._topic, partitions=(wanted,))
            return _make(
                schema,
                replica_id=-1,
                max_wait=timedelta(0),
                min_bytes=0,
                max_bytes=_PAGE_BYTES,
                isolation_level=self._isolation,
                topics=(topic,),
                forgotten_topics_data=(),
            )

        answer = await ask(self._config, leader, ApiKey.FETCH, make)
        _check(getattr(answer, "error_code", 0), self._named(partition))
        for topic in answer.responses:
            for part in topic.partitions:
                if part.partition_index == partition:
                    _check(part.error_code, self._named(partition))
                    return part
        raise errors.KafkaConnectionError(f"an answer without {self._named(partition)}")

    def _schema(self, connection: Connection, api: ApiKey, least: int, most: int) -> Any:
        version = connection.versions.choose(api, at_least=least, at_most=most)
        return request_type(api, version)


def _make(schema: Callable[..., Any], **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    return schema(**{name: value for name, value in values.items() if name in known})


def _check(code: int, what: str) -> None:
    if code in (ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available):
        raise errors.KafkaConnectionError(f"{what}: its leader is moving")
    if code:
        raise errors.broker_error(int(code), what)
