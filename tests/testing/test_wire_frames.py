"""The judge's own reading of frames agrees with kio's schemas, and with batches that Kafka made."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.virtual import START_MS, idempotent_batch
from aioidem._protocol.messages import encode_response, response_type
from aioidem._protocol.produce import encode_produce_request
from aioidem._testing.wire_frames import (
    FrameError,
    ProduceTold,
    batch_values,
    misstatements,
    read_header,
    read_metadata,
    read_produce,
    read_produced,
)
from tests.broker.test_produce_api import resealed
from tests.hostile.samples import filled
from tests.protocol.test_metadata_reader import answer as metadata_answer
from tests.protocol.test_produce import TOPIC_ID, answer, schemas, v14
from tests.records.test_golden_batches import CASES, expand

GOLDEN = [
    name
    for name, case in CASES.items()
    if "data" in case and case.get("magic", 2) == 2 and "kind" not in case
]


@pytest.mark.parametrize("version", range(3, 15))
def test_a_produce_request_is_read_in_every_version(version: int) -> None:
    batches = [(0, b"first"), (3, b"second batch")]
    frame = encode_produce_request(
        version,
        correlation_id=7,
        client_id="someone",
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topics=[("t", TOPIC_ID, batches)],
    )[4:]
    header, _ = read_header(frame)
    assert header == (0, version, 7)
    topic: str | bytes = TOPIC_ID.bytes if version >= 13 else "t"
    assert read_produce(frame) == (-1, [(topic, index, data) for index, data in batches])


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_answer_is_read_in_every_version(version: int) -> None:
    kinds = schemas(version, "response")
    fields: dict[str, Any] = {}
    if version >= 8:
        fields["record_errors"] = (
            kinds.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="bad"),
        )
        fields["error_message"] = "moved"
    if version >= 10:
        fields["current_leader"] = kinds.LeaderIdAndEpoch(leader_id=5, leader_epoch=8)
    entity = answer(version, error_code=ErrorCode.not_leader_or_follower, **fields)
    [told] = read_produced(encode_response(entity, 9)[4:], version)
    topic: str | bytes = TOPIC_ID.bytes if version >= 13 else "topic"
    epoch = 8 if version >= 10 else None
    assert told == ProduceTold(topic, 3, ErrorCode.not_leader_or_follower, 42, epoch, None)


@pytest.mark.parametrize(
    ("of_partition", "of_topic", "said"), [(None, None, None), (20, None, 20), (None, 7, 7)]
)
def test_the_window_is_read_from_both_structs(
    of_partition: int | None, of_topic: int | None, said: int | None
) -> None:
    """KIP-1269's tagged field may be in the struct of the partition or of the topic."""
    [told] = read_produced(encode_response(v14(of_partition, of_topic), 9)[4:], 14)
    assert told.retained == said


@pytest.mark.parametrize("version", range(4, 14))
def test_a_metadata_answer_is_read_in_every_version(version: int) -> None:
    schema: Any = response_type(3, version)
    told = read_metadata(metadata_answer(version), version)
    module = __import__(schema.__module__, fromlist=["MetadataResponsePartition"])
    sample = filled(module.MetadataResponsePartition)
    assert [topic.name for topic in told.topics] == ["t0", "t1"]
    for topic in told.topics:
        assert [partition.partition for partition in topic.partitions] == [0, 1, 2]
        assert {partition.leader for partition in topic.partitions} == {sample.leader_id}
        epoch = sample.leader_epoch if version >= 7 else -1
        assert {partition.leader_epoch for partition in topic.partitions} == {epoch}


@pytest.mark.parametrize("name", GOLDEN)
def test_batches_that_kafka_made_are_read_as_kafka_reads_them(name: str) -> None:
    """Values come out as Kafka's Java classes put them in, with every codec."""
    case = CASES[name]
    expected = [expand(row[2]) for row in case["records"]] * case.get("repeat", 1)
    found = list(batch_values(bytes.fromhex(case["data"])))
    assert [record.value for record in found] == expected


# Only brokers assign offsets and times, write control batches, and leave gaps.
BROKERS = {"log_append_time", "base_offset", "control", "deltas"}
SENT = [name for name in GOLDEN if not BROKERS & CASES[name].keys()]


@pytest.mark.parametrize("name", SENT)
def test_batches_that_kafka_made_state_what_their_records_say(name: str) -> None:
    """Nothing is wrong in a batch that a producer can have written, with every codec."""
    assert misstatements(bytes.fromhex(CASES[name]["data"])) == []


@pytest.mark.parametrize(
    ("at", "layout", "value", "what"),
    [
        (0, ">q", 3, "base offset: 3, not 0"),
        (8, ">i", 70, "length: 70, not "),
        (16, ">b", 1, "magic: 1, not 2"),
        (21, ">h", 0x08, "attributes: 8, not 0"),
        (21, ">h", 0x20, "attributes: 32, not 0"),
        (23, ">i", 2, "last offset delta: 2, not 1"),
        (35, ">q", START_MS + 6, f"maximum timestamp: {START_MS + 6}, not {START_MS + 5}"),
        (35, ">q", START_MS, f"maximum timestamp: {START_MS}, not {START_MS + 5}"),
        (51, ">h", -1, "producer without epoch or sequence"),
        (57, ">i", 3, "record count: 3, not 2"),
    ],
)
def test_a_header_that_says_what_the_records_do_not_is_noticed(
    at: int, layout: str, value: int, what: str
) -> None:
    """Each field that a broker computes again, or believes, is compared with the records."""
    good = idempotent_batch(0, timestamps_ms=[START_MS, START_MS + 5])
    assert misstatements(good) == []
    [found] = misstatements(resealed(good, at, layout, value))
    assert found.startswith(what)


@pytest.mark.parametrize(("at", "flip"), [(17, 1), (-1, 1)])
def test_a_checksum_that_is_not_that_of_the_batch_is_noticed(at: int, flip: int) -> None:
    changed = bytearray(idempotent_batch(0, value=b"value"))
    changed[at] ^= flip
    assert [each.partition(":")[0] for each in misstatements(bytes(changed))] == ["CRC"]


def test_bytes_behind_the_last_record_are_noticed() -> None:
    with pytest.raises(FrameError):
        misstatements(idempotent_batch(0) + b"\x02")


def test_bytes_that_end_early_are_refused() -> None:
    frame = metadata_answer(12)
    with pytest.raises(FrameError):
        read_metadata(frame[: len(frame) // 2], 12)
    with pytest.raises(FrameError):
        list(batch_values(b"no batch"))
