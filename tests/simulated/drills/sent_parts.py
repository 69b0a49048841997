"""What stands in for the parts around the Sender: connections, the user's records, and the rest.

All that happens to them is noted in one list, in the order in which it happens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, Final, Protocol

import anyio.lowlevel

from aioidem import errors
from aioidem._engine.record import Outcome
from aioidem._network.connection import OnFrame, OnProgress
from aioidem._protocol.frames import FrameLimit
from aioidem._protocol.versions import SPOKEN, ApiKey, ApiVersionTable

__all__ = ["Asked", "Heard", "Noting", "Row", "UserRecord", "Wire", "alike", "first_difference"]

Row = tuple[object, ...]
"""Something that has happened, "who.what", and with which values.

In a row that is due, a type stands for any value of that type.
"""

_OLD: Final = {
    ApiKey.PRODUCE: (0, 9),
    ApiKey.METADATA: (0, 9),
    ApiKey.INIT_PRODUCER_ID: (0, 2),
    ApiKey.FIND_COORDINATOR: (0, 0),
    ApiKey.TXN_OFFSET_COMMIT: (0, 3),
    ApiKey.END_TXN: (0, 3),
}
"""What an old broker offers: neither DescribeProducers nor DescribeConfigs."""


def alike(told: object, due: object) -> bool:
    """Return whether a value or row is what was due, or of the type that was due."""
    if isinstance(told, tuple) and type(told) is type(due) is tuple:
        return len(told) == len(due) and all(map(alike, told, due))
    return told == due or (isinstance(due, type) and type(told) is due)


def first_difference(told: list[Row], due: list[Row]) -> str | None:
    """Return the first row that differs from the one that was due, in words; None if none does."""
    for at, (row, other) in enumerate(zip_longest(told, due)):
        if not alike(row, other):
            what, due_what = row or "nothing", other or "nothing"
            return f"{what} has happened, not {due_what}, after {told[:at]}"
    return None


class Noting:
    """Stands in for a part: it notes each call of a method, which returns nothing.

    Args:
        who: the first word of its rows.
        log: the list of all that happens.
        given: its attributes. Functions among them stand in for methods, and note what they like.
    """

    def __init__(self, who: str, log: list[Row], **given: object) -> None:
        self._who, self._log = who, log
        self.__dict__.update(given)

    def __getattr__(self, what: str) -> Callable[..., None]:
        """Return a method that notes its call."""
        if what.startswith("__"):
            raise AttributeError(what)

        def note(*facts: object, **named: object) -> None:
            self._log.append((f"{self._who}.{what}", *facts, *named.values()))

        return note


class _Surroundings(Protocol):
    """What a `UserRecord` uses of the `Bench`."""

    log: list[Row]

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""

    def deliver(self) -> None:
        """Have the Sender deliver outcomes."""


class UserRecord:
    """A record of the user's: it notes its outcome, and then its callback runs.

    Attributes:
        seconds: how long the callback takes.
        delivers: whether the callback has the Sender deliver outcomes.
        raises: what the callback raises.
    """

    def __init__(self, bench: _Surroundings, name: str) -> None:
        self._bench = bench
        self.name = name
        self.seconds = 0.0
        self.delivers = False
        self.raises: BaseException | None = None

    def settle(self, _outcome: Outcome, place: int) -> None:
        """Take the outcome, as the callback of a delivery would."""
        self._bench.log.append(("outcome", self.name, place))
        self._bench.pass_time(self.seconds)
        if self.delivers:
            self._bench.deliver()
        if self.raises is not None:
            raise self.raises


@dataclass(eq=False)
class Asked:
    """A request on a connection that has no answer."""

    step: Any
    version: int
    number: int
    refused: bool
    """Whether the connection had ended when it was to be written."""

    @property
    def answered(self) -> bool:
        """Whether the broker answers such a request."""
        return getattr(self.step, "acks", 1) != 0


class Wire:
    """Stands in for a connection.

    Attributes:
        old: whether the broker is an old one.
        sends_oldest: whether the bytes that were sent last show that the peer takes bytes.
        ended: whether the connection has ended.
        takes: how much of a request the socket takes at once: "all", "some" or "none" of it.
        queued: the correlation ids of requests of which no byte was sent.
        asked: the requests that have no answer.
        foreseen: the correlation id of the last request that was due.
        post: what is to happen on the connection, while it runs.
    """

    def __init__(self, log: list[Row], link_id: int, dice: Random) -> None:
        self._log = log
        self.link_id = link_id
        self.old = dice.random() < 0.3
        offered: Any = _OLD if self.old else SPOKEN
        self.versions = ApiVersionTable(offered, {"transaction.version": 2})
        self.sends_oldest = self.ended = False
        self.takes = "all"
        self.queued: list[int] = []
        self.asked: list[Asked] = []
        self.foreseen = self._last_id = 10 * dice.randrange(9)
        self.post: Any = None

    def next_correlation_id(self) -> int:
        """Return the next id, as `Connection` does."""
        self._last_id += 1
        return self._last_id

    def write(
        self,
        frame: bytes,
        *,
        correlation_id: int,
        expects_response: bool = True,
        limit: FrameLimit | None = None,
    ) -> bool:
        """Take a request, as `Connection` does."""
        if self.ended:
            raise errors.KafkaConnectionError("it has ended")
        seen = frame if frame[4:6] == b"\0\0" else frame[4:16]
        self._log.append(("write", self.link_id, seen, expects_response, limit))
        if self.takes == "none" or self.queued:
            self.queued.append(correlation_id)
            return False
        return self.takes == "all"

    def started(self, correlation_id: int) -> bool:
        """Return whether a byte of a request may have been sent."""
        return correlation_id not in self.queued

    def close_soon(self, reason: str) -> None:
        """Note that the connection is to end."""
        self._log.append(("close", self.link_id, reason))

    async def run(self, on_frame: OnFrame, on_progress: OnProgress) -> Exception | None:
        """Do what comes by `post`, until that is the cause of the end."""
        while True:
            came = await self.post[1].receive()
            if came is None or isinstance(came, errors.KafkaError):
                self.ended = True
                return came
            if isinstance(came, Exception):
                raise came
            if came == "flow":
                on_progress(5, 0)
                continue
            passes, number, frame = came
            for _ in range(passes):
                await anyio.lowlevel.checkpoint()
            try:
                rest = on_frame(number, frame)
                if rest is not None:
                    await rest
            except errors.ProtocolError as error:
                self.ended = True
                return error

    @property
    def oldest(self) -> Asked | None:
        """The oldest request that was sent and has no answer."""
        due = [each for each in self.asked if each.answered and not each.refused]
        return due[0] if due and due[0].number not in self.queued else None

    def unwritten(self) -> list[int]:
        """Return the tokens of the requests of which no byte was sent."""
        return [
            each.step.token for each in self.asked if each.refused or each.number in self.queued
        ]


class Heard(logging.Handler):
    """Notes what is logged."""

    def __init__(self, log: list[Row]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: Any) -> None:
        """Note a line: its level, text, phase, producer, and a field of its own."""
        more = getattr(record, "number", None)
        facts = record.levelno, record.getMessage(), record.phase, record.client_id, more
        self._log.append(("line", *facts))
