"""Replay: gives the events of a flight record to a real engine, and compares what it decides.

The engine is a `ProducerCore` like any other, in the state with which the record begins. It is
told what the recorded engine was told, at the same times: polls, answers, connections. Records are
queued as stand-ins (`stand_ins`): the first record of a batch at the time when it was queued, the
others before the poll that took them. So the engine decides anew when a batch is sent, on which
connection, with which sequence number and identity, and what an answer means.

What is given and not decided: which records share a batch, the sizes of encoded batches, and that
metadata is requested when it was (a caller's wish looks like the engine's own).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from aioidem import errors
from aioidem._engine import ProducerCore, steps
from aioidem._engine.record import PendingRecord
from aioidem._engine.transactions import OffsetCommit, TransactionState
from aioidem._flight.plain import Writer
from aioidem._flight.read_back import page_of
from aioidem._flight.record import FlightRecord, SentBatch
from aioidem._flight.recorder import MOST_PARTITIONS, Draws, FlightRecorder
from aioidem._flight.rules import WireRules
from aioidem._flight.stand_ins import Load, Together, stand_in_body, stand_ins
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import BatchBody, Codec
from aioidem.errors import FlightRecordError

__all__ = ["Difference", "Replay", "Step", "Violation"]

_MOST_DIFFERENCES: Final = 1000


class Difference(NamedTuple):
    """Where a replayed engine decided something else than the recorded one."""

    event: int
    """The number of the event, from 0."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"event {self.event}: recorded {self.recorded}; replayed {self.replayed}"


class Violation(NamedTuple):
    """A rule that the replayed engine broke."""

    event: int
    """The number of the event, from 0."""
    text: str

    def __str__(self) -> str:
        return f"event {self.event}: {self.text}"


class Step(NamedTuple):
    """One event of a replay, after the engine was given it."""

    number: int
    kind: str
    now: float
    """When it happened, in seconds on the producer's clock."""
    event: tuple[Any, ...]
    sent: tuple[SentBatch, ...]
    """The batches that the replayed engine sent."""
    lines: tuple[str, ...]
    """What the engine had to say to the operator, for the log."""


class Replay:
    """A replay of a flight record; it is run once, by `run`.

    Args:
        record: the record.

    Attributes:
        core: the engine.
        differences: where its decisions differ from the recorded ones, the first ones of them.
        diverged: how many differences there are.
        violations: the rules that the engine broke.
    """

    def __init__(self, record: FlightRecord) -> None:
        self.record = record
        if not record.head.get("whole"):
            failure = record.head.get("failure")
            raise FlightRecordError(
                "the flight record has no state to begin with, so it cannot be replayed: "
                + (
                    f"the recorder failed ({failure!r:.60})"
                    if failure
                    else f"the producer used more than {MOST_PARTITIONS} partitions"
                )
            )
        try:
            self._begin(record)
        except FlightRecordError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may bring any of them about
            raise FlightRecordError(f"the flight record is damaged: {error!r:.200}") from None

    def _begin(self, record: FlightRecord) -> None:
        self._numbers = iter([each[1] for each in record.events if each[0] == "draw"])
        draws = Draws(self._draw)
        if record.state is None:
            self.core = ProducerCore(record.config, random=draws.random)
        else:
            self.core = record.state.restore(record.config, draws.random)
        accumulator = self.core.accumulator
        accumulator.encode_by(stand_in_body)
        limits = record.head["limits"]
        accumulator.assigned_at_once = int(limits["assigned_at_once"])
        accumulator.drafts.at_once = int(limits["drafts_at_once"])
        accumulator.drafts.quick = float(limits["quick_bytes"])
        self._connections = self.core.connections
        self._recorder = FlightRecorder(self.core, draws, 1 << 60)
        self._arrivals = _Arrivals(record, self.core)
        self._numbers_of = {where: number for number, where in enumerate(record.partitions)}
        # By token: the requests that were asked; no Produce requests.
        self._asked = dict(record.asked)
        self._now = 0.0
        self._done = False
        self._rules = WireRules(record.config, self.core.partitions.values())
        self.violations: list[Violation] = []
        self.differences: list[Difference] = []
        self.diverged = 0

    def _draw(self) -> float:
        number: float = next(self._numbers, 0.5)
        return number

    @property
    def now(self) -> float:
        """The time of the last event, in seconds on the producer's clock."""
        return self._now

    def run(self) -> Iterator[Step]:
        """Give the engine one event after the other, and yield each of them.

        Raises:
            FlightRecordError: the engine cannot take an event, because the file is damaged or was
                written by another version of aioidem.
        """
        if self._done:
            raise FlightRecordError("a replay is run once")
        self._done = True
        for number, event in enumerate(self.record.events):
            yield self._step(number, event)

    def _step(self, number: int, event: tuple[Any, ...]) -> Step:
        sent: tuple[SentBatch, ...] = ()
        before = self.core.fatal_error
        self._arrivals.before(number, self._now)
        try:
            if event[0] == "poll":
                sent = self._poll(number, event)
            else:
                self._tell(number, event)
        except FlightRecordError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may bring any of them about
            self._differ(number, f"event {event[0]!r}", f"the engine raised {error!r:.300}")
            if self.diverged >= _MOST_DIFFERENCES:
                raise FlightRecordError(
                    f"the engine cannot be given event {number}: {error!r:.200}"
                ) from None
        outcomes = self.core.outcomes
        outcomes.take_settled()
        lines = tuple(each.text for each in outcomes.take_events())
        if self.core.fatal_error is not None and before is None:
            lines += (f"the producer ended: {self.core.fatal_error}",)
        self._recorder.latest.events.clear()
        return Step(number, event[0], self._now, event, sent, lines)

    def _differ(self, number: int, recorded: str, replayed: str) -> None:
        self.diverged += 1
        if len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append(Difference(number, recorded, replayed))

    # -- polls

    def _poll(self, number: int, event: tuple[Any, ...]) -> tuple[SentBatch, ...]:
        _, now, wall_ms, recorded_steps, recorded_batches = event
        self._now = now
        accumulator = self.core.accumulator
        for step in recorded_steps:
            if isinstance(step, steps.FetchMetadata):
                for name in step.topics:
                    accumulator.topic(name)
                metadata = self.core.metadata
                metadata.want()
        self._arrivals.before(number, now)
        self._arrivals.mark(number, recorded_steps)
        try:
            self._recorder.poll(now, wall_ms)
        finally:
            self._arrivals.unmark()
        kept = self._recorder.latest.events[-1]
        decided = kept[3] if len(kept) > 3 else []
        replayed = [each for each in decided if type(each) is not tuple or each[0] == "C"]
        facts = [each for each in decided if type(each) is tuple and each[0] != "C"]
        batches = tuple(map(self._sent, facts))
        for broken in self._rules.judge(each[0] for each in facts):
            self.violations.append(Violation(number, broken))
        for step in recorded_steps:
            token = getattr(step, "token", None)
            if token is not None:
                self._asked[token] = step
        self._compare(number, "steps", list(map(_shown, recorded_steps)), map(_shown, replayed))
        self._compare(number, "batches", list(map(_plain, recorded_batches)), map(_plain, batches))
        return batches

    def _sent(self, fact: tuple[Any, ...]) -> SentBatch:
        state, (link_id, identity, base, count, attempts, *_), *_ = fact
        number = self._numbers_of.get((state.topic, state.partition), -1)
        who = None if identity is None else (identity.producer_id, identity.epoch)
        return SentBatch(number, link_id, who, base, count, attempts, None)

    def _compare(
        self, number: int, what: str, recorded: list[Any], replayed: Iterable[Any]
    ) -> None:
        ours = list(replayed)
        if recorded != ours:
            missing = [each for each in recorded if each not in ours]
            more = [each for each in ours if each not in recorded]
            if not missing and not more:
                missing, more = recorded, ours
            self._differ(number, f"{what} {missing or 'none'}", f"{more or 'none'}")

    # -- everything else

    def _tell(self, number: int, event: tuple[Any, ...]) -> None:
        kind, *values = event
        engine = self._recorder
        match kind:
            case "answer":
                self._answer(number, *values)
            case "compressed":
                token, result = values
                engine.on_compressed(token, self._body(result))
            case "unsupported":
                step, error, self._now = values
                engine.on_unsupported(step, error, self._now)
            case "open":
                link_id, version, self._now, level = values
                engine.on_link_open(link_id, version, self._now, level)
            case "lost":
                link_id, error, self._now, unwritten = values
                engine.on_link_lost(link_id, error, self._now, unwritten)
            case "progress":
                link_id, self._now = values
                engine.on_progress(link_id, self._now)
            case "undecodable":
                link_id, version, error, self._now = values
                engine.on_undecodable(link_id, version, error, self._now)
            case "unanswered":
                link_id, token, self._now = values
                engine.on_written_unanswered(link_id, token, self._now)
            case "credentials":
                engine.on_new_credentials()
            case "fatal":
                engine.fatal(values[0])
            case "close":
                (self._now,) = values
                self._arrivals.before(number, self._now)
                engine.close(self._now)
            case "flush":
                (self._now,) = values
                self._arrivals.before(number, self._now)
                accumulator = self.core.accumulator
                accumulator.begin_flush()
            case "transaction":
                call, given, ordinal = values
                self._arrivals.upto(ordinal)
                self._transaction(call, given)
            case "crash":
                self._crash(number, *values)

    def _answer(self, number: int, token: int, given: Any, now: float) -> None:
        self._now = now
        answer: Any = given
        if isinstance(given, tuple) and given[:1] == ("pages",):
            answer = ReadBackAnswer(given[1], given[2], page_of(given[3]), given[4])
        step = self._asked.get(token)
        if step is None:
            for link_id, link in self._connections.links.items():
                request = link.outstanding.get(token)
                if request is not None:
                    self._rules.answered(request, answer)
                    step = steps.SendProduce(link_id, token, 0, 0, 0, None, [])
                    break
            else:
                self._differ(number, f"an answer to request {token}", "no such request")
                return
        self._recorder.on_answer(step, answer, now)

    def _crash(self, number: int, now: float, wall_ms: float | None, name: str) -> None:
        self._now = now
        self._arrivals.before(number, now)
        try:
            self._recorder.poll(now, wall_ms)
        except errors.KafkaError as error:
            if type(error).__name__ == name:
                return
            raise
        self._differ(number, f"the engine raised {name}", "it did not")

    def _body(self, result: Any) -> BatchBody | errors.KafkaError:
        if isinstance(result, errors.KafkaError):
            return result
        length, count, first_ms, latest_ms, uncompressed = result
        codec = Codec.from_name(self.record.config.compression_type)
        return BatchBody(bytes(length), codec, count, first_ms, latest_ms, uncompressed)

    def _transaction(self, call: str, given: Any) -> None:
        coordination, transactions = self.core.coordination, self.core.transactions
        match call:
            case "init":
                coordination.init()
            case "begin":
                coordination.begin()
            case "commit":
                coordination.commit()
            case "abort":
                coordination.abort()
            case "offsets":
                transactions.commit_offsets(OffsetCommit(*given))
            case "id" if isinstance(given, str):
                coordination.change_id(given)
            case "coordinator":
                group, *broker = given
                coordination.learn_coordinator(group, BrokerAddress(*broker))
            case "told":
                transactions.outcome.told = True


class _Chunk:
    """Records that leave the queue together, of which the replay queues stand-ins."""

    __slots__ = ("at", "load", "made", "queued")

    def __init__(self, load: Load, at: int) -> None:
        self.load = load
        # The number of the event before which all of the records must be queued.
        self.at = at
        self.made: list[PendingRecord] = []
        self.queued = 0


class _Taken(NamedTuple):
    """Records that a poll took from their queue together."""

    partition: int
    load: Load
    new: bool
    """Whether they were in no batch before: those of a batch that gets other numbers go back."""


class _Arrivals:
    """Queues stand-ins as the records of the recorded producer were queued."""

    def __init__(self, record: FlightRecord, core: ProducerCore) -> None:
        self._core, self._states, self._cluster = core, core.partitions, core.cluster
        self._transactions = core.transactions
        self._transactional = record.config.transactional_id is not None
        self._partitions = _partitions(record)
        self._chunks: dict[int, deque[_Chunk]] = {}
        # When a partition must be looked at: the time, or the number of the event.
        self._times: list[tuple[float, int]] = []
        self._events: list[tuple[int, int]] = []
        # The partitions that the engine does not know yet, and that records are due for.
        self._held: set[int] = set()
        # By the number of a poll: the batches that it took from queues. By the number of the first
        # record: the partitions of which records were compressed before they were sent.
        self._taken: dict[int, list[_Taken]] = {}
        self._drafted: dict[int, int] = {}
        self._marked: list[PendingRecord] = []
        # The calls about the transaction, the next one first: the number of the event, and that of
        # the last record that was queued before.
        self._calls: deque[tuple[int, float]] = deque()
        self._plan(record)

    def _plan(self, record: FlightRecord) -> None:
        covered = self._covered()
        numbers = {where: number for number, where in enumerate(self._partitions)}
        drafted: dict[int, int] = {}
        for number, event in enumerate(record.events):
            if event[0] == "failed":
                _, topic, index, _, _, count, *load_of = event
                *times, ordinal, last, size = load_of
                load = Load(count, size, times[0], times[1], times[2], ordinal, last, 0, 0)
                self._expect(numbers.get((topic, index)), load, max(0, number - 1), covered)
            if event[0] == "transaction" and event[3]:  # earlier files have no such number
                self._calls.append((number, event[3]))
            if event[0] != "poll":
                continue
            for step in event[3]:
                if step[0] == "C":
                    drafted.setdefault(step[5], number)
            for batch in event[4]:
                if batch.load is not None and batch.attempts == 1:
                    at = drafted.get(batch.load.ordinal, number)
                    new = self._expect(batch.partition, batch.load, at, covered)
                    taken = self._taken.setdefault(number, [])
                    taken.append(_Taken(batch.partition, batch.load, new))
        for partition, load in record.queued:
            self._expect(partition, load, drafted.get(load.ordinal, len(record.events)), covered)
        heapify(self._times)
        heapify(self._events)

    def _covered(self) -> dict[int, int]:
        """Return the number of the last record that the engine has of each partition."""
        covered = dict.fromkeys(range(len(self._partitions)), -1)
        for number, where in enumerate(self._partitions):
            state = self._states.get(where)
            if state is not None:
                held = [each for batch in state.batches.unresolved for each in batch.records]
                lasts = [each.ordinal for each in (*held, *state.queue.records)]
                covered[number] = max(lasts, default=-1)
        return covered

    def _expect(self, partition: int | None, load: Load, at: int, covered: dict[int, int]) -> bool:
        """Note records that are to be queued; return False if they are there already."""
        if partition is None or load.ordinal <= covered[partition]:
            return False
        covered[partition] = load.last
        self._drafted[load.ordinal] = partition
        self._chunks.setdefault(partition, deque()).append(_Chunk(load, at))
        self._times += [(load.queued_at, partition), (load.filled_at, partition)]
        self._events.append((at, partition))
        return True

    def before(self, number: int, now: float) -> None:
        """Queue what was queued before an event.

        Args:
            number: the event's number.
            now: its time, in seconds.
        """
        held, self._held = self._held, set[int]()
        due = set(held)
        while self._times and self._times[0][0] <= now:
            due.add(heappop(self._times)[1])
        while self._events and self._events[0][0] <= number:
            due.add(heappop(self._events)[1])
        waiting = [
            (each in held, self._chunks[each][0].load.ordinal, each)
            for each in due
            if self._chunks[each]
        ]
        for *_, partition in sorted(waiting):
            self._feed(partition, number, now)

    def upto(self, ordinal: int) -> None:
        """Queue all records up to a number: they were queued before a call about the transaction.

        The call may end the transaction that they belong to. So those whose topic is not known yet
        are queued as well, and wait for metadata in the engine, as the recorded ones did.
        """
        first_of = {
            chunks[0].load.ordinal: partition
            for partition, chunks in self._chunks.items()
            if chunks
        }
        for first in sorted(first_of):
            chunks = self._chunks[first_of[first]]
            while chunks and chunks[0].load.ordinal <= ordinal:
                chunk = chunks.popleft()
                self._queue(first_of[first], chunk, chunk.load.records)

    def _feed(self, partition: int, number: int, now: float) -> None:
        chunks = self._chunks[partition]
        topic, index = self._partitions[partition]
        if index not in (self._cluster.partitions(topic) or ()) or not self._in_transaction():
            self._held.add(partition)  # they wait for metadata, or for a call that comes next
            return
        last = self._last_before_the_next_call(number)
        while chunks:
            chunk = chunks[0]
            if chunk.load.ordinal > last:
                self._held.add(partition)
                return
            whole = chunk.at <= number or chunk.load.filled_at <= now
            if not whole and len(chunks) > 1:
                following = chunks[1]
                whole = following.at <= number or following.load.queued_at <= now
            if whole:
                self._queue(partition, chunk, chunk.load.records)
                chunks.popleft()
                continue
            if chunk.load.queued_at <= now:
                self._queue(partition, chunk, 1)
            return

    def _last_before_the_next_call(self, number: int) -> float:
        """Return the number of the last record that may have been queued before an event.

        Later ones belong to a later transaction. A time would not tell: on some event loops it
        stands still meanwhile.
        """
        while self._calls and self._calls[0][0] <= number:
            self._calls.popleft()
        return self._calls[0][1] if self._calls else math.inf

    def _in_transaction(self) -> bool:
        """Return whether records can be queued; always so without a transactional id."""
        return not self._transactional or self._transactions.state is TransactionState.OPEN

    def _queue(self, partition: int, chunk: _Chunk, upto: int) -> None:
        topic, index = self._partitions[partition]
        load = chunk.load
        if not chunk.made:
            chunk.made = stand_ins(load, index)
        accumulator = self._core.accumulator
        for record in chunk.made[chunk.queued : upto]:
            ordinal = record.ordinal
            try:
                accumulator.append(topic, record, load.queued_at)
            except errors.KafkaError:
                continue  # the engine has ended, or its transaction has: the steps will differ
            record.deadline, record.ordinal = load.deadline, ordinal
        chunk.queued = max(chunk.queued, upto)

    def mark(self, number: int, steps_: tuple[Any, ...]) -> None:
        """Let the records that a poll took together be taken together.

        Args:
            number: the number of the poll.
            steps_: the steps that it returned.
        """
        takes = list(self._taken.get(number, ()))
        for step in steps_:
            if step[0] == "C" and step[5] in self._drafted:
                _, _, count, size, queued_at, ordinal = step
                at = queued_at
                load = Load(count, size, at, at, at, ordinal, ordinal, 0, 0)
                takes.append(_Taken(self._drafted[ordinal], load, new=True))
        places: dict[int, int] = {}
        for partition, load, new in takes:
            state = self._states.get(self._partitions[partition])
            if state is not None:
                queue = state.queue.records
                begin = places.get(partition, 0)
                # Records before these expire in this poll, so nothing takes them.
                begin += sum(1 for _ in takewhile(load.begins_after, islice(queue, begin, None)))
                there = next(islice(queue, begin, None), None)
                if not new and (there is None or there.ordinal != load.ordinal):
                    continue  # a batch that was sealed before, and is sent only now
                end = places[partition] = begin + load.records
                mark = Together(load)
                for record in islice(queue, begin, end):
                    record.group = mark
                    self._marked.append(record)

    def unmark(self) -> None:
        """Let the records that were marked be like any others."""
        for record in self._marked:
            record.group = None
        self._marked.clear()


def _partitions(record: FlightRecord) -> tuple[tuple[str, int], ...]:
    """Return the partitions of a record: those that it numbers, then those of other failures."""
    failed = [(each[1], each[2]) for each in record.events if each[0] == "failed" and each[2] >= 0]
    return tuple(dict.fromkeys([*record.partitions, *failed]))


def _shown(step: Any) -> Any:
    """Return a step as values that can be compared."""
    if type(step) is tuple:
        return list(step[:3]) if step[0] == "C" else list(step)
    return Writer().value(step)


def _plain(batch: SentBatch) -> list[Any]:
    return list(batch[:-1])
