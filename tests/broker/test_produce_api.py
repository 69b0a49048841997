"""Produce against one embedded broker: its checks, in Kafka's order, and its answers."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import crc32c
import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v13.response import PartitionProduceResponse

from aioidem._broker.entities import Entity
from aioidem._broker.virtual import (
    START_MS,
    VirtualClient,
    VirtualCluster,
    idempotent_batch,
    only_partition,
)
from aioidem._protocol.codec import epoch_ms
from aioidem._protocol.produce_v14 import PartitionProduceResponseV14
from aioidem._records import Codec

VERSIONS = range(3, 15)
HOUR_MS = 3_600_000


@pytest.fixture
def cluster() -> VirtualCluster:
    made = VirtualCluster()
    made.state.topology.create_topic("t", partitions=2, replication=1)
    return made


@pytest.fixture
def client(cluster: VirtualCluster) -> VirtualClient:
    return cluster.client()


def log_end(cluster: VirtualCluster, topic: str = "t") -> int:
    partition = cluster.state.topics[topic].partitions[0]
    return partition.replicas[partition.leader].log.end_offset


def offset_of(part: Entity) -> int:
    assert part.error_code == ErrorCode.none, part
    return int(part.base_offset)


def produce_all(client: VirtualClient, topic_id: UUID, parts: list[dict[str, Any]]) -> list[Entity]:
    """Send one Produce request for one topic, and return the answers to all its entries."""
    values = {
        "transactional_id": None,
        "acks": -1,
        "timeout": timedelta(seconds=30),
        "topic_data": [{"name": "t", "topic_id": topic_id, "partition_data": parts}],
    }
    (answered,) = client.ask(0, 14, values).responses
    return list(answered.partition_responses)


def answers_of(
    cluster: VirtualCluster, client: VirtualClient, records: dict[int, bytes]
) -> list[Entity]:
    """Send one Produce request with these records per partition, and return the answers."""
    parts = [{"index": index, "records": data} for index, data in records.items()]
    return produce_all(client, cluster.state.topics["t"].id, parts)


def resealed(data: bytes, at: int, layout: str, value: int) -> bytes:
    """Return ``data`` with one header field changed and the checksum corrected."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_and_answers_the_offset(
    cluster: VirtualCluster, client: VirtualClient, version: int
) -> None:
    """Each Produce version appends the batch and answers its offset."""
    assert offset_of(client.produce(idempotent_batch(0, 10), version=version)) == 0
    part = client.produce(idempotent_batch(10, 3), version=version)
    assert offset_of(part) == 10
    assert part.log_append_time is None
    assert log_end(cluster) == 13
    assert part.index == 0
    if version >= 5:
        assert part.log_start_offset == 0


@pytest.mark.parametrize("version", [3, 12])
def test_an_unknown_name_is_unknown_topic_or_partition(client: VirtualClient, version: int) -> None:
    """A Produce to an unknown topic or partition is answered UNKNOWN_TOPIC_OR_PARTITION."""
    for where in ({"topic": "nope"}, {"partition": 2}, {"partition": -1}):
        part = client.produce(idempotent_batch(0), version=version, **where)
        assert part.error_code == ErrorCode.unknown_topic_or_partition
        assert part.base_offset == -1


def test_an_unknown_topic_id_is_unknown_topic_id(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A Produce with an unknown topic id is answered UNKNOWN_TOPIC_ID."""
    old = cluster.state.topics["t"]
    cluster.state.delete_topic(old)
    cluster.state.topology.create_topic("t", partitions=1)
    part = client.produce(idempotent_batch(0), topic_id=old.id)
    assert part.error_code == ErrorCode.unknown_topic_id
    assert log_end(cluster) == 0


def test_a_flipped_bit_is_corrupt_message(cluster: VirtualCluster, client: VirtualClient) -> None:
    """A batch with a flipped bit is refused as CORRUPT_MESSAGE."""
    data = bytearray(idempotent_batch(0, 3))
    data[-1] ^= 1
    part = client.produce(bytes(data))
    assert part.error_code == ErrorCode.corrupt_message
    assert part.base_offset == -1
    assert log_end(cluster) == 0


@pytest.mark.parametrize(
    "records",
    [
        None,
        b"",
        idempotent_batch(0)[:1],
        idempotent_batch(0)[:-1],
        idempotent_batch(0) + idempotent_batch(1),
    ],
)
def test_anything_but_one_batch_is_invalid_record(
    client: VirtualClient, records: bytes | None
) -> None:
    """Anything but exactly one v2 batch is refused as INVALID_RECORD."""
    assert client.produce(records).error_code == ErrorCode.invalid_record


def test_what_cannot_be_a_batch_spoils_the_whole_request(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Bytes that cannot be a batch fail all partitions of the request."""
    good = idempotent_batch(0)
    no_format = good[:16] + b"\x03" + good[17:]
    for rubbish in (bytes(12), no_format):
        parts = answers_of(cluster, client, {0: good, 1: rubbish})
        assert [p.error_code for p in parts] == [ErrorCode.corrupt_message] * 2
        assert all(p.error_message for p in parts)
    assert log_end(cluster) == 0


def test_behind_the_batch_only_what_cannot_be_another_is_let_be(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A broker ignores up to 11 bytes after a batch, because another batch cannot begin in them."""
    good = idempotent_batch(0)
    parts = answers_of(cluster, client, {0: good + bytes(11), 1: good + bytes(12)})
    assert [p.error_code for p in parts] == [ErrorCode.none, ErrorCode.corrupt_message]
    [stored] = cluster.state.topics["t"].partitions[0].replicas[0].log.batches
    assert bytes(stored.data) == good


def test_before_version_7_a_codec_that_is_none_spoils_the_request(client: VirtualClient) -> None:
    """An unknown codec fails the partition, and before Produce v7 the whole request."""
    batch = resealed(idempotent_batch(0), 21, ">h", 6)
    part = client.produce(batch, version=6)
    assert (part.error_code, part.log_start_offset) == (ErrorCode.unknown_server_error, -1)
    part = client.produce(batch, version=7)
    assert (part.error_code, part.log_start_offset) == (ErrorCode.unknown_server_error, 0)


def test_a_producer_may_not_say_that_its_stamps_are_the_brokers(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A LogAppendTime bit from a producer is refused on LogAppendTime topics, else cleared."""
    claim = resealed(idempotent_batch(0, 2), 21, ">h", 0x08)
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"message.timestamp.type": "LogAppendTime"})
    part = client.produce(claim)
    assert (part.error_code, len(part.record_errors)) == (ErrorCode.invalid_timestamp, 2)
    cluster.state.topology.set_topic_configs(topic, {})
    assert offset_of(client.produce(claim)) == 0
    [stored] = topic.partitions[0].replicas[0].log.batches
    assert not stored.header.log_append_time


def test_of_a_partition_named_twice_the_last_batch_counts(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """If a request names a partition twice, the broker appends the last batch only."""
    topic = cluster.state.topics["t"]
    entries = [
        {"index": 0, "records": idempotent_batch(0)},
        {"index": 0, "records": idempotent_batch(0, 3)},
    ]
    [part] = produce_all(client, topic.id, entries)
    assert (part.error_code, log_end(cluster)) == (ErrorCode.none, 3)


def test_a_stamp_of_minus_1_is_none_and_never_too_old(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A timestamp of -1 means that a record has none, and is never refused as too old."""
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"message.timestamp.before.max.ms": "1000"})
    part = client.produce(idempotent_batch(0, timestamps_ms=[-1]))
    assert part.error_code == ErrorCode.none
    part = client.produce(idempotent_batch(1, timestamps_ms=[0]))
    assert part.error_code == ErrorCode.invalid_timestamp
    assert part.log_start_offset == 0


def test_no_more_replicas_are_wanted_in_sync_than_there_are(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """acks=all requires at most as many in-sync replicas as the partition has replicas."""
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"min.insync.replicas": "5"})
    replicas = len(topic.partitions[0].replicas)
    assert topic.partitions[0].least_in_sync == replicas
    assert client.produce(idempotent_batch(0)).error_code == ErrorCode.none


@pytest.mark.parametrize(
    ("at", "layout", "value", "code"),
    [
        (0, ">q", 5, ErrorCode.invalid_record),  # a base offset, which only the broker assigns
        (16, ">b", 1, ErrorCode.invalid_record),  # an older message format
        (8, ">i", -5, ErrorCode.corrupt_message),  # an impossible length
        (23, ">i", 7, ErrorCode.invalid_record),  # offsets that do not match the count
        (57, ">i", 0, ErrorCode.invalid_record),  # no records
        (53, ">i", -1, ErrorCode.invalid_record),  # a producer id without a sequence
        (21, ">h", 0x20, ErrorCode.invalid_record),  # a control batch
        # a transactional batch without a transactional id
        (21, ">h", 0x10, ErrorCode.transactional_id_authorization_failed),
        (21, ">h", 0x05, ErrorCode.unknown_server_error),  # no such codec
    ],
)
def test_a_header_no_producer_may_send_is_refused(
    cluster: VirtualCluster,
    client: VirtualClient,
    at: int,
    layout: str,
    value: int,
    code: ErrorCode,
) -> None:
    """Produce refuses a batch with an impossible value in its header, with Kafka's error code."""
    part = client.produce(resealed(idempotent_batch(0, 3), at, layout, value))
    assert part.error_code == code
    assert part.base_offset == -1
    assert log_end(cluster) == 0


def test_zstd_needs_version_7(client: VirtualClient) -> None:
    """zstd before Produce v7 is refused as UNSUPPORTED_COMPRESSION_TYPE."""
    data = idempotent_batch(0, codec=Codec.ZSTD)
    part = client.produce(data, version=6)
    assert part.error_code == ErrorCode.unsupported_compression_type
    assert offset_of(client.produce(data, version=7)) == 0


@pytest.mark.parametrize("acks", [2, -2, 5])
def test_acks_must_be_minus_1_0_or_1(client: VirtualClient, acks: int) -> None:
    """Produce refuses acks other than -1, 0 and 1 as INVALID_REQUIRED_ACKS."""
    part = client.produce(idempotent_batch(0), acks=acks)
    assert part.error_code == ErrorCode.invalid_required_acks


def test_acks_0_appends_without_an_answer(cluster: VirtualCluster, client: VirtualClient) -> None:
    """With acks=0 the broker appends the batch and sends no answer."""
    sent = client.send_produce(idempotent_batch(0), acks=0)
    assert log_end(cluster) == 1
    assert cluster.deliveries == []
    assert client.answer(sent) is None
    assert cluster.state.topics["t"].partitions[0].spans.span() == 0


def test_acks_0_that_fails_closes_the_connection(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """The broker closes the connection if a Produce with acks=0 fails."""
    client.send_produce(b"rubbish", acks=0)
    (delivery,) = cluster.deliveries
    assert delivery.close


def test_acks_1_does_not_wait_for_the_high_watermark(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A Produce with acks=1 is answered without waiting for the high watermark."""
    cluster.state.topics["t"].partitions[0].hold_high_watermark()
    assert offset_of(client.produce(idempotent_batch(0), acks=1)) == 0
    assert cluster.now == 0


def test_a_batch_over_max_message_bytes_is_too_large_also_when_it_is_a_duplicate(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A batch above ``max.message.bytes`` is MESSAGE_TOO_LARGE, even if it is a duplicate."""
    data = idempotent_batch(0, value=b"x" * 1000)
    assert offset_of(client.produce(data)) == 0
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"max.message.bytes": str(len(data) - 1)})
    assert client.produce(data).error_code == ErrorCode.message_too_large
    cluster.state.topology.set_topic_configs(topic, {"max.message.bytes": str(len(data))})
    assert offset_of(client.produce(data)) == 0
    assert log_end(cluster) == 1


def test_a_time_too_old_is_refused_also_when_it_is_a_duplicate(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A batch whose timestamp is too old is INVALID_TIMESTAMP, even if it is a duplicate."""
    topic = cluster.state.topics["t"]
    cluster.state.topology.set_topic_configs(topic, {"message.timestamp.before.max.ms": "1000"})
    data = idempotent_batch(0, 2)
    assert offset_of(client.produce(data)) == 0
    cluster.run_until(1.5)
    part = client.produce(data)
    assert part.error_code == ErrorCode.invalid_timestamp
    assert part.base_offset == -1
    assert [e.batch_index for e in part.record_errors] == [0, 1]


def test_a_time_more_than_an_hour_ahead_is_refused_and_the_record_named(
    client: VirtualClient,
) -> None:
    """A timestamp more than an hour ahead is refused, and the answer names the record (KIP-467)."""
    good, bad = START_MS + HOUR_MS - 1000, START_MS + HOUR_MS + 1000
    part = client.produce(idempotent_batch(0, timestamps_ms=[good, bad]))
    assert part.error_code == ErrorCode.invalid_timestamp
    assert [e.batch_index for e in part.record_errors] == [1]
    assert part.error_message


def test_a_compacted_topic_refuses_records_without_a_key_and_names_them(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """A compacted topic refuses records without a key, and the answer names them (KIP-467)."""
    cluster.state.topology.set_topic_configs(
        cluster.state.topics["t"], {"cleanup.policy": "compact"}
    )
    part = client.produce(idempotent_batch(0, 2))
    assert part.error_code == ErrorCode.invalid_record
    assert [e.batch_index for e in part.record_errors] == [0, 1]
    assert offset_of(client.produce(idempotent_batch(0, key=b"k"))) == 0


def test_log_append_time_is_answered_and_stored(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """On a LogAppendTime topic the broker stores its own time, and names it in the answer."""
    cluster.state.topology.set_topic_configs(
        cluster.state.topics["t"], {"message.timestamp.type": "LogAppendTime"}
    )
    cluster.run_until(3.0)
    data = idempotent_batch(0, timestamps_ms=[1])
    part = client.produce(data)
    assert epoch_ms(part.log_append_time) == START_MS + 3000
    cluster.run_until(9.0)
    assert epoch_ms(client.produce(data).log_append_time) == START_MS + 3000


def test_a_duplicate_on_a_create_time_topic_answers_the_stored_time(
    client: VirtualClient,
) -> None:
    """On a CreateTime topic a duplicate is answered with the stored batch's newest timestamp."""
    data = idempotent_batch(0, timestamps_ms=[START_MS - 9, START_MS - 4])
    assert epoch_ms(client.produce(data).log_append_time) == -1
    assert epoch_ms(client.produce(data).log_append_time) == START_MS - 4


def test_batches_without_a_producer_id_are_appended_as_often_as_they_come(
    client: VirtualClient,
) -> None:
    """Batches without a producer id are not deduplicated."""
    data = idempotent_batch(-1, producer_id=-1, epoch=-1)
    assert [offset_of(client.produce(data)) for _ in range(3)] == [0, 1, 2]


def test_each_partition_of_a_request_has_its_own_outcome(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """Each partition of a request succeeds or fails by itself."""
    topic = cluster.state.topics["t"]
    parts = [
        {"index": 0, "records": idempotent_batch(0)},
        {"index": 1, "records": idempotent_batch(0)[:-1]},
        {"index": 9, "records": idempotent_batch(0)},
    ]
    assert [(p.index, p.error_code) for p in produce_all(client, topic.id, parts)] == [
        (0, ErrorCode.none),
        (1, ErrorCode.invalid_record),
        (9, ErrorCode.unknown_topic_or_partition),
    ]


def test_a_transactional_batch_of_an_unknown_id_is_refused(client: VirtualClient) -> None:
    """A transactional batch with an unknown transactional id is INVALID_PRODUCER_ID_MAPPING."""
    batch = resealed(idempotent_batch(0), 21, ">h", 0x10)
    part = client.produce(batch, transactional_id="tx")
    assert part.error_code == ErrorCode.invalid_producer_id_mapping


def test_a_transactional_id_alone_makes_no_transaction(client: VirtualClient) -> None:
    """A transactional id in the request does not make its batches transactional."""
    assert offset_of(client.produce(idempotent_batch(0), transactional_id="tx")) == 0


def test_an_all_codecs_log_keeps_the_producers_bytes(
    cluster: VirtualCluster, client: VirtualClient
) -> None:
    """The log keeps the bytes that the producer sent, for every codec."""
    for sequence, codec in enumerate(Codec):
        client.produce(idempotent_batch(sequence, codec=codec, value=b"abc" * 50))
    batches = cluster.state.topics["t"].partitions[0].replicas[0].log.batches
    assert [b.header.codec for b in batches] == [0, 1, 2, 3, 4]


# -- the last N batches, and KIP-1269 on the wire --------------------------------------------------


def fill(client: VirtualClient, batches: int, **options: int) -> list[Entity]:
    return [client.produce(idempotent_batch(s), **options) for s in range(batches)]


def test_the_tag_sits_in_the_partition_response_of_v14_and_nowhere_in_v13() -> None:
    """Produce v14 answers the number of retained batches per partition (KIP-1269); v13 does not."""
    cluster = VirtualCluster(retain=20)
    cluster.state.topology.create_topic("t", partitions=1)
    client = cluster.client()
    part = client.produce(idempotent_batch(0), version=14)
    assert isinstance(part, PartitionProduceResponseV14)
    assert part.producer_state_batches_to_retain == 20
    older = client.produce(idempotent_batch(1), version=13)
    assert type(older) is PartitionProduceResponse


def test_the_tag_is_absent_when_it_is_5(client: VirtualClient) -> None:
    """The tagged field with the number of retained batches is absent if that number is 5."""
    part = client.produce(idempotent_batch(0), version=14)
    assert part.producer_state_batches_to_retain is None


def test_20_lowered_to_5_arrives_as_absence(cluster: VirtualCluster, client: VirtualClient) -> None:
    """When a topic retains 5 batches instead of 20, answers have no retained-batches field."""
    topic = cluster.state.topics["t"]
    name = "producer.state.batches.to.retain"
    cluster.state.topology.set_topic_configs(topic, {name: "20"})
    assert fill(client, 1, version=14)[0].producer_state_batches_to_retain == 20
    cluster.state.topology.set_topic_configs(topic, {name: "5"})
    part = client.produce(idempotent_batch(1), version=14)
    assert part.producer_state_batches_to_retain is None


def test_the_tag_comes_with_successes_only() -> None:
    """Only successful partitions are answered with the number of retained batches (KIP-1269)."""
    cluster = VirtualCluster(retain=20)
    cluster.state.topology.create_topic("t", partitions=1)
    client = cluster.client()
    client.produce(idempotent_batch(0), version=14)
    part = client.produce(idempotent_batch(7), version=14)
    assert part.error_code == ErrorCode.out_of_order_sequence_number
    assert part.producer_state_batches_to_retain is None


def test_a_v14_request_is_a_v13_request() -> None:
    """Produce v13 and v14 have the same request body."""
    answers = []
    for version in (13, 14):
        cluster = VirtualCluster()
        cluster.state.topology.create_topic("t", partitions=1)
        client = cluster.client()
        fill(client, 3, version=version)
        answers.append(only_partition(client.wait(client.send_produce(idempotent_batch(1)))))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("retain", [5, 20])
def test_exactly_n_batches_are_remembered_per_producer_and_partition(retain: int) -> None:
    """A broker remembers exactly `retain` batches per producer and partition."""
    cluster = VirtualCluster(retain=retain)
    cluster.state.topology.create_topic("t", partitions=2)
    client = cluster.client()
    for partition in (0, 1):
        for pid in (1, 2):
            for sequence in range(retain + 1):
                data = idempotent_batch(sequence, producer_id=pid)
                client.produce(data, partition=partition)
    for partition in (0, 1):
        for pid, base in ((1, 0), (2, retain + 1)):
            evicted = client.produce(idempotent_batch(0, producer_id=pid), partition=partition)
            assert evicted.error_code == ErrorCode.out_of_order_sequence_number
            kept = client.produce(idempotent_batch(1, producer_id=pid), partition=partition)
            assert offset_of(kept) == base + 1


def test_two_topics_5_and_20_on_one_broker_are_each_remembered_by_their_own() -> None:
    """Two topics on one broker may retain different numbers of batches."""
    cluster = VirtualCluster()
    for name, retain in (("five", "5"), ("twenty", "20")):
        configs = {"producer.state.batches.to.retain": retain}
        cluster.state.topology.create_topic(name, partitions=1, configs=configs)
    client = cluster.client()
    said = {}
    for name in ("five", "twenty"):
        for sequence in range(20):
            part = client.produce(idempotent_batch(sequence), topic=name, version=14)
            said[name] = part.producer_state_batches_to_retain
    assert said == {"five": None, "twenty": 20}
    first = idempotent_batch(0)
    refused = client.produce(first, topic="five")
    assert refused.error_code == ErrorCode.out_of_order_sequence_number
    assert offset_of(client.produce(first, topic="twenty")) == 0


def test_an_old_broker_keeps_5_whatever_the_topic_is_configured_for() -> None:
    """A broker without KIP-1269 remembers 5 batches, whatever the topic's config is."""
    cluster = VirtualCluster(produce_versions=13, retain=20)
    configs = {"producer.state.batches.to.retain": "20"}
    cluster.state.topology.create_topic("t", partitions=1, configs=configs)
    client = cluster.client()
    fill(client, 6)
    part = client.produce(idempotent_batch(0))
    assert part.error_code == ErrorCode.out_of_order_sequence_number
    assert offset_of(client.produce(idempotent_batch(1))) == 1
