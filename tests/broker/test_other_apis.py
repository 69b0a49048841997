"""Every API of the embedded broker except Produce: each version, and what each API refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.dispatch import HANDLERS
from aioidem._broker.entities import Entity
from aioidem._broker.versions import VERSIONS, announced
from aioidem._broker.virtual import START_MS, VirtualClient, VirtualCluster, idempotent_batch
from aioidem._records import read_batches
from aioidem._records.checksum import crc32c

ZERO = timedelta(0)
NOT_LEADER = ErrorCode.not_leader_or_follower
UNKNOWN = ErrorCode.unknown_topic_or_partition
FETCH_VERSIONS = range(4, 19)


@pytest.fixture
def cluster() -> VirtualCluster:
    """Return a cluster of two brokers; partition N of topic ``t`` is on broker N.

    Partition 0 has three records.
    """
    made = VirtualCluster(brokers=2)
    made.state.topology.create_topic("t", partitions=2, replication=1)
    client = made.client()
    for sequence in range(3):
        stamp = [START_MS + 10 * sequence]
        client.produce(idempotent_batch(sequence, timestamps_ms=stamp))
    return made


@pytest.fixture
def client(cluster: VirtualCluster) -> VirtualClient:
    return cluster.client()


# -- every version ---------------------------------------------------------------------------------


def metadata_request() -> dict[str, Any]:
    return {
        "topics": [{"topic_id": None, "name": "t"}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


def fetch_request(
    cluster: VirtualCluster,
    *,
    offset: int = 0,
    partition: int = 0,
    name: str = "t",
    **changes: Any,
) -> dict[str, Any]:
    topic = cluster.state.topics.get(name)
    wanted = {
        "partition": partition,
        "current_leader_epoch": changes.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": changes.pop("partition_max_bytes", 1 << 20),
    }
    return {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=changes.pop("max_wait_ms", 500)),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": name,
                "topic_id": topic.id if topic is not None else uuid.UUID(int=9),
                "partitions": [wanted],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
        **changes,
    }


def offsets_request(timestamp: int, *, partition: int = 0, **changes: Any) -> dict[str, Any]:
    wanted = {
        "partition_index": partition,
        "current_leader_epoch": changes.pop("leader_epoch", -1),
        "timestamp": timestamp,
    }
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": changes.pop("name", "t"), "partitions": [wanted]}],
        "timeout": timedelta(seconds=30),
    }


def commit_request(cluster: VirtualCluster, offset: int) -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": 0,
        "committed_metadata": "note",
    }
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [
            {"name": "t", "topic_id": cluster.state.topics["t"].id, "partitions": [part]},
        ],
    }


def committed_request(cluster: VirtualCluster) -> dict[str, Any]:
    topics = [
        {"name": "t", "topic_id": cluster.state.topics["t"].id, "partition_indexes": [0, 1]},
    ]
    return {
        "group_id": "g",
        "topics": topics,
        "groups": [{"group_id": "g", "topics": topics}],
        "require_stable": False,
    }


def creation(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
        **changes,
    }


def in_transaction(cluster: VirtualCluster) -> dict[str, Any]:
    """Open a transaction that includes group g, and return the request fields of the producer.

    Broker 0 coordinates the transaction and the group.
    """
    cluster.state.coordinators |= {"tx": 0, "g": 0}
    client = cluster.client()
    given = client.ask(
        22, 0, {"transactional_id": "tx", "transaction_timeout": timedelta(seconds=60)}
    )
    who = {
        "transactional_id": "tx",
        "producer_id": given.producer_id,
        "producer_epoch": given.producer_epoch,
    }
    client.ask(25, 0, who | {"group_id": "g"})
    return who


def member(cluster: VirtualCluster) -> dict[str, Any]:
    """Add the only member to group g at broker 0, and return the request fields of the member."""
    cluster.state.coordinators["g"] = 0
    client = cluster.client()
    joined = client.ask(11, 3, join_request(""))
    place = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
    client.ask(14, 0, place | {"assignments": []})
    return place


def join_request(member_id: str) -> dict[str, Any]:
    return {
        "group_id": "g",
        "member_id": member_id,
        "session_timeout": timedelta(seconds=30),
        "rebalance_timeout": timedelta(seconds=60),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def empty_group(cluster: VirtualCluster) -> str:
    """Commit an offset of group g, which has no members; return its group id."""
    cluster.state.coordinators["g"] = 0
    cluster.client().ask(8, 2, commit_request(cluster, 2))
    return "g"


REQUESTS: dict[int, Callable[[VirtualCluster], dict[str, Any]]] = {
    1: fetch_request,
    2: lambda _cluster: offsets_request(-1),
    3: lambda _cluster: metadata_request(),
    8: lambda cluster: commit_request(cluster, 2),
    9: committed_request,
    10: lambda _cluster: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
    11: lambda cluster: join_request(member(cluster)["member_id"]),
    12: member,
    13: lambda cluster: (
        (place := member(cluster))
        | {"members": [{"member_id": place["member_id"], "group_instance_id": None}]}
    ),
    14: lambda cluster: (
        member(cluster) | {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    ),
    15: lambda cluster: {
        "groups": [member(cluster)["group_id"]],
        "include_authorized_operations": True,
    },
    16: lambda cluster: {"states_filter": [empty_group(cluster)], "types_filter": ["classic"]},
    42: lambda cluster: {"groups_names": [empty_group(cluster)]},
    47: lambda cluster: {
        "group_id": empty_group(cluster),
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
    },
    18: lambda _cluster: {
        "client_software_name": "virtual",
        "client_software_version": "1.0",
    },
    19: lambda _cluster: {
        "topics": [creation("new")],
        "timeout": ZERO,
        "validate_only": False,
    },
    20: lambda _cluster: {
        "topic_names": ["t"],
        "topics": [{"name": "t", "topic_id": None}],
        "timeout": ZERO,
    },
    22: lambda _cluster: {"transactional_id": None, "transaction_timeout": ZERO},
    24: lambda cluster: {
        **{f"v3_and_below_{k}": v for k, v in in_transaction(cluster).items()},
        "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
    },
    25: lambda cluster: in_transaction(cluster) | {"group_id": "g"},
    26: lambda cluster: in_transaction(cluster) | {"committed": True},
    28: lambda cluster: (
        in_transaction(cluster)
        | {
            "group_id": "g",
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
                    ],
                }
            ],
        }
    ),
    23: lambda _cluster: {
        "replica_id": -1,
        "topics": [
            {
                "topic": "t",
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
            }
        ],
    },
    32: lambda _cluster: {
        "resources": [
            {"resource_type": 2, "resource_name": "t", "configuration_keys": None},
        ],
        "include_synonyms": True,
        "include_documentation": True,
    },
    44: lambda _cluster: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "configs": [
                    {"name": "max.message.bytes", "config_operation": 0, "value": "2000000"}
                ],
            }
        ],
        "validate_only": False,
    },
    21: lambda _cluster: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}],
        "timeout": timedelta(seconds=30),
    },
    60: lambda _cluster: {
        "include_cluster_authorized_operations": False,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    },
    61: lambda _cluster: {"topics": [{"name": "t", "partition_indexes": [0]}]},
    66: lambda _cluster: {
        "state_filters": ["Ongoing"],
        "producer_id_filters": [1],
        "duration_filter": 1,
        "transactional_id_pattern": "a.*",
    },
}
EVERY_VERSION = [
    (key, version)
    for key in REQUESTS
    for version in range(VERSIONS[key].first, VERSIONS[key].last + 1)
]


def errors_in(entity: Any) -> list[int]:
    """Return every error code of an answer, at any depth."""
    if isinstance(entity, tuple):
        return [code for item in entity for code in errors_in(item)]
    if not hasattr(entity, "__dataclass_fields__"):
        return []
    own = [entity.error_code] if hasattr(entity, "error_code") else []
    return own + [
        code for name in entity.__dataclass_fields__ for code in errors_in(getattr(entity, name))
    ]


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_every_version_of_every_api_is_answered_without_an_error(
    cluster: VirtualCluster, client: VirtualClient, api_key: int, version: int
) -> None:
    """Each served version of each API is answered without an error."""
    answer = client.ask(api_key, version, REQUESTS[api_key](cluster))
    assert answer.__version__ == version
    assert set(errors_in(answer)) <= {ErrorCode.none}


def test_every_api_is_tried_in_every_version() -> None:
    """`REQUESTS` covers every API that is served, except Produce and authentication."""
    produce, authentication = {0}, {17, 36}
    assert set(REQUESTS) | produce | authentication == set(VERSIONS) == set(HANDLERS)


# -- ApiVersions -----------------------------------------------------------------------------------


def api_versions(client: VirtualClient, version: int = 3, name: str = "virtual") -> Entity:
    values = {"client_software_name": name, "client_software_version": "1"}
    return client.ask(18, version, values)


def test_api_versions_lists_what_is_served() -> None:
    """ApiVersions lists the APIs and versions that the broker serves."""
    cluster = VirtualCluster(brokers=3, produce_versions={0: 14, 1: 13, 2: 9})
    highest = []
    for broker in range(3):
        answer = api_versions(cluster.client(broker))
        ranges = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
        highest.append(ranges.pop(0))
        assert ranges == {k: (a.first, a.last) for k, a in VERSIONS.items() if k != 0}
    assert highest == [(0, 14), (0, 13), (0, 9)]


def test_a_broker_serves_no_produce_version_above_its_own() -> None:
    """A broker announces and serves Produce up to its own highest version."""
    cluster = VirtualCluster(produce_versions=13)
    broker = cluster.state.brokers[0]
    assert announced(broker)[0] == (0, 0, 13)
    served = [v for v in range(20) if cluster.state.serves(broker, 0, v)]
    assert served == list(range(3, 14))
    assert not cluster.state.serves(broker, 99, 0)


def test_api_versions_refuses_a_software_name_that_is_none(client: VirtualClient) -> None:
    """ApiVersions refuses a malformed client software name."""
    assert api_versions(client, name="").error_code == ErrorCode.invalid_request
    assert api_versions(client, name="-x").error_code == ErrorCode.invalid_request
    assert api_versions(client, name="a-1.b").error_code == ErrorCode.none


# -- Metadata --------------------------------------------------------------------------------------


def metadata(client: VirtualClient, version: int = 12, **changes: Any) -> Entity:
    values = {
        "topics": None,
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
        **changes,
    }
    return client.ask(3, version, values)


def test_metadata_of_all_topics_shows_leaders_and_ids(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Metadata of all topics contains leaders and topic ids."""
    answer = metadata(client)
    assert answer.cluster_id == cluster.state.cluster_id
    assert [b.node_id for b in answer.brokers] == [0, 1]
    (topic,) = answer.topics
    assert topic.topic_id == cluster.state.topics["t"].id
    assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [(0, 0), (1, 1)]


def test_metadata_v0_takes_no_topics_for_all_and_v1_for_none(client: VirtualClient) -> None:
    """An empty list means all topics in Metadata v0, and no topics from v1 on."""
    assert len(metadata(client, 0, topics=[]).topics) == 1
    assert len(metadata(client, 1, topics=[]).topics) == 0


def test_metadata_by_topic_id(cluster: VirtualCluster, client: VirtualClient) -> None:
    """Metadata can be asked for by topic id."""
    known, unknown = cluster.state.topics["t"].id, uuid.UUID(int=5)
    asked = [{"topic_id": i, "name": None} for i in (known, unknown)]
    found, missing = metadata(client, topics=asked).topics
    assert (found.name, found.error_code) == ("t", ErrorCode.none)
    assert (missing.topic_id, missing.error_code) == (unknown, ErrorCode.unknown_topic_id)


def test_an_unknown_topic_is_created_and_found_by_the_next_request(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Metadata creates an unknown topic, which the next request finds."""
    asked = [{"topic_id": None, "name": "fresh"}]
    assert metadata(client, topics=asked).topics[0].error_code == UNKNOWN
    assert metadata(client, topics=asked).topics[0].error_code == ErrorCode.none
    assert len(cluster.state.topics["fresh"].partitions) == 1


def test_no_topic_is_created_when_request_or_broker_forbid_it(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Metadata creates no topic if the request or the broker forbids it."""
    asked = [{"topic_id": None, "name": "fresh"}]
    metadata(client, topics=asked, allow_auto_topic_creation=False)
    cluster.state.topology.set_broker_configs(None, {"auto.create.topics.enable": "false"})
    metadata(client, topics=asked)
    assert "fresh" not in cluster.state.topics


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "caf\u00e9"])
def test_an_illegal_topic_name_is_refused(client: VirtualClient, name: str) -> None:
    """Metadata refuses an illegal topic name."""
    answer = metadata(client, topics=[{"topic_id": None, "name": name}])
    assert answer.topics[0].error_code == ErrorCode.invalid_topic_exception


# -- Fetch -----------------------------------------------------------------------------------------


def fetched(answer: Entity) -> Entity:
    ((part,),) = [t.partitions for t in answer.responses]
    return part


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_returns_whole_batches_with_their_offsets(
    cluster: VirtualCluster, client: VirtualClient, version: int
) -> None:
    """Fetch returns whole batches with their offsets."""
    part = fetched(client.ask(1, version, fetch_request(cluster, offset=1)))
    batches = read_batches(part.records)
    assert [b.base_offset for b in batches] == [1, 2]
    assert all(b.crc_ok() for b in batches)
    assert part.high_watermark == 3


def test_fetch_at_the_end_waits_for_a_record_and_no_longer_than_max_wait(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A Fetch at the end of the log waits for a record, at most for ``max_wait``."""
    waiting = client.send(1, 12, fetch_request(cluster, offset=3))
    cluster.run_until(0.2)
    assert client.answer(waiting) is None
    cluster.client().produce(idempotent_batch(3))
    assert [b.base_offset for b in read_batches(fetched(client.answer(waiting)).records)] == [3]
    before = cluster.now
    assert fetched(client.ask(1, 12, fetch_request(cluster, offset=4))).records == b""
    assert cluster.now == pytest.approx(before + 0.5)


def test_fetch_waits_for_min_bytes(cluster: VirtualCluster, client: VirtualClient) -> None:
    """A Fetch at the end of the log waits until there are ``min_bytes``."""
    waiting = client.send(1, 12, fetch_request(cluster, offset=3, min_bytes=100))
    other = cluster.client()
    other.produce(idempotent_batch(3))
    assert client.answer(waiting) is None
    other.produce(idempotent_batch(4))
    assert len(read_batches(fetched(client.answer(waiting)).records)) == 2


def test_fetch_is_woken_by_a_rising_high_watermark(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A waiting Fetch is answered when the high watermark rises."""
    partition = cluster.state.topics["t"].partitions[0]
    partition.hold_high_watermark()
    waiting = client.send(1, 12, fetch_request(cluster, offset=3))
    cluster.client().produce(idempotent_batch(3), acks=1)
    assert client.answer(waiting) is None
    partition.release_high_watermark()
    cluster.state.wake(partition)
    cluster.settle()
    assert len(read_batches(fetched(client.answer(waiting)).records)) == 1


@pytest.mark.parametrize("offset", [-1, 4, 10**12])
def test_fetch_outside_of_the_log_is_out_of_range(
    cluster: VirtualCluster, client: VirtualClient, offset: int
) -> None:
    """A Fetch at an offset outside of the log is answered OFFSET_OUT_OF_RANGE."""
    part = fetched(client.ask(1, 12, fetch_request(cluster, offset=offset)))
    assert part.error_code == ErrorCode.offset_out_of_range


def test_fetch_of_something_unknown_or_led_elsewhere(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Fetch refuses unknown topics, partitions that other brokers lead, and wrong leader epochs."""

    def code(version: int, **changes: Any) -> ErrorCode:
        found: ErrorCode = fetched(
            client.ask(1, version, fetch_request(cluster, **changes))
        ).error_code
        return found

    assert code(12, name="nope") == UNKNOWN
    assert code(13, name="nope") == ErrorCode.unknown_topic_id
    assert code(13, partition=7) == UNKNOWN
    assert code(12, partition=1) == NOT_LEADER
    assert code(12, leader_epoch=7) == ErrorCode.unknown_leader_epoch
    cluster.state.move_leader(cluster.state.topics["t"].partitions[0], 1)
    cluster.state.move_leader(cluster.state.topics["t"].partitions[0], 0)
    assert code(12, leader_epoch=0) == ErrorCode.fenced_leader_epoch


def test_fetch_keeps_to_max_bytes_but_always_gets_on(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Fetch keeps to its byte limits, but returns at least one batch (KIP-74)."""
    part = fetched(client.ask(1, 12, fetch_request(cluster, max_bytes=1)))
    assert len(read_batches(part.records)) == 1
    part = fetched(client.ask(1, 12, fetch_request(cluster, partition_max_bytes=1)))
    assert len(read_batches(part.records)) == 1


def test_fetch_knows_no_sessions(cluster: VirtualCluster, client: VirtualClient) -> None:
    """The broker has no fetch sessions: it answers a session id with FETCH_SESSION_ID_NOT_FOUND."""
    answer = client.ask(1, 12, fetch_request(cluster, session_id=5, session_epoch=1))
    assert answer.error_code == ErrorCode.fetch_session_id_not_found
    assert client.ask(1, 12, fetch_request(cluster, session_epoch=0)).session_id == 0


def test_fetch_below_what_retention_left_is_out_of_range(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A Fetch below the log's start offset is answered OFFSET_OUT_OF_RANGE."""
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"retention.bytes": "150"})
    client.produce(idempotent_batch(3))
    part = fetched(client.ask(1, 12, fetch_request(cluster)))
    assert part.error_code == ErrorCode.offset_out_of_range
    start = topic.partitions[0].replicas[0].log.start_offset
    assert start > 0
    assert fetched(client.ask(1, 12, fetch_request(cluster, offset=start))).records


def test_a_topic_that_is_only_compacted_keeps_all_whatever_its_retention(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Only cleanup.policy=delete removes the beginning of a log."""
    topic = cluster.state.topics["t"]
    configs = {"retention.bytes": "150", "cleanup.policy": "compact"}
    cluster.state.topology.set_topic_configs(topic, configs)
    client.produce(idempotent_batch(3, key=b"k"))
    assert topic.partitions[0].replicas[0].log.start_offset == 0


# -- ListOffsets and OffsetForLeaderEpoch ----------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (-1, 3),
        (-2, 0),
        (-3, 2),
        (-4, 0),
        (-5, -1),
        (0, 0),
        (START_MS + 1, 1),
        (START_MS + 10, 1),
        (START_MS + 21, -1),
    ],
)
def test_offsets_by_time(client: VirtualClient, timestamp: int, offset: int) -> None:
    """ListOffsets finds the first offset at or after a time; negative times name positions."""
    ((part,),) = [t.partitions for t in client.ask(2, 9, offsets_request(timestamp)).topics]
    assert (part.error_code, part.offset) == (ErrorCode.none, offset)


def test_an_offset_by_time_may_be_inside_a_batch(client: VirtualClient) -> None:
    """ListOffsets by timestamp finds a record inside a batch."""
    stamps = [START_MS + 100, START_MS + 200, START_MS + 300]
    client.produce(idempotent_batch(3, timestamps_ms=stamps))
    ((part,),) = [t.partitions for t in client.ask(2, 7, offsets_request(START_MS + 150)).topics]
    assert (part.offset, part.timestamp) == (4, START_MS + 200)


def test_an_offset_by_time_is_the_last_of_a_batch_whose_records_cannot_be_read(
    client: VirtualClient,
) -> None:
    """Brokers take such batches: they check the header, and do not look at compressed records."""
    data = bytearray(idempotent_batch(3, timestamps_ms=[START_MS + 100, START_MS + 200]))
    data[22] = 2  # the attributes' lower byte: these plain records are said to be snappy's
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    assert client.produce(bytes(data)).error_code == ErrorCode.none
    ((part,),) = [t.partitions for t in client.ask(2, 7, offsets_request(START_MS + 150)).topics]
    assert (part.offset, part.timestamp) == (4, START_MS + 200)


def test_list_offsets_is_the_leaders_to_answer(client: VirtualClient) -> None:
    """ListOffsets is refused by a broker that does not lead the partition in that leader epoch."""

    def code(**changes: Any) -> ErrorCode:
        ((part,),) = [t.partitions for t in client.ask(2, 9, offsets_request(-1, **changes)).topics]
        found: ErrorCode = part.error_code
        return found

    assert code(partition=1) == NOT_LEADER
    assert code(partition=9) == UNKNOWN
    assert code(name="nope") == UNKNOWN
    assert code(leader_epoch=3) == ErrorCode.unknown_leader_epoch


def test_the_end_of_an_epoch_is_where_its_leader_stopped(cluster: VirtualCluster) -> None:
    """OffsetForLeaderEpoch returns the end offset of a leader epoch."""
    partition = cluster.state.topics["t"].partitions[0]
    cluster.state.move_leader(partition, 1)
    other = cluster.client(1)
    other.produce(idempotent_batch(3))

    def ask(epoch: int, **changes: Any) -> tuple[ErrorCode, int, int]:
        wanted = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **changes}
        values = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [wanted]}]}
        ((part,),) = [t.partitions for t in other.ask(23, 4, values).topics]
        return part.error_code, part.leader_epoch, part.end_offset

    assert ask(0) == (ErrorCode.none, 0, 3)
    assert ask(1) == (ErrorCode.none, 1, 4)
    assert ask(0, current_leader_epoch=0)[0] == ErrorCode.fenced_leader_epoch
    assert ask(0, partition=9)[0] == UNKNOWN
    assert ask(0, partition=1) == (ErrorCode.none, 0, 0)
    assert ask(2) == (ErrorCode.none, -1, -1), "an epoch that is still to come"
    assert ask(-1) == (ErrorCode.none, -1, -1)
    delete = {"partition_index": 0, "offset": -1}
    other.ask(
        21, 2, {"topics": [{"name": "t", "partitions": [delete]}], "timeout": timedelta(seconds=30)}
    )
    assert ask(0) == (ErrorCode.none, 0, 4), "its records are deleted"


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 11))
def test_a_committed_offset_is_fetched_back(
    cluster: VirtualCluster, client: VirtualClient, version: int
) -> None:
    """OffsetFetch returns what OffsetCommit stored."""
    client.ask(8, 9, commit_request(cluster, 42))
    answer = client.ask(9, version, committed_request(cluster))
    topics = answer.topics if version < 8 else answer.groups[0].topics
    ((first, second),) = [t.partitions for t in topics]
    assert (first.committed_offset, first.metadata) == (42, "note")
    assert second.committed_offset == -1


def test_all_offsets_of_a_group_are_fetched_without_naming_topics(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """OffsetFetch without topics returns all offsets of the group."""
    client.ask(8, 10, commit_request(cluster, 7))
    groups = [{"group_id": g, "topics": None} for g in ("g", "other")]
    answer = client.ask(9, 9, {"groups": groups, "require_stable": True})
    mine, other = answer.groups
    assert [(t.name, t.partitions[0].committed_offset) for t in mine.topics] == [("t", 7)]
    assert other.topics == ()


def test_metadata_of_a_commit_has_a_limit(cluster: VirtualCluster, client: VirtualClient) -> None:
    """Kafka's `offset.metadata.max.bytes`, 4096 by default; nothing is stored beyond it."""
    codes = []
    for length in (4096, 4097):
        values = commit_request(cluster, length)
        values["topics"][0]["partitions"][0]["committed_metadata"] = "x" * length
        codes.append(client.ask(8, 9, values).topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.none, ErrorCode.offset_metadata_too_large]
    answer = client.ask(9, 9, committed_request(cluster))
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 4096


def test_a_commit_for_something_unknown_is_refused(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """OffsetCommit refuses unknown topics, by name and by topic id."""
    values = commit_request(cluster, 1)
    values["topics"][0] |= {"name": "nope", "topic_id": uuid.UUID(int=4)}
    assert client.ask(8, 9, values).topics[0].partitions[0].error_code == UNKNOWN
    by_id = client.ask(8, 10, values).topics[0].partitions[0]
    assert by_id.error_code == ErrorCode.unknown_topic_id


def test_all_brokers_name_the_same_coordinator(cluster: VirtualCluster) -> None:
    """Every broker answers FindCoordinator for a key with the same coordinator."""
    found = set()
    for broker in (0, 1):
        values = {"key_type": 0, "coordinator_keys": ["g"]}
        (coordinator,) = cluster.client(broker).ask(10, 4, values).coordinators
        found.add(coordinator.node_id)
    assert len(found) == 1


def test_an_unknown_kind_of_coordinator_is_refused(client: VirtualClient) -> None:
    """FindCoordinator refuses an unknown key type."""
    answer = client.ask(10, 2, {"key": "x", "key_type": 9})
    assert (answer.error_code, answer.node_id) == (ErrorCode.invalid_request, -1)
    assert answer.error_message


@pytest.mark.parametrize("version", [1, 6])
def test_the_answer_about_a_coordinator_has_a_message_without_an_error_too(
    client: VirtualClient, version: int
) -> None:
    """FindCoordinator's message for error NONE is "NONE", as in Kafka."""
    answer = client.ask(10, version, {"key": "g", "key_type": 0, "coordinator_keys": ["g"]})
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.error_message) == (ErrorCode.none, "NONE")


# -- InitProducerId --------------------------------------------------------------------------------


def init(client: VirtualClient, version: int = 5, **changes: Any) -> Entity:
    values = {"transactional_id": None, "transaction_timeout": timedelta(seconds=60), **changes}
    return client.ask(22, version, values)


def test_every_producer_gets_its_own_id_from_its_brokers_block(cluster: VirtualCluster) -> None:
    """Each broker gives out producer ids from its own block, and each id once."""
    ids = [init(cluster.client(b)).producer_id for b in (0, 0, 1, 0, 1)]
    assert ids == [0, 1, 1000, 2, 1001]


def test_a_block_of_ids_is_followed_by_another_one(cluster: VirtualCluster) -> None:
    """A broker that has used up its block of producer ids gets another one."""
    client = cluster.client()
    ids = [init(client).producer_id for _ in range(1001)]
    assert ids[-2:] == [999, 1000]
    assert init(cluster.client(1)).producer_id == 2000


def test_without_a_transactional_id_the_claimed_one_is_not_looked_at(
    client: VirtualClient,
) -> None:
    """InitProducerId without a transactional id ignores the producer id in the request."""
    answer = init(client, producer_id=77, producer_epoch=3)
    assert (answer.producer_id, answer.producer_epoch) == (0, 0)


def coordinator(cluster: VirtualCluster, name: str) -> VirtualClient:
    broker = cluster.state.coordinator_of(name)
    assert broker is not None
    return cluster.client(broker.id)


def test_init_producer_id_says_nothing_of_the_window(cluster: VirtualCluster) -> None:
    """InitProducerId's answer has no field for the number of batches that a broker retains."""
    answer = init(cluster.client())
    assert not [n for n in answer.__dataclass_fields__ if "retain" in n]


def test_a_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(
    cluster: VirtualCluster,
) -> None:
    """Each InitProducerId of a transactional id answers the same producer id and the next epoch."""
    client = coordinator(cluster, "tx")
    answers = [init(client, transactional_id="tx") for _ in range(3)]
    assert len({a.producer_id for a in answers}) == 1
    assert [a.producer_epoch for a in answers] == [0, 1, 2]


def test_a_transactional_id_out_of_epochs_gets_a_new_producer_id(cluster: VirtualCluster) -> None:
    """A transactional id that has used up its epochs gets a new producer id."""
    client = coordinator(cluster, "tx")
    first = init(client, transactional_id="tx")
    known = cluster.state.transactions.find("tx")
    assert known is not None
    known.epoch = 32766
    answer = init(client, transactional_id="tx")
    assert answer.producer_id != first.producer_id
    assert answer.producer_epoch == 0


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.invalid_producer_epoch), (4, ErrorCode.producer_fenced)],
)
def test_a_claim_that_is_not_the_current_one_is_fenced(
    cluster: VirtualCluster, version: int, code: ErrorCode
) -> None:
    """InitProducerId with an outdated epoch is refused, from v4 on with PRODUCER_FENCED."""
    client = coordinator(cluster, "tx")
    first = init(client, transactional_id="tx")
    init(client, transactional_id="tx")
    stale = {"producer_id": first.producer_id, "producer_epoch": 0}
    assert init(client, version, transactional_id="tx", **stale).error_code == code


def test_what_no_transactional_producer_may_ask(cluster: VirtualCluster) -> None:
    """InitProducerId is refused by a wrong coordinator, for an empty id, and for a bad timeout."""
    client = coordinator(cluster, "tx")
    other = cluster.client(1 - client.connection.broker_id)
    assert init(other, transactional_id="tx").error_code == ErrorCode.not_coordinator
    assert init(client, transactional_id="").error_code == ErrorCode.invalid_request
    for timeout in (timedelta(0), timedelta(minutes=16)):
        answer = init(client, transactional_id="tx", transaction_timeout=timeout)
        assert answer.error_code == ErrorCode.invalid_transaction_timeout


# -- topics ----------------------------------------------------------------------------------------


def create(client: VirtualClient, *wanted: dict[str, Any], **changes: Any) -> list[Entity]:
    values = {"topics": list(wanted), "timeout": ZERO, "validate_only": False, **changes}
    return list(client.ask(19, 7, values).topics)


def test_a_topic_is_created_as_asked(cluster: VirtualCluster, client: VirtualClient) -> None:
    """CreateTopics creates the topic with the requested partitions and configs."""
    wanted = creation("n", num_partitions=3, replication_factor=2)
    (answer,) = create(client, wanted)
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 3, 2)
    topic = cluster.state.topics["n"]
    assert answer.topic_id == topic.id
    assert [p.leader for p in topic.partitions] == [0, 1, 0]
    assert [list(p.replicas) for p in topic.partitions] == [[0, 1], [1, 0], [0, 1]]


def test_minus_1_takes_the_clusters_defaults(cluster: VirtualCluster) -> None:
    """CreateTopics uses the cluster's default for a partition count or replication factor of -1."""
    defaults = {"num.partitions": "4", "default.replication.factor": "2"}
    cluster.state.topology.set_broker_configs(None, defaults)
    wanted = creation("n", num_partitions=-1, replication_factor=-1)
    (answer,) = create(cluster.client(), wanted)
    assert (answer.num_partitions, answer.replication_factor) == (4, 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (creation("t"), ErrorCode.topic_already_exists),
        (creation("a b"), ErrorCode.invalid_topic_exception),
        (creation("n", num_partitions=0), ErrorCode.invalid_partitions),
        (creation("n", num_partitions=10**6), ErrorCode.policy_violation),
        (creation("n", replication_factor=3), ErrorCode.invalid_replication_factor),
        (creation("n", replication_factor=0), ErrorCode.invalid_replication_factor),
        (creation("n", configs=[{"name": "no.such", "value": "1"}]), ErrorCode.invalid_config),
        (
            creation("n", configs=[{"name": "max.message.bytes", "value": None}]),
            ErrorCode.invalid_config,
        ),
        (
            creation("n", assignments=[{"partition_index": 0, "broker_ids": [0]}]),
            ErrorCode.invalid_request,
        ),
        (
            creation(
                "n",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 1, "broker_ids": [0]}],
            ),
            ErrorCode.invalid_replica_assignment,
        ),
        (
            creation(
                "n",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 0, "broker_ids": [0, 9]}],
            ),
            ErrorCode.invalid_replica_assignment,
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    cluster: VirtualCluster, client: VirtualClient, wanted: dict[str, Any], code: ErrorCode
) -> None:
    """CreateTopics refuses invalid topics with the error codes of Kafka."""
    (answer,) = create(client, wanted)
    assert answer.error_code == code
    assert answer.error_message
    assert list(cluster.state.topics) == ["t"]


def test_names_that_differ_only_by_dots_and_underscores_collide(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """The first of them stays: Kafka refuses the others, whoever creates them."""
    codes = [
        create(client, creation(name))[0].error_code
        for name in ("a.b_c", "a_b.c", "a.b_c", "a.b.c.d", "a-b_c")
    ]
    collides, none = ErrorCode.invalid_topic_exception, ErrorCode.none
    assert codes == [none, collides, ErrorCode.topic_already_exists, none, none]
    asked = metadata(client, topics=[{"name": "a.b.c", "topic_id": None}])
    assert asked.topics[0].error_code == collides
    assert "a.b.c" not in cluster.state.topics


def test_a_name_given_twice_fails_once(cluster: VirtualCluster, client: VirtualClient) -> None:
    """CreateTopics answers INVALID_REQUEST once for a name given twice, and creates the others."""
    answers = create(client, creation("n"), creation("n"), creation("m"))
    assert {a.name: a.error_code for a in answers} == {
        "n": ErrorCode.invalid_request,
        "m": ErrorCode.none,
    }
    assert len(answers) == 2
    assert sorted(cluster.state.topics) == ["m", "t"]


def test_validate_only_creates_nothing(cluster: VirtualCluster, client: VirtualClient) -> None:
    """CreateTopics with validate_only creates nothing."""
    (answer,) = create(client, creation("n"), validate_only=True)
    assert answer.error_code == ErrorCode.none
    assert "n" not in cluster.state.topics


def test_replicas_are_placed_by_hand(cluster: VirtualCluster, client: VirtualClient) -> None:
    """CreateTopics places replicas on the brokers that the request assigns."""
    plan = [
        {"partition_index": 0, "broker_ids": [1]},
        {"partition_index": 1, "broker_ids": [1, 0]},
    ]
    wanted = creation("n", num_partitions=-1, replication_factor=-1, assignments=plan)
    assert create(client, wanted)[0].error_code == ErrorCode.none
    assert [list(p.replicas) for p in cluster.state.topics["n"].partitions] == [[1], [1, 0]]


def test_topics_are_deleted_by_name_or_id_and_a_new_one_gets_a_new_id(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """DeleteTopics deletes by name and by id, and a topic that is created again has a new id."""
    first = cluster.state.topics["t"].id

    def delete(**which: Any) -> Entity:
        wanted = {"name": None, "topic_id": None, **which}
        return client.ask(20, 6, {"topics": [wanted], "timeout": ZERO}).responses[0]

    assert delete(topic_id=first).name == "t"
    assert delete(topic_id=first).error_code == ErrorCode.unknown_topic_id
    assert delete(name="t").error_code == UNKNOWN
    create(client, creation("t"))
    assert cluster.state.topics["t"].id != first


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (7, ErrorCode.unsupported_endpoint_type)],
)
def test_describe_cluster_describes_only_brokers(
    client: VirtualClient, endpoint: int, code: ErrorCode
) -> None:
    """DescribeCluster refuses to describe controllers, and its refusal describes nothing."""
    values = {"include_cluster_authorized_operations": True, "endpoint_type": endpoint}
    answer = client.ask(60, 1, values)
    assert answer.error_code == code
    assert answer.error_message
    assert (answer.brokers, answer.controller_id, answer.cluster_id) == ((), -1, "")
    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize("asked", [False, True])
def test_authorized_operations_are_answered_on_request_only(
    client: VirtualClient, asked: bool
) -> None:
    """An answer has the authorized operations (KIP-430) only if its request asks for them.

    The bits are those of a Kafka broker without an authorizer. The request is the one that
    kafka-python's admin client sends.
    """
    create(client, creation("t"))
    values = {"include_cluster_authorized_operations": asked}
    metadata = {
        "topics": [{"name": "t", "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": asked,
    }
    answer = client.ask(3, 8, {**metadata, **values})
    cluster = client.ask(60, 1, {**values, "endpoint_type": 1})
    (topic,) = answer.topics
    told = (
        answer.cluster_authorized_operations,
        topic.topic_authorized_operations,
        cluster.cluster_authorized_operations,
    )
    assert told == ((0x1FA0, 0xDF8, 0x1FA0) if asked else (-(2**31),) * 3)


# -- DeleteRecords, and where a log starts ---------------------------------------------------------


def delete_records(client: VirtualClient, offset: int, partition: int = 0) -> Entity:
    values = {
        "topics": [{"name": "t", "partitions": [{"partition_index": partition, "offset": offset}]}],
        "timeout": timedelta(seconds=30),
    }
    (topic,) = client.ask(21, 2, values).topics
    (part,) = topic.partitions
    return part


@pytest.mark.parametrize(
    ("offset", "code", "start"),
    [
        (2, ErrorCode.none, 2),
        (-1, ErrorCode.none, 3),
        (0, ErrorCode.none, 0),
        (4, ErrorCode.offset_out_of_range, -1),
        (-2, ErrorCode.offset_out_of_range, -1),
    ],
)
def test_delete_records_moves_the_start_up_to_what_is_committed(
    client: VirtualClient, offset: int, code: ErrorCode, start: int
) -> None:
    """DeleteRecords raises the log's start offset, and refuses offsets above the high watermark."""
    part = delete_records(client, offset)
    assert (part.error_code, part.low_watermark) == (code, start)


def test_delete_records_is_the_leaders_and_not_of_compacted_topics(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """DeleteRecords is refused for compacted topics, and by brokers that are not the leader."""
    assert delete_records(client, 0, partition=1).error_code == NOT_LEADER
    assert delete_records(client, 0, partition=9).error_code == UNKNOWN
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"cleanup.policy": "compact"})
    assert delete_records(client, 0).error_code == ErrorCode.policy_violation


def test_a_producer_outlives_its_deleted_records_but_not_an_empty_log_at_a_restart(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A producer is remembered after its records are deleted, unless a restart finds an empty log.

    This was measured on Kafka 4.3.1 and 3.9.1.
    """
    partition = cluster.state.topics["t"].partitions[0]
    producers = partition.replicas[0].producers
    client.produce(idempotent_batch(0, producer_id=8))
    delete_records(client, 3)
    for clean in (True, False):
        cluster.state.stop_broker(0, clean=clean)
        cluster.state.start_broker(0, clean=clean)
        assert [each.producer_id for each in producers.entries()] == [7, 8]
    delete_records(cluster.client(), -1)
    assert len(producers) == 2
    cluster.state.stop_broker(0, clean=True)
    cluster.state.start_broker(0, clean=True)
    assert len(producers) == 0


def test_a_time_is_looked_for_above_the_start_of_the_log(client: VirtualClient) -> None:
    """ListOffsets by timestamp ignores records below the log's start offset."""
    three = [START_MS + 100, START_MS + 110, START_MS + 120]
    client.produce(idempotent_batch(3, 3, timestamps_ms=three))
    delete_records(client, 4)
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "current_leader_epoch": -1, "timestamp": START_MS}
                ],
            }
        ],
        "timeout": timedelta(seconds=30),
    }
    (topic,) = client.ask(2, 10, values).topics
    assert topic.partitions[0].offset == 4


# -- names that are given twice --------------------------------------------------------------------


def test_a_topic_named_twice_in_metadata_is_answered_once(client: VirtualClient) -> None:
    """Metadata returns one entry for a topic that the request names twice."""
    twice = metadata_request()
    twice["topics"] *= 2
    assert [t.name for t in client.ask(3, 13, twice).topics] == ["t"]


def test_a_topic_to_be_deleted_by_name_and_by_id_is_deleted_by_neither(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """DeleteTopics does not delete a topic that a request names both by name and by id."""
    topic_id = cluster.state.topics["t"].id
    named = [{"name": "t", "topic_id": None}, {"name": None, "topic_id": topic_id}]
    values = {"topics": named, "timeout": timedelta(seconds=30)}
    answers = client.ask(20, 6, values).responses
    assert {a.error_code for a in answers} == {ErrorCode.invalid_request}
    assert "t" in cluster.state.topics


def test_an_id_without_an_epoch_is_no_claim(client: VirtualClient) -> None:
    """InitProducerId refuses a producer id without an epoch, and an epoch without an id."""
    for claimed in ((5, -1), (-1, 5)):
        values = {
            "transactional_id": None,
            "transaction_timeout": timedelta(seconds=30),
            "producer_id": claimed[0],
            "producer_epoch": claimed[1],
        }
        answer = client.ask(22, 5, values)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.invalid_request, -1)


@pytest.mark.parametrize(("stamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
def test_a_time_that_is_a_name_is_known_since_a_version(
    client: VirtualClient, stamp: int, since: int
) -> None:
    """ListOffsets knows each negative timestamp from the version that introduced it."""
    for version in range(1, 12):
        wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": stamp}
        values = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [wanted]}],
            "timeout": timedelta(seconds=30),
        }
        (topic,) = client.ask(2, version, values).topics
        known = topic.partitions[0].error_code == ErrorCode.none
        assert known == (version >= since)
