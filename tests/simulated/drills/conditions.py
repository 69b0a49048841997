"""What an operator should know of a producer: since when, of how many, and in which words.

The state of brokers, partitions and callers is kept here in plain rows. What holds is derived from
the rows each time that somebody asks. The words of a condition are those that its line must have:
which broker, which partition, how many, for how long, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aioidem import errors
from aioidem._engine.incidents import Condition
from aioidem._log import LogLine

__all__ = ["AND", "Broker", "Caller", "Partition", "Situation"]

AND: Final = " & "
"""What joins the words that a line must have; the line begins with the first of them."""
_NOBODY: Final = (None, -1)
"""The leader of a partition that is not known, or that has none."""
_REFUSES: Final = (errors.AuthenticationFailedError, errors.BrokerNotAllowedError)
_LONG: Final = 1.0
"""For so many seconds there must be no room before the buffer counts as full."""
_TOGETHER: Final = 2.0
"""At most so many seconds lie between two calls without room that belong to one condition."""
_LATELY: Final = 1.0
"""For so many seconds after its delay a broker still counts as throttling."""


@dataclass
class Broker:
    """A broker, or a bootstrap server, and the connection to it."""

    number: int
    up: bool = False
    down_since: float | None = None
    error: Exception | None = None
    failures: int = 0
    """How often it was not reached in a row, until it was known to be the right one."""
    throttled: list[tuple[float, float]] = field(default_factory=list)
    """When it told this client to wait, and for how many seconds, on the present connection."""

    @property
    def name(self) -> str:
        """What the broker is called in a line."""
        if self.number < 0:
            return f"a bootstrap server (b{-self.number}:9092)"
        return f"broker {self.number} (h{self.number}:9092)"

    @property
    def why(self) -> str:
        """Why it is not reached."""
        return "the connection was closed" if self.error is None else str(self.error.args[0])

    def delays(self, now: float) -> float:
        """Return for how many seconds it has delayed this client lately; 0 if it has not."""
        until = max((at + seconds for at, seconds in self.throttled), default=0.0)
        return self.throttled[-1][1] if self.throttled and now < until + _LATELY else 0.0


@dataclass
class Partition:
    """A partition with records, batches, or both."""

    number: int
    leader: int | None
    waits: bool = True
    """Whether it has waiting records."""
    last_leader: int | None = None
    """The broker to which its records went last."""
    leaderless_since: float | None = None
    failures: list[str] = field(default_factory=list)
    """Why its attempts failed since its last acknowledgement, oldest first."""
    doubted_since: float | None = None
    in_doubt: int = 1
    """How many batches are in doubt while `doubted_since` is set."""

    @property
    def where(self) -> str:
        """What the partition is called in a line."""
        return f"t-{self.number}"

    def obstacle(self, now: float) -> str:
        """Return what its records wait for, as its other parts say."""
        return f"waits at {now} with status of {self.where} at {now}"


@dataclass(eq=False)
class Caller:
    """A caller that waits for room; `granted` is whether it has it, and has not used it yet."""

    granted: bool = False


@dataclass
class Situation:
    """All that an operator may have to be told: the rows, and what holds by them."""

    brokers: dict[int, Broker]
    partitions: list[Partition]
    connected: list[Broker] = field(default_factory=list)
    """Those with a connection, in the order in which the connections were begun."""
    vain: list[float] = field(default_factory=list)
    """When connections failed, or were lost, that left none, since one was last opened."""
    callers: list[Caller] = field(default_factory=list)
    """Those that wait for room, by turn."""
    refused: list[tuple[float, int]] = field(default_factory=list)
    """When calls found no room and did not wait, and how many records were ever queued then."""
    queued: int = 0
    """How many records were ever queued."""
    hindrance: str | None = None
    """Why the records that have waited longest wait, if something hinders them."""
    looks: list[tuple[float, Caller | None]] = field(default_factory=list)
    """When somebody looked, and which caller had then waited for longest."""

    def holds(self, now: float, *, told: bool) -> dict[LogLine, Condition]:
        """Return what holds now.

        Args:
            now: Seconds.
            told: Whether it was told, and goes on, that leaders cannot be reached.
        """
        self.looks.append((now, next((each for each in self.callers if not each.granted), None)))
        needed = self._needed(told=told)
        found = {
            LogLine.AUTHENTICATION: self._refusals(needed),
            LogLine.NO_BROKER: self._no_broker(now),
            LogLine.LEADER_MISSING: self._leaderless(now),
            LogLine.LEADER_UNREACHABLE: self._unreachable(needed, now),
            LogLine.THROTTLED: self._throttled(now),
            LogLine.IN_DOUBT: self._doubtful(now),
            LogLine.BUFFER_FULL: self._waiting(now) or self._no_room(now),
        }
        return {line: condition for line, condition in found.items() if condition is not None}

    # -- brokers

    def _needed(self, *, told: bool) -> list[tuple[Broker, Partition]]:
        """Return the partitions whose records wait for a broker that is not reached."""
        pairs: list[tuple[Broker, Partition]] = []
        for each in self.partitions:
            leader = each.leader
            if told and leader in _NOBODY:
                leader = each.last_leader  # it is why there is none
            if each.waits and leader is not None and leader >= 0:
                broker = self.brokers[leader]
                pairs += [] if broker.down_since is None else [(broker, each)]
        return pairs

    def _refusals(self, needed: list[tuple[Broker, Partition]]) -> Condition | None:
        asked = list(self.brokers.values()) if self.vain else _each_once(needed)
        refusing = [b for b in asked if b.down_since is not None and isinstance(b.error, _REFUSES)]
        if not refusing:
            return None
        names, error = _names(refusing), str(refusing[0].error)
        answered = isinstance(refusing[0].error, errors.BrokerResponseError)
        words = f"{names} refuses this client" if answered else f"no session with {names}"
        return _condition(_since(refusing), len(refusing), words, error)

    def _no_broker(self, now: float) -> Condition | None:
        if not self.vain:
            return None
        since, attempts = self.vain[0], len(self.vain)
        words = f"for {now - since:.1f} s and {_number(attempts, 'attempt')}:"
        return _condition(since, attempts, "no broker can be reached", words)

    def _unreachable(self, needed: list[tuple[Broker, Partition]], now: float) -> Condition | None:
        if not needed:
            return None
        brokers = _each_once(needed)
        since, first = _since(brokers), brokers[0]
        places = _places([each for _, each in needed])
        attempts = _number(first.failures, "attempt")
        return _condition(
            *(since, len(needed), _names(brokers)),
            *(
                f"{places} with waiting records",
                f"for {now - since:.1f} s and {attempts}: {first.why}",
            ),
        )

    def _throttled(self, now: float) -> Condition | None:
        slow = [broker for broker in self.connected if broker.delays(now)]
        if not slow:
            return None
        longest = max(broker.delays(now) for broker in slow)
        return _condition(None, len(slow), _names(slow), "quota", f"up to {longest:.1f} s")

    # -- partitions

    def _leaderless(self, now: float) -> Condition | None:
        found = [
            (each.leaderless_since, each)
            for each in self.partitions
            if each.leaderless_since is not None and each.waits and each.leader in _NOBODY
        ]
        if not found:
            return None
        since, first = min(found, key=lambda pair: pair[0])
        named = _places([first, *(each for _, each in found if each is not first)])
        words = f"{named} with waiting records", first.obstacle(now)
        return _condition(since, len(found), *words, *_last(first))

    def _doubtful(self, now: float) -> Condition | None:
        found = [
            (each.doubted_since, each) for each in self.partitions if each.doubted_since is not None
        ]
        if not found:
            return None
        since, first = min(found, key=lambda pair: pair[0])
        batches = sum(each.in_doubt for _, each in found)
        named = _places([first, *(each for _, each in found if each is not first)])
        return _condition(
            *(since, batches, _number(batches, "batch", "batches")),
            *(f"{named} in doubt for {now - since:.1f} s", first.obstacle(now), *_last(first)),
        )

    # -- the buffer

    def _waiting(self, now: float) -> Condition | None:
        """Return that callers wait for room, if the first one of them has waited first for long.

        How long it has is known by the looks, each of which has noted who was first.
        """
        first = self.looks[-1][1]
        if first is None:
            return None
        since = now
        for at, caller in reversed(self.looks):
            if caller is not first:
                break
            since = at
        if now < since + _LONG:
            return None
        waiting = len(self.callers)
        verb = "waits" if waiting == 1 else "wait"
        words = f"{_number(waiting, 'caller')} of send {verb}"
        because = [] if self.hindrance is None else [self.hindrance]
        return _condition(since, waiting, words, f"for {now - since:.1f} s", *because)

    def _no_room(self, now: float) -> Condition | None:
        """Return that calls find no room, and that no record was queued since they do not."""
        calls = list[float]()
        for at, queued in reversed(self.refused):
            if queued != self.queued or (calls[-1] if calls else now) > at + _TOGETHER:
                break
            calls.append(at)
        if not calls or now < calls[-1] + _LONG:
            return None
        times = _number(len(calls), "time")
        words = "send_nowait", f"no room {times}", f"in {now - calls[-1]:.1f} s"
        because = [] if self.hindrance is None else [self.hindrance]
        return _condition(calls[-1], len(calls), *words, *because)


def _condition(since: float | None, number: int, *words: str) -> Condition:
    return Condition(since, number, lambda: AND.join(words))


def _each_once(needed: list[tuple[Broker, Partition]]) -> list[Broker]:
    return list({broker.number: broker for broker, _ in needed}.values())


def _since(brokers: Sequence[Broker]) -> float:
    return min(each.down_since for each in brokers if each.down_since is not None)


def _number(count: int, one: str, more: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count} {more or one + 's'}"


def _names(brokers: Sequence[Broker]) -> str:
    others = f" (and {len(brokers) - 1} more)" if len(brokers) > 1 else ""
    return brokers[0].name + others


def _places(partitions: Sequence[Partition]) -> str:
    others = len(partitions) - 1
    first = partitions[0].where
    return f"{first} and {_number(others, 'more partition')}" if others else first


def _last(partition: Partition) -> list[str]:
    """Return the words of the partition's last failed attempt, if there was one."""
    return partition.failures[-1:]
