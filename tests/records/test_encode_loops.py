"""The hot loops are correct, also at the limits of their tables, and the right ones are chosen."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record import default_records as peer
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import ReadRecord, build_batch, payload_size, read_batches, record_size
from aioidem._records import _decode as decode_loop
from aioidem._records import _encode as encode_loop
from aioidem._records import _select as choice

NOW = 1_795_250_000_000
EDGES = sorted({edge + i for bits in range(65) for edge in (2**bits,) for i in (-1, 0, 1)})


def reference_varint(number: int) -> bytes:
    """Encode zigzag and base 128 as protocol buffers define them, by strings of bits."""
    zigzag = abs(number) * 2 - (number < 0)
    bits = f"{zigzag:b}"
    groups = [bits[max(i - 7, 0) : i] for i in range(len(bits), 0, -7)]
    last = len(groups) - 1
    return bytes(int(group, 2) | (0x80 if i < last else 0) for i, group in enumerate(groups))


@pytest.mark.parametrize("sign", [1, -1])
def test_varints_are_right_at_every_change_of_size(sign: int) -> None:
    for edge in EDGES:
        number = sign * edge
        if -(2**63) <= number < 2**63:
            assert encode_loop.varint(number) == reference_varint(number)
            assert encode_loop.varint_size(number) == len(reference_varint(number))
        else:
            with pytest.raises(OverflowError):
                encode_loop.varint(number)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_varint_is_right_and_of_the_size_foretold(number: int) -> None:
    """`varint` agrees with the definition, and `varint_size` with its length."""
    assert encode_loop.varint(number) == reference_varint(number)
    assert encode_loop.varint_size(number) == len(reference_varint(number))


def test_a_varint_takes_one_to_ten_bytes() -> None:
    assert encode_loop.varint(0) == b"\x00"
    assert encode_loop.varint(-1) == b"\x01"
    assert len(encode_loop.varint(-(2**63))) == len(encode_loop.varint(2**63 - 1)) == 10


def by_aiokafka(records: list[ReadRecord]) -> bytes:
    builder: Any = peer.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**31 - 1)
    for i, record in enumerate(records):
        builder.append(i, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def near(number: int) -> range:
    return range(number - 2, number + 3)


@pytest.mark.parametrize("edge", [64, 4096, 8192])
@pytest.mark.parametrize("key", [None, b"key"])
def test_records_are_right_where_a_table_ends(edge: int, key: bytes | None) -> None:
    """Records whose sizes and times are at a table's limit are encoded as by aiokafka."""
    first = ReadRecord(0, NOW, key, b"", ())
    sizes = [ReadRecord(0, NOW, key, b"v" * size, ()) for size in near(edge)]
    keys = [ReadRecord(0, NOW, b"k" * size, None, ()) for size in near(edge)]
    times = [ReadRecord(0, NOW + delta, key, b"v", ()) for delta in near(edge)]
    earlier = [ReadRecord(0, NOW - delta, key, b"v", ()) for delta in near(edge)]
    headers = [ReadRecord(0, NOW, key, b"", (("h" * s, b"x" * s),)) for s in near(edge)]
    many = [ReadRecord(0, NOW, key, b"v", ())] * (edge + 3)
    for records in (sizes, keys, times, earlier, headers, many):
        assert build_batch([first, *records]).data == by_aiokafka([first, *records])


@pytest.mark.parametrize("edge", near(8192 - 9))
def test_a_records_own_length_is_right_where_its_varint_grows(edge: int) -> None:
    records = [ReadRecord(0, NOW, None, b"v" * edge, ())]
    assert build_batch(records).data == by_aiokafka(records)


def test_runs_of_one_time_share_it_and_end_where_it_changes() -> None:
    """Runs of records with the same timestamp keep their timestamps."""
    stamps = [5, 5, 5, 7, 7, 5, 5, -1, -1, 9, 5]
    records = [ReadRecord(i, stamp, None, b"v", ()) for i, stamp in enumerate(stamps)]
    built = build_batch(records)
    assert read_batches(built.data)[0].records() == records
    assert (built.first_timestamp_ms, built.max_timestamp_ms) == (5, 9)


def test_a_first_record_without_a_time_is_not_taken_for_the_run_before_it() -> None:
    """Records without timestamps at the start of a batch are encoded as by aiokafka."""
    records = [ReadRecord(i, -1, None, b"v", ()) for i in range(3)]
    built = build_batch(records)
    assert built.data == by_aiokafka(records)
    assert (built.first_timestamp_ms, built.max_timestamp_ms) == (-1, -1)


def test_records_may_share_header_names_with_different_values() -> None:
    headers = [(("a", b"1"), ("b", None)), (("a", None), ("a", b"3")), (("b", b""),)]
    records = [ReadRecord(i, NOW, None, None, pairs) for i, pairs in enumerate(headers)]
    assert read_batches(build_batch(records).data)[0].records() == records


def test_the_size_of_the_smallest_record_is_seven_bytes() -> None:
    assert record_size(payload_size(None, None, ()), 0, 0) == decode_loop.MIN_RECORD_SIZE == 7


@pytest.mark.parametrize("loop", [encode_loop, decode_loop])
def test_a_hot_loop_imports_nothing_but_typing_so_that_it_can_be_compiled_alone(loop: Any) -> None:
    tree = ast.parse(Path(loop.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"__future__", "collections.abc", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


@pytest.mark.parametrize(
    ("present", "refused", "chosen"),
    [
        ([], "", "pure"),
        (["_encode", "_decode"], "", "compiled"),
        (["_encode", "_decode"], "1", "pure"),
        (["_encode"], "", "pure"),
        (["_decode"], "", "pure"),
    ],
)
def test_compiled_loops_are_chosen_when_both_are_there_and_not_refused(
    present: list[str], refused: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, loop in (("_encode", encode_loop), ("_decode", decode_loop)):
        # None makes the import fail, so that compiled modules installed here are not used.
        found = loop if name in present else None
        monkeypatch.setitem(sys.modules, f"aioidem._records.{name}_compiled", found)
    monkeypatch.setenv("AIOIDEM_NO_EXTENSIONS", refused)
    assert runpy.run_path(choice.__file__)["IMPLEMENTATION"] == chosen
