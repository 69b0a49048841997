"""Count the outcomes, latencies and rates of one run of `aioidem perf`, a load test.

Invariants:

- `Tally` only counts: it reads no clock, and gets all times as arguments. A record costs a few
  microseconds and no memory.
- Every queued record ends as exactly one of acked, not_written and unknown. Records without an
  outcome at the end of the run count as unknown, because they may have been written.
- The tallies of several processes can be added up (`merged`). Each process passes its tally as
  plain data (`state()`), with times of a clock common to all, the wall clock. The histograms are
  added, so the percentiles are those of all records.
- The steady rate counts from the end of the first batch to the last acknowledgement, without the
  records of the first batch. The time before was spent on connecting, on learning how many batches
  may be in flight, and on the first round trip. Counting these records without that time would make
  a short run look better than it is.

Rejected:

- A sorted list of latencies: it needs 8 bytes per record and a sort. An HDR histogram keeps three
  significant digits in constant memory.
- Recognising the end of the first batch by the time since its first acknowledgement: on a link with
  almost no round-trip time, one large batch takes longer than several small ones. Instead the
  caller calls `first_batch_over`: all records of a batch are acknowledged before another task of
  the event loop runs, so the caller waits for its own next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hdrh.histogram import HdrHistogram

from aioidem.structs import DeliveryStatus

__all__ = [
    "AfterWarmup",
    "Committed",
    "Latency",
    "Progress",
    "RunLabel",
    "RunResult",
    "Tally",
    "speed_ups",
]

_HIGHEST_MICROSECONDS = 3_600_000_000
_DIGITS = 3
_MIB = 1 << 20

_TIMELINE_STEP = 0.1
_TIMELINE_POINTS = 2_000

_STATE = (
    "records", "acked", "not_written", "unknown", "_started", "_finished", "_failure",
    "_acked_bytes", "_last_ack", "_first_batch_acked", "_first_batch_at", "_latency_sum",
    "_latency_max", "_timeline", "_timeline_step",
)  # fmt: skip

_CURVE_PERCENTILES = (
    0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Latency:
    """The time from queueing a record to its acknowledgement, in milliseconds."""

    avg: float
    p50: float
    p95: float
    p99: float
    p999: float
    max: float

    def as_json(self) -> dict[str, float]:
        """Return the values by name, rounded to microseconds."""
        return {
            "avg": round(self.avg, 3),
            "p50": round(self.p50, 3),
            "p95": round(self.p95, 3),
            "p99": round(self.p99, 3),
            "p999": round(self.p999, 3),
            "max": round(self.max, 3),
        }


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed transactions: their number, their records, and how long a commit took.

    The times are in milliseconds and include the wait for the transaction's records.
    """

    transactions: int
    records: int
    avg_ms: float
    max_ms: float

    def as_json(self) -> dict[str, object]:
        """Return the values by name, with times rounded to microseconds."""
        times = {"avg": round(self.avg_ms, 3), "max": round(self.max_ms, 3)}
        return {"transactions": self.transactions, "records": self.records, "commit_ms": times}


@dataclass(frozen=True, slots=True)
class AfterWarmup:
    """The figures of a run without its first records (KIP-1052).

    The time begins when the first record after the warm-up is sent, and ends with the last outcome;
    `seconds` is its length. MB are 2**20 bytes.
    """

    warmup: int
    records: int
    acked: int
    seconds: float
    records_per_sec: float
    mb_per_sec: float
    latency: Latency | None

    def as_json(self) -> dict[str, object]:
        """Return the values by name, rounded as in `RunResult.as_json`."""
        return {
            "warmup_records": self.warmup,
            "records": self.records,
            "acked": self.acked,
            "seconds": round(self.seconds, 6),
            "records_per_sec": round(self.records_per_sec, 3),
            "mb_per_sec": round(self.mb_per_sec, 3),
            "latency_ms": None if self.latency is None else self.latency.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a running load at the end of one interval.

    `elapsed` (seconds), `records`, `acked` and `failed` count from the start of the run; the rates
    (records and MiB per second) and the latencies (milliseconds) are those of the interval.
    """

    elapsed: float
    records: int
    acked: int
    failed: int
    records_per_sec: float
    mb_per_sec: float
    avg_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """The facts about a run that are known before the first record is sent.

    `in_flight` is the limit on requests in flight, `record_size` the size of a value in bytes.
    """

    client: str
    version: str
    in_flight: int
    record_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One row of results: what was run, and its outcome.

    `steady_records_per_sec` is the steady rate: the rate after the run's first batch.

    `max_span` is the largest number of batches from a partition's oldest unresolved one to its
    newest sent one, and `window` is the limit on that number; both are the maximum over all
    partitions.

    `None` stands for an unknown value: a steady rate without an acknowledgement after the first
    batch, a window that the client does not report, a span that was not counted. `seconds` is the
    time from the start of the run to the last outcome or commit. MB are 2**20 bytes, as in Kafka's
    own tool. `timeline` counts the acknowledgements in each interval of `timeline_step` seconds.
    `curve` has pairs of a percentile and the latency there, in milliseconds. `after_warmup` is None
    without a warm-up, and when the run ended before it was over.
    """

    label: RunLabel
    window: int | None
    rtt_ms: float | None
    records: int
    acked: int
    not_written: int
    unknown: int
    seconds: float
    records_per_sec: float
    steady_records_per_sec: float | None
    mb_per_sec: float
    latency: Latency | None
    max_span: int | None
    timeline: tuple[int, ...] = ()
    timeline_step: float = _TIMELINE_STEP
    curve: tuple[tuple[float, float], ...] = ()
    failure: str | None = None
    committed: Committed | None = None
    after_warmup: AfterWarmup | None = None

    @property
    def complete(self) -> bool:
        """Whether the run ended without an error, with every record acknowledged.

        In transactions every record must also have been committed.
        """
        if self.committed is not None and self.committed.records < self.records:
            return False
        return self.failure is None and 0 < self.records == self.acked

    def as_json(self) -> dict[str, object]:
        """Return the row as a JSON object, whose keys and their order do not change."""
        steady = self.steady_records_per_sec
        return {
            "client": self.label.client,
            "version": self.label.version,
            "in_flight": self.label.in_flight,
            "window": self.window,
            "rtt_ms": None if self.rtt_ms is None else round(self.rtt_ms, 3),
            "records": self.records,
            "record_size": self.label.record_size,
            "acked": self.acked,
            "not_written": self.not_written,
            "unknown": self.unknown,
            "seconds": round(self.seconds, 6),
            "records_per_sec": round(self.records_per_sec, 3),
            "steady_records_per_sec": None if steady is None else round(steady, 3),
            "mb_per_sec": round(self.mb_per_sec, 3),
            "latency_ms": None if self.latency is None else self.latency.as_json(),
            "max_span": self.max_span,
            "committed": None if self.committed is None else self.committed.as_json(),
            "after_warmup": None if self.after_warmup is None else self.after_warmup.as_json(),
        }


class Tally:
    """The counts and latencies of one run of a load.

    Args:
        started: when the run began, in seconds of the clock that all other times come from.

    Attributes:
        after_warmup: the tally of the records after the warm-up; None without a warm-up, and until
            it is over. `state` and `merged` leave it out.
    """

    __slots__ = (
        "_acked_bytes",
        "_commits",
        "_failure",
        "_finished",
        "_first_batch_acked",
        "_first_batch_at",
        "_first_batch_over",
        "_histogram",
        "_interval_acked",
        "_interval_at",
        "_interval_bytes",
        "_interval_max",
        "_interval_sum",
        "_last_ack",
        "_latency_max",
        "_latency_sum",
        "_started",
        "_timeline",
        "_timeline_step",
        "acked",
        "after_warmup",
        "not_written",
        "records",
        "unknown",
    )

    def __init__(self, started: float) -> None:
        self.records = 0
        self.acked = 0
        self.not_written = 0
        self.unknown = 0
        self.after_warmup: Tally | None = None
        self._started = started
        self._finished = started
        self._failure: str | None = None
        self._acked_bytes = 0
        self._last_ack: float | None = None
        self._first_batch_over = False
        self._first_batch_acked = 0
        self._first_batch_at = started
        self._histogram = HdrHistogram(1, _HIGHEST_MICROSECONDS, _DIGITS)
        self._latency_sum = 0.0
        self._latency_max = 0.0
        self._timeline: list[int] = []
        self._timeline_step = _TIMELINE_STEP
        self._commits: list[tuple[int, float]] = []
        self._interval_at = started
        self._interval_acked = 0
        self._interval_bytes = 0
        self._interval_sum = 0.0
        self._interval_max = 0.0

    @property
    def open(self) -> int:
        """The number of queued records without an outcome so far."""
        return self.records - self.acked - self.not_written - self.unknown

    @property
    def failure(self) -> str | None:
        """The first failure, as text; None if nothing has failed."""
        return self._failure

    def queued(self) -> None:
        """Count a record that was handed to the client."""
        self.records += 1
        if self.after_warmup is not None:
            self.after_warmup.queued()

    def warmed_up(self, now: float) -> None:
        """Note that the next record, sent at `now`, is the first one after the warm-up."""
        self.after_warmup = Tally(now)

    def acknowledged(self, size: int, sent_at: float, now: float) -> None:
        """Count a record of `size` bytes, queued at `sent_at` and acknowledged at `now`."""
        self.acked += 1
        self._acked_bytes += size
        self._last_ack = self._finished = now
        if not self._first_batch_over:
            self._first_batch_acked += 1
            self._first_batch_at = now
        latency = max(0.0, now - sent_at)
        # The histogram silently drops values outside of its range, so they are clamped to it.
        microseconds = min(max(1, round(latency * 1e6)), _HIGHEST_MICROSECONDS)
        self._histogram.record_value(microseconds)
        self._latency_sum += latency
        self._latency_max = max(self._latency_max, latency)
        self._mark(now - self._started)
        self._interval_acked += 1
        self._interval_bytes += size
        self._interval_sum += latency
        self._interval_max = max(self._interval_max, latency)

    def failed(self, status: DeliveryStatus, error: BaseException | None, now: float) -> None:
        """Count a record that ended at `now` without an acknowledgement."""
        if status is DeliveryStatus.NOT_WRITTEN:
            self.not_written += 1
        else:
            self.unknown += 1
        self._finished = now
        if error is not None:
            self.note_failure(error)

    def committed(self, records: int, asked_at: float, now: float) -> None:
        """Count a transaction with this many records that was committed at `now`."""
        self._commits.append((records, now - asked_at))
        self._finished = max(self._finished, now)

    def note_failure(self, error: BaseException) -> None:
        """Keep the first failure; later ones are usually consequences of it."""
        if self._failure is None:
            name, text = type(error).__name__, " ".join(str(error).split())
            # The texts of aioidem's and aiokafka's errors begin with the name of the class; other
            # texts do not.
            self._failure = text if name in text else f"{name}: {text}".removesuffix(": ")

    def first_batch_over(self) -> None:
        """Note that the records acknowledged so far were the first batch.

        Only the first call after the first acknowledgement has an effect.
        """
        if self.acked:
            self._first_batch_over = True

    def state(self) -> dict[str, Any]:
        """Return the tally as JSON values for `merged`; commits and interval are left out."""
        return {
            **{name: getattr(self, name) for name in _STATE},
            "_histogram": self._histogram.encode().decode(),
        }

    @classmethod
    def merged(cls, states: Iterable[Mapping[str, Any]]) -> Self:
        """Add up the states of tallies that used the same clock.

        The merged run lasts from the first start to the last outcome. The steady rate leaves out
        the records of every tally's first batch, but its time begins when the earliest of these
        batches was acknowledged. So the rate is never higher than the true one.

        Raises:
            ValueError: there are no tallies.
        """
        parts = list(states)
        if not parts:
            raise ValueError("nothing to merge")
        whole = cls(min(part["_started"] for part in parts))
        whole._timeline_step = max(part["_timeline_step"] for part in parts)
        for part in parts:
            whole._absorb(part)
        return whole

    def _absorb(self, part: Mapping[str, Any]) -> None:
        for name in ("records", "acked", "not_written", "unknown", "_acked_bytes"):
            setattr(self, name, getattr(self, name) + part[name])
        self._latency_sum += part["_latency_sum"]
        self._latency_max = max(self._latency_max, part["_latency_max"])
        self._finished = max(self._finished, part["_finished"])
        self._failure = self._failure or part["_failure"]
        if part["acked"]:
            over = part["_first_batch_at"]
            begun = self._last_ack is not None
            self._first_batch_at = min(over, self._first_batch_at) if begun else over
            self._last_ack = max(part["_last_ack"], self._last_ack or 0.0)
        self._first_batch_acked += part["_first_batch_acked"]
        self._histogram.add(HdrHistogram.decode(part["_histogram"]))
        late = part["_started"] - self._started
        for step, count in enumerate(part["_timeline"]):
            if count:
                self._mark(late + step * part["_timeline_step"], count)

    def progress(self, now: float) -> Progress:
        """Return the progress, with the rates since the last call, and begin a new interval."""
        seconds = now - self._interval_at
        acked, size = self._interval_acked, self._interval_bytes
        progress = Progress(
            elapsed=now - self._started,
            records=self.records,
            acked=self.acked,
            failed=self.not_written + self.unknown,
            records_per_sec=_rate(acked, seconds),
            mb_per_sec=_rate(size, seconds) / _MIB,
            avg_ms=1000 * self._interval_sum / acked if acked else None,
            max_ms=1000 * self._interval_max if acked else None,
        )
        self._interval_at = now
        self._interval_acked = self._interval_bytes = 0
        self._interval_sum = self._interval_max = 0.0
        return progress

    def result(
        self,
        label: RunLabel,
        *,
        window: int | None = None,
        rtt_ms: float | None = None,
        max_span: int | None = None,
    ) -> RunResult:
        """Return the run as a row; records without an outcome count as unknown."""
        seconds = self._finished - self._started
        curve = self._curve()
        return RunResult(
            label=label,
            window=window,
            rtt_ms=rtt_ms,
            records=self.records,
            acked=self.acked,
            not_written=self.not_written,
            unknown=self.unknown + self.open,
            seconds=seconds,
            records_per_sec=_rate(self.acked, seconds),
            steady_records_per_sec=self._steady(),
            mb_per_sec=_rate(self._acked_bytes, seconds) / _MIB,
            latency=self._latency(curve),
            max_span=max_span,
            timeline=tuple(self._timeline),
            timeline_step=self._timeline_step,
            curve=tuple(curve.items()),
            failure=self._failure,
            committed=self._committed(),
            after_warmup=self._after_warmup(),
        )

    def _committed(self) -> Committed | None:
        if not self._commits:
            return None
        seconds = [each for _, each in self._commits]
        records = sum(count for count, _ in self._commits)
        avg = 1000 * sum(seconds) / len(seconds)
        return Committed(len(seconds), records, avg, 1000 * max(seconds))

    def after(self, warmup: int) -> AfterWarmup:
        """Return the figures of a tally that counted the records after a warm-up."""
        seconds = self._finished - self._started
        return AfterWarmup(
            warmup=warmup,
            records=self.records,
            acked=self.acked,
            seconds=seconds,
            records_per_sec=_rate(self.acked, seconds),
            mb_per_sec=_rate(self._acked_bytes, seconds) / _MIB,
            latency=self._latency(self._curve()),
        )

    def _after_warmup(self) -> AfterWarmup | None:
        rest = self.after_warmup
        return None if rest is None else rest.after(self.records - rest.records)

    def _steady(self) -> float | None:
        counted = self.acked - self._first_batch_acked
        if self._last_ack is None or counted == 0:
            return None
        seconds = self._last_ack - self._first_batch_at
        return counted / seconds if seconds > 0 else None

    def _curve(self) -> dict[float, float]:
        """Return the latency in milliseconds by percentile; empty if nothing was acknowledged."""
        if not self.acked:
            return {}
        found = self._histogram.get_percentile_to_value_dict(list(_CURVE_PERCENTILES))
        # The histogram returns the upper edge of a bucket, which may exceed the largest value;
        # without this bound p99.9 could exceed the maximum.
        return {at: min(found[at] / 1000, 1000 * self._latency_max) for at in _CURVE_PERCENTILES}

    def _latency(self, curve: Mapping[float, float]) -> Latency | None:
        if not curve:
            return None
        return Latency(
            avg=1000 * self._latency_sum / self.acked,
            p50=curve[50.0],
            p95=curve[95.0],
            p99=curve[99.0],
            p999=curve[99.9],
            max=1000 * self._latency_max,
        )

    def _mark(self, elapsed: float, count: int = 1) -> None:
        """Count acknowledgements on the timeline, whose step doubles when all points are used."""
        index = max(0, int(elapsed / self._timeline_step))
        while index >= _TIMELINE_POINTS:
            points = self._timeline + [0] * (len(self._timeline) % 2)
            self._timeline = [a + b for a, b in zip(points[::2], points[1::2], strict=True)]
            self._timeline_step *= 2
            index = int(elapsed / self._timeline_step)
        missing = index + 1 - len(self._timeline)
        if missing > 0:
            self._timeline.extend([0] * missing)
        self._timeline[index] += count


def speed_ups(results: Sequence[RunResult]) -> list[float | None]:
    """Divide each row's steady rate by the first row's; None where one of the two is unknown.

    The steady rate is a run's rate after its first batch.
    """
    if not results:
        return []
    base = results[0].steady_records_per_sec
    return [
        row.steady_records_per_sec / base if base and row.steady_records_per_sec else None
        for row in results
    ]


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 and math.isfinite(seconds) else 0.0
