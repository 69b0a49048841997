"""Our batches equal Kafka's own, which golden/regenerate.py made with Kafka's Java classes.

Uncompressed batches are compared byte for byte. The output of a compressor differs between its
versions, so of compressed batches the decompressed records and the header are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aioidem._records import (
    BATCH_OVERHEAD,
    Codec,
    ReadRecord,
    RecordBatch,
    assign_offsets,
    build_batch,
    decompress,
    read_batches,
    restamp,
)
from aioidem.errors import ProtocolError

Case = dict[str, Any]
CASES: dict[str, Case] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())["cases"]
}
READ_ONLY = {
    name
    for name, case in CASES.items()
    if "kind" in case or "deltas" in case or case.get("magic", 2) != 2
}
# Without the largest batches: golden.json has only a hash of each ("data" is missing), and the hash
# of compressed bytes depends on the compressor's version.
COMPRESSED = [
    name
    for name, case in CASES.items()
    if "codec" in case and name not in READ_ONLY and "data" in case
]
PLAIN = [n for n, case in CASES.items() if "codec" not in case and n not in READ_ONLY]


def expand(notation: str | None) -> bytes | None:
    """Expand ``hh*n``, which stands for n times the byte hh."""
    if notation is None:
        return None
    byte, _, times = notation.partition("*")
    return bytes.fromhex(byte) * int(times or 1)


def records_of(case: Case) -> list[ReadRecord]:
    rows = case["records"] * case.get("repeat", 1)
    deltas = case.get("deltas", range(len(rows)))
    return [
        ReadRecord(
            case.get("base_offset", 0) + delta,
            timestamp,
            expand(key),
            expand(value),
            tuple(((expand(name) or b"").decode(), expand(content)) for name, content in headers),
        )
        for delta, (timestamp, key, value, headers) in zip(deltas, rows, strict=True)
    ]


def identity_of(case: Case) -> dict[str, int]:
    names = ("producer_id", "producer_epoch", "base_sequence")
    return {name: case.get(name, -1) for name in names}


def built(case: Case, codec: Codec = Codec.NONE) -> bytes:
    batch = build_batch(
        records_of(case),
        codec=codec,
        **identity_of(case),
        transactional=case.get("transactional", False),
        control=case.get("control", False),
        log_append_time_ms=case.get("log_append_time"),
    )
    return placed(case, batch.data)


def placed(case: Case, data: bytes, log_append_time_ms: int | None = None) -> bytes:
    return assign_offsets(
        data,
        base_offset=case.get("base_offset", 0),
        leader_epoch=case.get("leader_epoch", -1),
        log_append_time_ms=log_append_time_ms,
    )


def assert_golden(case: Case, data: bytes) -> None:
    if "data" in case:
        assert data.hex() == case["data"]
    else:
        assert len(data) == case["size"]
        assert hashlib.sha256(data).hexdigest() == case["sha256"]


def golden_batch(name: str) -> RecordBatch:
    (batch,) = read_batches(bytes.fromhex(CASES[name]["data"]))
    return batch


@pytest.mark.parametrize("name", PLAIN)
def test_an_uncompressed_batch_is_javas_byte_for_byte(name: str) -> None:
    assert_golden(CASES[name], built(CASES[name]))


@pytest.mark.parametrize("name", PLAIN)
def test_a_restamped_batch_is_javas_byte_for_byte(name: str) -> None:
    case = CASES[name]
    nobody = built({**case, "producer_id": 5, "producer_epoch": 6, "base_sequence": 7})
    assert_golden(case, restamp(nobody, **identity_of(case)))


@pytest.mark.parametrize("name", [n for n in PLAIN if "log_append_time" in CASES[n]])
def test_a_batch_stamped_after_it_was_built_is_javas_byte_for_byte(name: str) -> None:
    case = CASES[name]
    unstamped = {key: value for key, value in case.items() if key != "log_append_time"}
    assert_golden(case, placed(case, built(unstamped), case["log_append_time"]))


@pytest.mark.parametrize("name", [n for n in PLAIN if "data" in CASES[n]] + COMPRESSED)
def test_javas_batch_is_read_as_what_went_into_it(name: str) -> None:
    case = CASES[name]
    batch = golden_batch(name)
    stamp = case.get("log_append_time")
    expected = records_of(case)
    assert batch.crc_ok()
    assert batch.records() == [
        record if stamp is None else record._replace(timestamp_ms=stamp) for record in expected
    ]
    assert batch.count == len(expected)
    assert batch.last_offset_delta == len(expected) - 1
    assert batch.last_offset == expected[-1].offset
    assert batch.base_offset == case.get("base_offset", 0)
    assert batch.leader_epoch == case.get("leader_epoch", -1)
    assert batch.codec is Codec.from_name(case.get("codec", "none"))
    assert batch.transactional is case.get("transactional", False)
    assert batch.control is case.get("control", False)
    assert batch.log_append is (stamp is not None)
    assert batch.first_timestamp_ms == expected[0].timestamp_ms
    latest = max(record.timestamp_ms for record in expected)
    assert batch.max_timestamp_ms == (latest if stamp is None else stamp)
    identity = {name: getattr(batch, name) for name in identity_of(case)}
    assert identity == identity_of(case)


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_java_compressed_is_our_uncompressed_records_byte_for_byte(name: str) -> None:
    case = CASES[name]
    theirs = bytes.fromhex(case["data"])[BATCH_OVERHEAD:]
    ours = built(case)[BATCH_OVERHEAD:]
    assert decompress(Codec.from_name(case["codec"]), theirs) == ours


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_batchs_header_is_javas_but_for_length_and_crc(name: str) -> None:
    theirs = bytes.fromhex(CASES[name]["data"])
    ours = built(CASES[name], Codec.from_name(CASES[name]["codec"]))
    assert ours[:8] == theirs[:8]
    assert ours[12:17] == theirs[12:17]
    assert ours[21:BATCH_OVERHEAD] == theirs[21:BATCH_OVERHEAD]


def test_every_codec_is_compared_with_javas_on_at_least_four_batches() -> None:
    codecs = Counter(CASES[name]["codec"] for name in COMPRESSED)
    assert set(codecs) == {"gzip", "snappy", "lz4", "zstd"}
    assert min(codecs.values()) >= 4


def test_a_sequence_wraps_to_zero_after_2_31_minus_1() -> None:
    batch = golden_batch("sequence wraps")
    assert (batch.base_sequence, batch.count, batch.last_sequence) == (2**31 - 5, 10, 4)


@pytest.mark.parametrize(("name", "kind"), [("ABORT", 0), ("COMMIT", 1)])
def test_javas_transaction_markers_are_read(name: str, kind: int) -> None:
    batch = golden_batch(name)
    ((outcome, coordinator_epoch, timestamp),) = CASES[name]["records"]
    assert outcome == name
    assert batch.control
    assert batch.transactional
    assert (batch.producer_id, batch.producer_epoch, batch.last_sequence) == (77, 4, -1)
    (record,) = batch.records()
    assert record.offset == 10
    assert record.timestamp_ms == timestamp
    assert record.key == bytes((0, 0, 0, kind))
    assert record.value is not None
    assert int.from_bytes(record.value[2:6], "big") == coordinator_epoch


def test_a_marker_of_ours_is_javas_byte_for_byte_in_its_records() -> None:
    """A transaction marker that we build from Java's record equals Java's marker."""
    theirs = golden_batch("COMMIT")
    ours = build_batch(
        theirs.records(), producer_id=77, producer_epoch=4, transactional=True, control=True
    )
    assert assign_offsets(ours.data, base_offset=10, leader_epoch=2) == theirs.raw


def test_a_batch_compacted_to_nothing_keeps_its_sequence_and_offsets() -> None:
    batch = golden_batch("compacted to nothing")
    assert batch.crc_ok()
    assert batch.records() == []
    assert (batch.base_offset, batch.last_offset) == (100, 104)
    assert (batch.base_sequence, batch.last_sequence) == (30, 34)
    moved = assign_offsets(batch.raw, base_offset=200, leader_epoch=batch.leader_epoch)
    assert read_batches(moved)[0].last_offset == 204
    identity = {"producer_id": 1, "producer_epoch": 2, "base_sequence": 30}
    assert restamp(batch.raw, **identity) == batch.raw


@pytest.mark.parametrize("name", ["compacted with gaps", "compacted with gaps, gzip"])
def test_offsets_of_a_compacted_batch_keep_their_gaps(name: str) -> None:
    assert golden_batch(name).records() == records_of(CASES[name])


@pytest.mark.parametrize("name", ["magic 0", "magic 1"])
def test_message_sets_of_older_kafkas_are_refused_by_name(name: str) -> None:
    """Message sets of magic 0 and 1 raise a ProtocolError that names their magic."""
    with pytest.raises(ProtocolError, match=f"a batch has {name}; only 2 is supported"):
        read_batches(bytes.fromhex(CASES[name]["data"]))


def test_javas_batches_in_a_row_are_cut_apart() -> None:
    names = [name for name in PLAIN if "data" in CASES[name]] + COMPRESSED
    datas = [bytes.fromhex(CASES[name]["data"]) for name in names]
    assert [batch.raw for batch in read_batches(b"".join(datas))] == datas
