"""A transactional client that sends only the requests that a test calls for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.virtual import (
    START_MS,
    PlainRecord,
    VirtualClient,
    VirtualCluster,
)
from aioidem._records import build_batch, read_batches

__all__ = [
    "ABORTABLE",
    "COMMITTED",
    "MODERN",
    "OLD",
    "UNCOMMITTED",
    "Speech",
    "Transactor",
    "batch",
    "fetch",
    "values",
]

UNCOMMITTED: Final = 0
COMMITTED: Final = 1


class Speech:
    """The versions of Produce, EndTxn and TxnOffsetCommit that a client uses."""

    def __init__(self, produce: int, end: int, commit: int) -> None:
        self.produce = produce
        self.end = end
        self.commit = commit


OLD: Final = Speech(10, 4, 3)
ABORTABLE: Final = Speech(11, 4, 4)
MODERN: Final = Speech(13, 5, 5)


def batch(
    producer_id: int,
    epoch: int,
    sequence: int,
    value: bytes = b"v",
    *,
    transactional: bool = True,
    stamp_ms: int = START_MS,
) -> bytes:
    """Return the bytes of a batch of one record."""
    return build_batch(
        [PlainRecord(value, timestamp_ms=stamp_ms)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    ).data


class Transactor:
    """A producer with a transactional id, which keeps its producer id, epoch and sequences."""

    def __init__(self, cluster: VirtualCluster, name: str = "tx", speech: Speech = MODERN) -> None:
        self.cluster = cluster
        self.name = name
        self.speech = speech
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def client(self, key: str | None = None) -> VirtualClient:
        """Return a client of the coordinator of ``key``, by default of the transactional id."""
        broker = self.cluster.state.coordinator_of(self.name if key is None else key)
        assert broker is not None
        return self.cluster.client(broker.id)

    def init(self, version: int = 5, *, claim: bool = False, timeout_ms: int = 60_000) -> ErrorCode:
        """Send InitProducerId, and keep the producer id and epoch of a successful answer."""
        request = {
            "transactional_id": self.name,
            "transaction_timeout": timedelta(milliseconds=timeout_ms),
            "producer_id": self.producer_id if claim else -1,
            "producer_epoch": self.epoch if claim else -1,
        }
        answer = self.client().ask(22, version, request)
        if answer.error_code is ErrorCode.none:
            self._become(answer)
        return answer.error_code  # type: ignore[no-any-return]

    def add(self, *partitions: tuple[str, int], version: int = 3) -> dict[tuple[str, int], Any]:
        topics = [{"name": t, "partitions": [p]} for t, p in partitions or [("t", 0)]]
        request = {f"v3_and_below_{k}": v for k, v in self.who.items()}
        answer = self.client().ask(24, version, request | {"v3_and_below_topics": topics})
        return {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }

    def add_group(self, group: str = "g", version: int = 4) -> ErrorCode:
        answer = self.client().ask(25, version, self.who | {"group_id": group})
        return answer.error_code  # type: ignore[no-any-return]

    def produce(self, value: bytes = b"v", partition: int = 0, topic: str = "t") -> ErrorCode:
        """Produce the next record, and advance the sequence only if the record was accepted."""
        sequence = self.sequences.get((topic, partition), 0)
        code = self.produce_at(sequence, value, partition, topic)
        if code is ErrorCode.none:
            self.sequences[topic, partition] = sequence + 1
        return code

    def produce_at(
        self, sequence: int, value: bytes = b"v", partition: int = 0, topic: str = "t"
    ) -> ErrorCode:
        leader = self.cluster.state.topics[topic].partitions[partition].leader
        part = self.cluster.client(leader).produce(
            batch(self.producer_id, self.epoch, sequence, value),
            topic=topic,
            partition=partition,
            version=self.speech.produce,
            transactional_id=self.name,
        )
        return part.error_code  # type: ignore[no-any-return]

    def commit_offset(
        self, offset: int, group: str = "g", version: int | None = None, **member: Any
    ) -> ErrorCode:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        request = self.who | {
            "group_id": group,
            "topics": [{"name": "t", "partitions": [part]}],
            **member,
        }
        answer = self.client(group).ask(28, version or self.speech.commit, request)
        [topic] = answer.topics
        return topic.partitions[0].error_code  # type: ignore[no-any-return]

    def end(self, *, commit: bool, version: int | None = None) -> ErrorCode:
        request = self.who | {"committed": commit}
        answer = self.client().ask(26, version or self.speech.end, request)
        if answer.error_code is ErrorCode.none and getattr(answer, "producer_id", -1) >= 0:
            self._become(answer)
        return answer.error_code  # type: ignore[no-any-return]

    def _become(self, given: Entity) -> None:
        if (given.producer_id, given.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch


def fetch(
    cluster: VirtualCluster,
    offset: int = 0,
    isolation: int = COMMITTED,
    partition: int = 0,
    max_bytes: int = 1 << 20,
) -> Entity:
    """Fetch from topic ``t`` without waiting; return the partition's part of the answer."""
    topic = cluster.state.topics["t"]
    request = {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": isolation,
        "topics": [
            {
                "topic": "t",
                "topic_id": topic.id,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "partition_max_bytes": max_bytes,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
    }
    answer = cluster.client(topic.partitions[partition].leader).ask(1, 12, request)
    return answer.responses[0].partitions[0]


def values(part: Entity) -> list[bytes | None]:
    """Return the values of a Fetch answer that a read_committed consumer keeps (KIP-98)."""
    aborted = {each.producer_id: each.first_offset for each in part.aborted_transactions or ()}
    kept = []
    for found in read_batches(bytes(part.records or b"")):
        if found.control:
            # A marker whose key has type 0 is an abort marker, which ends an aborted transaction.
            if (found.records()[0].key or b"")[3] == 0:
                aborted.pop(found.producer_id, None)
        elif not (
            found.transactional
            and found.base_offset >= aborted.get(found.producer_id, found.base_offset + 1)
        ):
            kept += [record.value for record in found.records()]
    return kept
