"""Engine: a world's engine, which runs each call from each of its states only once.

Most of what happens in a world happens to the network and the brokers: many worlds share one state
of the engine, and the same calls follow from it. So a world does not hold a `ProducerCore`. It
holds an `EngineState`, and a call leads to another one: by running the engine, or because the same
call was made from that state before. The engine decides without I/O, from its state and the
arguments alone, so both have the same result.

A state is reached by calls. At the end of an action (`Engine.rest`) it is replaced by the state
that is like it and was met first, if there is one; otherwise a copy of the engine is kept. What is
like what is said by `canonical`.
"""

from __future__ import annotations

import enum
import io
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, steps
from aioidem._engine.meters import Meters
from aioidem._engine.record import PendingRecord
from aioidem._engine.transactions import TransactionState
from aioidem._records import record_size_bound
from aioidem.errors import KafkaConnectionError, ProtocolError
from aioidem.structs import DeliveryStatus

__all__ = ["Engine", "EngineState", "EngineStates", "Form", "Polled", "Sight"]

P = ParamSpec("P")
R = TypeVar("R")


def half() -> float:
    """Return the engine's random number, which is always the same."""
    return 0.5


class Form(NamedTuple):
    """What `canonical` says of an engine."""

    digest: bytes
    """Equal for two engines that do the same, apart from the numbers that they give to things."""
    links: tuple[int, ...]
    """The numbers of the engine's connections, in the order in which they were met."""
    mark: bytes
    """Equal for two engines that do the same, and give the same numbers to things."""


class Sight(NamedTuple):
    """What a world or its judge looks at in an engine."""

    wake_at: float | None
    metadata_wanted: bool
    topic_id: UUID | None
    leader_epochs: tuple[int | None, ...]
    """By partition: the leader epoch that the engine knows; None if it knows no leader."""
    losses: int
    """How many losses of data it reported."""
    transaction: TransactionState
    """What it does for the caller's transaction."""
    committed: bool | None
    """How the caller's transaction ended; None while it is open."""
    may_be_committed: bool
    """Whether the engine ended for good, and says that the transaction may be committed."""


class Polled(NamedTuple):
    """What a poll returned, and the outcomes that the engine had ready after it."""

    steps: tuple[steps.Step, ...]
    outcomes: tuple[tuple[str, int, tuple[int, ...]], ...]
    """Each a status, an offset or -1, and the numbers of records that follow each other there."""


class EngineState:
    """One state of the engine, and what followed from it so far.

    Args:
        before: the state before it; None for the first one.
        call: the call that led from there to here: a function, and its arguments but the first.
    """

    __slots__ = ("after", "before", "call", "form", "frozen", "rested", "sight", "used")

    def __init__(
        self,
        before: EngineState | None = None,
        call: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
    ) -> None:
        self.before = before
        self.call = call
        # By call: the state to which it leads, and what it returns.
        self.after: dict[Any, tuple[EngineState, Any]] = {}
        self.sight: Sight | None = None
        # The first state that was met of those like this one, once that is known. The others below
        # belong to that state.
        self.rested: EngineState | None = None
        self.form: Form | None = None
        self.frozen: bytes | None = None
        # When `EngineStates.touch` was called last.
        self.used = 0


class EngineStates:
    """All states of the engine that are known, and one real engine in one of them.

    Args:
        config: the engine's options.
        topic: the topic that `Sight` is about.
        partitions: how many partitions it has.
    """

    def __init__(self, config: ProducerConfig, topic: str, partitions: int) -> None:
        self._config = config
        self._topic = topic
        self._partitions = range(partitions)
        self._root = EngineState()
        self._live: tuple[EngineState, ProducerCore] | None = None
        self._by_mark: dict[bytes, EngineState] = {}
        self._freezer = _Freezer(config)
        self._era = 0

    def begin(self) -> Engine:
        """Return an engine in its first state."""
        return Engine(self, self._root)

    def at(self, mark: bytes) -> Engine | None:
        """Return an engine in the state that has a mark; None if there is none."""
        state = self._by_mark.get(mark)
        return None if state is None else Engine(self, state)

    def add(self, form: Form, frozen: bytes, sight: Sight) -> Engine:
        """Add a state that another process found, and return an engine in it."""
        state = EngineState()
        state.rested, state.form, state.frozen, state.sight = state, form, frozen, sight
        self.touch(state)
        return Engine(self, state)

    # -- what follows

    def run(
        self, state: EngineState, key: object, act: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[EngineState, Any]:
        """Make a call in a state, and note what it leads to."""
        core = self._core_of(state)
        self._live = None
        result = act(core, *args)
        after = EngineState(state, (act, args))
        self._live = after, core
        state.after[key] = after, result
        return after, result

    def sight(self, state: EngineState) -> Sight:
        """Look at an engine in a state."""
        if state.sight is None:
            core, topic = self._core_of(state), self._topic
            cause = core.transactions.cause
            known = [core.cluster.leader_of(topic, partition) for partition in self._partitions]
            state.sight = Sight(
                core.wake_at,
                core.metadata.wanted,
                None if topic not in core.cluster.topics else core.cluster.topics[topic].topic_id,
                tuple([None if each is None else each.leader_epoch for each in known]),
                core.counters.data_loss_events,
                core.transactions.state,
                core.transactions.outcome.committed,
                cause is not None and cause.status is DeliveryStatus.UNKNOWN,
            )
        return state.sight

    def rest(
        self, state: EngineState, describe: Callable[[ProducerCore], Form]
    ) -> tuple[EngineState, Form]:
        """Return the first state that was met of those that are like a state, and its form."""
        first = state.rested
        if first is None:
            core = self._core_of(state)
            form = describe(core)
            first = self._by_mark.get(form.mark, state)
            state.rested = first
            if first is state:
                self.sight(state)
                state.form, state.frozen = form, self._freezer.freeze(core)
                state.before = state.call = None
                self.touch(state)
        assert first.form is not None
        return first, first.form

    def _core_of(self, state: EngineState) -> ProducerCore:
        """Return a real engine in a state. A call to it must be noted by `run`."""
        if self._live is not None and self._live[0] is state:
            return self._live[1]
        calls = []
        at = state
        while at.frozen is None and at.before is not None:
            calls.append(at.call)
            at = at.before
        if at.frozen is None:
            core = ProducerCore(self._config, random=half)
        else:
            core = self._freezer.thaw(at.frozen)
        for call in reversed(calls):
            assert call is not None
            act, args = call
            act(core, *args)
        self._live = state, core
        return core

    # -- what is kept

    def touch(self, state: EngineState) -> None:
        """Keep a state until the era after the present one ends."""
        assert state.form is not None
        self._by_mark[state.form.mark] = state
        state.used = self._era

    def next_era(self) -> None:
        """Let the states go that were not touched in the era that ends."""
        for state in [each for each in self._by_mark.values() if each.used < self._era]:
            assert state.form is not None
            del self._by_mark[state.form.mark]
            for each in list(_until_rest(state)):
                each.after.clear()
                each.before = None
        self._era += 1

    def __len__(self) -> int:
        return len(self._by_mark)


def _until_rest(state: EngineState) -> Iterator[EngineState]:
    """Yield a state, and those that follow from it before the end of an action."""
    todo = [state]
    while todo:
        at = todo.pop()
        yield at
        todo.extend(each for each, _ in at.after.values() if each.frozen is None)


class Engine:
    """The engine of one world, with those methods of `ProducerCore` and its parts that worlds use.

    Args:
        states: what is known of the engine.
        state: the state that it is in.
    """

    __slots__ = ("state", "states")

    def __init__(self, states: EngineStates, state: EngineState) -> None:
        self.states = states
        self.state = state

    def copy(self) -> Engine:
        return Engine(self.states, self.state)

    def rest(self, describe: Callable[[ProducerCore], Form]) -> Form:
        """Go over to the first state that was met of those that are like this one."""
        self.state, form = self.states.rest(self.state, describe)
        return form

    @property
    def sight(self) -> Sight:
        """What can be seen of the engine."""
        return self.state.sight or self.states.sight(self.state)

    def do(
        self, act: Callable[Concatenate[ProducerCore, P], R], *args: P.args, **none: P.kwargs
    ) -> R:
        """Call a function with the engine; it may change the engine and nothing else.

        Args:
            act: the function. From one state it returns the same for the same arguments.
            args: its arguments but the first. They are plain values, which nobody changes.
            none: there are no arguments by name.
        """
        assert not none
        key: object = (act, args)
        try:
            known = self.state.after.get(key)
        except TypeError:  # there is a list among the arguments
            key = (act, pickle.dumps(args, 5))
            known = self.state.after.get(key)
        if known is None:
            known = self.states.run(self.state, key, act, args)
        self.state = known[0]
        result: R = known[1]
        return result

    # -- what worlds do with their engine

    def poll(self, now: float, wall_ms: float | None) -> Polled:
        """See `ProducerCore.poll`; also take the outcomes that are ready."""
        return self.do(_poll, now, wall_ms)

    def on_answer(self, step: steps.Request, answer: Any, now: float) -> ProtocolError | None:
        """See `ProducerCore.on_answer`."""
        # Two steps of different kinds are equal if they have equal values, as all named tuples.
        return self.do(_on_answer, type(step), step, answer, now)

    def on_link_open(self, link_id: int, version: int, now: float, level: int) -> None:
        """See `ProducerCore.on_link_open`; `level` is that of transactions."""
        self.do(_on_link_open, link_id, version, now, level)

    def on_link_cut(self, link_id: int, unwritten: tuple[int, ...], now: float) -> None:
        """See `ProducerCore.on_link_lost`; `unwritten` are tokens."""
        self.do(_on_link_cut, link_id, unwritten, now)

    def want_metadata(self) -> None:
        """Ask for metadata soon."""
        self.do(_want_metadata)

    def begin_transaction(self) -> None:
        """Begin a transaction, as a caller does."""
        self.do(_begin_transaction)

    def commit(self) -> None:
        """Ask for the commit of the transaction."""
        self.do(_commit)

    def abort(self) -> None:
        """Ask for the transaction to be aborted."""
        self.do(_abort)

    def hear_outcome(self) -> None:
        """Note that the caller knows how its transaction ended."""
        self.do(_hear_outcome)

    def ask_for(self, topic: str) -> None:
        """Learn of a topic."""
        self.do(_ask_for, topic)

    def queue(self, topic: str, partition: int, value: bytes, stamp_ms: int, now: float) -> None:
        """Queue a record for a partition, as a caller does."""
        self.do(_queue, topic, partition, value, stamp_ms, now)

    def jump(self, topic: str, partition: int, sequence: int) -> None:
        """Let a partition's next sequence be another one, as if all before it had been used."""
        self.do(_jump, topic, partition, sequence)


def _poll(core: ProducerCore, now: float, wall_ms: float | None) -> Polled:
    todo = tuple(core.poll(now, wall_ms))
    if core.wake_at is not None and core.wake_at > now:
        # A poll may keep an earlier time than the exact one, which depends on the polls before it:
        # two engines that do the same would then be woken at different times. The tests of the
        # engine and the simulation judge the time that is kept.
        core.wake_at = core._next_wake(core._partitions.active(), now)  # noqa: SLF001
    settled = [
        (
            each.outcome.status.value,
            each.outcome.base_offset,
            tuple([int(record.value or b"") for record in each.records]),
        )
        for each in core.outcomes.take_settled()
    ]
    core.outcomes.take_events()
    return Polled(todo, tuple(settled))


def _on_answer(
    core: ProducerCore, _kind: type[steps.Request], step: steps.Request, answer: Any, now: float
) -> ProtocolError | None:
    return core.on_answer(step, answer, now)


def _on_link_open(core: ProducerCore, link_id: int, version: int, now: float, level: int) -> None:
    core.on_link_open(link_id, version, now, level)


def _on_link_cut(core: ProducerCore, link_id: int, unwritten: tuple[int, ...], now: float) -> None:
    core.on_link_lost(link_id, KafkaConnectionError("cut"), now, unwritten)


def _want_metadata(core: ProducerCore) -> None:
    core.metadata.want()


def _begin_transaction(core: ProducerCore) -> None:
    core.coordination.begin()


def _commit(core: ProducerCore) -> None:
    core.coordination.commit()


def _abort(core: ProducerCore) -> None:
    core.coordination.abort()


def _hear_outcome(core: ProducerCore) -> None:
    core.transactions.outcome.told = True


def _ask_for(core: ProducerCore, topic: str) -> None:
    core.accumulator.topic(topic)


def _queue(
    core: ProducerCore, topic: str, partition: int, value: bytes, stamp_ms: int, now: float
) -> None:
    size = record_size_bound(None, value, ())
    record = PendingRecord(None, value, (), stamp_ms, partition, size)
    assert core.budget.try_take(record.charge())
    core.accumulator.append(topic, record, now)


def _jump(core: ProducerCore, topic: str, partition: int, sequence: int) -> None:
    core.partitions[topic, partition].ledger.next = sequence


class _Freezer:
    """Makes copies of engines, which share their options.

    Args:
        config: the options.
    """

    def __init__(self, config: ProducerConfig) -> None:
        _share(config)

    def freeze(self, core: ProducerCore) -> bytes:
        """Return a copy of an engine as bytes; about 1 kB."""
        stream = io.BytesIO()
        _Pickler(stream, 5).dump(core)
        return zlib.compress(stream.getvalue(), 1)

    def thaw(self, frozen: bytes) -> ProducerCore:
        """Return a new copy of the engine that was frozen."""
        core = pickle.loads(zlib.decompress(frozen))  # noqa: S301 - made by `freeze`
        assert isinstance(core, ProducerCore)
        return core


class _Pickler(pickle.Pickler):
    """Writes a number for each shared object; by name they would take most of the time."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Meters:
            return Meters, ()  # nothing depends on what an engine has counted
        return _numbers.get(id(thing), NotImplemented)


# The objects that all copies share, and by the identity of each of them how a pickle refers to it.
_shared: list[Any] = []
_numbers: dict[int, tuple[Callable[[int], Any], tuple[int]]] = {}


def _shared_at(number: int) -> Any:
    return _shared[number]


def _share(thing: Any) -> None:
    if id(thing) not in _numbers:
        _numbers[id(thing)] = _shared_at, (len(_shared),)
        _shared.append(thing)


def _share_classes() -> None:
    """Share the engine's classes, and the members of its enumerations.

    This happens once, when this module is imported: processes that share a search then have the
    same numbers.
    """
    for name in sorted(each for each in sys.modules if each.startswith("aioidem.")):
        for _, thing in sorted(vars(sys.modules[name]).items()):
            if isinstance(thing, type) and thing.__module__ == name:
                _share(thing)
                if issubclass(thing, enum.Enum):
                    for member in thing:
                        _share(member)


_share_classes()
