"""Requests as steps for two brokers, and the versions of Kafka to which they are sent.

A `World` is a version of Kafka, stock or patched. A `Bench` is one real broker and one embedded
one, with equal settings, and a `Pair` of connections to both. A bench makes the requests, and also
does to both brokers what an operator would: it creates topics, changes configs, restarts the
brokers, and waits until a change has taken effect.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import anyio

from aioidem.broker import EmbeddedCluster
from aioidem.testing import KafkaCluster

from .differential import Allowed, Pair, Side, Step, TopicId

__all__ = ["HOST", "WORLDS", "Bench", "World", "bench"]

ZERO: Final = timedelta(0)
THIRTY: Final = timedelta(seconds=30)
HOST: Final = "127.0.0.1"
TOPIC_RESOURCE: Final = 2
SETTINGS: Final = {
    "producer.id.expiration.check.interval.ms": "500",
    "auto.create.topics.enable": "true",
}
KAFKAS: Final = {
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "10",
}


@dataclass(frozen=True, slots=True)
class World:
    """A real broker, and the newest versions of the APIs that are sent to it.

    ``retain`` is the number of batches that a patched broker remembers of each producer, and None
    for a stock broker.
    """

    name: str
    kafka: str
    retain: int | None
    produce: int
    fetch: int
    metadata: int
    list_offsets: int
    init_producer_id: int
    find_coordinator: int
    api_versions: int = 4
    describe_cluster: int = 2


WORLDS: Final = (
    World("4.3.1", "4.3.1", None, 13, 18, 13, 11, 5, 6),
    World("4.3.1-retains-20", "4.3.1", 20, 14, 18, 13, 11, 5, 6),
    World("3.9.1", "3.9.1", None, 11, 17, 12, 9, 5, 6, describe_cluster=1),
)


class Bench:
    """The two brokers that are compared, and the steps that both carry out."""

    def __init__(
        self, world: World, pair: Pair, kafka: KafkaCluster | None, embedded: EmbeddedCluster
    ) -> None:
        """Set the brokers; ``kafka`` is None if both are embedded, which forbids `restart`."""
        self.world = world
        self.pair = pair
        self.kafka = kafka
        self.embedded = embedded
        # Most records have timestamps near this one (Unix milliseconds). It is ten minutes ago: no
        # default limit refuses it, and the comparison does not replace it by "now".
        self.start_ms = int(time.time() * 1000) - 600_000
        self._barrier = 0

    # -- steps -------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *records: bytes | None,
        partition: int = 0,
        acks: int = -1,
        version: int | None = None,
        transactional_id: str | None = None,
        label: str = "",
    ) -> Step:
        """Make a Produce request for one partition, with one entry per batch."""
        return self.produce_to(
            {topic: [(partition, each) for each in records]},
            acks=acks,
            version=version,
            transactional_id=transactional_id,
            label=label,
        )

    def produce_to(
        self,
        topics: Mapping[str | TopicId | Any, Sequence[tuple[int, bytes | None]]],
        *,
        acks: int = -1,
        version: int | None = None,
        transactional_id: str | None = None,
        label: str = "",
    ) -> Step:
        """Make a Produce request for several topics, each given by name, `TopicId` or UUID."""
        version = self.world.produce if version is None else version
        data = [
            {
                "name": name,
                "topic_id": TopicId(name) if isinstance(name, str) else name,
                "partition_data": [
                    {"index": index, "records": records} for index, records in parts
                ],
            }
            if version >= 13
            else {
                "name": name,
                "partition_data": [
                    {"index": index, "records": records} for index, records in parts
                ],
            }
            for name, parts in topics.items()
        ]
        body = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": THIRTY,
            "topic_data": data,
        }
        return Step(0, version, body, answered=acks != 0, label=label)

    def metadata(
        self,
        *topics: str | TopicId | Any,
        everything: bool = False,
        create: bool = False,
        operations: bool = False,
        version: int | None = None,
        label: str = "",
    ) -> Step:
        """Make a Metadata request for topics by name or id, or for all topics (``everything``).

        With ``operations``, it asks for the authorized operations (KIP-430).
        """
        wanted = [
            {"name": each, "topic_id": None}
            if isinstance(each, str)
            else {"name": None, "topic_id": each}
            for each in topics
        ]
        body = {
            "topics": None if everything else wanted,
            "allow_auto_topic_creation": create,
            "include_cluster_authorized_operations": operations,
            "include_topic_authorized_operations": operations,
        }
        version = self.world.metadata if version is None else version
        return Step(3, version, body, label=label)

    def fetch(
        self,
        topic: Any,
        offset: int,
        partition: int = 0,
        *,
        version: int | None = None,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        isolation: int = 0,
        label: str = "",
    ) -> Step:
        """Make a Fetch request that does not wait for records."""
        version = self.world.fetch if version is None else version
        by_id = version >= 13
        part = {
            "partition": partition,
            "current_leader_epoch": leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": max_bytes,
        }
        body = {
            "replica_id": -1,
            "max_wait": ZERO,
            "min_bytes": 0,
            "max_bytes": 1 << 24,
            "isolation_level": isolation,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": [
                {
                    "topic": topic,
                    "topic_id": TopicId(topic) if by_id and isinstance(topic, str) else topic,
                    "partitions": [part],
                }
            ],
            "forgotten_topics_data": [],
        }
        return Step(1, version, body, label=label)

    def list_offsets(
        self,
        topic: str,
        timestamp: int,
        partition: int = 0,
        *,
        leader_epoch: int = -1,
        version: int | None = None,
        isolation: int = 0,
        label: str = "",
    ) -> Step:
        """Make a ListOffsets request for one partition."""
        part = {
            "partition_index": partition,
            "current_leader_epoch": leader_epoch,
            "timestamp": timestamp,
        }
        body = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [part]}],
            "timeout": THIRTY,
        }
        version = self.world.list_offsets if version is None else version
        return Step(2, version, body, label=label)

    def producers(self, topic: str, partition: int = 0, *, label: str = "") -> Step:
        """Make a DescribeProducers request for one partition."""
        body = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
        return Step(61, 0, body, label=label)

    def delete_records(
        self, topic: str, offset: int, partition: int = 0, *, version: int = 2, label: str = ""
    ) -> Step:
        """Make a DeleteRecords request, which moves the start of one log."""
        part = {"partition_index": partition, "offset": offset}
        body = {"topics": [{"name": topic, "partitions": [part]}], "timeout": THIRTY}
        return Step(21, version, body, label=label)

    def init_producer_id(
        self,
        producer: tuple[Any, int] = (-1, -1),
        *,
        transactional_id: str | None = None,
        version: int | None = None,
        label: str = "",
    ) -> Step:
        """Make an InitProducerId request for a new producer id, or for the next epoch of one."""
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": THIRTY,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        version = self.world.init_producer_id if version is None else version
        return Step(22, version, body, label=label)

    def find_coordinator(self, kind: int, *keys: str, version: int | None = None) -> Step:
        """Make a FindCoordinator request for groups (kind 0) or transactional ids (kind 1).

        Versions below 4 have room for one key, and version 0 is always about a group.
        """
        version = self.world.find_coordinator if version is None else version
        body: dict[str, Any] = {"key_type": kind} if version else {}
        if version < 4:
            [body["key"]] = keys
        else:
            body["coordinator_keys"] = list(keys)
        return Step(10, version, body)

    def epoch_end(
        self,
        topic: str,
        epoch: int,
        partition: int = 0,
        *,
        current: int = -1,
        version: int = 4,
        label: str = "",
    ) -> Step:
        """Make an OffsetForLeaderEpoch request for one partition, as a consumer sends it."""
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
        return Step(23, version, body, label=label)

    def describe_cluster(
        self,
        *,
        operations: bool = False,
        endpoint: int = 1,
        fenced: bool = False,
        version: int | None = None,
        label: str = "",
    ) -> Step:
        """Make a DescribeCluster request for the brokers (endpoint 1) or the controllers (2)."""
        version = self.world.describe_cluster if version is None else version
        body: dict[str, Any] = {"include_cluster_authorized_operations": operations}
        if version >= 1:
            body["endpoint_type"] = endpoint
        if version >= 2:
            body["include_fenced_brokers"] = fenced
        return Step(60, version, body, label=label)

    def api_versions(self, version: int, name: str = "differential", software: str = "1.0") -> Step:
        """Make an ApiVersions request with this client software name and version."""
        body = {"client_software_name": name, "client_software_version": software}
        return Step(18, version, body, alone=True)

    def create_topics(
        self, *topics: Mapping[str, Any], validate_only: bool = False, version: int = 7
    ) -> Step:
        """Make a CreateTopics request.

        Each topic has a ``name`` and, optionally, ``partitions``, ``replication``, ``configs`` and
        ``assignments``.
        """
        wanted = [
            {
                "name": each["name"],
                "num_partitions": each.get("partitions", 1),
                "replication_factor": each.get("replication", 1),
                "assignments": [
                    {"partition_index": index, "broker_ids": brokers}
                    for index, brokers in each.get("assignments", {}).items()
                ],
                "configs": [
                    {"name": name, "value": value}
                    for name, value in each.get("configs", {}).items()
                ],
            }
            for each in topics
        ]
        body = {"topics": wanted, "timeout": THIRTY, "validate_only": validate_only}
        return Step(19, version, body)

    def delete_topics(self, *topics: Any, version: int = 6) -> Step:
        """Make a DeleteTopics request by names or by ids."""
        if version < 6:
            return Step(20, version, {"topic_names": list(topics), "timeout": THIRTY})
        wanted = [
            {"name": each, "topic_id": None}
            if isinstance(each, str)
            else {"name": None, "topic_id": each}
            for each in topics
        ]
        return Step(20, version, {"topics": wanted, "timeout": THIRTY})

    def describe_configs(
        self,
        kind: int,
        name: str,
        keys: Iterable[str] | None,
        *,
        synonyms: bool = True,
        version: int = 4,
    ) -> Step:
        """Make a DescribeConfigs request for one topic (kind 2) or broker (kind 4)."""
        resource = {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": None if keys is None else list(keys),
        }
        body = {
            "resources": [resource],
            "include_synonyms": synonyms,
            "include_documentation": False,
        }
        return Step(32, version, body)

    def alter_configs(
        self,
        kind: int,
        name: str,
        *changes: tuple[str, int, str | None],
        validate_only: bool = False,
        version: int = 1,
    ) -> Step:
        """Make an IncrementalAlterConfigs request for one topic or broker.

        Each change is (config, operation, value), with the operations 0 set, 1 delete, 2 append and
        3 subtract.
        """
        configs = [
            {"name": config, "config_operation": operation, "value": value}
            for config, operation, value in changes
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        body = {"resources": [resource], "validate_only": validate_only}
        return Step(44, version, body, label=f"alter {kind} {name!r} {changes}")

    # -- what an operator does ---------------------------------------------------------------------

    async def do(self, *steps: Step) -> None:
        """Send steps to both brokers and compare the answers, as `Pair.do` does."""
        await self.pair.do(*steps)

    async def topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic on both brokers, and wait until it can be used."""
        await self.do(
            self.create_topics({"name": name, "partitions": partitions, "configs": configs or {}})
        )
        await self.known(name)

    async def get_ready(self) -> None:
        """Create the topic that `settled` changes, and wait until brokers give out producer ids."""
        await self.do(self.create_topics({"name": "barrier"}))
        await self._shows("barrier", "retention.ms", "604800000")
        await self._until_producer_ids()

    async def known(self, name: str) -> None:
        """Wait until both brokers show the leaders of a topic that was just created."""
        await self.pair.until(
            self.metadata(name),
            lambda answer: all(
                topic["error_code"] == "none" for topic in answer["topics"].values()
            ),
        )
        await self.settled()

    async def gone(self, name: str) -> None:
        """Wait until both brokers no longer know a deleted topic."""
        await self.pair.until(
            self.metadata(name),
            lambda answer: all(
                topic["error_code"] != "none" for topic in answer["topics"].values()
            ),
        )
        await self.settled()

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Set a topic's config on both brokers, and wait until it has taken effect."""
        await self.do(self.alter_configs(TOPIC_RESOURCE, topic, (name, 0, value)))
        await self._shows(topic, name, value)
        await self.settled()

    async def settled(self) -> None:
        """Wait until both brokers have carried out the config and topic changes that they show.

        A broker can show a change before carrying it out, but carries changes out in order. So this
        method requests one more change; once a broker shows that, all earlier ones are in effect.
        """
        self._barrier += 1
        value = str(1_000_000 + self._barrier)
        await self.do(self.alter_configs(TOPIC_RESOURCE, "barrier", ("retention.ms", 0, value)))
        await self._shows("barrier", "retention.ms", value)

    async def checkpointed(self, topic: str, starts: Mapping[int, int]) -> None:
        """Wait until Kafka has these log start offsets on disk: a kill loses unwritten ones."""
        assert self.kafka is not None
        written = self.kafka.brokers[0].folder / "log-start-offset-checkpoint"
        wanted = {f"{topic} {partition} {start}" for partition, start in starts.items()}
        with anyio.fail_after(20):
            while not wanted <= set(written.read_text().splitlines()):
                await self.pair.real.run([self.producers(topic)])

    async def restart(self, *, clean: bool) -> None:
        """Stop or kill both brokers, and start them again."""
        assert self.kafka is not None
        await self.pair.hang_up()
        await self.kafka.restart(clean=clean)
        await self.embedded.stop_broker(0, clean=clean)
        await self.embedded.start_broker(0)
        await self._until_producer_ids()

    async def _until_producer_ids(self) -> None:
        """Wait until a broker that was just started has producer ids to give out."""
        await self.pair.until(
            self.init_producer_id(), lambda answer: bool(answer["error_code"] == "none")
        )
        for side in (self.pair.real, self.pair.ours):
            side.forget_allocated()

    async def _shows(self, topic: str, name: str, value: str) -> None:
        await self.pair.until(
            self.describe_configs(TOPIC_RESOURCE, topic, [name], synonyms=False),
            lambda answer: (
                value
                in [
                    config["value"]
                    for result in answer["results"].values()
                    for config in (result["configs"] or {}).values()
                ]
            ),
        )


@asynccontextmanager
async def bench(world: World, allowed: Sequence[Allowed]) -> AsyncIterator[Bench]:
    """Start real Kafka and an embedded cluster, and yield a `Bench` of both."""
    async with (
        KafkaCluster(world.kafka, retain=world.retain, properties=SETTINGS | KAFKAS) as kafka,
        EmbeddedCluster(
            retain=world.retain or 5, produce_versions=world.produce, configs=SETTINGS
        ) as embedded,
    ):

        def real_address() -> tuple[str, int]:
            # The proxy is needed only for a patched broker, whose answers it changes.
            port = kafka.brokers[0].inner_port if world.retain is None else kafka.proxy.port
            return HOST, port

        def embedded_address() -> tuple[str, int]:
            [broker] = embedded.state.running
            return HOST, broker.port

        pair = Pair(world.name, Side("real", real_address), Side("ours", embedded_address), allowed)
        made = Bench(world, pair, kafka, embedded)
        try:
            await made.get_ready()
            yield made
        finally:
            await pair.hang_up()
