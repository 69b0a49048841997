"""Write a few records to a topic, to see how many batches its leader remembers, and its clock.

All of it happens on one connection, under a producer id of its own. As many batches as the leader
says that it remembers are written, one record each. Then they are sent again, from the second
newest to the oldest, until one is refused. `throughput` judges what that proves.

The leader's clock is the append time in an answer, if the topic has LogAppendTime. With CreateTime
a batch from the far future is sent first: it is refused, and Kafka's refusal names the range of
times that it would accept, whose end is `message.timestamp.after.max.ms` after its clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._admin.asking import Place
from aioidem._config import ProducerConfig
from aioidem._doctor.facts import ClockSeen, Configs, ProbeSeen
from aioidem._doctor.questions import PRODUCE_WITH_WINDOW, RETAIN
from aioidem._doctor.session import Bounds, Session, visit
from aioidem._protocol.metadata import metadata_request, metadata_update
from aioidem._protocol.produce import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    PartitionAnswer,
    decode_produce_response,
    encode_produce_request,
)
from aioidem._protocol.producer_id import producer_id_answer, producer_id_request
from aioidem._protocol.versions import ApiKey
from aioidem._records import build_batch
from aioidem.errors import ProtocolError, broker_error, error_for_code

__all__ = ["MOST_BATCHES", "Probe", "range_end"]

MOST_BATCHES: Final = 100
"""The most records that a probe writes."""
_DEFAULT_RETAINED: Final = 5
_TEN_YEARS_MS: Final = 10 * 365 * 86_400_000
_KEY: Final = b"aioidem-doctor"
_VALUE: Final = b"written by aioidem doctor --write-to"
_RANGE: Final = re.compile(r"within \[-?\d{1,19}, (\d{1,19})\]")
_RECOGNISED: Final = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})


class _Record(NamedTuple):
    """A record to write."""

    timestamp_ms: int
    key: bytes = _KEY
    value: bytes = _VALUE
    headers: tuple[()] = ()


class _Leader(NamedTuple):
    """Where the partition is that is written to."""

    partition: int
    topic_id: UUID | None
    node_id: int
    place: Place


class Probe:
    """The probe of one topic. `seen` and `clock` have what it has learned so far."""

    def __init__(
        self,
        config: ProducerConfig,
        topic: str,
        configs: Configs,
        bounds: Bounds,
        wall_clock: Callable[[], float],
    ) -> None:
        self.seen = ProbeSeen(topic, -1, _DEFAULT_RETAINED, failure="it did not finish in time")
        self.clock: ClockSeen | None = None
        self._config = config
        self._topic = topic
        self._configs = configs
        self._bounds = bounds
        self._wall_clock = wall_clock
        self._leader: _Leader | None = None
        # The time before and after the last request, in seconds since the epoch.
        self._sent_at = self._answered_at = 0.0

    async def run(self, server: Place) -> None:
        """Find the leader by asking the server, and write to it."""
        failure = await visit(self._config, server, self._bounds, self._find)
        if failure is None and self._leader is not None:
            failure = await visit(self._config, self._leader.place, self._bounds, self._write)
        if failure is not None:
            self.seen = self.seen._replace(failure=failure.text)

    async def _find(self, session: Session) -> None:
        answer = await session.ask(
            ApiKey.METADATA,
            lambda versions: metadata_request(
                versions.choose(ApiKey.METADATA), (self._topic,), allow_auto_create=False
            ),
        )
        update = metadata_update(answer)
        brokers = {each.node_id: Place(each.host, each.port) for each in update.brokers}
        for topic in update.topics:
            for part in topic.partitions:
                if topic.name == self._topic and part.leader_id in brokers:
                    place = brokers[part.leader_id]
                    self._leader = _Leader(part.index, topic.topic_id, part.leader_id, place)
                    return
        self.seen = self.seen._replace(failure="the topic has no partition with a leader")

    async def _write(self, session: Session) -> None:
        """Write as many batches as the leader remembers, then send them again, newest first."""
        await self._read_clock_by_refusal(session)
        identity = producer_id_answer(
            await session.ask(
                ApiKey.INIT_PRODUCER_ID,
                lambda versions: producer_id_request(versions.choose(ApiKey.INIT_PRODUCER_ID)),
            )
        )
        _check(identity.error_code)
        batches: list[bytes] = []
        offsets: list[int] = []
        said = 1
        while len(batches) < min(said, MOST_BATCHES):
            batch = self._batch(identity.producer_id, identity.producer_epoch, len(batches))
            batches.append(batch)
            answer = await self._produce(session, batch)
            _check(answer.error_code)
            offsets.append(answer.base_offset)
            if len(batches) == 1:
                said = max(answer.retained or _DEFAULT_RETAINED, _DEFAULT_RETAINED)
                self._read_clock(answer)
        self.seen = self.seen._replace(said=said, partition=self._partition)
        for distance in range(2, len(batches) + 1):
            answer = await self._produce(session, batches[-distance])
            if answer.error_code == ErrorCode.out_of_order_sequence_number:
                self.seen = self.seen._replace(refused=distance)
                break
            if answer.error_code not in _RECOGNISED:
                _check(answer.error_code)
            # The answer to a duplicate has the offset of the first copy, or none.
            if answer.base_offset not in {offsets[-distance], -1}:
                self.seen = self.seen._replace(written_twice=distance)
                break
            self.seen = self.seen._replace(recognised=(*self.seen.recognised, distance))
        self.seen = self.seen._replace(failure=None)

    @property
    def _partition(self) -> int:
        return -1 if self._leader is None else self._leader.partition

    @property
    def _names_window(self) -> bool:
        """Whether the leader's Produce v14 is that of KIP-1269, as the producer decides it."""
        wanted = self._config.window_discovery
        return wanted == "on" or (wanted == "auto" and bool(self._configs.values.get(RETAIN)))

    def _batch(
        self, producer_id: int = -1, epoch: int = -1, sequence: int = -1, later_ms: int = 0
    ) -> bytes:
        stamp = round(self._wall_clock() * 1000) + later_ms
        built = build_batch(
            (_Record(stamp),), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        return built.data

    async def _produce(self, session: Session, batch: bytes) -> PartitionAnswer:
        has_id = self._leader is not None and self._leader.topic_id is not None
        most = PRODUCE_WITH_WINDOW if self._names_window else PRODUCE_WITH_WINDOW - 1
        if not has_id:
            most = FIRST_VERSION_WITH_TOPIC_IDS - 1
        version = session.versions.choose(ApiKey.PRODUCE, at_most=most)
        number = session.next_correlation_id()
        topic_id = None if self._leader is None else self._leader.topic_id
        frame = encode_produce_request(
            version,
            correlation_id=number,
            client_id=self._config.client_id,
            transactional_id=None,
            acks=-1,
            timeout_ms=round(self._bounds.answer * 1000),
            topics=((self._topic, topic_id, ((self._partition, batch),)),),
        )
        self._sent_at = self._wall_clock()
        answered = await session.exchange(ApiKey.PRODUCE, frame, number)
        self._answered_at = self._wall_clock()
        _, answer = decode_produce_response(version, answered)
        if len(answer.partitions) != 1:
            raise ProtocolError(f"{len(answer.partitions)} partitions were answered, not one")
        return answer.partitions[0]

    async def _read_clock_by_refusal(self, session: Session) -> None:
        later = self._configs.number("message.timestamp.after.max.ms")
        by_broker = self._configs.values.get("message.timestamp.type") == "LogAppendTime"
        if later is None or later > _TEN_YEARS_MS or by_broker:
            return
        batch = self._batch(later_ms=later + _TEN_YEARS_MS)
        answer = await self._produce(session, batch)
        end = range_end([message or "" for _, message in answer.record_errors])
        if answer.error_code == ErrorCode.invalid_timestamp and end is not None:
            self._note((end - later) / 1000)

    def _read_clock(self, answer: PartitionAnswer) -> None:
        if answer.log_append_time_ms > 0:
            self._note(answer.log_append_time_ms / 1000)

    def _note(self, seconds: float) -> None:
        node = -1 if self._leader is None else self._leader.node_id
        halfway = (self._sent_at + self._answered_at) / 2
        margin = (self._answered_at - self._sent_at) / 2 + 0.001
        self.clock = ClockSeen(f"the clock of broker {node}", seconds - halfway, margin)


def range_end(messages: list[str]) -> int | None:
    """Return the latest time that a refusal of a timestamp names, in ms since the epoch.

    The text is Kafka's: "Timestamp T of message with offset O is out of range. The timestamp should
    be within [A, B]".
    """
    for message in messages:
        if found := _RANGE.search(message):
            return int(found[1])
    return None


def _check(code: int) -> None:
    if code:
        name = error_for_code(code).message
        raise broker_error(code, f"the broker refused the probe: {name} (error code {code})")
