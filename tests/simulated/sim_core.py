"""The engine of a simulation, which tells judges what it asks and is told, and when it is polled.

`World` drives it by itself; in `Whole` and in transactions the real Sender drives it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Protocol, cast
from unittest import mock

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, partition, steps
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW
from aioidem._engine.links import Link, Node
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.partition import PartitionState
from aioidem._engine.watch import OperatorWatch
from aioidem._flight.recorder import Draws
from aioidem._protocol.metadata import MetadataUpdate
from aioidem._protocol.produce import ProduceAnswer
from aioidem.testing import Anomaly, Row, ValueId

from .alarms import Alarms, Watch
from .attempts import Attempts
from .audit import audit, finished, still_busy
from .beliefs import Beliefs
from .conduct import Conduct
from .contents import Contents
from .decoding import answered_batches, records_in
from .filling import Filling
from .frame_watch import FrameWatch
from .missing import MissingPartitions
from .numbers import Numbers
from .reading import Reading
from .readings import Readings
from .renewals import Renewals
from .schedule import Schedule
from .size_questions import SizeQuestions
from .started_ledger import StartedLedger
from .version_choice import VersionChoice, refuses_v14
from .waiting_records import held_back
from .window_words import WindowWords

__all__ = ["Host", "SimCore"]

_AUDITED = 8
"""In how many polls the engine is audited once."""
_AT_ONCE = 1e-6
"""Seconds within which the engine is polled after it was told something."""
_CLOCK_TICK = 0.001
"""Seconds: what is due by the time of day is known as exactly as that: it counts milliseconds."""
_CAN_WAIT = (steps.Compress, steps.DescribeTopicConfig, steps.DescribeTopicLimit)
"""What the engine does in the first poll after it is due, and for which it is not woken: two
questions, and to compress a batch before it can be sent.
"""
_TOO_LARGE = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}


class Host(Protocol):
    """What runs a `SimCore`: a `World`, or a `Whole`."""

    knows_when_queued: bool
    resumed_at: float
    rows: dict[ValueId, Row]
    missing: MissingPartitions
    watch: FrameWatch
    witness: Attempts

    def report(self, anomaly: Anomaly, detail: str) -> None:
        """Note a violation."""


class SimCore(ProducerCore):
    """The engine, which tells judges what it asks and is told, and when it wants to be woken."""

    def __init__(
        self, config: ProducerConfig, world: Host, schedule: Schedule, draws: Draws | None = None
    ) -> None:
        source = random.Random(schedule.seed ^ 0x5EED).random
        if draws is not None:
            draws.source = source
        super().__init__(config, random=draws.random if draws else source, choice=source)
        self.accumulator.assigned_at_once = schedule.at_once[1]
        self.accumulator.drafts.quick = schedule.threads[0]
        self._world = world
        self._polls = 0
        # When the engine was told what it has not been polled after, in seconds.
        self._told_at: float | None = None
        self._rested = True  # whether no record had to be sent at the last poll
        self.early = False
        """Whether nothing is due yet, so that a poll may do nothing."""
        # Is told after each piece of a long Metadata answer: on which connection the answer came,
        # and which topics are merged.
        self.merging: Callable[[int, Collection[str]], None] = lambda _link_id, _names: None
        self._alone = alone = world.knows_when_queued
        self.numbers = Numbers(self, world.rows if alone else None)
        misconduct = partial(world.report, Anomaly.CONDUCT)
        miscounted = partial(world.report, Anomaly.MISCOUNTED)
        misstated = partial(world.report, Anomaly.MISSTATED)
        self._conduct = Conduct(self._was_in_doubt if alone else None, misconduct)
        self._versions = VersionChoice(config, misconduct)
        self._alarms = Alarms(self, miscounted)
        self.watch = cast(OperatorWatch, Watch(self.watch, self._alarms))
        # How many looks there had been when one was due after the last poll; None if none was.
        self._looks: int | None = None
        self.reading = Reading(misstated)
        self.readings = Readings(self._link_of, self._awaits, self.config.request_timeout)
        self.beliefs = Beliefs(self, miscounted)
        self._renewals: Renewals | None = None
        if config.transactional_id is not None:
            self._renewals = Renewals(self._failures, misconduct)
        self._windows = WindowWords(self, miscounted)
        self._sizes = SizeQuestions(config, misconduct)
        self.filling = Filling(config, misconduct)
        self.contents = Contents(misstated)
        self.filling.limited |= any(fault.kind == "limit" for fault in schedule.faults)
        self.filling.limited |= schedule.sequence_range is not None
        if schedule.first_sequence and config.enable_idempotence:
            self._start_sequences_at(schedule.first_sequence)

    def _broker_of(self, link_id: int) -> str:
        link = self.connections.links.get(link_id)
        return "a broker" if link is None else f"broker {link.node_id}"

    def _node_of(self, link: Link) -> Node | None:
        return self.connections.nodes.get(link.node_id)

    def _link_of(self, place: tuple[str, int]) -> int | None:
        state = self.partitions.get(place)
        return (
            None
            if state is None or state.leadership.route is None
            else state.leadership.route.link_id
        )

    def _awaits(self, link_id: int, token: int) -> bool:
        link = self.connections.links.get(link_id)
        return link is not None and token in link.outstanding

    def _was_in_doubt(self, place: tuple[str, int]) -> bool:
        return self._world.witness.was_in_doubt(place)

    def _start_sequences_at(self, first: int) -> None:
        """Let the sequences of each partition start at another number than 0."""
        partitions: Any = self._partitions
        make = partitions._make

        def made(topic: str, index: int) -> PartitionState:
            with mock.patch.object(partition, "SequenceLedger", return_value=StartedLedger(first)):
                state: PartitionState = make(topic, index)
            return state

        partitions._make = made

    def poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        """Poll as usual; report Metadata requests, and a time to be woken that is too late."""
        self._polls += 1
        if not self._alone:
            self._judge_delay(now)
        audited = self._polls % _AUDITED == 0
        done = finished(self) if audited else []
        decided = self.outcomes.settled
        todo = super().poll(now, wall_ms)
        self._versions.look(now)
        busy = [*still_busy(self, done)] if audited else []
        if self.early:
            self._judge_idle(todo, decided, "a poll before anything is due")
        self._judge_wake(now)
        for what in held_back(self, now):
            self._world.report(Anomaly.STUCK, what)
        self._rested = not self.unsettled
        self._looks = self._alarms.looks if now >= self.watch.due_at else None
        if audited:
            for what in (*audit(self), *busy):
                self._world.report(Anomaly.LEAK, what)
            self._windows.look()
            if self.wake_at is None or self.wake_at > now:
                todo += self._poll_again(now, wall_ms)
        for step in todo:
            self._conduct.acts(step)
            if self._renewals is not None:
                self._renewals.asks(step)
            if isinstance(step, steps.FetchMetadata):
                self._world.missing.asked(step.token)
            elif isinstance(step, steps.ReadBack):
                self.readings.asked(step, now)
            elif isinstance(step, steps.DescribeTopicLimit):
                link = self.connections.links[step.link_id]
                self._sizes.asks(link, self._node_of(link), step.topic, step.token, now)
            elif isinstance(step, steps.DescribeTopicConfig):
                self._versions.asks(self.connections.links[step.link_id], now)
            elif isinstance(step, steps.SendProduce):
                self._versions.sends(self.connections.links[step.link_id], step, now)
                self.numbers.sent(step, now)
                self.filling.sent(step)
                self._windows.sent(step)
                self.contents.sent(step)
                self.reading.sent(step)
                self._sizes.request([len(d) for t in step.topics for _, d in t.partitions])
                link = self.connections.links[step.link_id]
                for topic in step.topics:
                    batches = (data for _, data in topic.partitions)
                    self._sizes.sends(link, self._node_of(link), topic.name, batches)
        return todo

    def _failures(self) -> int:
        return self.counters.records_not_written + self.counters.records_unknown

    def _judge_delay(self, now: float) -> None:
        """Report it if the Sender polls later than at once, or than the engine asked it to."""
        due, why = self._told_at, "it was told something"
        if due is None and self.wake_at is not None:
            due, why = self.wake_at, "it asked to be woken"
        if due is None and self._rested and self.unsettled:
            due, why = self.accumulator.first_queued_at, "a record was queued"
        if self._looks == self._alarms.looks:
            self._world.report(Anomaly.STUCK, f"nobody looked before {now:.6f}")
        if due is not None and now > max(due, self._world.resumed_at) + _AT_ONCE:
            self._world.report(Anomaly.STUCK, f"polled {now - due:.6f} s after {why}")
        self._told_at = None

    def _poll_again(self, now: float, wall_ms: float | None) -> list[steps.Step]:
        """Poll at the same instant, when there may be only questions that could wait."""
        decided = self.outcomes.settled
        todo = super().poll(now, wall_ms)
        self._judge_idle(todo, decided, "a second poll")
        return todo

    def _judge_idle(self, todo: list[steps.Step], decided: int, poll: str) -> None:
        """Report it if a poll does something although nothing is due.

        Args:
            todo: What it does.
            decided: How many records had an outcome before.
            poll: Which poll it is, in words.
        """
        done = [step for step in todo if not isinstance(step, _CAN_WAIT)]
        if done or self.outcomes.settled != decided:
            what = done[0] if done else "a record ends"
            self._world.report(Anomaly.STUCK, f"{poll} does something: {what}")

    def _judge_wake(self, now: float) -> None:
        """Report it if the engine asks to be woken later than it has something to do.

        A poll computes that time only if the time of the poll before may be too late. An engine
        that wrongly keeps that time rarely ends a record late, because other events wake it too.
        """
        exact = self._next_wake(self._partitions.active(), now)
        if exact is None or self._unseen_silence() == exact:
            return
        if self.wake_at is None or self.wake_at > exact + _CLOCK_TICK:
            asked = "never" if self.wake_at is None else f"{self.wake_at - exact:.6f} s later"
            self._world.report(
                Anomaly.STUCK, f"the engine has something to do at {exact:.6f}, but wakes {asked}"
            )

    def _unseen_silence(self) -> float | None:
        """Return when an old leader has been silent for too long, if no poll has looked for any.

        A long Metadata answer is put into the view piece by piece. The engine looks for leaders
        that are silent when it is told of the answer, and not before.
        """
        if self._doubt.old_leaders_owe:
            return None
        owing = (each for each in self._partitions.active() if each.batches.outstanding)
        times = (at for state in owing if (at := self._doubt.awaits(state)) is not None)
        return min(times, default=None)

    def merge_of(self, step: steps.Request, answer: Any) -> MetadataMerge | None:
        """Return the merge of a long answer; `merging` is told of each piece."""
        merge = super().merge_of(step, answer)
        if merge is not None:
            pieces: Any = merge
            pieces._slices = self._merged(step.link_id, merge, merge.slices())
        return merge

    def _merged(self, link_id: int, merge: MetadataMerge, slices: Iterator[int]) -> Iterator[int]:
        inside: Any = merge
        for count in slices:
            self.merging(link_id, {each.update.name for each in inside._merging})
            yield count

    def on_answer(
        self, step: steps.Request, answer: Any, now: float, merge: MetadataMerge | None = None
    ) -> errors.ProtocolError | None:
        """Take the answer as usual; also tell the judges what it says."""
        self._told(now)
        if self._renewals is not None and self._awaits(step.link_id, step.token):
            self._renewals.answered(step, answer)
        odd = self._take(step, answer, now, merge)
        self._versions.look(now)
        return odd

    def _take(
        self, step: steps.Request, answer: Any, now: float, merge: MetadataMerge | None
    ) -> errors.ProtocolError | None:
        match step:
            case steps.SendProduce():
                return self._on_produced(step, answer, now)
            case steps.FetchMetadata():
                self._on_metadata(step, answer, now, merge)
                return None
            case steps.ReadBack() if self._awaits(step.link_id, step.token):
                self.readings.heard(step, answer)
                return super().on_answer(step, answer, now, merge)
            case steps.DescribeTopicLimit():
                self._on_limit(step, answer, now)
                return super().on_answer(step, answer, now, merge)
            case steps.DescribeTopicConfig() if self._awaits(step.link_id, step.token):
                link = self.connections.links[step.link_id]
                named, failed = answer.names_window, bool(answer.error_code)
                self._versions.described(link, now, named=named, failed=failed)
                return super().on_answer(step, answer, now, merge)
            case steps.DescribeBrokerConfig() if self._awaits(step.link_id, step.token):
                odd = super().on_answer(step, answer, now, merge)
                self.beliefs.configured(step.node_id, answer)
                return odd
            case _:
                return super().on_answer(step, answer, now, merge)

    def _on_limit(self, step: steps.DescribeTopicLimit, told: int | None, now: float) -> None:
        if self._awaits(step.link_id, step.token):
            link = self.connections.links[step.link_id]
            self._sizes.answered(link, step.token, told, now)

    def on_unsupported(self, step: steps.Request, error: errors.KafkaError, now: float) -> None:
        """Withdraw a request as usual: the broker does not support it."""
        if isinstance(step, steps.DescribeTopicLimit):
            self._on_limit(step, None, now)
        if isinstance(step, steps.DescribeTopicConfig) and self._awaits(step.link_id, step.token):
            link = self.connections.links[step.link_id]
            self._versions.described(link, now, named=False, failed=False)
        super().on_unsupported(step, error, now)

    def _on_produced(
        self, step: steps.SendProduce, answer: ProduceAnswer, now: float
    ) -> errors.ProtocolError | None:
        """Take the answer as usual; tell the judges if the engine gives the connection up."""
        link = self.connections.links.get(step.link_id)
        waited = link is not None and step.token in link.outstanding
        if waited:
            self.numbers.answered(step.token, now)
        ends = self.beliefs.ends(step)
        if waited and link is not None:
            self._note_attempts(link, step, answer, now)
        refused_v14 = refuses_v14(step, answer)
        if refused_v14:
            self._note_v14(step, answer)
        odd = super().on_answer(step, answer, now)
        self.beliefs.heard_of(topic.name for topic in step.topics)
        if waited and odd is None:
            self.beliefs.acknowledged(step, answer, ends)
            self._windows.acknowledged(step, answer)
        if waited and link is not None and step.version >= PRODUCE_WITH_WINDOW:
            self._versions.answered(link, step.token, now, refuses=refused_v14)
        if waited:
            self._conduct.produced(step, answer, odd)
            if refused_v14:
                self.numbers.words.refused_v14(self._broker_of(step.link_id))
            codes = {part.error_code for part in answer.partitions}
            self.filling.limited |= bool(codes & _TOO_LARGE)
        if odd is not None:
            # The engine has given the connection up; the Sender will end it soon.
            self._world.watch.lost(step.link_id)
        return odd

    def _note_attempts(
        self, link: Link, step: steps.SendProduce, answer: ProduceAnswer, now: float
    ) -> None:
        """Tell the judges which batches are accepted, and which are refused, as for their sizes.

        A batch that was given up since counts too: its size was refused all the same. One of a
        topic that was recreated since does not, because the new topic has another limit.
        """
        sent = link.outstanding[step.token].entries
        for place, data, part in answered_batches(step, answer):
            state, batch = sent[place]
            if self.partitions.get(place) is not state:
                continue
            if batch in state.batches.unresolved:
                self.numbers.attempted(place, part.error_code, now)
            if part.error_code in _TOO_LARGE:
                self._sizes.refused(link, place[0], len(data))
            elif not part.error_code:
                self._sizes.accepted(link, place[0], len(data))

    def _note_v14(self, step: steps.SendProduce, answer: ProduceAnswer) -> None:
        """Tell the judge of failures which batches are to be sent again in v13."""
        refused = {
            place: data
            for place, data, part in answered_batches(step, answer)
            if part.error_code == ErrorCode.unsupported_version
        }
        for data in refused.values():
            self._world.witness.refused_v14([value for value, _ in records_in(data)])

    def on_link_open(
        self, link_id: int, produce_version: int, now: float, transaction_version: int = 0
    ) -> None:
        """Note as usual that a connection is up; tell the judges if it lacks v14."""
        self._told(now)
        super().on_link_open(link_id, produce_version, now, transaction_version)
        link = self.connections.links.get(link_id)
        if link is not None:
            self._sizes.opened(link, self._node_of(link))
            self._versions.opened(link, produce_version)
        if produce_version < PRODUCE_WITH_WINDOW:
            broker = self._broker_of(link_id)
            self.numbers.words.without_v14(broker)

    def on_link_lost(
        self, link_id: int, error: Exception | None, now: float, unwritten: Collection[int] = ()
    ) -> None:
        """Note as usual that a connection ended."""
        self._told(now)
        if self._renewals is not None:
            self._renewals.lost(link_id, unwritten)
        super().on_link_lost(link_id, error, now, unwritten)
        self._versions.look(now)

    def _told(self, now: float) -> None:
        """Note that the engine is told something, so it is to be polled at once."""
        if self._told_at is None:
            self._told_at = now

    def on_undecodable(self, link_id: int, version: int, error: Exception, now: float) -> None:
        """Give the connection up as usual, and tell the judges; the Sender will end it soon."""
        if version >= PRODUCE_WITH_WINDOW:
            self.numbers.words.refused_v14(self._broker_of(link_id))
            link = self.connections.links.get(link_id)
            if link is not None:
                self._versions.undecodable(link, now)
        super().on_undecodable(link_id, version, error, now)
        self._versions.look(now)
        self._world.watch.lost(link_id)

    def _on_metadata(
        self,
        step: steps.FetchMetadata,
        update: MetadataUpdate,
        now: float,
        merge: MetadataMerge | None,
    ) -> None:
        """Take the answer as usual; note missing partitions."""
        link = self.connections.links.get(step.link_id)
        heard = link is not None and step.token in link.outstanding
        super().on_answer(step, update, now, merge)
        if self._renewals is not None:
            self._renewals.described(self.cluster.topics)
        self.beliefs.heard_of(topic.name for topic in update.topics)
        if heard:
            self._note_partitions(step.token, update, now)

    def _note_partitions(self, token: int, update: MetadataUpdate, now: float) -> None:
        for topic in update.topics:
            if update.cluster_id == self.cluster.cluster_id:
                self._world.missing.described(topic.name, topic.error_code, now)
            known = self.cluster.partitions(topic.name)
            if known is not None and topic.partitions and not topic.error_code:
                self._world.missing.told(token, topic.name, frozenset(known), now)
