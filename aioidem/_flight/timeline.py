"""Timeline: what happened to each partition in a replay, as rows for a person to read.

A batch that is sent once and acknowledged is nothing to read, so such batches are only counted. A
row is made when something else happens: a batch is sent again, a leader refuses one, a connection
ends, records fail; or when the window, the epoch, the leader or what is in doubt changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._engine.partition import PartitionState
from aioidem._flight.replay import Replay, Step
from aioidem._protocol.produce import ProduceAnswer
from aioidem.errors import FlightRecordError

__all__ = ["Row", "Timeline"]


class _Sight(NamedTuple):
    """What is shown of a partition."""

    window: int
    in_doubt: bool
    epoch: int | None
    leader: int | None
    rung: str


class Row(NamedTuple):
    """One row of a timeline."""

    event: int
    """The number of the event, from 0."""
    at: float
    """Seconds since the first event."""
    where: str
    """The partition; empty for what concerns the producer."""
    what: str
    """What happened, in words."""
    quiet: int
    """How many batches of the partition were sent without anything special since its last row."""
    window: int
    span: int
    in_doubt: int
    epoch: int | None
    leader: int | None
    wrong: bool
    """Whether a rule was broken, or the engine decided otherwise than when it was recorded."""


class Timeline:
    """Runs a replay, and makes its rows.

    Args:
        replay: the replay, which has not been run.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._core = replay.core
        self._began: float | None = None
        self._seen: dict[tuple[str, int], _Sight] = {}
        self._quiet: dict[tuple[str, int], int] = {}
        self._differences = self._violations = 0

    def rows(self) -> Iterator[Row]:
        """Run the replay, and yield its rows.

        Raises:
            FlightRecordError: as for `Replay.run`.
        """
        try:
            for step in self._replay.run():
                if self._began is None and step.now:
                    self._began = step.now
                yield from self._about(step)
        except FlightRecordError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may bring any of them about
            raise FlightRecordError(f"the flight record is damaged: {error!r:.200}") from None

    def _about(self, step: Step) -> Iterator[Row]:
        names = self._replay.record.partitions
        states = self._core.partitions
        for batch in step.sent:
            where = names[batch.partition] if batch.partition >= 0 else ("?", -1)
            if batch.attempts > 1:
                text = f"sent again (attempt {batch.attempts}): {_batch(batch)}"
                yield self._row(step, where, f"{text}, on connection {batch.link_id}")
            else:
                self._quiet[where] = self._quiet.get(where, 0) + 1
        for place, text in self._told(step):
            yield self._row(step, place, text)
        for line in step.lines:
            yield self._row(step, None, line)
        for where, state in states.items():
            if state.active or where in self._seen:
                changes = self._changes(where, state)
                if changes:
                    yield self._row(step, where, changes)
        replay = self._replay
        for found in replay.differences[self._differences :]:
            text = f"DIFFERENT: recorded {found.recorded}; replayed {found.replayed}"
            yield self._row(step, None, text, wrong=True)
        for broken in replay.violations[self._violations :]:
            yield self._row(step, None, f"RULE BROKEN: {broken.text}", wrong=True)
        self._differences, self._violations = len(replay.differences), len(replay.violations)

    def _told(self, step: Step) -> Iterator[tuple[tuple[str, int] | None, str]]:
        match step.event:
            case ("answer", _, ProduceAnswer() as answer, _):
                yield from self._refusals(answer)
            case ("open", link_id, version, _, _):
                yield None, f"connection {link_id} is open; the broker speaks Produce v{version}"
            case ("lost", link_id, error, _, unwritten):
                why = "the broker closed it" if error is None else str(error)
                left = f"; {len(unwritten)} requests were not written" if unwritten else ""
                yield None, f"connection {link_id} ended: {why}{left}"
            case ("failed", topic, partition, status, name, count, *_):
                records = "1 record" if count == 1 else f"{count} records"
                yield (topic, partition), f"{records} ended {status}: {name}"
            case ("undecodable", link_id, _, error, _):
                yield None, f"an answer on connection {link_id} cannot be decoded: {error}"
            case ("unsupported", request, error, _):
                yield None, f"{type(request).__name__} is not supported: {error}"
            case ("transaction", call, *_):
                yield None, f"transaction: {call}"
            case ("credentials",):
                yield None, "other SASL credentials are used for new connections"
            case ("fatal", error):
                yield None, f"the producer was ended: {error}"
            case ("crash", _, _, name):
                yield None, f"the engine raised {name}"
            case ("close", _):
                yield None, "the producer was closed"

    def _refusals(self, answer: ProduceAnswer) -> Iterator[tuple[tuple[str, int] | None, str]]:
        topics = self._core.cluster
        names = {view.topic_id: name for name, view in topics.topics.items()}
        for part in answer.partitions:
            if part.error_code:
                name = part.topic or names.get(part.topic_id, "?")
                yield (name, part.partition), f"refused: {_code(part.error_code)}"

    def _changes(self, where: tuple[str, int], state: PartitionState) -> str:
        sight = self._sight(where, state)
        before = self._seen.get(where)
        self._seen[where] = sight
        if before is None:
            return "first seen"
        changes: list[str] = []
        if sight.window != before.window:
            changes.append(f"window {before.window} -> {sight.window}")
        if sight.in_doubt != before.in_doubt:
            changes.append("batches are in doubt" if sight.in_doubt else "no doubt is left")
        if sight.epoch != before.epoch:
            changes.append(f"producer epoch {_or(before.epoch)} -> {_or(sight.epoch)}")
        if sight.leader != before.leader:
            changes.append(f"leader {_or(before.leader)} -> {_or(sight.leader)}")
        if sight.rung != before.rung:
            changes.append(f"recovery: {sight.rung}")
        return "; ".join(changes)

    def _sight(self, where: tuple[str, int], state: PartitionState) -> _Sight:
        cluster = self._core.cluster
        view, identity = cluster.leader_of(*where), state.ledger.identity
        return _Sight(
            state.window.limit,
            state.batches.in_doubt > 0,
            None if identity is None else identity.epoch,
            None if view is None or view.leader_id < 0 else view.leader_id,
            state.recovery.rung.value,
        )

    def _row(
        self, step: Step, where: tuple[str, int] | None, what: str, *, wrong: bool = False
    ) -> Row:
        at = 0.0 if self._began is None else max(0.0, step.now - self._began)
        state = None if where is None else self._core.partitions.get(where)
        if where is None or state is None:
            name = "" if where is None else f"{where[0]}-{where[1]}"
            return Row(step.number, at, name, what, 0, 0, 0, 0, None, None, wrong)
        sight = self._sight(where, state)
        quiet = self._quiet.pop(where, 0)
        numbers = sight.window, state.batches.span, state.batches.in_doubt
        return Row(
            step.number, at, state.where, what, quiet, *numbers, sight.epoch, sight.leader, wrong
        )


def _batch(batch: Any) -> str:
    last = batch.base + batch.records - 1
    who = "" if batch.identity is None else f" of epoch {batch.identity[1]}"
    return f"sequence {batch.base} to {last}{who}"


def _code(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error code {code}"


def _or(value: int | None) -> str:
    return "none" if value is None else str(value)
