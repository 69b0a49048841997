"""Read partitions' logs to say what became of batches that ended UNKNOWN.

`resolve_incidents` reads the headers of batches for `LogSearch`, which decides. It opens
connections of its own: those of the producer may be gone, and often another process asks.

Invariants:

- All that is read of a partition comes from one leader epoch, which each request names. If the
  leader changes, brokers refuse the request (KIP-320), and the log is read again from the
  beginning. So what was read is one history, of which no election has cut anything off meanwhile.
- Only what is below the high watermark is read. It is committed, so every later leader has it.
- Fetch v13 names the topic by its id. A broker without v13 is asked by name, and then the absence
  of a batch proves nothing.
- `timeout` bounds everything. When it has passed, the last verdicts count.
- Partitions are read beside one another: one whose leader is silent, or where a fence is waited
  for, takes no time from the others.

Rejected: the producer's own connections. Only the sender may use them, and pages of 1 MiB would
delay acknowledgements.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import anyio
import anyio.lowlevel
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._admin.asking import Asker, Place, converse
from aioidem._config import ProducerConfig
from aioidem._engine.log_search import LogFacts, LoggedBatch, LogSearch, judge, logged_batch
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._network.connection import Connection
from aioidem._network.transport import Connector
from aioidem._protocol.broker_config import broker_config_request, broker_facts
from aioidem._protocol.list_offsets import EARLIEST, LATEST, list_offsets_request, listed_offset
from aioidem._protocol.list_offsets import MAX_VERSION as MAX_LIST_OFFSETS
from aioidem._protocol.metadata import TopicUpdate, metadata_request, metadata_update
from aioidem._protocol.read_back import (
    MAX_VERSION,
    WITH_TOPIC_IDS,
    ReadBackAnswer,
    read_back_answer,
    read_back_request,
)
from aioidem._protocol.versions import ApiKey
from aioidem._records import read_batches
from aioidem.incident import Incident
from aioidem.resolution import Resolution, UndecidedReason

__all__ = ["resolve_incidents"]

_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_PAGE_BYTES: Final = 1 << 20
_AT_ONCE: Final = 20
"""The most partitions that are read from one broker at once: each takes a connection and a page.

The limit is that of each broker, so that those of a silent one take no time from the others.
"""
_UNKNOWN_FOR: Final = 5.0
"""Seconds for which brokers may not know a topic before it counts as deleted."""
_CLOCKS_MS: Final = 600_000
"""By how much a broker's clock may be behind, for the place where the reading begins by time."""
# The first versions that name the leader epoch.
_LEAST_FETCH: Final = 9
_LEAST_METADATA: Final = 7
_LEAST_LIST_OFFSETS: Final = 4

_DENIED: Final = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
)
_MISSING: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


_T = TypeVar("_T")
_Slots = Mapping[Place, anyio.CapacityLimiter]


class _Leader(NamedTuple):
    """Who leads a partition, and the id of its topic."""

    place: Place
    node_id: int
    epoch: int
    topic_id: UUID | None


async def resolve_incidents(
    config: ProducerConfig,
    incidents: Iterable[Incident],
    *,
    timeout: float,
    wait_for_fence: bool,
    connector: Connector | None = None,
) -> list[Resolution]:
    """Look for batches that ended UNKNOWN in their partitions' logs.

    Args:
        config: how to connect.
        incidents: the batches, or records of them.
        timeout: seconds for everything.
        wait_for_fence: whether to read on until `timeout` while a copy may still arrive.
        connector: opens the connections; None opens TCP connections.

    Returns:
        A resolution for each incident, in the same order.

    Raises:
        AuthenticationFailedError: a broker refuses the credentials.
    """
    wanted = list(incidents)
    groups: dict[Any, dict[Incident, None]] = {}
    for each in wanted:
        # What was sent after an acknowledged record is read from there, anything else by time.
        key = (each.topic, each.partition, each.topic_id, each.after is None)
        groups.setdefault(key, {})[each.batch] = None
    found: dict[Incident, Resolution] = {}
    failures: list[Exception] = []
    slots: _Slots = defaultdict(lambda: anyio.CapacityLimiter(_AT_ONCE))

    async def read(group: Sequence[Incident]) -> None:
        reading = _Reading(config, group, connector, slots)
        # The error is raised below, outside of the task group, which would wrap it.
        try:
            verdicts = await reading.resolve(timeout, wait_for_fence=wait_for_fence)
        except Exception as error:  # noqa: BLE001 - whatever it is
            failures.append(error)
            tasks.cancel_scope.cancel()
        else:
            found.update(zip(group, verdicts, strict=True))

    async with anyio.create_task_group() as tasks:
        for group in groups.values():
            tasks.start_soon(read, list(group))
    if failures:
        raise failures[0]
    return [_of_record(found[each.batch], each) for each in wanted]


def _of_record(resolution: Resolution, incident: Incident) -> Resolution:
    """Return the resolution of a batch for one of its records."""
    offset = resolution.offset
    if offset >= 0:
        offset += incident.index or 0
    return dataclasses.replace(resolution, incident=incident, offset=offset)


class _Reading:
    """The reading of one partition's log for some batches that ended UNKNOWN.

    Args:
        config: how to connect.
        incidents: batches of one topic id and partition. Either each of them was sent after an
            acknowledged record, or none was.
        connector: opens the connections; None opens TCP connections.
        slots: limits how many partitions are read at once from each broker.
    """

    def __init__(
        self,
        config: ProducerConfig,
        incidents: Sequence[Incident],
        connector: Connector | None,
        slots: _Slots,
    ) -> None:
        self._config = config
        self._connector = connector
        self._slots = slots
        self._incidents = incidents
        self._topic = incidents[0].topic
        self._partition = incidents[0].partition
        self._expiration = config.producer_id_expiration or DEFAULT_EXPIRATION
        self._leader: _Leader | None = None
        # The offset of the next page, and where the parts of the log that are to be read begin.
        self._offset = 0
        self._begins: list[int] = []
        self._searches: list[LogSearch] = []
        # The first offset that the log still has, as far as is known.
        self._log_start = 0
        # Whether the log was read to its end, at the present leader epoch.
        self._read = False
        # What keeps the log from being read, and since when the topic is not known.
        self._obstacle: tuple[UndecidedReason | None, str] = self._unread
        self._unknown_since: float | None = None
        self._servers = 0
        # Whether the topic is named by its id in the requests.
        self._by_id = False
        self._written: dict[Incident, Resolution] = {}

    @property
    def _where(self) -> str:
        return f"{self._topic}-{self._partition}"

    @property
    def _unread(self) -> tuple[UndecidedReason, str]:
        return UndecidedReason.TIMED_OUT, f"{self._where} was not read in time"

    async def resolve(self, timeout: float, *, wait_for_fence: bool) -> list[Resolution]:
        """Read until each batch is decided, or waiting cannot decide it, or the time is up."""
        pause = _PAUSE
        with anyio.move_on_after(timeout):
            while True:
                over = await self._attempt()
                verdicts = self._verdicts()
                waits = any(each.reason is UndecidedReason.NOT_FENCED for each in verdicts)
                if over and not (wait_for_fence and waits):
                    return verdicts
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return self._verdicts()

    def _verdicts(self) -> list[Resolution]:
        leader = self._leader
        facts = LogFacts(
            leader.topic_id if leader is not None and self._by_id else None,
            time.time() * 1000.0,
            self._expiration,
            self._log_start,
            *self._obstacle,
        )
        searches: Sequence[LogSearch | None] = self._searches or [None] * len(self._incidents)
        return [
            self._written.get(incident) or judge(incident, search, facts)
            for incident, search in zip(self._incidents, searches, strict=True)
        ]

    async def _attempt(self) -> bool:
        """Read as far as possible; return whether another attempt would bring nothing new."""
        sent_to = self._incidents[0].topic_id
        try:
            leader = await self._find_leader()
            if None not in (leader.topic_id, sent_to) and leader.topic_id != sent_to:
                self._leader = leader
                self._obstacle = (
                    UndecidedReason.TOPIC_GONE,
                    f"{self._topic!r} is another topic by now: its id is {leader.topic_id}",
                )
                return True
            if leader != self._leader:
                self._leader = leader
                self._searches, self._begins, self._read = [], [], False
                self._obstacle = self._unread
            await self._converse(leader.place, self._read_from)
        except errors.AuthenticationFailedError:
            raise
        except errors.BrokerResponseError as error:
            return self._refused(error)
        except errors.KafkaError as error:
            self._fail(UndecidedReason.TIMED_OUT, f"{self._where} was not read in time: {error}")
            return False
        self._unknown_since = None
        self._obstacle = (None, "")
        self._read = True
        return True

    def _fail(self, reason: UndecidedReason, detail: str) -> None:
        # What was read once stays true, even if it cannot be read again.
        if not self._read:
            self._obstacle = (reason, detail)

    def _refused(self, error: errors.BrokerResponseError) -> bool:
        """Note why the log cannot be read; return whether that will not change."""
        if error.errno in _DENIED:
            self._fail(UndecidedReason.NO_PERMISSION, f"{self._where} may not be read: {error}")
            return True
        if error.errno in _MISSING:
            now = anyio.current_time()
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            self._fail(UndecidedReason.TOPIC_GONE, f"there is no topic {self._topic!r}: {error}")
            return now - self._unknown_since >= _UNKNOWN_FOR
        self._fail(UndecidedReason.TIMED_OUT, f"{self._where} was not read in time: {error}")
        return False

    async def _find_leader(self) -> _Leader:
        servers = self._config.bootstrap_servers
        place = Place(*servers[self._servers % len(servers)])
        self._servers += 1

        def make(connection: Connection) -> Any:
            version = connection.versions.choose(ApiKey.METADATA, at_least=_LEAST_METADATA)
            return metadata_request(version, (self._topic,), allow_auto_create=False)

        async def find(asker: Asker) -> Any:
            return await asker.ask(ApiKey.METADATA, make)

        update = metadata_update(await self._converse(place, find))
        topics = [each for each in update.topics if each.name == self._topic]
        found = (
            topics[0]
            if topics
            else TopicUpdate(self._topic, None, ErrorCode.unknown_topic_or_partition, ())
        )
        self._check(found.error_code)
        parts = [each for each in found.partitions if each.index == self._partition]
        if not parts:
            self._check(ErrorCode.unknown_topic_or_partition)
        brokers = {each.node_id: Place(each.host, each.port) for each in update.brokers}
        part = parts[0]
        if part.leader_id not in brokers:
            raise errors.KafkaConnectionError(f"{self._where} has no leader")
        return _Leader(brokers[part.leader_id], part.leader_id, part.leader_epoch, found.topic_id)

    async def _converse(self, place: Place, talk: Callable[[Asker], Awaitable[_T]]) -> _T:
        async with self._slots[place]:
            return await converse(self._config, place, talk, self._connector)

    async def _read_from(self, asker: Asker) -> None:
        """Read the log to its end, on a connection to the leader."""
        if not self._searches:
            self._expiration = await self._ask_expiration(asker)
            self._begins = await self._where_to_begin(asker)
            self._begin_next()
        while True:
            await self._read_on(asker)
            self._keep_written()
            if not self._begins or len(self._written) == len(self._incidents):
                return
            self._begin_next()

    def _begin_next(self) -> None:
        self._offset = self._begins.pop(0)
        self._searches = [LogSearch(each, self._offset) for each in self._incidents]

    def _keep_written(self) -> None:
        """Keep what was found: the next part of the log is read with new searches."""
        for incident, search in zip(self._incidents, self._searches, strict=True):
            if search.settled:
                self._written[incident] = judge(incident, search, LogFacts(None, 0.0, 0.0))

    async def _where_to_begin(self, asker: Asker) -> list[int]:
        """Return where the parts of the log begin that are to be read one after the other.

        Each part ends at the end of the log.
        """
        after = [each.after.offset for each in self._incidents if each.after is not None]
        if after:
            return [min(after)]
        self._log_start = await self._list_offset(asker, EARLIEST)
        stamp = min(each.timestamp_ms for each in self._incidents) - _CLOCKS_MS
        by_time = await self._list_offset(asker, max(0, stamp))
        begins = [] if by_time < 0 else [by_time]
        # Only the very first offset certainly precedes each copy.
        if self._log_start == 0 and 0 not in begins:
            begins.append(0)
        return begins or [await self._list_offset(asker, LATEST)]

    async def _read_on(self, asker: Asker) -> None:
        """Read page by page up to the high watermark, or until nothing more is looked for."""
        least = max((each.after.offset + 1 for each in self._incidents if each.after), default=0)
        target: int | None = None
        while target is None or self._offset < target:
            page = await self._page(asker)
            if page is None:
                return
            if target is None:
                target = page.high_watermark
                if target < least:
                    raise errors.KafkaTimeoutError(
                        "its leader was just elected, or its log has lost its end: committed is "
                        f"offset {target - 1}, and acknowledged was offset {least - 1}"
                    )
            if self._offset >= target:
                return
            batches = _batches(page.records)
            if not batches:
                raise errors.KafkaTimeoutError(f"no record from offset {self._offset} on")
            for search in self._searches:
                search.read(batches)
            self._offset = max(self._offset, batches[-1].last_offset + 1)
            if all(search.settled for search in self._searches):
                return
            await anyio.lowlevel.checkpoint()

    async def _page(self, asker: Asker) -> ReadBackAnswer | None:
        """Return the page at the present offset, or at the first one that was not deleted.

        Returns None if the log ends before the offset, because it has lost its end.
        """
        answer = await self._fetch(asker)
        if answer.error_code == ErrorCode.offset_out_of_range:
            self._log_start = await self._list_offset(asker, EARLIEST)
            if self._log_start <= self._offset:
                return None
            self._offset = self._log_start
            answer = await self._fetch(asker)
        self._check(answer.error_code)
        return answer

    async def _fetch(self, asker: Asker) -> ReadBackAnswer:
        leader = self._known_leader

        def make(connection: Connection) -> Any:
            most = MAX_VERSION if leader.topic_id is not None else WITH_TOPIC_IDS - 1
            version = connection.versions.choose(ApiKey.FETCH, at_least=_LEAST_FETCH, at_most=most)
            self._by_id = version >= WITH_TOPIC_IDS
            return read_back_request(
                version,
                self._topic,
                leader.topic_id,
                self._partition,
                self._offset,
                leader_epoch=leader.epoch,
                page_bytes=_PAGE_BYTES,
            )

        response = await asker.ask(ApiKey.FETCH, make)
        return read_back_answer(response, self._partition, page_bytes=_PAGE_BYTES)

    async def _list_offset(self, asker: Asker, timestamp: int) -> int:
        leader = self._known_leader

        def make(connection: Connection) -> Any:
            version = connection.versions.choose(
                ApiKey.LIST_OFFSETS, at_least=_LEAST_LIST_OFFSETS, at_most=MAX_LIST_OFFSETS
            )
            return list_offsets_request(
                version, self._topic, self._partition, timestamp, leader_epoch=leader.epoch
            )

        answer = listed_offset(await asker.ask(ApiKey.LIST_OFFSETS, make), self._partition)
        self._check(answer.error_code)
        return answer.offset

    async def _ask_expiration(self, asker: Asker) -> float:
        """Return the leader's `producer.id.expiration.ms` in seconds, or Kafka's default.

        The option `producer_id_expiration` replaces it. The default also counts if the broker's
        configs may not be read.
        """
        if self._config.producer_id_expiration is not None:
            return self._config.producer_id_expiration
        node_id = self._known_leader.node_id

        def make(connection: Connection) -> Any:
            return broker_config_request(
                connection.versions.choose(ApiKey.DESCRIBE_CONFIGS), node_id
            )

        facts = broker_facts(await asker.ask(ApiKey.DESCRIBE_CONFIGS, make))
        return DEFAULT_EXPIRATION if facts.expiration is None else facts.expiration

    @property
    def _known_leader(self) -> _Leader:
        if self._leader is None:
            raise errors.InternalError("the log was read before its leader was known")
        return self._leader

    def _check(self, code: int) -> None:
        if code:
            raise errors.broker_error(code, self._where)


def _batches(page: bytes) -> list[LoggedBatch]:
    """Return the headers of a page's batches.

    Raises:
        ProtocolError: a batch is malformed, or its checksum is wrong.
    """
    batches = read_batches(page, partial=True)
    for batch in batches:
        if not batch.crc_ok():
            raise errors.ProtocolError(f"a wrong CRC at offset {batch.base_offset}")
    return [logged_batch(batch) for batch in batches]
