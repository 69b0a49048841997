"""The values of a load: random letters, the parts of a file, the records' numbers."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from aioidem._load import payload
from aioidem._load.payload import Numbers, choose_values, longest, mean_size, read_payloads
from aioidem._load.plan import plan_perf
from aioidem._load.usage import UsageError

from .test_plan import refused


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 99, 100, 101, 1000, 12_345])
def test_numbers_are_those_below_the_count_in_decimal(count: int) -> None:
    numbers = Numbers(count)
    written = [str(number).encode() for number in range(count)]
    assert list(numbers) == written
    assert (len(numbers), numbers[-1], numbers[0]) == (count, written[-1], b"0")
    assert numbers.digits == len(b"".join(written))
    assert longest(numbers) == written[-1]
    assert mean_size(numbers) == round(len(b"".join(written)) / count)


def test_a_part_of_numbers_is_a_sequence_of_values() -> None:
    assert Numbers(12)[8:12] == (b"8", b"9", b"10", b"11")


def test_as_many_numbers_as_kafka_allows_take_no_memory() -> None:
    """The largest --num-records makes its last value, and knows its sizes, at once."""
    numbers = Numbers(2**63 - 1)
    assert longest(numbers) == b"9223372036854775806"
    assert mean_size(numbers) == 19


def test_of_other_values_the_longest_and_the_mean_are_looked_for() -> None:
    values = (b"a", b"four", b"bb")
    assert longest(values) == b"four"
    assert mean_size(values) == 2  # 7 bytes of 3 values


def test_monotonic_values_need_a_count() -> None:
    with pytest.raises(UsageError, match="--payload-monotonic: needs --num-records"):
        choose_values(None, None, None, monotonic=True)
    assert list(choose_values(None, None, None, monotonic=True, count=3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("size", "file", "words"),
    [
        (5, None, "--record-size and --payload-monotonic exclude each other"),
        (None, Path("x"), "--payload-file and --payload-monotonic exclude each other"),
    ],
)
def test_monotonic_values_exclude_all_others(
    size: int | None, file: Path | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        choose_values(size, file, None, monotonic=True, count=5)


# --- files ----------------------------------------------------------------------------------------


def test_a_payload_file_is_split_and_its_empty_lines_left_out(tmp_path: Path) -> None:
    """A payload file is split at its delimiter, and empty parts are left out."""
    path = tmp_path / "payload"
    path.write_bytes(b"one\n\ntwo\n\xff\n")
    assert read_payloads(path) == (b"one", b"two", b"\xff")
    assert plan_perf(payload_file=path).values == (b"one", b"two", b"\xff")


@pytest.mark.parametrize(("delimiter", "raw"), [(r"\n", b"\n"), (r"\t", b"\t"), ("--", b"--")])
def test_a_payload_delimiter_may_be_written_as_an_escape(
    tmp_path: Path, delimiter: str, raw: bytes
) -> None:
    path = tmp_path / "payload"
    path.write_bytes(raw.join([b"one", b"two"]))
    assert read_payloads(path, delimiter) == (b"one", b"two")


def test_the_record_size_of_a_payload_file_is_its_mean(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"aa\nbbbb")
    assert plan_perf(payload_file=path).record_size == 3


def test_a_payload_delimiter_may_be_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"one\xfftwo")
    assert read_payloads(path, os.fsdecode(b"\xff")) == (b"one", b"two")


def test_a_small_payload_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"one\n")
    tracemalloc.start()
    try:
        read_payloads(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_payload_file_is_read_up_to_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MAX_PAYLOAD_FILE", 3 << 20)
    path = tmp_path / "payload"
    path.write_bytes(b"x" * (3 << 20))
    [value] = read_payloads(path)
    assert len(value) == 3 << 20
    path.write_bytes(b"x" * ((3 << 20) + 1))
    with pytest.raises(UsageError, match="larger than 3 MiB"):
        read_payloads(path)


def test_a_plan_that_is_shown_shows_no_payload(tmp_path: Path) -> None:
    """The repr of a plan does not contain the payload."""
    path = tmp_path / "payload"
    path.write_bytes(b"canary\n")
    assert "canary" not in repr(plan_perf(payload_file=path))


def test_a_missing_payload_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(payload_file=tmp_path / "none")


def test_a_folder_is_no_payload_file(tmp_path: Path) -> None:
    assert "directory" in refused(payload_file=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n\n"])
def test_an_empty_payload_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "payload"
    path.write_bytes(content)
    assert refused(payload_file=path).endswith("is empty")


def test_a_huge_payload_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAYLOAD_FILE", 1 << 20)
    path = tmp_path / "payload"
    path.write_bytes(b"x" * ((1 << 20) + 1))
    assert refused(payload_file=path).endswith("is larger than 1 MiB")


def test_an_empty_delimiter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"x")
    assert refused(payload_file=path, payload_delimiter="").startswith("--payload-delimiter")
