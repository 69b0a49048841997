"""FlightRecorder: keeps what went into the engine lately, and what the engine decided.

It has the methods by which the Sender drives `ProducerCore`, and passes each call on. So there is
one place where everything that the engine is told goes by: times of polls, answers, connections.

Records are not seen when they are queued, because that would cost something for each of them. They
are seen when a batch of them is sent for the first time: their number and sizes, when the first one
was queued, and when it expires. A replay queues as many stand-ins of that size at that time.

The events are kept in two segments. When the newer one is full, the older one is dropped and the
engine's state is written down (`state.EngineState`), so that a replay can begin there.

Invariants:

- A payload, key or header is never referred to, nor the bytes of a batch or of a log.
- An exception inside the recorder never reaches the producer: it ends the recording.
- Nothing is done for each record, and only a few tuples are made for each request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioidem import errors
from aioidem._engine import ProducerCore, steps
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.record_block import RecordRuns, items_of
from aioidem._engine.requests import Entry
from aioidem._engine.settlement import Settlement
from aioidem._engine.steps import CloseLink, Compress, FetchMetadata, OpenLink, SendProduce
from aioidem._engine.transactions import OffsetCommit
from aioidem._hot import total_size
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, TopicUpdate
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import BatchBody
from aioidem.structs import DeliveryStatus

if TYPE_CHECKING:
    from aioidem._flight.state import EngineState
    from aioidem.incident import Incident

__all__ = ["MOST_PARTITIONS", "Draws", "Event", "FlightRecorder", "Segment", "without_log"]

Event = tuple[Any, ...]
"""What happened: its kind (a short name), then its values; `record.KINDS` lists the kinds."""

_of_batch = attrgetter(
    "attempt.link_id", "identity", "base", "count", "attempts", "deadline", "max_timestamp_ms"
)
_of_first = attrgetter("queued_at", "ordinal")
_of_record = attrgetter("queued_at", "ordinal", "size")
_of_last = attrgetter("queued_at", "ordinal", "count")


MOST_PARTITIONS: Final = 50
"""The most partitions in use of which a state is described: each takes about 0.1 ms."""

_SHARE = 0.005
"""The part of the time that may be spent on states."""
_MOST_INCIDENTS = 1000
_MOST_TOPICS = 10_000
"""How many topics may be remembered, to share what metadata says of them again."""
_LONGEST = 4
"""How many times as long as usual a segment may get meanwhile."""


class Draws:
    """The engine's random numbers, which a recorder keeps.

    Args:
        random: returns uniform numbers from [0, 1).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self.source = random
        self.recorder: FlightRecorder | None = None

    def random(self) -> float:
        """Return the next number."""
        drawn = self.source()
        if self.recorder is not None:
            self.recorder.note(("draw", drawn))
        return drawn


class Segment(NamedTuple):
    """Events, and the state of the engine before the first of them."""

    state: EngineState | None
    """The engine's state; None if it is that of a new engine, or is not known."""
    whole: bool
    """Whether a replay can begin here."""
    asked: dict[int, steps.Request]
    """By token: the requests that were asked before, and had no answer yet; no Produce requests."""
    events: list[Event]


class FlightRecorder:
    """Passes the Sender's calls on to the engine, and keeps what was called.

    Args:
        core: the engine.
        draws: the source of the engine's random numbers.
        most: the most events to keep.

    Attributes:
        note: keeps an event.
        incidents: the last batches that ended UNKNOWN.
        failure: why the engine's state could not be described; None if it could.
        alarm: called with the reason when something happened for which a dump is to be made.
    """

    def __init__(self, core: ProducerCore, draws: Draws, most: int) -> None:
        self.core = core
        self._poll, self._on_answer, self._produce = core.poll, core.on_answer, core.produce
        config = core.config
        self._partitions = core.partitions
        self._accumulator, self._acks = core.accumulator, config.acks
        self._watch = core.watch
        self._most = max(1, most // 2)
        produce = core.produce
        self._sent = produce.observe()
        # The same batches for the observer; None if there is none.
        self._dispatched: list[Entry] | None = None
        self._connections, self._counters = core.connections, core.counters
        outcomes = core.outcomes
        outcomes.on_failure = self._on_failure
        draws.recorder = self
        self._draws = draws
        self.before: Segment | None = None
        # The list is the same for ever: `note` is its method.
        self.latest = Segment(None, whole=True, asked={}, events=[])
        self.note: Callable[[Event], None] = self.latest.events.append
        self._asked: dict[int, steps.Request] = {}
        # What metadata has said of each topic lately.
        self._topics: dict[str, TopicUpdate] = {}
        # The topics that the last Metadata request named, and those of the last answer.
        self._named: tuple[str, ...] = ()
        self._told: tuple[TopicUpdate, ...] = ()
        self.failure: Exception | None = None
        self.alarm: Callable[[str], None] | None = None
        self._reason: str | None = None
        self._losses = 0
        self._ended = False
        # What identifies the last batches that ended UNKNOWN in the log.
        self.incidents: deque[Incident] = deque(maxlen=_MOST_INCIDENTS)
        # Measures what it takes to describe a state, in seconds.
        self.clock: Callable[[], float] = time.perf_counter
        self._not_before = 0.0

    # -- what the Sender tells the engine ----------------------------------------------------------

    def poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        """See `ProducerCore.poll`."""
        try:
            todo = self._poll(now, wall_ms)
        except Exception as error:
            self.note(("crash", now, wall_ms, type(error).__name__))
            raise
        if not todo:
            self.note(("poll", now, wall_ms))
            return todo
        decided: list[Any] = []
        for step in todo:
            if type(step) is not SendProduce:
                decided.append(self._kept(step))  # noqa: PERF401 - it would take longer
        for state, batch in self._sent:
            if batch.count > 1:
                decided.append((state, _of_batch(batch), len(batch.data), *_many(batch.records)))
            else:
                decided.append((state, _of_batch(batch), _of_record(batch.records[0])))
        if self._dispatched is not None:
            self._dispatched += self._sent
        self._sent.clear()
        self.note(("poll", now, wall_ms, decided))
        return todo

    def on_answer(
        self, step: steps.Request, answer: Any, now: float, merge: MetadataMerge | None = None
    ) -> errors.ProtocolError | None:
        """See `ProducerCore.on_answer`."""
        kept = self._shared(answer) if type(answer) is MetadataUpdate else answer
        self.note(("answer", step.token, kept, now))
        return self._on_answer(step, answer, now, merge)

    def _shared(self, answer: MetadataUpdate) -> MetadataUpdate:
        """Return an answer with the topics of the one before, as far as they are the same.

        Metadata is asked for again and again, and an answer may have thousands of partitions.
        """
        seen = self._topics
        topics = tuple(
            seen[each.name] if seen.get(each.name) == each else each for each in answer.topics
        )
        if len(seen) > _MOST_TOPICS:
            seen.clear()  # most of them may be in use no more
        seen.update((each.name, each) for each in topics)
        if topics != self._told:
            self._told = topics
        return answer._replace(topics=self._told)

    def on_compressed(self, token: int, result: BatchBody | errors.KafkaError) -> None:
        """See `ProducerCore.on_compressed`."""
        kept: Any = result
        if isinstance(result, BatchBody):
            kept = (
                len(result.data),
                result.count,
                result.first_timestamp_ms,
                result.max_timestamp_ms,
                result.uncompressed_size,
            )
        self.note(("compressed", token, kept))
        self.core.on_compressed(token, result)

    def on_unsupported(self, step: steps.Request, error: errors.KafkaError, now: float) -> None:
        """See `ProducerCore.on_unsupported`."""
        self.note(("unsupported", step, error, now))
        self.core.on_unsupported(step, error, now)

    def on_link_open(
        self, link_id: int, produce_version: int, now: float, transaction_version: int = 0
    ) -> None:
        """See `ProducerCore.on_link_open`."""
        self.note(("open", link_id, produce_version, now, transaction_version))
        self.core.on_link_open(link_id, produce_version, now, transaction_version)

    def on_link_lost(
        self, link_id: int, error: Exception | None, now: float, unwritten: Collection[int] = ()
    ) -> None:
        """See `ProducerCore.on_link_lost`."""
        self.note(("lost", link_id, error, now, tuple(unwritten)))
        self.core.on_link_lost(link_id, error, now, unwritten)

    def on_progress(self, link_id: int, now: float) -> None:
        """See `ProducerCore.on_progress`."""
        self.note(("progress", link_id, now))
        self.core.on_progress(link_id, now)

    def on_undecodable(self, link_id: int, version: int, error: Exception, now: float) -> None:
        """See `ProducerCore.on_undecodable`."""
        self.note(("undecodable", link_id, version, error, now))
        self.core.on_undecodable(link_id, version, error, now)

    def on_written_unanswered(self, link_id: int, token: int, now: float) -> None:
        """See `ProduceRequests.on_written_unanswered`."""
        self.note(("unanswered", link_id, token, now))
        self._produce.on_written_unanswered(link_id, token, now)

    def on_new_credentials(self) -> None:
        """See `ProducerCore.on_new_credentials`; the credentials are not kept."""
        self.note(("credentials",))
        self.core.on_new_credentials()

    def fatal(self, error: errors.KafkaError) -> None:
        """See `ProducerCore.fatal`."""
        self.note(("fatal", error))
        self.core.fatal(error)

    def close(self, now: float) -> list[steps.Step]:
        """See `ProducerCore.close`."""
        self.note(("close", now))
        todo = self.core.close(now)
        self.attend()
        return todo

    # -- what callers tell the engine --------------------------------------------------------------

    def flushed(self, now: float) -> None:
        """Note that a flush begins; `now` is in seconds."""
        self.note(("flush", now))

    def called(self, call: str, commit: OffsetCommit | None = None) -> None:
        """Note a call about the transaction: init, begin, commit, abort, offsets or told."""
        offsets = None if commit is None else (commit.group, dict(commit.offsets))
        self._note_call(call, offsets)

    def changed_id(self, transactional_id: str) -> None:
        """Note that another transactional id is used from now on."""
        self._note_call("id", transactional_id)

    def learned_coordinator(self, group: str, broker: BrokerAddress) -> None:
        """Note that the producer was told which broker coordinates a group."""
        self._note_call("coordinator", (group, *broker))

    def _note_call(self, call: str, given: object) -> None:
        """Note a call about the transaction, and which records were queued before it.

        A time would not tell: on some event loops it stands still between two calls.
        """
        self.note(("transaction", call, given, self._accumulator.appender.ordinal))

    # -- the batches that were sent ----------------------------------------------------------------

    def observe(self) -> None:
        """Keep each batch that is sent for `take_dispatched` too, for an observer."""
        self._dispatched = []

    def take_dispatched(self) -> list[Entry]:
        """Take out the batches sent since the last call, as `ProduceRequests.take_dispatched`."""
        if not self._dispatched:
            return []
        dispatched, self._dispatched = self._dispatched, []
        return dispatched

    def _kept(self, step: steps.Step) -> Any:
        """Return what is kept of a step that is no Produce request."""
        if type(step) is FetchMetadata:
            if step.topics != self._named:
                self._named = step.topics
            step = step._replace(topics=self._named)
        if type(step) is Compress:
            items: Any = step.records
            items = items_of(items)
            return ("C", step.token, len(step.records), total_size(items), *_of_first(items[0]))
        if not isinstance(step, OpenLink | CloseLink | Compress):
            self._asked[step.token] = step
        return step

    # -- what did not go well ----------------------------------------------------------------------

    def _on_failure(self, settlement: Settlement) -> None:
        """Note records that were not acknowledged; the engine is in the middle of a call."""
        outcome, records = settlement.outcome, settlement.records
        items = items_of(records)
        first, last = items[0], items[-1]
        name = type(outcome.error).__name__
        times = first.queued_at, last.queued_at, first.deadline
        ordinals = first.ordinal, last.ordinal + last.count - 1
        where, status = (outcome.topic, outcome.partition), outcome.status
        size = settlement.size()
        self.note(("failed", *where, status.name, name, len(records), *times, *ordinals, size))
        incident: Incident | None = getattr(outcome.error, "incident", None)
        if incident is not None:
            self.incidents.append(incident.batch)
        self._look_for_end()
        if status is DeliveryStatus.UNKNOWN and self._acks:
            self.raise_alarm(f"records of {where[0]}-{where[1]} ended UNKNOWN: {name}")

    def _look_for_end(self) -> None:
        """Have a dump made if a fatal error has ended the producer, even if no record failed."""
        fatal = self.core.fatal_error
        if fatal is not None and not self._ended:
            self._ended = True
            if not isinstance(fatal, errors.ProducerClosed):
                self.raise_alarm(f"the producer ended: {type(fatal).__name__}")

    def raise_alarm(self, reason: str) -> None:
        """Have a dump made as soon as the engine is not in the middle of a call."""
        if self._reason is None and self.alarm is not None:
            self._reason = reason
            self._watch.hurry()

    # -- segments ----------------------------------------------------------------------------------

    @property
    def limits(self) -> dict[str, Any]:
        """The engine's limits that the Sender has set."""
        drafts = self._accumulator.drafts
        return {
            "assigned_at_once": self._accumulator.assigned_at_once,
            "drafts_at_once": drafts.at_once,
            "quick_bytes": drafts.quick,
        }

    def attend(self) -> None:
        """Make the dump that is due, and begin a new segment if this one is full.

        The Sender calls this about once a second, and the engine is not in the middle of a call.
        """
        losses = self._counters.data_loss_events
        if losses > self._losses:
            self._losses = losses
            self.raise_alarm("data was lost")
        self._look_for_end()
        reason, self._reason = self._reason, None
        if reason is not None and self.alarm is not None:
            self.alarm(reason)
        count, began = len(self.latest.events), self.clock()
        if count < self._most or (count < _LONGEST * self._most and began < self._not_before):
            return
        self._begin_segment()
        ended = self.clock()
        self._not_before = ended + (ended - began) / _SHARE

    def _begin_segment(self) -> None:
        from aioidem._flight.state import EngineState  # here, because few producers live so long

        state: EngineState | None = None
        if len(self._partitions) <= MOST_PARTITIONS:
            try:
                state = EngineState.of(self.core, self._draws)
            except Exception as error:  # noqa: BLE001 - the recorder must not end the producer
                self.failure = error
        latest, asked = self.latest, self._asked
        self.before = latest._replace(events=[without_log(each) for each in latest.events])
        latest.events.clear()
        links = self._connections.links.values()
        outstanding = {token for link in links for token in link.outstanding}
        self._asked = {token: step for token, step in asked.items() if token in outstanding}
        self.latest = Segment(
            state, whole=state is not None, asked=dict(self._asked), events=latest.events
        )


def _many(records: Any) -> Event:
    """Return what is kept of the records of a batch of several records."""
    if type(records) is RecordRuns:
        size, items = records.size, records.items
    else:
        size, items = total_size(records), records
    first = items[0]
    # How much the first record takes decides whether the batch before this one is full.
    lead = first.size if first.count == 1 else 0
    return (*_of_first(first), *_of_last(items[-1]), size, lead)


def without_log(event: Event) -> Event:
    """Return an event without the records of a log that was read back."""
    if event[0] == "answer" and type(event[2]) is ReadBackAnswer:
        from aioidem._flight.read_back import shortened  # here, because few logs are read back

        return ("answer", event[1], shortened(event[2]), event[3])
    return event
