"""The history checker finds each kind of planted anomaly, and none in a correct history."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import build_batch, read_batches
from aioidem.testing import (
    Anomaly,
    Expectations,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    check_counters,
    check_history,
    log_records,
    make_value,
    parse_value,
)


def value(call: int, partition: int = 0, producer: str = "p") -> ValueId:
    return ValueId(producer, "t", partition, call)


def row(call: int, outcome: Outcome = Outcome.ACKED, offset: int | None = None) -> Row:
    settled = None if outcome is Outcome.PENDING else 1.0
    at = offset if offset is not None else (call if outcome is Outcome.ACKED else -1)
    return Row(value(call), "t", 0, 0.0, outcome, at, settled)


def logged(*calls: int, partition: int = 0) -> list[LogRecord]:
    return [LogRecord("t", partition, at, make_value(value(call))) for at, call in enumerate(calls)]


def found(
    rows: list[Row], log: list[LogRecord], expect: Expectations | None = None
) -> list[Anomaly]:
    return [violation.anomaly for violation in check_history(rows, log, expect)]


def test_a_clean_history_is_clean() -> None:
    """A history without anomalies gives no violation."""
    rows = [row(0), row(1), row(2, Outcome.NOT_WRITTEN), row(3, Outcome.UNKNOWN), row(4, offset=3)]
    assert found(rows, logged(0, 1, 3, 4)) == []


def test_what_is_unknown_may_be_there_or_not() -> None:
    """A record that ended UNKNOWN may be in the log or not."""
    assert found([row(0, Outcome.UNKNOWN)], logged(0)) == []
    assert found([row(0, Outcome.UNKNOWN)], logged()) == []


def test_an_acknowledgement_without_an_offset_asks_for_presence_only() -> None:
    """A record that was acknowledged without an offset may be at any offset of the log."""
    assert found([row(0, offset=-1)], logged(0)) == []
    assert found([row(0, offset=-1)], logged()) == [Anomaly.LOST]


def test_planted_lost_write() -> None:
    """An acknowledged record that is not in the log is a LOST violation."""
    assert found([row(0), row(1)], logged(0)) == [Anomaly.LOST]


def test_planted_wrong_offset() -> None:
    """An acknowledged record at another offset than its own is a WRONG_OFFSET violation."""
    assert found([row(0, offset=7)], logged(0)) == [Anomaly.WRONG_OFFSET]


def test_planted_wrong_partition() -> None:
    """So is one at its offset in another partition than the producer, which chose it, has said."""
    chosen = ValueId("p", "t", -1, 0)
    log = [LogRecord("t", 0, 5, make_value(chosen))]
    told = Row(chosen, "t", 1, 0.0, Outcome.ACKED, 5, 1.0)
    assert found([told], log) == [Anomaly.WRONG_OFFSET]
    told.partition = -1
    assert found([told], log) == []


def test_planted_duplicate() -> None:
    """A record that is in the log twice is a DUPLICATE violation."""
    assert found([row(0), row(1)], logged(0, 1, 0)) == [Anomaly.DUPLICATE]


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.ACKED])
def test_planted_duplicate_of_what_was_or_was_not_acknowledged(outcome: Outcome) -> None:
    """A record that is in the log twice is DUPLICATE even if it was not acknowledged."""
    assert Anomaly.DUPLICATE in found([row(0, outcome)], logged(0, 0))


def test_planted_not_written_that_is_there() -> None:
    """A record that was settled NOT_WRITTEN but is in the log is a NOT_ABSENT violation."""
    assert found([row(0, Outcome.NOT_WRITTEN)], logged(0)) == [Anomaly.NOT_ABSENT]


def test_planted_reorder() -> None:
    """Records that are not in the order of their calls are a REORDERED violation."""
    rows = [row(0, offset=1), row(1, offset=0)]
    assert found(rows, logged(1, 0)) == [Anomaly.REORDERED]


def test_order_is_per_producer_and_partition() -> None:
    """The order of records is checked per producer and partition only."""
    other = Row(value(0, producer="q"), "t", 0, 0.0, Outcome.ACKED, 2, 1.0)
    log = [*logged(0, 1), LogRecord("t", 0, 2, make_value(value(0, producer="q")))]
    assert found([row(0), row(1), other], log) == []
    chosen = [Row(ValueId("p", "t", -1, n), "t", n % 2, 0.0, Outcome.ACKED) for n in range(4)]
    spread = [
        LogRecord("t", n % 2, n // 2, make_value(ValueId("p", "t", -1, n))) for n in (1, 3, 0, 2)
    ]
    assert found(chosen, spread) == []


def test_another_log_under_the_same_name_has_an_order_of_its_own() -> None:
    """Order across the logs of two clusters is checked only for records with a fixed partition.

    A record without a fixed partition may go to another partition in the second cluster.
    """

    def judged(partition: int, *, log: int) -> list[Anomaly]:
        early, late = ValueId("p", "t", partition, 0), ValueId("p", "t", 0, 1)
        rows = [Row(each, "t", 0, 0.0, Outcome.ACKED) for each in (early, late)]
        places = [(late, 0), (early, log)]
        return found(rows, [LogRecord("t", 0, 0, make_value(v), log=n) for v, n in places])

    assert judged(-1, log=1) == []
    assert judged(-1, log=0) == [Anomaly.REORDERED]
    assert judged(0, log=1) == [Anomaly.REORDERED]


def test_planted_torn_value() -> None:
    """A record whose value is damaged is a TORN violation."""
    broken = bytearray(make_value(value(0), 60))
    broken[-1] ^= 1
    log = [LogRecord("t", 0, 0, bytes(broken))]
    assert found([row(0, Outcome.UNKNOWN)], log) == [Anomaly.TORN]


@pytest.mark.parametrize("stranger", [None, b"", b"hello", b"aiv1" + bytes(40)])
def test_planted_strangers(stranger: bytes | None) -> None:
    """A record whose value is not in the checker's format is a TORN violation."""
    assert found([], [LogRecord("t", 0, 0, stranger)]) == [Anomaly.TORN]


def test_a_strangers_value_with_a_name_that_is_no_text_is_torn() -> None:
    """A value with a right CRC but a name that is not UTF-8 is a TORN violation."""
    body = struct.pack(">iQHH", -1, 3, 2, 1) + b"\xff\xfet"
    stranger = b"aiv1" + struct.pack(">I", crc32(body)) + body
    assert found([], [LogRecord("t", 0, 0, stranger)]) == [Anomaly.TORN]


def test_a_strangers_name_is_shown_escaped_and_cut() -> None:
    """The names in a foreign value are escaped and shortened in messages."""
    stranger = make_value(ValueId("\x1b[2J\n" + "n" * 5000, "t\u202e", -1, 3))
    [violation] = check_history([], [LogRecord("t", 0, 0, stranger)])
    assert str(violation).isprintable()
    assert len(str(violation)) < 1000


def test_planted_bytes_on_the_wrong_partition() -> None:
    """A record on another partition than its value names is FOREIGN (KAFKA-19012)."""
    assert found([row(0, Outcome.UNKNOWN)], logged(0, partition=1)) == [Anomaly.FOREIGN]


def test_planted_bytes_on_the_wrong_topic() -> None:
    """A record on another topic than its value names is a FOREIGN violation."""
    log = [LogRecord("u", 0, 0, make_value(value(0)))]
    assert found([row(0, Outcome.UNKNOWN)], log) == [Anomaly.FOREIGN]


def test_planted_value_that_was_never_sent() -> None:
    """A record in the log that no call of the history sent is a FOREIGN violation."""
    assert found([], logged(5)) == [Anomaly.FOREIGN]


def test_planted_outcome_that_never_came() -> None:
    """A record that was never settled is an UNSETTLED violation."""
    assert found([row(0, Outcome.PENDING)], logged()) == [Anomaly.UNSETTLED]


def test_planted_outcome_that_came_late() -> None:
    """A record that was settled after its deadline is a LATE violation."""
    late = Row(value(0), "t", 0, 10.0, Outcome.UNKNOWN, -1, 15.5)
    assert found([late], logged(), Expectations(deadline=5.0)) == [Anomaly.LATE]
    assert found([late], logged(), Expectations(deadline=6.0)) == []


def test_planted_leak() -> None:
    """`check_counters` reports a counter that is not zero as a LEAK violation."""
    wrong = check_counters({"buffer_bytes_used": 12, "in_flight": 0})
    assert [violation.anomaly for violation in wrong] == [Anomaly.LEAK]
    assert "buffer_bytes_used is 12" in str(wrong[0])


def test_what_brokers_may_do_is_said_and_nothing_more() -> None:
    """`Expectations` allows an anomaly for the values that it lists, and for no other values."""
    assert found([row(0)], logged(), Expectations(lost={value(0)})) == []
    assert found([row(1)], logged(), Expectations(lost={value(0)})) == [Anomaly.LOST]
    assert found([row(0)], logged(0, 0), Expectations(may_repeat={value(0)})) == []
    late = [row(0, Outcome.UNKNOWN), row(1, offset=0)]
    assert found(late, logged(1, 0), Expectations(may_reorder={value(0)})) == []
    anyhow = [row(0, offset=1), row(1, offset=0)]
    assert found(anyhow, logged(1, 0, 0), Expectations(unpromised=True)) == []


@given(
    producer=st.text(min_size=1, max_size=8),
    topic=st.text("abc.-_", min_size=1, max_size=20),
    partition=st.integers(-1, 2**31 - 1),
    call=st.integers(0, 2**63),
    size=st.integers(0, 400),
)
def test_a_value_has_the_identity_of_its_record(
    producer: str, topic: str, partition: int, call: int, size: int
) -> None:
    """`parse_value` returns the identity from which `make_value` made the value."""
    identity = ValueId(producer, topic, partition, call)
    made = make_value(identity, size)
    assert parse_value(made) == identity
    assert len(made) >= size


@given(data=st.binary(max_size=80))
def test_bytes_that_are_no_value_are_none(data: bytes) -> None:
    """`parse_value` returns None for bytes that `make_value` did not make."""
    assert parse_value(data) is None


@given(call=st.integers(0, 1000), size=st.integers(0, 100), flips=st.data())
def test_a_flipped_bit_is_seen(call: int, size: int, flips: st.DataObject) -> None:
    """`parse_value` returns None for a value with a flipped bit."""
    made = bytearray(make_value(value(call), size))
    made[flips.draw(st.integers(0, len(made) - 1))] ^= 1 << flips.draw(st.integers(0, 7))
    assert parse_value(bytes(made)) is None


class _Record:
    key, headers, timestamp_ms = None, (), 0

    def __init__(self, value: bytes) -> None:
        self.value = value


def test_a_log_is_read_from_batches() -> None:
    """`log_records` yields the records of a log's batches in order."""
    built = build_batch([_Record(make_value(value(n))) for n in range(3)])
    log = list(log_records("t", 0, read_batches(built.data)))
    assert [record.offset for record in log] == [0, 1, 2]
    assert found([row(n) for n in range(3)], log) == []
