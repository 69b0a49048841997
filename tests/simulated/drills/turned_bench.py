"""Two engines that are told the same: one is polled when it asks for it, the other all the time.

The second one leaves out nothing in any poll: it is always polled as if its time to wake had come.
If it does something that the first one does not do at that time, then the first one has left out
what was due, or has asked to be woken too late.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.core import ProducerCore
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._log import LogLine
from aioidem._records import record_size_bound
from aioidem.structs import DeliveryStatus

__all__ = ["TICK", "Engines", "Row", "Silent"]

TICK: Final = 0.125
"""Seconds between the moments at which something happens; all times in the drill are multiples."""
_WALL_MS: Final = 1_700_000_000_000
_MOST_POLLS: Final = 100
"""More polls than this at one moment are a loop that does not end."""
_CAN_WAIT: Final = (steps.Compress, steps.DescribeTopicConfig, steps.DescribeTopicLimit)
"""Steps for which an engine does not ask to be woken: any next poll returns them."""
_SAID_LATER: Final = {LogLine.STATE_EXPIRED}
"""Lines for which an engine does not ask to be woken: while nothing is in doubt, they can wait."""
_OLD_LEADER: Final = "has a new leader, whose turn comes"
"""Words in the reason for which the connection to an old, silent leader is closed."""


class Silent(Exception):  # noqa: N818 - it is no error
    """The engine did not ask to be woken for a silent old leader, which it need not.

    From here on the two engines differ, so that nothing more can be compared.
    """


class Numbered(PendingRecord):
    """A record with a number, which its value begins with."""

    __slots__ = ("number",)

    def __init__(self, number: int, key: bytes | None, partition: int | None, stamp: int) -> None:
        value = b"#%06d" % number + bytes(number % 3 * 50)
        size = record_size_bound(key, value, ())
        super().__init__(key, value, (), stamp, partition, size)
        self.number = number


class Row:
    """What is known of one record without asking the engine."""

    def __init__(self, topic: str, partition: int | None, *, sent: bool) -> None:
        self.topic = topic
        self.partition = partition
        self.sent = sent  # whether it was; taken for granted if requests are compressed
        self.status: DeliveryStatus | None = None


class _Side(NamedTuple):
    """One of the two engines, and what it has done that was not compared yet."""

    core: ProducerCore
    todo: list[steps.Step]
    """Its steps."""
    ended: list[tuple[object, ...]]
    """The outcomes of records."""
    said: list[str]
    """Lines for the operator."""


def _plain(step: steps.Step) -> object:
    """Return a step in a form that is equal for both engines."""
    return repr(step) if isinstance(step, steps.Compress) else (type(step), step)


class Engines:
    """The two engines, and what both have done so far.

    Attributes:
        links: by id, whether the connection is up; one that has ended is not here.
        waiting: the requests without an answer, by token.
        rows: the records that were queued; the number of each is its place.
        drafts: the batches to be compressed, of both engines.
        over: the requests that were answered, withdrawn or lost.
        changes: how often the producer id or epoch became another one.
        polled_at: when the first engine was last polled, in seconds.
        wrong: what is wrong so far, in words.
    """

    def __init__(self, config: ProducerConfig, dice: Random, *, timed: bool) -> None:
        self.config = config
        self.now = 1000.0
        self.wrong: list[str] = []
        self.rows: list[Row] = []
        self.links: dict[int, bool] = {}
        self.waiting: dict[int, steps.Request] = {}
        self.drafts: list[tuple[steps.Compress, steps.Compress]] = []
        self.over: list[steps.Request] = []
        self.changes = 0
        self.polled_at = 0.0
        self._identity: ProducerIdentity | None = None
        self._timed = timed
        self._told = True
        self._tokens: set[int] = set()
        self._ids: set[int] = set()
        cores = [ProducerCore(config, random=lambda: 0.5) for _ in range(2)]
        at_once, quick = dice.choice((1, 2, 1000)), dice.choice((0, 0, 0, 10_000))
        for core in cores:
            core.accumulator.assigned_at_once = at_once
            core.accumulator.drafts.quick = quick
        self._sides = [_Side(core, [], [], []) for core in cores]
        self._lazy, self._eager = self._sides
        self.core = cores[0]
        """The engine that is polled when it asks for it."""

    # -- telling both the same ---------------------------------------------------------------------

    def tell(self, call: Callable[[ProducerCore], object]) -> Any:
        """Tell both engines the same; return what the first one returns or raises."""
        self._told = True
        results = [_result(call, side.core) for side in self._sides]
        told = [(type(each), str(each)) for each in results if isinstance(each, Exception)]
        if told and (len(told) == 1 or told[0] != told[1]):
            self.wrong.append(f"two engines that are told the same raise different errors: {told}")
        for side in self._sides:
            self._collect(side)
        return results[0]

    def append(self, topic: str, partition: int | None, key: bytes | None, age_ms: int) -> Any:
        """Queue a record; return the error with which it is refused, or None."""
        number, stamp = len(self.rows), self.wall_ms - age_ms
        row = Row(topic, partition, sent=self.config.compression_type != "none")
        self.rows.append(row)

        def append(core: ProducerCore) -> None:
            record = Numbered(number, key, partition, stamp)
            if not core.budget.try_take(record.charge()):
                raise errors.BufferFullError("no room")
            try:
                core.accumulator.append(topic, record, self.now)
            except errors.KafkaError:
                core.budget.release(record.charge())
                raise

        refused = self.tell(append)
        if refused is not None:
            self.rows.pop()
        return refused

    @property
    def wall_ms(self) -> int:
        """The time of day, in milliseconds."""
        return _WALL_MS + int(self.now * 1000)

    @property
    def unsettled(self) -> list[Row]:
        """The records that have no outcome yet."""
        return [row for row in self.rows if row.status is None]

    def answered(self, step: steps.Request) -> None:
        """Note that a request waits no more."""
        del self.waiting[step.token]
        self.over.append(step)

    def ended(self, link_id: int) -> None:
        """Note that a connection has ended."""
        del self.links[link_id]
        for step in [each for each in self.waiting.values() if each.link_id == link_id]:
            self.answered(step)

    # -- letting time pass -------------------------------------------------------------------------

    def pass_time(self, ticks: int) -> None:
        """Let time pass, and poll the engines as each of them is to be polled."""
        self.turn()
        for _ in range(ticks):
            if self.wrong:
                return
            self.now += TICK
            self.turn()

    def turn(self) -> None:
        """Poll the engines at this moment, and compare what they do."""
        core, eager = self._lazy.core, self._eager.core
        told, self._told = self._told, False
        polls = 0
        while told or (core.wake_at is not None and core.wake_at <= self.now):
            self._poll(self._lazy)
            told, polls, self.polled_at = False, polls + 1, self.now
            if polls > _MOST_POLLS:
                self.wrong.append(f"at {self.now} the engine asks to be polled for ever")
                return
        for _ in range(_MOST_POLLS):
            eager.wake_at = self.now - TICK
            busy = self._poll(self._eager)
            if not busy and (eager.wake_at is None or eager.wake_at > self.now):
                break
        else:
            self.wrong.append(f"at {self.now} the engine does something in every poll, for ever")
        for _ in range(2):
            if self._may_do_more():
                self._poll(self._lazy)
        self._compare()

    def _poll(self, side: _Side) -> bool:
        wall_ms = float(self.wall_ms) if self._timed else None
        todo = side.core.poll(self.now, wall_ms)
        side.todo.extend(todo)
        return self._collect(side) or bool(todo)

    def _may_do_more(self) -> bool:
        """Return whether the first engine lacks only what may wait until it is polled again."""
        done = [_plain(step) for step in self._lazy.todo]
        more = [step for step in self._eager.todo if _plain(step) not in done]
        return bool(more) and all(isinstance(step, _CAN_WAIT) for step in more)

    def _collect(self, side: _Side) -> bool:
        """Take the outcomes and events out of an engine; return whether there were any."""
        outcomes = side.core.outcomes
        before = len(side.ended) + len(side.said)
        for settlement in outcomes.take_settled():
            outcome = settlement.outcome
            numbers = tuple(record.number for record in settlement.records)  # type: ignore[attr-defined]
            why = outcome.error
            side.ended.append((numbers, outcome.status, outcome.base_offset, type(why), str(why)))
            if side is self._lazy:
                self._settle(numbers, outcome.status)
        events = outcomes.take_events()
        side.said.extend(event.text for event in events if event.line not in _SAID_LATER)
        if side is self._lazy:
            bumps = sum(event.line is LogLine.EPOCH_BUMPED for event in events)
            self._count_changes(side.core.current_identity, bumps)
        return len(side.ended) + len(side.said) > before

    def _count_changes(self, now: ProducerIdentity | None, bumps: int) -> None:
        """Count each new epoch, and each time that a producer id is given up.

        Args:
            now: The identity now.
            bumps: How many new epochs were told since the last call. One of an id that was given up
                since is told only so.
        """
        before, self._identity = self._identity, now
        if before is None or now == before:
            return
        same_id = now is not None and now.producer_id == before.producer_id
        self.changes += now.epoch - before.epoch if now is not None and same_id else 1 + bumps

    def _settle(self, numbers: tuple[int, ...], status: DeliveryStatus) -> None:
        for number in numbers:
            row = self.rows[number]
            if row.status is not None:
                self.wrong.append(f"record {number} was {row.status.value}, and is {status.value}")
            row.status = status
            if not row.sent and status is not DeliveryStatus.NOT_WRITTEN:
                due = DeliveryStatus.NOT_WRITTEN.value
                self.wrong.append(f"record {number}, never sent, is {status.value}, not {due}")

    def _compare(self) -> None:
        """Compare what the two engines have done, and take note of it."""
        lazy, eager = self._lazy, self._eager
        ours, theirs = [[_plain(step) for step in side.todo] for side in (lazy, eager)]
        closed = [step.reason for step in eager.todo if isinstance(step, steps.CloseLink)]
        if ours != theirs and any(_OLD_LEADER in reason for reason in closed):
            raise Silent
        for what, one, other in (
            ("does", ours, theirs),
            ("settles", lazy.ended, eager.ended),
            ("says", lazy.said, eager.said),
        ):
            if one != other:
                due = f"not {other}, as one that leaves nothing out"
                self.wrong.append(f"at {self.now} the engine {what} {one}, {due}")
                return
        for step, twin in zip(lazy.todo, eager.todo, strict=True):
            self._take(step, twin)
        for side in self._sides:
            side.todo.clear()
            side.ended.clear()
            side.said.clear()

    # -- what they do ------------------------------------------------------------------------------

    def _take(self, step: steps.Step, twin: steps.Step) -> None:
        """Take note of a step of the first engine; its twin is that of the second one."""
        match step:
            case steps.OpenLink():
                self._note_new(self._ids, step.link_id, "connection")
                self.links[step.link_id] = False
            case steps.CloseLink():
                if step.link_id not in self.links:
                    self.wrong.append(f"{step} closes a connection that is not there")
                    return
                self.ended(step.link_id)
            case steps.Compress() if isinstance(twin, steps.Compress):
                self.drafts.append((step, twin))
            case steps.Compress():
                pass
            case _:
                self._note_new(self._tokens, step.token, "request")
                if not self.links.get(step.link_id):
                    self.wrong.append(f"{step} goes to a connection that is not up")
                self.waiting[step.token] = step
                if isinstance(step, steps.SendProduce):
                    for number in self.carried(step):
                        self.rows[number].sent = True

    def _note_new(self, known: set[int], number: int, what: str) -> None:
        if number in known:
            self.wrong.append(f"the number {number} is given to a second {what}")
        known.add(number)

    def carried(self, step: steps.SendProduce) -> list[int]:
        """Return the numbers of the records in a request; none if they are compressed."""
        if self.config.compression_type != "none":
            return []
        found = []
        for topic in step.topics:
            for _, data in topic.partitions:
                pieces = data.split(b"#")[1:]
                found += [int(piece[:6]) for piece in pieces if piece[:6].isdigit()]
        return found

    def close(self) -> tuple[list[steps.Step], set[object]]:
        """Close both engines; return what the first does, and the errors of unwritten records."""
        before = len(self._lazy.ended)
        for side in self._sides:
            side.todo.extend(side.core.close(self.now))
            self._collect(side)
        todo = [*self._lazy.todo]
        ended = self._lazy.ended[before:]
        self._compare()
        return todo, {each[3] for each in ended if each[1] is DeliveryStatus.NOT_WRITTEN}


def _result(call: Callable[[ProducerCore], object], core: ProducerCore) -> object:
    try:
        return call(core)
    except errors.KafkaError as error:
        return error
