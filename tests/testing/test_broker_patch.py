"""The patch that sets how many batches Kafka's class ProducerStateEntry retains per producer.

These tests patch a class of our own of the same form (golden/, with its source). The tests in
`on_kafka` run the patched class in a JVM, and patch Kafka's own class.
"""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._testing.broker_patch import (
    CLASS_NAME,
    BrokerPatchError,
    patched,
    retained,
    write_patch,
)

CLASS = (Path(__file__).parent / "golden" / "ProducerStateEntry.class").read_bytes()


@given(st.integers(1, 32767), st.integers(1, 32767))
def test_any_constant_can_be_put_there_and_what_was_before_leaves_no_trace(
    first: int, second: int
) -> None:
    """The patch can set the number of retained batches to any of 1 to 32767, and set it again."""
    assert retained(patched(CLASS, first)) == first
    assert patched(patched(CLASS, first), second) == patched(CLASS, second)


def test_patching_back_gives_the_former_bytes() -> None:
    """Patching a class back to its former number of batches gives the former bytes."""
    assert retained(CLASS) == 5
    assert patched(patched(CLASS, 20), 5) == CLASS
    # The instruction that pushes 5 has one byte; for 20 and 127 it has two, and for 128 three.
    assert [len(patched(CLASS, n)) - len(CLASS) for n in (1, 20, 127, 128)] == [0, 1, 1, 2]


@pytest.mark.parametrize("retain", [0, -1, 32768])
def test_a_constant_that_no_instruction_pushes_is_refused(retain: int) -> None:
    """The patch refuses a number of batches below 1 or above 32767, the limit of `sipush`."""
    with pytest.raises(BrokerPatchError, match="1 to 32767"):
        patched(CLASS, retain)


@given(st.integers(0, len(CLASS) - 1))
def test_a_class_cut_off_anywhere_is_refused_or_whole_as_far_as_it_is_needed(end: int) -> None:
    """A truncated class is refused, unless the part that the patch reads is complete."""
    with contextlib.suppress(BrokerPatchError):
        assert retained(CLASS[:end]) == 5


@given(st.integers(0, len(CLASS) - 1), st.integers(1, 255))
def test_a_class_with_a_wrong_byte_is_patched_or_refused_and_nothing_else(at: int, by: int) -> None:
    """A class with a wrong byte is patched correctly or refused with BrokerPatchError."""
    wrong = bytearray(CLASS)
    wrong[at] ^= by
    with contextlib.suppress(BrokerPatchError):
        assert retained(patched(bytes(wrong), 20)) == 20


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf", "no class file"),
        (b"storage/internals", b"storage/externals", "the class is 'org/apache"),
        (b"addBatchMetadata", b"addBotchMetadata", "0 methods"),
        (b"\x08\xa0", b"\x1a\xa0", "compares with 0 constants"),  # iconst_5 becomes iload_0
        (b"StackMapTable", b"StackMopTable", "unknown table"),
    ],
)
def test_what_is_not_as_expected_is_refused_with_what_was_found(
    old: bytes, new: bytes, complaint: str
) -> None:
    """A class of another form is refused, and the error says what was found."""
    assert old in CLASS
    with pytest.raises(BrokerPatchError, match=complaint):
        patched(CLASS.replace(old, new), 20)


def test_the_class_goes_from_the_jar_to_where_the_class_path_finds_it(tmp_path: Path) -> None:
    """The patched class is written to the path at which a class path looks for it."""
    jar = tmp_path / "kafka-storage-0.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(f"{CLASS_NAME}.class", CLASS)
    written = write_patch(jar, tmp_path / "patch", 20)
    assert written == tmp_path / "patch" / f"{CLASS_NAME}.class"
    assert written.read_bytes() == patched(CLASS, 20)


def test_a_jar_that_lacks_the_class_or_is_none_is_refused(tmp_path: Path) -> None:
    """A jar without the class and a file that is no jar are refused."""
    jar = tmp_path / "other.jar"
    for _ in range(2):
        with pytest.raises(BrokerPatchError, match=r"other\.jar has no class"):
            write_patch(jar, tmp_path, 20)
        zipfile.ZipFile(jar, "w").close()
