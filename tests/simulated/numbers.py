"""The judge of the numbers that an operator sees: counters, meters, and what an outcome says.

They are compared with what the engine gave to the Sender, with the brokers' answers and with the
outcomes of records, which are counted here for themselves. Nothing that the engine decides depends
on these numbers, so no other judge would notice a wrong one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from aioidem._engine import ProducerCore
from aioidem._engine.incidents import Event
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import Outcome
from aioidem._engine.settlement import Settlement
from aioidem._engine.steps import SendProduce
from aioidem._log import LogLine
from aioidem.errors import TransactionAborted
from aioidem.structs import DeliveryStatus
from aioidem.testing import Anomaly, Row, ValueId, Violation, parse_value

from .decoding import records_in
from .lines import Lines
from .wording import PASSING, Wording

__all__ = ["Numbers"]

_MADE_ANEW = (LogLine.TOPIC_RECREATED, LogLine.CLUSTER_CHANGED)
"""The events after which records are in other batches than before."""

_SAMPLE = 30.0
_ALL_COUNT = 2 * _SAMPLE
"""Seconds in which a sensor forgets nothing."""

_SHARES = (0.5, 0.9, 0.99)


class Numbers:
    """Counts what a producer sends and hears, and which outcomes its records have.

    Args:
        core: The producer's engine.
        rows: The records that were queued, and when. None if that is not known, as in the whole
            producer: then what depends on it is not judged, and neither are failures, because
            records count as failed, too, that could not be queued.
    """

    def __init__(self, core: ProducerCore, rows: Mapping[ValueId, Row] | None) -> None:
        self._core = core
        self._rows = rows
        self._sent_at: dict[int, float] = {}
        # What a sensor has recorded: the numbers, and when the first of them came, in seconds.
        self._batch_bytes: list[float] = []
        self._latencies: list[float] = []
        self._began: float | None = None
        # When the first turn of the Sender and the last one were, and how many there were.
        self._turns: tuple[float, float, int] | None = None
        # The first record of each settlement.
        self._settled: set[ValueId] = set()
        self._counts: Counter[str] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._topics: dict[str, Counter[str]] = {}
        self._kinds: Counter[str] = Counter()
        self._complaints: list[str] = []
        self._taken_back = False
        self.lines = Lines(self._outcomes, self._complaints.append)
        self.words = Wording(core.config, self._complaints.append)
        # How often each record was sent, and when it was sent first.
        self._sends: Counter[ValueId] = Counter()
        self._first_sent: dict[ValueId, float] = {}
        # When an attempt of a partition has last failed, unless there was a success since.
        self._failed: dict[PartitionState, float] = {}

    # -- what happens ------------------------------------------------------------------------------

    def sent(self, step: SendProduce, now: float) -> None:
        """Note a Produce request that the engine gives to the Sender."""
        self._sent_at[step.token] = now
        self._began = now if self._began is None else self._began
        self._counts["requests"] += 1
        link = self._core.connections.links.get(step.link_id)
        if link is not None:
            self.words.sent(f"broker {link.node_id}", step.version, now)
        for topic in step.topics:
            of_topic = self._topics.setdefault(topic.name, Counter())
            for _, data in topic.partitions:
                values = [value for value, _ in records_in(data)]
                self._sums["records"] += len(values)
                self._batch_bytes.append(len(data))
                of_topic["records"] += len(values)
                of_topic["bytes"] += len(data)
                self._sums["queued"] += self._since(values, now)
                again = not self._sends.keys().isdisjoint(values)
                self._sends.update(values)
                self._first_sent.update((v, now) for v in values if v not in self._first_sent)
                self._counts["retries"] += again
                self._sums["retried"] += len(values) * again

    def _since(self, values: Iterable[ValueId], now: float) -> float:
        """Return for how many seconds the oldest of some records has been queued."""
        rows = self._rows
        return 0.0 if rows is None else now - min(rows[value].started for value in values)

    def answered(self, token: int, now: float) -> None:
        """Note an answer to a Produce request that the engine still waits for."""
        self._latencies.append(now - self._sent_at[token])

    def attempted(self, place: tuple[str, int], code: int, now: float) -> None:
        """Note an answer about a batch that the engine still waits for."""
        state = self._core.partitions.get(place)
        if state is None:
            return
        if code in PASSING:
            self._failed[state] = now
        elif not code:
            self._failed.pop(state, None)

    def _has_failed(self, outcome: Outcome, value: ValueId) -> bool:
        """Return whether an attempt of the partition failed while a batch had no outcome yet."""
        state = self._core.partitions.get((outcome.topic, outcome.partition))
        if state is None or state not in self._failed or value not in self._first_sent:
            return False
        return self._first_sent[value] < self._failed[state]

    def taken_back(self) -> None:
        """Note that no byte of some batches has left, so that they do not count as sent again."""
        self._taken_back = True

    def foresee(self, events: Iterable[Event]) -> None:
        """Note which lines come after the next outcomes, and may be about the same event."""
        self._taken_back |= any(event.line in _MADE_ANEW for event in events)

    def logged(self, event: Event) -> None:
        """Note a line for the log, after the outcomes that came before it."""
        self.words.told(event, self._core.meters.now)
        self.lines.logged(event)

    def settled(self, settlement: Settlement, now: float) -> None:
        """Note the outcome of some records; it may be told again."""
        values = _values_of(record.value for record in settlement.records)
        if values[0] in self._settled:
            return
        self._settled.add(values[0])
        outcome, status = settlement.outcome, settlement.outcome.status
        sends = None if self._remade or self._taken_back else self._sends[values[0]]
        if status is DeliveryStatus.UNKNOWN and sends == 0:
            self._complaints.append(f"{values[0]} was never sent, and ends UNKNOWN: {outcome}")
        self.words.ended = self._core.fatal_error is not None
        failed = self._has_failed(outcome, values[0])
        self.words.settled(settlement, sends, now, failed=failed)
        self._counts[status.value] += len(values)
        if status is DeliveryStatus.ACKED:
            self.attempted((outcome.topic, outcome.partition), 0, now)
            self._counts["acked batches"] += 1
            self._sums["delivery"] += self._since(values, now)
            self._sums["acked bytes"] += sum(record.size for record in settlement.records)
        elif outcome.error is None:
            if self._core.config.acks != 0:
                self._complaints.append(f"{values[0]} ended {status.value} without an error")
        elif not isinstance(outcome.error, TransactionAborted):
            self._counts["failed"] += len(values)
            self._kinds[type(outcome.error).__name__] += len(values)
            self._topics.setdefault(outcome.topic, Counter())["errors"] += len(values)
            if outcome.partition >= 0 and f"{outcome.topic}-{outcome.partition}" not in str(
                outcome.error
            ):
                self._complaints.append(f"an error does not name its partition: {outcome.error}")

    def turned(self, now: float) -> None:
        """Note a turn of the Sender, which takes no time here."""
        first, _, number = self._turns or (now, now, 0)
        self._turns = first, now, number + 1

    def _outcomes(self) -> tuple[int, int, int]:
        counts = self._counts
        return counts["acked"], counts["not written"], counts["unknown"]

    # -- the end -----------------------------------------------------------------------------------

    def judge(self, now: float) -> Iterator[Violation]:
        """Yield a violation for each number of the producer that is not the one counted here."""
        self._core.meters.fold(now)
        self.words.judge()
        self.lines.judge()
        for complaint in self._complaints:
            yield Violation(Anomaly.MISCOUNTED, complaint)
        for name, (told, counted) in self._pairs().items():
            if not math.isclose(told, counted, rel_tol=1e-9, abs_tol=1e-6):
                yield Violation(Anomaly.MISCOUNTED, f"{name}: {told}, not {counted}")
        gate, slowest = self._core.meters.gate, max(self._latencies, default=0.0)
        if gate.total > gate.count * slowest + 1e-6 or gate.count > len(self._batch_bytes):
            waits = f"{gate.count} waits of {gate.total} s together"
            yield Violation(
                Anomaly.MISCOUNTED, f"first-ack gates: {waits}, but no answer took over {slowest} s"
            )
        if self._began is not None and now < self._began + _ALL_COUNT:
            for name, (told, least, most) in self._lately(now).items():
                if not least * 0.999999 - 1e-6 <= told <= most * 1.000001 + 1e-6:
                    text = f"{name}: {told}, not between {least} and {most}"
                    yield Violation(Anomaly.MISCOUNTED, text)

    def _lately(self, now: float) -> dict[str, tuple[float, float, float]]:
        """Return what was told of the last minute, which saw all numbers, and within which bounds.

        A rate is over at least a sample (30 s). Numbers count as of the next fold, which may be
        some time later, so the time over which a rate is taken may be shorter than the run.
        """
        found: dict[str, tuple[float, float, float]] = {}
        meters, took = self._core.meters, now - (self._began or now)
        pairs = {"batches": (meters.batch_size, self._batch_bytes)}
        pairs["latencies"] = (meters.latency, self._latencies)
        for name, (sensor, numbers) in pairs.items():
            if not numbers:
                continue
            average, largest = sum(numbers) / len(numbers), max(numbers)
            found[f"average of {name}"] = (sensor.average(now), average, average)
            found[f"largest of {name}"] = (sensor.largest(now), largest, largest)
            over = (max(2 * _SAMPLE, took), _SAMPLE)
            least, most = (sum(numbers) / seconds for seconds in over)
            found[f"rate of {name}"] = (sensor.rate(now), least, most)
            least, most = (len(numbers) / seconds for seconds in over)
            found[f"frequency of {name}"] = (sensor.frequency(now), least, most)
        ordered = sorted(self._latencies)
        for share in _SHARES if ordered else ():
            exact = ordered[math.ceil(share * len(ordered)) - 1]
            told = meters.latency.percentile(share, now)
            found[f"percentile {share} of latencies"] = (told, exact * 0.98, exact * 1.02)
        return found

    @property
    def _remade(self) -> bool:
        """Whether records of a batch that was split, or refused for some of them, are in others."""
        refused = self._kinds["InvalidRecord"] + self._kinds["InvalidTimestampError"]
        return bool(self._core.counters.batches_split or refused)

    def _pairs(self) -> dict[str, tuple[float, float]]:
        counts, sums = self._counts, self._sums
        batches, answers = len(self._batch_bytes), len(self._latencies)
        counters, meters = self._core.counters, self._core.meters
        pairs: dict[str, tuple[float, float]] = {
            "batches sent": (counters.batches_sent, batches),
            "batch sizes": (meters.batch_size.count, batches),
            "bytes of batches": (meters.batch_size.total, sum(self._batch_bytes)),
            "requests": (meters.per_request.count, counts["requests"]),
            "records per request": (meters.per_request.total, sums["records"]),
            "queue times": (meters.queue_time.count, batches),
            "answers": (meters.latency.count, answers),
            "seconds to answers": (meters.latency.total, sum(self._latencies)),
            "throttle times": (meters.throttle.count, answers),
            "acknowledged records": (counters.records_acked, counts["acked"]),
            "acknowledged bytes": (counters.bytes_acked, sums["acked bytes"]),
            "records not written": (counters.records_not_written, counts["not written"]),
            "records unknown": (counters.records_unknown, counts["unknown"]),
            "acknowledged batches": (meters.delivery.count, counts["acked batches"]),
            "splits": (meters.splits.count, counters.batches_split),
            "compression ratios": (meters.compression.count, batches),
        }
        if not (self._remade or self._taken_back):
            pairs["batches sent again"] = (counters.batches_retried, counts["retries"])
            pairs["records sent again"] = (meters.retries.total, sums["retried"])
        for name, of_topic in self._topics.items():
            meter = meters.topics[name]
            pairs[f"records of {name}"] = (meter.records.total, of_topic["records"])
            pairs[f"bytes of {name}"] = (meter.bytes.total, of_topic["bytes"])
        if self._turns is not None:
            first, last, number = self._turns
            pairs["turns of the Sender"] = (meters.work.count, number)
            pairs["seconds between turns"] = (meters.pauses.total, last - first)
        if self._rows is not None:
            pairs |= self._queued_pairs()
        return pairs

    def _queued_pairs(self) -> dict[str, tuple[float, float]]:
        meters, sums = self._core.meters, self._sums
        pairs: dict[str, tuple[float, float]] = {
            "seconds in the queue": (meters.queue_time.total, sums["queued"]),
            "seconds to acknowledgements": (meters.delivery.total, sums["delivery"]),
            "failed records": (meters.errors.total, self._counts["failed"]),
        }
        for name, of_topic in self._topics.items():
            pairs[f"errors of {name}"] = (meters.topics[name].errors.total, of_topic["errors"])
        for kind in {*self._kinds, *meters.kinds}:
            pairs[f"{kind} errors"] = (meters.kinds[kind], self._kinds[kind])
        return pairs


def _values_of(raw: Iterable[bytes | None]) -> list[ValueId]:
    return [value for value in map(parse_value, raw) if value is not None]
