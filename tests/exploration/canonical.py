"""The canonical form of a world: equal for two worlds from which the same things can follow.

`digest` walks everything that the engine holds, whatever it is: a field that the engine gains is
part of the form by itself. Only what the tables below name is left out or changed. So a mistake in
this file makes the exploration visit too many states, unless it is one of these lines.

Numbers of connections are replaced by their order of appearance, and points in time by what is left
until then. Times that are further away than `SOON` are not told apart: which of two such timers
fires first then depends on the path that was found first. Nothing here can invent a behaviour,
because each state that is explored was reached by a real run of the engine; it can only hide one.
"""

from __future__ import annotations

import enum
import hashlib
import marshal
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple
from uuid import UUID

from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore
from aioidem._engine.goodput import Goodput
from aioidem._engine.memory import ByteBudget
from aioidem._engine.retention import _Retry as Retry
from aioidem._engine.route import Route
from aioidem._engine.steps import SendProduce

from .coordinator import TransactionalLog
from .engine import Form
from .model import PartitionLog
from .space import Space
from .world import SOON, Pipe, World

__all__ = ["digest"]


def digest(world: World) -> bytes:
    """Return 16 bytes that two worlds share only if the same things can follow from them."""
    timed = world.space.timed
    engine = world.core.rest(lambda core: _described(core, world.now, timed=timed))
    walk = _Walk(world.now, timed=timed, links=engine.links)
    return _hashed((engine.digest, walk.form(world)))


def _described(core: ProducerCore, now: float, *, timed: bool) -> Form:
    """Describe an engine, alone."""
    walk = _Walk(now, timed=timed)
    digest = _hashed(walk.form(core))
    links = tuple(walk.links)
    return Form(digest, links, _hashed((digest, now, links, tuple(walk.names))))


def _hashed(form: Any) -> bytes:
    return hashlib.blake2b(marshal.dumps(form, 2), digest_size=16).digest()


class _Walk:
    """One walk through a world.

    Args:
        now: the time in that world, in seconds.
        timed: whether all times matter, also those that are far away.
        links: the numbers of the connections that were met before.
    """

    __slots__ = ("_met", "_now", "_timed", "links", "names")

    def __init__(self, now: float, *, timed: bool, links: tuple[int, ...] = ()) -> None:
        self._now = now
        self._timed = timed
        self._met: dict[int, int] = {}
        self.links = {number: place for place, number in enumerate(links)}
        # Numbers and points in time that the form leaves out, or replaces by another value. In two
        # engines with equal forms they have the same meaning, place by place.
        self.names: list[int | float | None] = []

    def form(self, thing: Any) -> Any:
        """Return plain values that describe a thing and everything that it refers to."""
        kind = thing.__class__
        if kind in _PLAIN:
            return thing
        walk = _WALKS.get(kind)
        if walk is None:
            walk = _WALKS[kind] = _walk_for(thing)
        return walk(self, thing)

    def item(self, thing: Any) -> Any:
        """Describe an object by its fields, or say which of those met already it is."""
        met = self._met
        place = met.get(id(thing))
        if place is not None:
            return place
        met[id(thing)] = -len(met) - 1
        plan = _plans[thing.__class__]
        values = plan.get(thing)
        form, plain = self.form, _PLAIN
        if plan.ways is None:
            return tuple([each if each.__class__ in plain else form(each) for each in values])
        pairs = zip(plan.ways, values, strict=True)
        return tuple([way(self, value) if way else form(value) for way, value in pairs])

    # -- containers

    def sequence(self, thing: Any) -> Any:
        form = self.form
        return tuple([form(each) for each in thing])

    def mapping(self, thing: dict[Any, Any]) -> Any:
        form = self.form
        return tuple([(form(key), form(value)) for key, value in thing.items()])

    def collection(self, thing: Any) -> Any:
        return tuple(sorted(map(repr, map(self.form, thing))))

    # -- fields that are described in a way of their own

    def time_left(self, at: float | None) -> float:
        """Describe a point in time: past, soon (then exactly), or far away."""
        if at is None:
            return -1.0
        left = at - self._now
        if left <= 0 or (left > SOON and not self._timed):
            self.names.append(at)
        return 0.0 if left <= 0 else left if left <= SOON or self._timed else 2 * SOON

    def since(self, at: float | None) -> float:
        """Describe how long ago something happened, where that matters."""
        if self._timed and at is not None:
            return self._now - at
        self.names.append(at)
        return -1.0

    def link(self, number: int | None) -> int:
        """Return the number of a connection in this form: the first one met has number 0."""
        if number is None:
            return -1
        return self.links.setdefault(number, len(self.links))

    def name(self, number: int) -> None:
        """Leave out a number that makes no difference but for the numbers that follow from it."""
        self.names.append(number)

    def by_link(self, thing: dict[int, Any]) -> Any:
        return tuple([(self.link(key), self.form(value)) for key, value in thing.items()])

    def sorted_items(self, thing: dict[Any, Any]) -> Any:
        return _plain(tuple(sorted(thing.items())))

    def batches(self, thing: set[Any]) -> Any:
        return tuple([self.form(each) for each in sorted(thing, key=_ORDINAL)])

    # -- classes that are described in a way of their own

    def route(self, thing: Route) -> Any:
        return (self.link(thing.link_id), thing.leader_id, thing.leader_epoch)

    def retry(self, thing: Retry) -> Any:
        return (self.link(thing.link), thing.distance)

    def requests(self, thing: OrderedDict[int, Any]) -> Any:
        """Describe the requests of a connection by their order; their tokens make no difference."""
        self.names += thing
        return tuple([self.form(value) for value in thing.values()])

    def pipe(self, thing: Pipe) -> Any:
        return (
            self.link(thing.link_id),
            thing.broker,
            thing.cluster,
            thing.open,
            tuple([_plain(request[1:]) for request in thing.requests]),
            self.form([entries for _, entries in thing.answers]),
            tuple(thing.told.items()),
        )

    def log(self, thing: PartitionLog) -> Any:
        return _plain(thing.state())


_Way = Callable[[_Walk, Any], Any]

# The fields that the canonical form leaves out, by class.
_LEFT_OUT = {
    # Nothing but messages and statistics depends on these.
    "Setbacks": "trouble _retry",  # every delay of a back-off is the same in a space
    "Batch": "attempts compression",
    "PartitionWindow": "max_span",
    "Node": "last_error down_since",
    "Discovery": "_told _finding reason",
    "BrokerMemory": "_told _backoff",
    "Counters": "batches_sent batches_retried batches_split bytes_acked",
    "Outcomes": "meters",
    "Effects": "meters",
    "ProduceRequests": "_meters",
    "IdentityLedger": "bumps",
    # When something happened, and how long it took.
    "Attempt": "sent_at",
    "Outstanding": "delivered_at_send token",
    "Link": "rtt goodput latencies",
    "PendingRecord": "queued_at",
    "HomeCluster": "_heard_at",
    "Recovery": "_pass_began",
    "MetadataRefresher": "refreshed_at requests _backoff",
    "TopicState": "described_by",
    "Transactions": "_backoff last_refusal",
    "IdentityRequest": "_backoff",
    # What the last poll left, and since when no broker can be reached.
    "RequestLedger": "_steps",
    "Connections": "reach",
    "ProducerCore": "wake_at config counters meters watch",
    # The parts of a world that do not decide what may follow.
    "World": "space complaints now ids_granted queued bytes core",
    "TransactionalWorld": "space complaints now ids_granted queued bytes core",
    "MigratingWorld": "space complaints now ids_granted queued bytes core",
}

# The names by which the engine's parts refer to one another. Each part is walked from the core.
_PARTS = (
    "_config _random _cluster _connections _metadata _partitions _outcomes _effects _requests"
    " _identity _inquiries _transactions _accumulator _links _budget _identity_request settle"
)

# The names of the fields that hold a point in time, whatever their class.
_TIMES = (
    "deadline retry_at pass_not_before throttled_until _next_at _not_before _until _again_at"
    " _told_at _ceiling_until"
)

_WAYS: dict[str, _Way] = {
    "Link.link_id": _Walk.link,
    "Attempt.link_id": _Walk.link,
    "Attempt.earlier_link": _Walk.link,
    "Connections.links": _Walk.by_link,
    "Connections._next_link_id": _Walk.name,
    "RequestLedger._next_token": _Walk.name,
    "RetentionEvidence._recognised": _Walk.by_link,
    "RetentionEvidence._refused": _Walk.by_link,
    "Recovery._probed": _Walk.batches,
    # Request timeouts, deadlines and the patience with a deposed leader are far from every delay,
    # so in most spaces these only matter to a broker that is silent, which is an action.
    "Batch.doubted_at": _Walk.since,
    "Outstanding.sent_at": _Walk.since,
    "Link.last_progress": _Walk.since,
    "Link.answered_at": _Walk.since,
    "FirstAckGate._heard_at": _Walk.since,
    "World.written": _Walk.sorted_items,
    "TransactionalWorld.written": _Walk.sorted_items,
    "MigratingWorld.written": _Walk.sorted_items,
}

_OPAQUE = (ProducerConfig, Space, Goodput, ByteBudget, SendProduce)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)
_PLAIN = frozenset({int, str, bytes, float, bool, type(None)})
_ORDINAL = attrgetter("ordinal")

_WALKS: dict[type, _Way] = {
    Route: _Walk.route,
    Retry: _Walk.retry,
    Pipe: _Walk.pipe,
    PartitionLog: _Walk.log,
    TransactionalLog: _Walk.log,
    OrderedDict: _Walk.requests,
    dict: _Walk.mapping,
    set: _Walk.collection,
    frozenset: _Walk.collection,
    list: _Walk.sequence,
    deque: _Walk.sequence,
    UUID: lambda _walk, thing: thing.bytes,
}


def _walk_for(thing: Any) -> _Way:
    """Return how the objects of a class are described that is met for the first time."""
    if isinstance(thing, (*_OPAQUE, *_FUNCTIONS)):
        return lambda _walk, _thing: None
    if isinstance(thing, enum.Enum):
        return lambda _walk, member: member.value
    if isinstance(thing, BaseException):
        return lambda _walk, error: type(error).__name__
    if isinstance(thing, tuple):
        return _Walk.sequence
    _plans[thing.__class__] = _Plan.of(thing)
    return _Walk.item


class _Plan(NamedTuple):
    """Which fields of the objects of one class are described, and how each of them is."""

    get: Callable[[Any], tuple[Any, ...]]
    ways: tuple[_Way | None, ...] | None
    """For each field its own way, or None; None in all if no field has a way of its own."""

    @classmethod
    def of(cls, thing: Any) -> _Plan:
        """Make the plan for the class of an object."""
        kind = type(thing).__name__
        left_out = set(_LEFT_OUT.get(kind, "").split())
        if kind != "ProducerCore":
            left_out.update(_PARTS.split())
        times = dict.fromkeys(_TIMES.split(), _Walk.time_left)
        names = [name for name in _fields_of(thing) if name not in left_out]
        ways = [_WAYS.get(f"{kind}.{name}", times.get(name)) for name in names]
        while len(names) < 2:  # a getter of one field would return no tuple
            names.append("__module__")
            ways.append(None)
        return cls(attrgetter(*names), tuple(ways) if any(ways) else None)


_plans: dict[type, _Plan] = {}


def _fields_of(thing: Any) -> list[str]:
    names: dict[str, None] = {}
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names.update(dict.fromkeys([slots] if isinstance(slots, str) else slots))
    names.update(dict.fromkeys(getattr(thing, "__dict__", ())))
    return list(names)


@lru_cache(maxsize=1 << 16)
def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a tuple with plain tuples in place of named ones, which `marshal` does not take."""
    return tuple([_plain(each) if isinstance(each, tuple) else each for each in values])
