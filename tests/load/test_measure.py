"""`Tally` measures outcomes, latencies and rates, in whatever order outcomes come."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._load.measure import RunLabel, RunResult, Tally, speed_ups
from aioidem.errors import DeliveryTimeoutError, MessageSizeTooLargeError
from aioidem.structs import DeliveryStatus

LABEL = RunLabel(client="aioidem", version="0", in_flight=5, record_size=1000)


def queued(count: int, started: float = 0.0) -> Tally:
    tally = Tally(started)
    for _ in range(count):
        tally.queued()
    return tally


def test_the_steady_rate_leaves_out_the_first_batch_and_the_time_before_it() -> None:
    """The steady rate excludes the first batch, and the time until it is acknowledged."""
    tally = queued(16 * 4)
    for turn in range(1, 5):  # 10 s to connect, then a batch of 16 each 0.1 s
        for _ in range(16):
            tally.acknowledged(1000, 0.0, 10 + turn / 10)
        tally.first_batch_over()
    result = tally.result(LABEL)
    assert result.steady_records_per_sec == pytest.approx(160)
    assert result.records_per_sec == pytest.approx(64 / 10.4)


def test_the_steady_rate_is_unknown_while_there_is_only_a_first_batch() -> None:
    tally = queued(3)
    assert tally.result(LABEL).steady_records_per_sec is None
    tally.acknowledged(1, 0.0, 1.0)
    tally.acknowledged(1, 0.0, 1.5)
    tally.first_batch_over()
    assert tally.result(LABEL).steady_records_per_sec is None
    tally.acknowledged(1, 0.0, 1.5)
    # No time has passed since the last acknowledgement of the first batch.
    assert tally.result(LABEL).steady_records_per_sec is None
    assert tally.result(LABEL).acked == 3


def test_a_turn_before_the_first_acknowledgement_does_not_close_the_first_batch() -> None:
    """`first_batch_over` before any acknowledgement does not end the first batch."""
    tally = queued(3)
    tally.first_batch_over()
    tally.acknowledged(1, 0.0, 1.0)
    tally.first_batch_over()
    tally.acknowledged(1, 0.0, 2.0)
    tally.first_batch_over()
    tally.acknowledged(1, 0.0, 3.0)
    assert tally.result(LABEL).steady_records_per_sec == pytest.approx(1.0)


@given(
    batch=st.integers(1, 50),
    window=st.integers(1, 20),
    rounds=st.integers(2, 10),
    rtt=st.floats(0.001, 2),
    first=st.floats(0, 5),
)
def test_the_steady_rate_of_a_full_pipeline_is_window_times_batch_over_rtt(
    batch: int, window: int, rounds: int, rtt: float, first: float
) -> None:
    tally = queued(batch * (1 + window * rounds))
    for _ in range(batch):  # before its first answer, the producer has one batch in flight
        tally.acknowledged(10, 0.0, first)
    tally.first_batch_over()
    for turn in range(1, rounds + 1):
        for _ in range(batch * window):
            tally.acknowledged(10, 0.0, first + turn * rtt)
    assert tally.result(LABEL).steady_records_per_sec == pytest.approx(window * batch / rtt)


@given(st.lists(st.sampled_from(DeliveryStatus), max_size=60))
def test_every_record_has_exactly_one_outcome(outcomes: list[DeliveryStatus]) -> None:
    tally = queued(len(outcomes))
    for at, status in enumerate(outcomes, start=1):
        if status is DeliveryStatus.ACKED:
            tally.acknowledged(1, 0.0, at)
        elif status is not DeliveryStatus.PENDING:
            tally.failed(status, None, at)
    result = tally.result(LABEL)
    assert result.acked + result.not_written + result.unknown == result.records == len(outcomes)
    pending = outcomes.count(DeliveryStatus.PENDING)
    assert tally.open == pending
    # A record without an outcome may have been written.
    assert result.unknown == outcomes.count(DeliveryStatus.UNKNOWN) + pending
    assert result.complete == (set(outcomes) == {DeliveryStatus.ACKED})


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_percentiles_are_within_three_digits_and_never_above_the_maximum(
    latencies: list[float],
) -> None:
    tally = queued(len(latencies))
    for latency in latencies:
        tally.acknowledged(1, 0.0, latency)
    measured = tally.result(LABEL).latency
    assert measured is not None
    ordered = sorted(latencies)
    assert measured.max == pytest.approx(1000 * ordered[-1])
    assert measured.avg == pytest.approx(1000 * sum(ordered) / len(ordered))
    assert measured.p50 <= measured.p95 <= measured.p99 <= measured.p999 <= measured.max
    median = 1000 * ordered[math.ceil(len(ordered) / 2) - 1]
    assert measured.p50 == pytest.approx(median, rel=0.002, abs=0.002)


@pytest.mark.parametrize("latency", [-1.0, 0.0, 1e-9, 3600.0, 1e7])
def test_no_latency_falls_out_of_the_histogram(latency: float) -> None:
    """Every latency is counted, even if it is longer than the histogram's range."""
    tally = queued(1)
    tally.acknowledged(1, 0.0, latency)
    measured = tally.result(LABEL).latency
    assert measured is not None
    assert measured.max == pytest.approx(max(0.0, 1000 * latency))
    assert 0 <= measured.p50 <= measured.max


def test_without_an_acknowledgement_there_are_no_latencies_and_no_rates() -> None:
    result = queued(2, started=7.0).result(LABEL)
    assert result.latency is None
    assert result.curve == ()
    assert result.timeline == ()
    assert (result.seconds, result.records_per_sec, result.mb_per_sec) == (0, 0, 0)
    assert not result.complete
    assert not Tally(0.0).result(LABEL).complete  # a run without records is not complete


def test_megabytes_are_of_the_acknowledged_values() -> None:
    tally = queued(3)
    tally.acknowledged(1 << 20, 0.0, 1.0)
    tally.acknowledged(1 << 20, 0.0, 2.0)
    tally.failed(DeliveryStatus.NOT_WRITTEN, None, 2.0)
    assert tally.result(LABEL).mb_per_sec == pytest.approx(1.0)


def test_an_interval_holds_what_happened_since_the_one_before() -> None:
    """Each progress interval counts what has happened since the previous one."""
    tally = queued(4, started=100.0)
    tally.acknowledged(1 << 20, 100.0, 100.5)
    tally.acknowledged(1 << 20, 100.0, 101.0)
    first = tally.progress(101.0)
    assert (first.acked, first.records_per_sec, first.mb_per_sec) == (2, 2.0, 2.0)
    assert first.avg_ms == pytest.approx(750)
    assert first.max_ms == pytest.approx(1000)
    second = tally.progress(102.0)
    assert (second.elapsed, second.acked, second.records_per_sec) == (2.0, 2, 0)
    assert second.avg_ms is None
    tally.failed(DeliveryStatus.UNKNOWN, None, 102.5)
    assert tally.progress(102.0).failed == 1


def test_the_timeline_counts_each_acknowledgement_once() -> None:
    tally = queued(4, started=10.0)
    for now in (10.05, 10.06, 10.31, 10.33):
        tally.acknowledged(1, 10.0, now)
    assert tally.result(LABEL).timeline == (2, 0, 0, 2)


@given(st.lists(st.floats(0, 1e6), max_size=50).map(sorted))
def test_the_timeline_of_a_long_run_coarsens_and_loses_nothing(times: list[float]) -> None:
    tally = queued(len(times))
    for now in times:
        tally.acknowledged(1, 0.0, now)
    result = tally.result(LABEL)
    assert sum(result.timeline) == len(times)
    assert len(result.timeline) <= 2_000
    if times:
        assert int(times[-1] / result.timeline_step) == len(result.timeline) - 1


def test_the_first_failure_is_kept_and_named_once() -> None:
    tally = queued(2)
    tally.failed(DeliveryStatus.UNKNOWN, DeliveryTimeoutError("it took\ntoo long"), 1.0)
    tally.failed(DeliveryStatus.UNKNOWN, OSError("later"), 1.0)
    assert tally.failure == "DeliveryTimeoutError: it took too long"
    assert not tally.result(LABEL).complete


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("gone"), "OSError: gone"),
        (OSError(), "OSError"),
        (DeliveryTimeoutError(), "DeliveryTimeoutError"),
        (MessageSizeTooLargeError("big"), "[Error 10] MessageSizeTooLargeError: big"),
    ],
)
def test_a_failure_names_its_class_exactly_once(error: Exception, text: str) -> None:
    tally = Tally(0.0)
    tally.note_failure(error)
    assert tally.failure == text


# --- rows -----------------------------------------------------------------------------------------

KEYS = [
    "client", "version", "in_flight", "window", "rtt_ms", "records", "record_size", "acked",
    "not_written", "unknown", "seconds", "records_per_sec", "steady_records_per_sec", "mb_per_sec",
    "latency_ms", "max_span", "committed", "after_warmup",
]  # fmt: skip


def row(steady: float | None = 100.0) -> RunResult:
    tally = queued(2)
    tally.acknowledged(1000, 0.0, 0.15)
    tally.acknowledged(1000, 0.0, 0.30)
    result = tally.result(LABEL, window=20, rtt_ms=150.0, max_span=20)
    return replace(result, steady_records_per_sec=steady)


def test_the_json_object_has_the_documented_keys_in_order_and_no_others() -> None:
    entry = row().as_json()
    assert list(entry) == KEYS
    latency = entry["latency_ms"]
    assert isinstance(latency, dict)
    assert list(latency) == ["avg", "p50", "p95", "p99", "p999", "max"]
    assert entry["rtt_ms"] == 150.0
    assert entry["window"] == entry["max_span"] == 20


def test_what_was_committed_is_counted_and_nothing_else_is_complete() -> None:
    """A transactional run is complete only if all of its records were committed."""
    tally = queued(3)
    tally.acknowledged(1000, 0.0, 0.1)
    tally.acknowledged(1000, 0.0, 0.1)
    tally.committed(2, 0.1, 0.3)
    tally.acknowledged(1000, 0.0, 0.4)
    half = tally.result(LABEL)
    assert not half.complete  # the last record is not committed
    tally.committed(1, 0.4, 0.5)
    result = tally.result(LABEL)
    assert result.complete
    assert result.seconds == pytest.approx(0.5)  # the time of the commit counts
    assert result.as_json()["committed"] == {
        "transactions": 2,
        "records": 3,
        "commit_ms": {"avg": 150.0, "max": 200.0},
    }


def test_the_records_after_the_warm_up_are_counted_a_second_time() -> None:
    """Their time begins when the first of them is sent, and their latencies are their own."""
    tally = queued(2)
    tally.acknowledged(1 << 20, 0.0, 0.9)
    tally.warmed_up(1.0)
    tally.queued()
    tally.queued()
    rest = tally.after_warmup
    assert rest is not None
    for counted in (tally, rest):
        counted.acknowledged(1 << 20, 1.0, 1.2)
        counted.failed(DeliveryStatus.UNKNOWN, None, 1.5)
    result = tally.result(LABEL)
    assert (result.records, result.acked, result.seconds) == (4, 2, 1.5)
    assert result.as_json()["after_warmup"] == {
        "warmup_records": 2,
        "records": 2,
        "acked": 1,
        "seconds": 0.5,
        "records_per_sec": 2.0,
        "mb_per_sec": 2.0,
        "latency_ms": dict.fromkeys(["avg", "p50", "p95", "p99", "p999", "max"], 200.0),
    }


def test_a_steady_state_without_an_acknowledgement_has_no_latency() -> None:
    tally = queued(1)
    tally.warmed_up(1.0)
    found = tally.result(LABEL).after_warmup
    assert found is not None
    assert (found.records, found.records_per_sec, found.as_json()["latency_ms"]) == (0, 0.0, None)


def test_what_cannot_be_known_is_null() -> None:
    """A figure that cannot be known is null in the JSON."""
    entry = json.loads(json.dumps(Tally(0.0).result(LABEL).as_json(), allow_nan=False))
    assert list(entry) == KEYS
    unknown = (
        "window", "rtt_ms", "steady_records_per_sec", "latency_ms", "max_span", "committed",
        "after_warmup",
    )  # fmt: skip
    assert all(entry[key] is None for key in unknown)


def test_the_speed_up_is_relative_to_the_first_row() -> None:
    assert speed_ups([row(100), row(500), row(2000)]) == [1, 5, 20]
    assert speed_ups([row(100), row(None)]) == [1, None]
    assert speed_ups([row(None), row(100)]) == [None, None]
    assert speed_ups([]) == []
