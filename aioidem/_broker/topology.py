"""What the simulated cluster is made of: brokers, topics, configs, producer ids.

Invariants
    Every result is repeatable: ids follow from the seed, and the placement of replicas from the
    ids of the brokers.
    Every refusal is a `RefusedError` with the code that a broker answers.

Rejected
    Random placement as in Kafka: a test wants to know that broker 0 leads partition 0.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID
from zlib import crc32

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.configs import (
    BROKER_CONFIGS,
    CLUSTER_RETAIN,
    DEFAULT_RETAIN,
    RANGE_CONFIGS,
    SEQUENCE_RANGE,
    TOPIC_CONFIGS,
    TopicSettings,
    validate,
)
from aioidem._broker.partition import Partition, Topic

__all__ = ["FIRST_RETAINING_VERSION", "Broker", "Topology"]

FIRST_RETAINING_VERSION: Final = 14
"""The first Produce version of KIP-1269; a broker that serves this version implements the KIP."""

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PID_BLOCK: Final = 1000
_MAX_PARTITIONS: Final = 10_000


class Broker:
    """One broker: its address, its versions, and whether it runs.

    Attributes:
        sequence_range: How far below the last sequence a batch counts as a duplicate (KIP-758), in
            records; None: the broker recognises duplicates by the batches that it remembers.
        throttle: Throttle time of Produce requests, in seconds.
        clock_offset_ms: How far the broker's wall clock is ahead of the cluster's, in ms.
        pids: Producer ids of the broker's present block that it has not handed out yet.
    """

    __slots__ = (
        "clock_offset_ms",
        "configs",
        "host",
        "id",
        "online",
        "pids",
        "port",
        "produce_version",
        "retain_default",
        "sequence_range",
        "throttle",
    )

    def __init__(
        self, broker_id: int, produce_version: int, sequence_range: int | None = None
    ) -> None:
        self.id = broker_id
        self.sequence_range = sequence_range
        self.host = "127.0.0.1"
        self.port = 9092
        self.produce_version = produce_version
        self.online = True
        self.configs: dict[str, str] = {}
        self.retain_default = DEFAULT_RETAIN
        self.throttle = 0.0
        self.clock_offset_ms = 0
        self.pids = range(0)

    def __repr__(self) -> str:
        return f"<Broker {self.id} {self.host}:{self.port} produce<=v{self.produce_version}>"

    def wall_ms(self, cluster_ms: int) -> int:
        """Return what the broker's wall clock shows when the cluster's shows ``cluster_ms``."""
        return cluster_ms + self.clock_offset_ms

    @property
    def retains(self) -> bool:
        """Return whether the broker implements KIP-1269."""
        return self.produce_version >= FIRST_RETAINING_VERSION


class Topology:
    """The brokers of a simulated cluster, and its topics, configs and ids.

    Broker ids are 0, 1, ...; `ClusterState` describes the parameters.
    """

    def __init__(
        self,
        *,
        brokers: int,
        retain: int | Mapping[int, int],
        produce_versions: int | Mapping[int, int],
        configs: Mapping[str, str] | None,
        seed: int,
        sequence_range: int | None = None,
    ) -> None:
        self._random = random.Random(seed)
        raw_id = self._random.getrandbits(128).to_bytes(16, "big")
        self.cluster_id = base64.urlsafe_b64encode(raw_id).decode().rstrip("=")
        if sequence_range is not None:
            _check_range(sequence_range)
        self.brokers = {
            b: Broker(b, _produce_version(produce_versions, b, sequence_range), sequence_range)
            for b in range(brokers)
        }
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        self.configs: dict[str, str] = dict(configs or {})
        self.coordinators: dict[str, int] = {}
        self.coordinator_faults: dict[str, ErrorCode] = {}
        self._next_pid_block = 0
        validate(BROKER_CONFIGS, self.configs.items(), retains=True)
        for broker in self.brokers.values():
            wanted = str(_per_broker(retain, broker.id, DEFAULT_RETAIN))
            validate(BROKER_CONFIGS, [(CLUSTER_RETAIN, wanted)], retains=True)
            if wanted != str(DEFAULT_RETAIN):
                broker.configs[CLUSTER_RETAIN] = wanted
        self._reload_configs()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Mapping[int, list[int]] | None = None,
        validate_only: bool = False,
        retains: bool = True,
    ) -> Topic:
        """Create a topic. Partition p's first replica is on the (p mod brokers)-th running broker.

        Args:
            name: Name of the topic.
            partitions: How many partitions; -1: the cluster's default.
            replication: How many replicas; -1: the cluster's default.
            configs: Configs of the topic; a value of None is the default.
            assignments: Brokers of each partition, the leader first; used instead of ``partitions``
                and ``replication``.
            validate_only: Make all checks, and do not create the topic.
            retains: Whether the broker that got the request knows the configs of KIP-1269.

        Raises:
            RefusedError: With the code that CreateTopics answers.
        """
        self.check_topic_name(name)
        if name in self.topics:
            raise RefusedError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        self._check_collision(name)
        overrides = dict(configs or {})
        validate(TOPIC_CONFIGS, overrides.items(), retains=retains)
        plan = self._place(partitions, replication, assignments)
        topic_id = self.new_uuid()
        values = {k: v for k, v in overrides.items() if v is not None}
        topic = Topic(name, topic_id, TopicSettings.of(values, self.configs))
        topic.overrides = values
        topic.partitions = [Partition(topic, i, b, self._retain) for i, b in enumerate(plan)]
        if not validate_only:
            self.topics[name] = topic
            self.topics_by_id[topic_id] = topic
        return topic

    def forget_topic(self, topic: Topic) -> None:
        """Remove a topic; the caller answers the requests that wait for its partitions."""
        del self.topics[topic.name]
        del self.topics_by_id[topic.id]

    def add_partitions(
        self, topic: Topic, count: int, assignments: Mapping[int, list[int]] | None = None
    ) -> None:
        """Raise a topic's number of partitions to ``count``, as CreatePartitions does (KIP-195).

        New partitions are placed like those of a new topic, and have as many replicas as the first
        partition, unless ``assignments`` says where all partitions are.

        Raises:
            RefusedError: INVALID_PARTITIONS if the topic has ``count`` partitions or more already.
        """
        there = len(topic.partitions)
        if count <= there:
            raise RefusedError(
                ErrorCode.invalid_partitions, f"The topic has {there} partitions already."
            )
        plan = self._place(count, len(topic.partitions[0].replicas), assignments)
        topic.partitions += [
            Partition(topic, index, plan[index], self._retain) for index in range(there, count)
        ]

    def set_topic_configs(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Replace all configs of a topic; the caller has validated them."""
        topic.overrides = dict(overrides)
        topic.settings = TopicSettings.of(topic.overrides, self.configs)

    def set_broker_configs(self, broker: Broker | None, configs: Mapping[str, str]) -> None:
        """Replace the configs of a broker (None: of the cluster); the caller has validated them."""
        if broker is None:
            self.configs = dict(configs)
        else:
            broker.configs = dict(configs)
        self._reload_configs()

    def broker_config(self, broker: Broker | None, name: str) -> str:
        """Return the value of a config on a broker (None: the cluster-wide value)."""
        own = broker.configs.get(name) if broker is not None else None
        return own or self.configs.get(name) or BROKER_CONFIGS[name].default

    def allocate_producer_id(self, broker: Broker) -> int:
        """Return the next producer id of the broker's block of 1000, or of its next block."""
        if not broker.pids:
            first = self._next_pid_block * _PID_BLOCK
            broker.pids = range(first, first + _PID_BLOCK)
            self._next_pid_block += 1
        taken = broker.pids[0]
        broker.pids = broker.pids[1:]
        return taken

    def new_uuid(self) -> UUID:
        """Return the next random UUID; the seed determines it."""
        return UUID(int=self._random.getrandbits(128), version=4)

    def coordinator_of(self, key: str) -> Broker | None:
        """Return the running broker that coordinates this group or transactional id.

        It is the broker that the key was moved to, or else one that a hash of the key chooses. If
        that broker is stopped, it is the next one that runs; None if no broker runs.
        """
        count = len(self.brokers)
        wanted = self.coordinators.get(key, crc32(key.encode()) % count)
        in_turn = (self.brokers[(wanted + n) % count] for n in range(count))
        return next((broker for broker in in_turn if broker.online), None)

    def coordinator_error(self, key: str, broker: Broker) -> ErrorCode:
        """Return a broker's code for this key: an injected fault, NOT_COORDINATOR, or no error."""
        fault = self.coordinator_faults.get(key)
        if fault is not None:
            return fault
        here = self.coordinator_of(key) is broker
        return ErrorCode.none if here else ErrorCode.not_coordinator

    def group_error(self, group_id: str, broker: Broker) -> ErrorCode:
        """Return what `coordinator_error` says of a group; INVALID_GROUP_ID if it has no name."""
        return self.coordinator_error(group_id, broker) if group_id else ErrorCode.invalid_group_id

    @property
    def running(self) -> list[Broker]:
        """Return the running brokers, in the order of their ids."""
        return [b for b in self.brokers.values() if b.online]

    @staticmethod
    def check_topic_name(name: str) -> None:
        """Check the name of a topic.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION for a name that no topic may have.
        """
        if name in (".", "..") or not _TOPIC_NAME.match(name):
            raise RefusedError(
                ErrorCode.invalid_topic_exception, f"Topic name is illegal: {name!r}"
            )

    def _check_collision(self, name: str) -> None:
        """Refuse a name that differs from a topic's only by dots for underscores.

        The names of metrics have underscores for dots, so both topics would share them.
        """
        if not {".", "_"} & set(name):
            return
        shared = name.replace(".", "_")
        for other in self.topics:
            if other.replace(".", "_") == shared:
                raise RefusedError(
                    ErrorCode.invalid_topic_exception,
                    f"Topic '{name}' collides with existing topic: {other}",
                )

    def partitions(self) -> list[Partition]:
        """Return the partitions of all topics."""
        return [p for topic in self.topics.values() for p in topic.partitions]

    def _retain(self, broker_id: int, topic: Topic) -> int:
        broker = self.brokers[broker_id]
        if broker.sequence_range is not None:
            return 1
        if not broker.retains:
            return DEFAULT_RETAIN
        return topic.settings.retain or broker.retain_default

    def _reload_configs(self) -> None:
        for broker in self.brokers.values():
            broker.retain_default = int(self.broker_config(broker, CLUSTER_RETAIN))
        for topic in self.topics.values():
            topic.settings = TopicSettings.of(topic.overrides, self.configs)

    def _place(
        self, partitions: int, replication: int, assignments: Mapping[int, list[int]] | None
    ) -> list[list[int]]:
        if assignments:
            return self._placed_by_hand(assignments)
        if partitions == -1:
            partitions = int(self.broker_config(None, "num.partitions"))
        if replication == -1:
            replication = int(self.broker_config(None, "default.replication.factor"))
        if partitions < 1:
            raise RefusedError(
                ErrorCode.invalid_partitions, "Number of partitions must be larger than 0."
            )
        if partitions > _MAX_PARTITIONS:
            raise RefusedError(
                ErrorCode.policy_violation,
                f"At most {_MAX_PARTITIONS} partitions: all is in memory.",
            )
        running = [b.id for b in self.running]
        if not 1 <= replication <= len(running):
            raise RefusedError(
                ErrorCode.invalid_replication_factor,
                f"Replication factor {replication} with {len(running)} brokers available.",
            )
        return [
            [running[(p + r) % len(running)] for r in range(replication)] for p in range(partitions)
        ]

    def _placed_by_hand(self, assignments: Mapping[int, list[int]]) -> list[list[int]]:
        if sorted(assignments) != list(range(len(assignments))):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment, "Partitions must be numbered 0, 1, ..."
            )
        plan = [assignments[p] for p in range(len(assignments))]
        for brokers in plan:
            if not brokers or len(set(brokers)) != len(brokers) or set(brokers) - set(self.brokers):
                raise RefusedError(
                    ErrorCode.invalid_replica_assignment, f"Replicas {brokers} cannot be placed."
                )
        return plan


def _produce_version(
    wanted: int | Mapping[int, int], broker_id: int, sequence_range: int | None
) -> int:
    version = _per_broker(wanted, broker_id, FIRST_RETAINING_VERSION)
    # A broker with KIP-758 does not know KIP-1269.
    return version if sequence_range is None else min(version, FIRST_RETAINING_VERSION - 1)


def _per_broker(values: int | Mapping[int, int], broker_id: int, default: int) -> int:
    return values if isinstance(values, int) else values.get(broker_id, default)


def _check_range(sequence_range: int) -> None:
    # `validate` cannot check this value: it refuses every read-only config.
    try:
        RANGE_CONFIGS[SEQUENCE_RANGE].check(str(sequence_range))
    except ValueError as reason:
        raise RefusedError(
            ErrorCode.invalid_config,
            f"Invalid value {sequence_range} for configuration {SEQUENCE_RANGE}: {reason}",
        ) from None
