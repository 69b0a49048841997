"""The requests of an examination that the producer itself never sends, and their answers as facts.

Metadata is asked with replicas and authorised operations (KIP-430), DescribeConfigs for several
resources at once, and DescribeQuorum (KIP-836) because its answer has the time of day of the active
controller: nothing else that a client may read has a time of the brokers.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._doctor.facts import Configs, Granted, PartitionSeen, TopicSeen
from aioidem._protocol.describe_configs import BROKER, TOPIC
from aioidem._protocol.foreign_text import printable
from aioidem._protocol.messages import request_type
from aioidem._protocol.metadata import BrokerAddress, metadata_request
from aioidem._protocol.topic_limit import LIMIT_CONFIGS
from aioidem._protocol.versions import ApiKey, ApiVersionTable
from aioidem.errors import InternalError

__all__ = [
    "BROKER_CONFIGS",
    "EXPIRATION",
    "PRODUCE_WITH_WINDOW",
    "RETAIN",
    "TOPIC_CONFIGS",
    "MetadataSeen",
    "configs_asked",
    "configs_seen",
    "metadata_asked",
    "metadata_seen",
    "quorum_asked",
    "quorum_clock",
]

PRODUCE_WITH_WINDOW: Final = 14
"""The first Produce version whose answers name the window (KIP-1269)."""
EXPIRATION: Final = "producer.id.expiration.ms"
RETAIN: Final = "producer.state.batches.to.retain"
BROKER_CONFIGS: Final = (EXPIRATION,)
TOPIC_CONFIGS: Final = (
    RETAIN,
    *LIMIT_CONFIGS,
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)

_NOT_SAID: Final = -(2**31)
_READ, _WRITE = 1 << 3, 1 << 4
_QUORUM: Final = "__cluster_metadata"


class MetadataSeen(NamedTuple):
    """What a Metadata answer says."""

    cluster_id: str | None
    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicSeen, ...]


def metadata_asked(versions: ApiVersionTable, topics: Sequence[str]) -> Any:
    """Make a Metadata request that creates no topic and asks what this client may do with each."""
    request: Any = metadata_request(
        versions.choose(ApiKey.METADATA), topics, allow_auto_create=False
    )
    if topics and hasattr(request, "include_topic_authorized_operations"):
        request = dataclasses.replace(request, include_topic_authorized_operations=True)
    return request


def metadata_seen(answer: Any) -> MetadataSeen:
    """Read the answer; brokers with impossible addresses are left out."""
    named = (
        BrokerAddress(int(each.node_id), each.host, int(each.port), each.rack)
        for each in answer.brokers
    )
    cluster = getattr(answer, "cluster_id", None)
    return MetadataSeen(
        None if cluster is None else printable(cluster, 60),
        tuple(each for each in named if each.possible),
        tuple(_topic(each) for each in answer.topics),
    )


def _topic(topic: Any) -> TopicSeen:
    operations = int(getattr(topic, "topic_authorized_operations", _NOT_SAID))
    granted = Granted()
    if operations != _NOT_SAID:
        granted = Granted(bool(operations & _READ), bool(operations & _WRITE))
    return TopicSeen(
        printable(topic.name or ""),
        int(topic.error_code),
        tuple(
            PartitionSeen(
                int(part.partition_index),
                int(part.leader_id),
                tuple(map(int, part.replica_nodes)),
                tuple(map(int, part.isr_nodes)),
                tuple(map(int, getattr(part, "offline_replicas", ()))),
                int(part.error_code),
            )
            for part in sorted(topic.partitions, key=lambda part: int(part.partition_index))
        ),
        granted,
    )


def configs_asked(versions: ApiVersionTable, node_id: int, topics: Iterable[str]) -> Any:
    """Make a DescribeConfigs request for a broker's own configs and those of some topics."""
    schema: Any = request_type(ApiKey.DESCRIBE_CONFIGS, versions.choose(ApiKey.DESCRIBE_CONFIGS))
    resource = importlib.import_module(schema.__module__).DescribeConfigsResource
    wanted: list[tuple[int, str, tuple[str, ...]]] = [(BROKER, str(node_id), BROKER_CONFIGS)]
    wanted += [(TOPIC, topic, TOPIC_CONFIGS) for topic in topics]
    values: dict[str, Any] = {
        "resources": tuple(
            resource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in wanted
        )
    }
    known = {field.name for field in dataclasses.fields(schema)}
    for flag in ("include_synonyms", "include_documentation"):
        if flag in known:
            values[flag] = False
    return schema(**values)


def configs_seen(answer: Any) -> tuple[Configs | None, Mapping[str, Configs]]:
    """Return the broker's own configs, and those of each topic."""
    own: Configs | None = None
    topics: dict[str, Configs] = {}
    for result in answer.results:
        values = {
            printable(each.name): None if each.value is None else printable(each.value)
            for each in result.configs
        }
        configs = Configs(int(result.error_code), MappingProxyType(values))
        if int(result.resource_type) == TOPIC:
            topics[result.resource_name] = configs
        else:
            own = configs
    return own, MappingProxyType(topics)


def quorum_asked(versions: ApiVersionTable) -> Any:
    """Make a DescribeQuorum request for the metadata log, which the active controller leads."""
    version = versions.choose(ApiKey.DESCRIBE_QUORUM)
    schema: Any = request_type(ApiKey.DESCRIBE_QUORUM, version)
    if schema is None:
        raise InternalError(f"no DescribeQuorum version {version}")
    module = importlib.import_module(schema.__module__)
    part = module.PartitionData(partition_index=0)
    return schema(topics=(module.TopicData(topic_name=_QUORUM, partitions=(part,)),))


def quorum_clock(answer: Any) -> tuple[int, float] | None:
    """Return the active controller's id and its time of day, in seconds since the epoch.

    None if the answer does not have them, mostly because DESCRIBE on the cluster is not granted.
    """
    if int(answer.error_code) != ErrorCode.none:
        return None
    for topic in answer.topics:
        for part in topic.partitions:
            for replica in part.current_voters:
                if int(replica.replica_id) == int(part.leader_id):
                    stamp = getattr(replica, "last_caught_up_timestamp", None)
                    seconds = _seconds(stamp)
                    return None if seconds is None else (int(part.leader_id), seconds)
    return None


def _seconds(stamp: Any) -> float | None:
    """Return kio's timestamp, an aware `datetime` or milliseconds, in seconds since the epoch."""
    if stamp is None:
        return None
    seconds = stamp / 1000 if isinstance(stamp, int) else stamp.timestamp()
    return float(seconds) if seconds > 0 else None
