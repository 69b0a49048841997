"""What happens around an operator's watch: to brokers, partitions, callers and records.

A `Stage` has the parts of the engine that an `OperatorWatch` looks at. Connections, the buffer and
outcomes are the engine's own; partitions are stand-ins. Whatever happens to them is noted in the
rows of a `Situation`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Final, TypeAlias, cast

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.cluster import ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.incidents import Event
from aioidem._engine.links import Link
from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.overdue import Trouble
from aioidem._engine.partitions import Partitions
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.route import Route
from aioidem._engine.watch import OperatorWatch
from aioidem._log import LogLine
from aioidem._protocol.metadata import BrokerAddress

from .conditions import Broker, Caller, Partition, Situation
from .reported import ToldTransactions

__all__ = ["Stage"]

_Acts: TypeAlias = "list[Callable[[], None]]"

_CAPACITY: Final = 100
"""The bytes of the buffer, all of which are taken at first."""
_SIZE: Final = 10
"""The bytes of a record."""
_NODES: Final = (-1, -2, 0, 1, 2)
"""The bootstrap servers and the brokers, to which connections are tried."""
_CONFIG: Final = ProducerConfig.build(["b1:9092", "b2:9092"])
_ERRORS: Final[tuple[Exception | None, ...]] = (
    *(None, OSError("no route"), errors.KafkaConnectionError("lost")),
    *(errors.SaslAuthenticationFailed("wrong password"), errors.BrokerNotAllowedError("a proxy")),
    errors.SslAuthenticationError("unknown authority"),
)


class Stage:
    """The parts that a watch looks at, and the rows of what has happened to them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.now = dice.choice((0.0, 5000.0))
        self.rows = Situation(
            {number: Broker(number) for number in _NODES},
            [Partition(number, dice.choice((0, 1, 2))) for number in range(3)],
        )
        # How many records have got each outcome: acknowledged, not written, unknown.
        self.ended = [0, 0, 0]
        self.events: list[Event] = []
        self.records = SimpleNamespace(unsettled=0, first_queued_at=0.0)
        self._connections = Connections(_CONFIG, lambda: 0.5)
        self._connections.learn([BrokerAddress(n, f"h{n}", 9092) for n in _NODES if n >= 0])
        self._budget = ByteBudget(_CAPACITY)
        self._budget.try_take(_CAPACITY)
        self._waiters: dict[Caller, MemoryWaiter] = {}
        self._outcomes = Outcomes(self._budget, ToldTransactions())
        self._busy: list[SimpleNamespace] = []
        partitions = SimpleNamespace(
            busy=self._busy,
            leader_status=lambda state, now: f"status of {state.where} at {now}",
            obstacle=self._hindrance,
        )
        self.watch = OperatorWatch(
            cast(ClusterView, SimpleNamespace(leader_of=self._leader_of)),
            self._connections,
            cast(Partitions, partitions),
            self._budget,
            self._outcomes,
            cast(RecordAccumulator, self.records),
        )

    def _leader_of(self, _topic: str, partition: int) -> SimpleNamespace | None:
        leader = self.rows.partitions[partition].leader
        return None if leader is None else SimpleNamespace(leader_id=leader)

    def _hindrance(self, _now: float) -> errors.KafkaError | None:
        why = self.rows.hindrance
        return None if why is None else errors.KafkaError(why)

    def acts(self) -> tuple[_Acts, _Acts]:
        """Return all that may happen, and what is to happen most often."""
        themes: list[_Acts] = [
            [self._fail, self._fail, self._open, self._lose, self._throttle, self._throttle],
            [self._lead, self._lead, self._lead, self._doubt, self._fail, self._open],
            [self._wait, self._wait, self._leave, self._grant, self._hinder],
            [self._refuse, self._refuse, self._refuse, self._queue, self._settle, self._hinder],
            [self._queue, self._settle, self._settle, self._happen],
        ]
        often = self._dice.choice(themes)
        if self._dice.random() < 0.4:
            return often, often
        every = [each for theme in themes for each in theme]
        return every, often

    # -- what happens to brokers

    def _broker(self, *, up: bool) -> tuple[Broker, Link] | None:
        """Return some broker that is up, or not, and the connection to it, begun if need be."""
        some = [each for each in self.rows.brokers.values() if each.up is up]
        if not some:
            return None
        broker = self._dice.choice(some)
        node = self._connections.nodes[broker.number]
        node.retry_at = 0.0
        self._connections.to(broker.number, self.now, [])
        return None if node.link is None else (broker, node.link)

    def _open(self) -> None:
        if (found := self._broker(up=False)) is None:
            return
        broker, link = found
        self._connections.opened(link, 13, self.now)
        broker.up, broker.down_since = True, None
        broker.throttled.clear()
        self.rows.connected.append(broker)
        self.rows.vain.clear()
        if self._dice.random() < 0.5:
            self._connections.identified(link, None, at_home=True)
            broker.failures, broker.error = 0, None

    def _fail(self) -> None:
        if (found := self._broker(up=False)) is not None:
            self._end(*found, self._dice.choice(_ERRORS))

    def _lose(self) -> None:
        if (found := self._broker(up=True)) is None:
            return
        broker, link = found
        error = self._dice.choice(_ERRORS)
        broker.up = False
        self.rows.connected.remove(broker)
        if error is None:  # it was idle
            self._connections.drop(link, None, self.now)
        else:
            self._end(broker, link, error)

    def _end(self, broker: Broker, link: Link, error: Exception | None) -> None:
        self._connections.drop(link, error, self.now)
        broker.error = error
        broker.failures += 1
        if broker.down_since is None:
            broker.down_since = self.now
        if not self.rows.connected:
            self.rows.vain.append(self.now)

    def _throttle(self) -> None:
        if (found := self._broker(up=True)) is not None:
            broker, link = found
            seconds = self._dice.choice((0.0, 0.5, 4.0, 30.5))
            link.throttle(int(seconds * 1000), self.now)
            broker.throttled.append((self.now, seconds))

    # -- what happens to partitions

    def _lead(self) -> None:
        dice, each = self._dice, self._dice.choice(self.rows.partitions)
        each.leader = dice.choice((0, 1, 2, None, -1, -1))
        each.last_leader = dice.choice((None, 0, 1, 1, 2))
        each.waits = dice.random() < 0.8
        if dice.random() < 0.7:
            each.leaderless_since = dice.choice((None, self.now, self.now - 0.75))
        if dice.random() < 0.5:
            each.failures.append(f"failure {len(each.failures)}")

    def _doubt(self) -> None:
        each = self._dice.choice(self.rows.partitions)
        each.doubted_since = self._dice.choice((None, self.now, self.now - 0.75))
        each.in_doubt = self._dice.randrange(1, 4)

    def show(self) -> None:
        """Let the watch see the partitions as they are."""
        self._busy.clear()
        for each in self.rows.partitions:
            trouble = None
            if each.failures or each.leaderless_since is not None:
                trouble = Trouble(0.0)
                trouble.leaderless_since = each.leaderless_since
                for failure in each.failures:
                    trouble.add(failure)
            last = each.last_leader
            self._busy.append(
                SimpleNamespace(
                    topic="t",
                    partition=each.number,
                    where=each.where,
                    active=each.waits,
                    batches=SimpleNamespace(
                        in_doubt=each.in_doubt, doubted_since=each.doubted_since
                    ),
                    setbacks=SimpleNamespace(trouble=trouble),
                    leadership=SimpleNamespace(route=None if last is None else Route(1, last, 1)),
                    deadlines=SimpleNamespace(obstacle=_obstacle),
                )
            )

    # -- what happens to callers and records

    def _wait(self) -> None:
        caller = Caller()
        self._waiters[caller] = self._budget.wait(_SIZE, lambda: None)
        self.rows.callers.append(caller)

    def _leave(self) -> None:
        waiting = [each for each in self.rows.callers if not each.granted]
        if waiting:
            caller = self._dice.choice(waiting)
            self.rows.callers.remove(caller)
            self._budget.abandon(self._waiters[caller])

    def _grant(self) -> None:
        """Give room to the first caller, or let it use the room that it has."""
        first = self.rows.callers[0] if self.rows.callers else None
        if first is None:
            return
        if not first.granted:
            self._budget.release(_SIZE)
            first.granted = True
        else:
            self.rows.callers.remove(first)
            self._budget.claim(self._waiters[first])

    def _hinder(self) -> None:
        self.rows.hindrance = self._dice.choice((None, "t-1: no leader", "t-2: refused"))

    def _refuse(self) -> None:
        """Refuse a record, because there is no room for it."""
        self.watch.no_room(self.now)
        self.rows.refused.append((self.now, self.rows.queued))

    def _queue(self) -> None:
        if self._dice.random() < 0.5:
            return
        if not self.records.unsettled:
            self.records.first_queued_at = self.now
        self.records.unsettled += 1
        self.rows.queued += 1

    def _settle(self) -> None:
        """Let some records get an outcome."""
        while self.records.unsettled and self._dice.random() < 0.8:
            self.records.unsettled -= 1
            self._outcomes.settled += 1
            self.ended[self._dice.randrange(3)] += 1
        counters = self._outcomes.counters
        counters.records_acked, counters.records_not_written, counters.records_unknown = self.ended

    def _happen(self) -> None:
        """Let an event happen that is a line by itself."""
        event = Event(self._dice.choice((LogLine.EPOCH_BUMPED, LogLine.DATA_LOSS)), "it happened")
        self._outcomes.add_event(event)
        self.events.append(event)


def _obstacle(status: str, now: float) -> str:
    return f"waits at {now} with {status}"
