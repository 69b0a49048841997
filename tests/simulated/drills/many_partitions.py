"""The drill of a producer's partitions: which have something to do, and what ends all of them.

A run has few partitions; their topics are recreated, or they lose their producer id, once or twice.
Here that happens in any order. The model keeps lists of the partitions that are live (the producer
may send to them), busy (they have something to do) and retired (their topic was deleted, and an
answer is still owed), and derives from them what calls wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.sticky_target import StickyTarget
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus

from .comparing import unequal
from .leaders import KEYS, TOPIC_IDS, Leaders, due_obstacle, parts_of
from .partition_lives import (
    CONFIGS,
    RANGE,
    is_over,
    progress,
    queue_record,
    untold,
    wrong_options,
)
from .quiet_effects import QuietEffects
from .shared_ids import SharedId

__all__ = ["drill_many_partitions"]

_STEPS: Final = 60


def drill_many_partitions(dice: Random) -> Iterator[str]:
    """Yield what is done with, or told of, a producer's partitions against the rules."""
    for wrong in _ManyDrill(dice).run():
        yield f"partitions: {wrong}"
        return


class _ManyDrill:
    """The partitions of a producer, and lists of those that are live, busy and retired."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._config = dice.choice(CONFIGS)
        self._told = QuietEffects()
        self._leaders = Leaders(dice, self._config, self._told)
        self._partitions = Partitions(
            self._config, lambda: 0.5, self._leaders.view, self._leaders.connections, self._told
        )
        self._live: list[PartitionState] = []
        self._busy: list[PartitionState] = []
        self._retired: list[PartitionState] = []
        self._ever: list[PartitionState] = []
        self._cap = RANGE if self._config.broker_dedup == "range" else None
        # How many transactions have begun, and whether first-ack gates apply in the present one.
        self._transactions, self._gated = 0, True
        # How many had begun when each partition was last busy.
        self._begun_in: dict[PartitionState, int] = {}

    def run(self) -> Iterator[str]:
        """Let things happen to the partitions, and yield what is wrong."""
        now = 100.0
        for _ in range(_STEPS):
            now += self._dice.choice((0.0, 0.5, 1.0, 4.5))
            for wrong in (self._act(now), *self._differences(now)):
                if wrong is not None:
                    yield wrong
                    return

    def _act(self, now: float) -> str | None:
        dice, key = self._dice, self._dice.choice(KEYS)
        match dice.randrange(18):
            case 0 | 1 | 2:
                return self._use(key, now)
            case 3 | 4 | 5 if self._busy:
                states = [*self._busy, *self._retired, *self._retired]
                progress(dice, dice.choice(states), self._leaders, now)
            case 6:
                self._leaders.change(key)
            case 7:
                self._leaders.connect(dice.choice((1, 2)), now)
            case 8 if self._busy:
                state = dice.choice(self._busy)
                self._partitions.served(state)
                self._busy.remove(state)
                self._busy.append(state)
            case 9:
                return self._look()
            case 10:
                return self._begin_transaction()
            case 11 | 12:
                return self._expire(now)
            case 13:
                return self._end_all()
            case 14 | 15 if self._live:
                return self._retire(dice.choice(self._live))
            case _:
                return self._learn(key, now)
        return None

    # -- what one partition does

    def _use(self, key: tuple[str, int], now: float) -> str | None:
        """Queue a record on a partition, which may be a new one."""
        held = [state for state in self._live if (state.topic, state.partition) == key]
        state = self._partitions.state(*key)
        if held and state is not held[0]:
            return f"{key} has another state, {state}, than before: {held[0]}"
        wrong = None if held else self._made(state)
        trouble = state.setbacks.trouble
        self._partitions.wake(state)
        if state not in self._busy:
            self._busy.append(state)
            wrong = wrong or self._woken(state)
        elif state.setbacks.trouble is not trouble:
            wrong = f"{state} was busy, and has forgotten the failures before"
        queue_record(state, now)
        return wrong

    def _made(self, state: PartitionState) -> str | None:
        """Note a new state; return what is wrong with it."""
        config, view = self._config, self._leaders.view.topics.get(state.topic)
        due_id = None if view is None else TOPIC_IDS[state.topic]
        told = state.idempotent, state.topic_id, state.window.sequence_cap
        due = config.enable_idempotence, due_id, self._cap
        if told != due:
            return f"{state} is made with (idempotent, topic id, cap) {told}, not {due}"
        if state in self._ever:
            return f"{state} is an old state, not a new one"
        self._live.append(state)
        self._ever.append(state)
        number = self._dice.choice((None, 7, 8))
        state.ledger.identity = None if number is None else ProducerIdentity(number, 0)
        return wrong_options(state, config)

    def _woken(self, state: PartitionState) -> str | None:
        """Return what is wrong with a partition that has something to do again."""
        if state.setbacks.trouble is not None:
            return f"{state} had nothing to do, and still knows failures: {state.setbacks.trouble}"
        return self._begun(state)

    def _begun(self, state: PartitionState) -> str | None:
        """Return how a partition's gate is wrong, after the begin of a transaction."""
        if self._begun_in.get(state, 0) == self._transactions:
            return None
        self._begun_in[state] = self._transactions
        ranged = state.window.sequence_cap is not None
        due = self._config.enable_idempotence and (self._gated or ranged), None
        told = state.gate.applies, state.gate.opened_for
        fits = told == due
        return None if fits else f"the gate of {state} (applies, open for) is {told}, not {due}"

    # -- what all partitions do

    def _look(self) -> str | None:
        """Let it be looked which partitions have something to do; only those stay busy."""
        self._busy = [state for state in self._busy if state.active]
        told = self._partitions.active()
        return None if told == self._busy else f"{told} are active, not {self._busy}"

    def _begin_transaction(self) -> str | None:
        self._gated = self._dice.random() < 0.5
        self._transactions += 1
        self._partitions.begin_transaction(gated=self._gated)
        wrong = [self._begun(state) for state in self._busy]
        return next((each for each in wrong if each is not None), None)

    def _expire(self, now: float) -> str | None:
        """Let expire what is past its deadline; retired partitions without a batch are dropped."""
        states = [*self._busy, *self._retired]
        due = {}
        for state in states:
            link = self._leaders.link_of(state)
            answered = None if link is None else link.answered_at
            queued = sum(record.deadline > now for record in state.queue.records)
            batches = state.batches.unresolved
            due[state] = queued, [each for each in batches if not is_over(each, now, answered)]
        self._told.settlements.clear()
        obstacles = {
            state.where: state.deadlines.obstacle(self._leaders.status(state, now), now)
            for state in self._busy
        }
        self._partitions.expire(now)
        for state, left in due.items():
            told = len(state.queue.records), state.batches.unresolved
            if told != left:
                return f"{state} has (records, batches) {told} left at {now}, not {left}"
        self._retired = [state for state in self._retired if state.active]
        return untold(self._told.settlements, obstacles)

    def _end_all(self) -> str | None:
        """End or flush everything, or end what an aborted transaction must not write."""
        states, error = [*self._busy, *self._retired], KafkaError("ended")
        before = {state: list(state.batches.unresolved) for state in states}
        in_flight = {s: [b for b in each if not b.due] for s, each in before.items()}
        sent = {s: [b for b in each if b.in_doubt or not b.due] for s, each in before.items()}
        due: dict[PartitionState, list[Batch]] = {state: [] for state in states}
        match self._dice.randrange(8):
            case 0 | 1 | 2:
                self._partitions.abort(error, DeliveryStatus.UNKNOWN)
                due = in_flight
            case 3 | 4:
                self._partitions.abort(error, None)
                due = sent
            case 5:
                self._partitions.abandon(error)
            case 6:
                self._aim()
                self._partitions.forget_cluster(error)
                self._live, self._busy, self._retired = [], [], []
                if self._partitions.targets:
                    return f"targets of the old cluster are left: {[*self._partitions.targets]}"
            case _:
                self._partitions.flush()
                pairs = {
                    f"{state} is flushed": (state.queue.flushing, bool(state.queue.records))
                    for state in self._busy
                }
                return unequal(pairs)
        for state, batches in due.items():
            queued = len(state.queue.records)
            if queued or state.batches.unresolved != batches:
                left = state.batches.unresolved
                return f"{state} has {queued} records and {left} left, not 0 and {batches}"
        return None

    def _aim(self) -> None:
        """Have records without a key go to some partition of each topic."""
        for state in self._live:
            sticky = StickyPartitioner(100, lambda: 0.5)
            self._partitions.targets[state.topic] = StickyTarget(state, sticky)

    def _retire(self, old: PartitionState) -> str | None:
        """Delete a partition's topic, and perhaps recreate it."""
        self._aim()
        self._partitions.retire(old, KafkaError("deleted"))
        self._live.remove(old)
        self._busy = [state for state in self._busy if state is not old]
        if old.batches.outstanding:
            self._retired.append(old)
        targets = [*self._partitions.targets]
        if old.unsettled or targets:
            return f"{old} was retired, and has {old.unsettled} records; targets: {targets}"
        if self._dice.random() < 0.5:
            return None
        fresh = self._partitions.succeed(old)
        self._busy.append(fresh)
        return self._made(fresh) or self._woken(fresh)

    def _learn(self, key: tuple[str, int], now: float) -> str | None:
        """Learn something about the cluster or the producer."""
        dice, told = self._dice, self._told
        match dice.randrange(8):
            case 0:
                self._cap = dice.choice((7, 8))
                self._partitions.limit_span(self._cap)
                caps = {state.window.sequence_cap for state in self._live}
                if caps - {self._cap}:
                    return f"live partitions have caps of {caps} sequences, not {self._cap}"
            case 1:
                self._cap = RANGE if self._config.broker_dedup == "range" else None
                self._partitions.assume_sequence_range()
            case 2:
                told.lacking ^= {key}
                told.refused = dice.choice((None, KafkaError("loading")))
            case 3 if dice.random() < 0.3:
                self._leaders.connections.reach.failed(now)
            case 3:
                self._leaders.connections.reach.up()
            case 4 | 5 if self._live:
                state = dice.choice(self._live)
                state.ledger.identity = ProducerIdentity(dice.choice((7, 8)), 0)
            case _ if self._live:
                return self._disown(dice.choice(self._live))
            case _:
                pass
        return None

    def _disown(self, state: PartitionState) -> str | None:
        """Let an answer show that another client uses a partition's producer id."""
        shared = SharedId(self._dice, state, self._ever)
        told = self._partitions.disown(state, shared.error, shared.identity)
        return shared.wrong(told, [*self._live, *self._retired])

    # -- what is told

    def _differences(self, now: float) -> Iterator[str | None]:
        """Yield how what is told of the partitions differs from the model."""
        told, leaders = self._partitions, self._leaders
        unfinished = [*self._busy, *self._retired]
        topic = self._dice.choice(("t", "u"))
        pairs: dict[str, tuple[object, object]] = {
            "live and retired": (list(told), [*self._live, *self._retired]),
            "busy": (list(told.busy), self._busy),
            "retired": (told.retired, self._retired),
            "nothing is owed": (
                told.quiet,
                not any(state.batches.outstanding for state in unfinished),
            ),
            "of a topic": (told.of(topic), [each for each in self._live if each.topic == topic]),
            "what calls wait for": (
                parts_of(told.obstacle(now)),
                due_obstacle(self._busy, leaders, now),
            ),
        }
        if self._ever:
            state = self._dice.choice(self._ever[-4:])
            pairs[f"{state} is live"] = told.holds(state), state in self._live
            pairs[f"link of {state}"] = told.link_of(state), leaders.link_of(state)
            pairs[f"leader of {state}"] = told.leader_status(state, now), leaders.status(state, now)
        yield unequal(pairs)
