"""The judge of versions: which Produce version a broker gets, and when it is asked for its window.

It follows each broker by what is asked and answered, from rules that are written here a second
time: Produce v14 (KIP-1269) is used once the broker has said that it has it, and not for a while
after the broker refused it, did not say, or ended two connections in a row without an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.discovery import Discovery
from aioidem._engine.links import Link
from aioidem._engine.steps import SendProduce
from aioidem._protocol.produce import ProduceAnswer

__all__ = ["VersionChoice", "refuses_v14"]

_WITH_WINDOW = 14
"""The Produce version whose answers name the broker's window (KIP-1269)."""
_LONGEST_WAIT = {"auto": 300.0, "on": 15.0}
"""Seconds, by `window_discovery`."""
_JITTER = 0.2
_AT_ONCE = 1e-6
_STRIKES = 2
"""How many connections in a row may end without an answer before v14 is not used for a while."""

_Use = Literal["unsettled", "asked", "asked, not waited for", "v14", "v13", "v13 for a while"]
"""What is known of v14 on a connection. Batches wait in the first two."""
_ASKED = ("asked", "asked, not waited for")


def refuses_v14(step: SendProduce, answer: ProduceAnswer) -> bool:
    """Return whether an answer to Produce refuses v14."""
    codes = {part.error_code for part in answer.partitions}
    return step.version >= _WITH_WINDOW and ErrorCode.unsupported_version in codes


@dataclass
class _Pause:
    """How long v14 is not used, or the question not asked: a wait that doubles each time.

    `least` and `most` are how often there was one before, as far as is known.
    """

    longest: float
    least: int = 0
    most: int = 0

    def next(self, now: float) -> tuple[float, float]:
        """Return the earliest and the latest end of the next pause that begins now."""
        shortest, longest = (min(2.0**n, self.longest) for n in (self.least, self.most))
        self.least += 1
        self.most += 1
        return now + shortest * (1 - _JITTER) - _AT_ONCE, now + longest * (1 + _JITTER) + _AT_ONCE

    def reset(self) -> None:
        """Begin anew with the shortest pause."""
        self.least = self.most = 0


@dataclass
class _Broker:
    """What one broker has shown on all of its connections."""

    refusals: _Pause
    silences: _Pause
    until: tuple[float, float] = (0.0, 0.0)
    held: bool = False
    """Whether v14 was refused or not answered, and has not been tried since."""
    proven: bool = False
    unanswered: int = 0

    @property
    def ends_unheard(self) -> bool:
        """Whether a broker that has v14 has ended connections before it answered a question."""
        return self.proven and self.unanswered >= _STRIKES

    def hold(self, now: float) -> None:
        """Begin a time in which v14 is not used."""
        self.held = True
        self.until = self.refusals.next(now)

    def hold_perhaps(self, now: float) -> None:
        """Note a refusal of v14 that may have come after it was to be tried again."""
        earliest, before = self.until[0], self.refusals.least
        self.hold(now)
        self.until, self.refusals.least = (earliest, self.until[1]), before

    def hear(self) -> None:
        """Note the first answer in v14 on a connection."""
        self.proven = True
        self.unanswered = 0
        self.refusals.reset()
        self.silences.reset()


@dataclass
class _Connection:
    broker: _Broker
    use: _Use
    heard: bool = False
    in_v14: set[int] = field(default_factory=set)
    """The tokens of the requests in v14 without an answer."""

    def speak(self) -> None:
        """Begin to use v14."""
        self.use, self.heard = "v14", False


class VersionChoice:
    """Judges the version of each Produce request, and each question about a broker's window.

    Args:
        config: The producer's options.
        complain: Is told what is wrong.
    """

    def __init__(self, config: ProducerConfig, complain: Callable[[str], None]) -> None:
        self._wanted = config.enable_idempotence and config.window_discovery != "off"
        self._asks = config.window_discovery == "auto"
        self._longest = _LONGEST_WAIT["auto" if self._asks else "on"]
        self._transactional = config.transactional_id is not None
        self._complain = complain
        # An address keeps its `Discovery` as long as the producer knows it.
        self._brokers: dict[Discovery, _Broker] = {}
        self._connections: dict[Link, _Connection] = {}

    # -- connections -------------------------------------------------------------------------------

    def opened(self, link: Link, version: int) -> None:
        """Note that a connection is up, and the highest Produce version that both sides have."""
        broker = self._brokers.get(link.discovery)
        if broker is None:
            broker = _Broker(_Pause(self._longest), _Pause(self._longest))
            self._brokers[link.discovery] = broker
        if not self._wanted or version < _WITH_WINDOW:
            broker.held = False
            self._connections[link] = _Connection(broker, "v13")
        else:
            self._connections[link] = _Connection(
                broker, "v13 for a while" if broker.held else "unsettled"
            )

    def look(self, now: float) -> None:
        """Note which connections have ended since the last look."""
        for link in [each for each in self._connections if each.closed]:
            self._lost(self._connections.pop(link), now)

    def _lost(self, connection: _Connection, now: float) -> None:
        broker = connection.broker
        asked = connection.use in _ASKED
        if asked or (connection.use == "v14" and not connection.heard and connection.in_v14):
            broker.unanswered += 1
            if broker.unanswered >= _STRIKES and not broker.proven:
                broker.hold(now)

    # -- requests ----------------------------------------------------------------------------------

    def asks(self, link: Link, now: float) -> None:
        """Judge a question about a topic's config, which shows whether a broker has KIP-1269."""
        found = self._connections.get(link)
        if found is None:
            return
        broker, use = found.broker, found.use
        waited = use == "v13 for a while" and now >= broker.until[0]
        fits = use == "unsettled" or (waited and broker.held)
        if fits and (not self._asks or broker.ends_unheard):
            self._complain("a broker is asked whether it has v14, and v14 was to be tried at once")
        elif not fits and not (waited and self._asks):
            self._complain(f"a broker is asked whether it has v14 at {now:.3f}: {use}")
        found.use = "asked" if use == "unsettled" else "asked, not waited for"
        broker.held = False

    def sends(self, link: Link, step: SendProduce, now: float) -> None:
        """Judge the version of a Produce request."""
        found = self._connections.get(link)
        if found is None:
            return
        broker = found.broker
        waited = found.use == "v13 for a while" and broker.held and now >= broker.until[0]
        if step.version >= _WITH_WINDOW:
            if (found.use == "unsettled" or waited) and (not self._asks or broker.ends_unheard):
                found.speak()
            if found.use != "v14":
                self._complain(f"v14 is used at {now:.3f} with a broker: {found.use}")
            found.in_v14.add(step.token)
            return
        if self._transactional or any(topic.topic_id is None for topic in step.topics):
            return  # another rule asks for a lower version
        late = found.use == "v13 for a while" and now > broker.until[1]
        if late or found.use in ("unsettled", "asked", "v14"):
            self._complain(f"v{step.version} is used at {now:.3f} with a broker: {found.use}")

    # -- answers -----------------------------------------------------------------------------------

    def described(self, link: Link, now: float, *, named: bool, failed: bool) -> None:
        """Note an answer about a topic's config, or that the broker cannot be asked for it.

        Args:
            link: The connection.
            now: When that was, in seconds.
            named: Whether the config that belongs to KIP-1269 is in the answer.
            failed: Whether the answer is an error.
        """
        found = self._connections.get(link)
        if found is None or found.use not in _ASKED:
            return
        if named:
            found.speak()
        elif failed:
            found.use = "v13 for a while"
            found.broker.until = found.broker.silences.next(now)
        else:
            found.use = "v13"

    def answered(self, link: Link, token: int, now: float, *, refuses: bool) -> None:
        """Note an answer to a Produce request in v14 that the engine has waited for.

        Args:
            link: The connection.
            token: The request.
            now: When that was, in seconds.
            refuses: Whether the answer refuses v14.
        """
        found = self._connections.get(link)
        if found is None:
            return
        found.in_v14.discard(token)
        if refuses:
            self.undecodable(link, now)
        elif not (found.use == "v14" and found.heard):
            found.heard = True
            found.broker.hear()

    def undecodable(self, link: Link, now: float) -> None:
        """Note that v14 was refused on a connection, or that an answer in v14 cannot be decoded."""
        found = self._connections.get(link)
        if found is None:
            return
        if found.use == "v14":
            found.use = "v13 for a while"
            found.broker.hold(now)
        elif found.use == "v13 for a while" and found.broker.until[0] <= now:
            found.broker.hold_perhaps(now)
