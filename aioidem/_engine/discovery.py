"""Whether a broker is spoken to in Produce v14, whose answers name the window (KIP-1269).

There is one `Discovery` per node, and it outlives the node's connections. It says in which version
the present connection may be spoken to, whether the broker must be asked first, and why a window
stays at 5 where it does.

What ends v14 ends it for a time, never for good:

- DescribeConfigs was refused (no right to it). It is asked again on the same connection, behind
  the batches, after a back-off; and at once on the next connection.
- v14 was refused, or answered in a way that cannot be decoded. v13 for a back-off, across
  connections; then v14 is tried again on whatever connection there is.
- Two connections in a row ended before they answered the question, or the first request in v14. A
  broker that hangs up on v14 looks so, and so does a bad network. The same back-off.

A broker that has ever answered in v14 does not hang up on it: connections that end unanswered are
then the network's fault and count for nothing. If two of them left the question for the config
unanswered, the next connection is not asked, or the question itself could hold up every batch.

Back-offs start at a second and double, to 5 minutes, or to 15 seconds where `window_discovery` is
"on" (its user knows that the brokers have KIP-1269). The first answer in v14 resets them.

Invariants: nothing is sent in v14 unless the state is SPEAKING or HEARD; batches wait for an answer
only in ASKING, the first question of a connection; each change that a user should know is told
once.

Rejected: remembering a refusal until the process ends. Two unlucky connections were enough for it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.lifecycle import transition

__all__ = [
    "DISCOVERY_TRANSITIONS",
    "PRODUCE_WITH_WINDOW",
    "Discovery",
    "DiscoveryEvent",
    "DiscoveryState",
    "Finding",
]

PRODUCE_WITH_WINDOW = 14
"""The Produce version that names the broker's window (KIP-1269)."""

_CONFIG = "producer.state.batches.to.retain"
_NOT_GRANTED = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
)
_STRIKES = 2
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 300.0
_LONGEST_WAIT_WHEN_ON = 15.0


class DiscoveryState(enum.Enum):
    """What is known of a broker's support for Produce v14."""

    APART = "not connected"
    UNASKED = "not asked yet"
    ASKING = "being asked"
    """Its first question on this connection: batches wait for the answer."""
    SPEAKING = "spoken to in v14"
    """And not answered in v14 yet, on this connection."""
    HEARD = "answers in v14"
    ABSENT = "not offered"
    """v14 is not offered, not wanted, or not KIP-1269's, on this connection."""
    NOT_GRANTED = "not granted"
    """DescribeConfigs was refused; it is asked again."""
    ASKING_AGAIN = "being asked again"
    """In v13 meanwhile: no batch waits."""
    HELD_BACK = "held back"
    """v14 was refused, or not answered, too often; it is tried again."""


class DiscoveryEvent(enum.Enum):
    """What moves it."""

    OPENED = "opened"
    OPENED_WITHOUT = "opened without v14"
    ASK = "ask"
    NAMED = "named"
    NOT_NAMED = "not named"
    NOT_GRANTED = "not granted"
    SPEAK = "speak"
    ANSWERED = "answered"
    REFUSED = "refused"
    LOST = "lost"


_S, _E = DiscoveryState, DiscoveryEvent

DISCOVERY_TRANSITIONS: dict[tuple[DiscoveryState, DiscoveryEvent], DiscoveryState] = {
    (_S.APART, _E.OPENED): _S.UNASKED,
    (_S.APART, _E.OPENED_WITHOUT): _S.ABSENT,
    (_S.APART, _E.REFUSED): _S.HELD_BACK,
    (_S.UNASKED, _E.ASK): _S.ASKING,
    (_S.UNASKED, _E.SPEAK): _S.SPEAKING,
    (_S.UNASKED, _E.LOST): _S.APART,
    (_S.ASKING, _E.NAMED): _S.SPEAKING,
    (_S.ASKING, _E.NOT_NAMED): _S.ABSENT,
    (_S.ASKING, _E.NOT_GRANTED): _S.NOT_GRANTED,
    (_S.ASKING, _E.LOST): _S.APART,
    (_S.SPEAKING, _E.ANSWERED): _S.HEARD,
    (_S.SPEAKING, _E.REFUSED): _S.HELD_BACK,
    (_S.SPEAKING, _E.LOST): _S.APART,
    (_S.HEARD, _E.REFUSED): _S.HELD_BACK,
    (_S.HEARD, _E.LOST): _S.APART,
    (_S.ABSENT, _E.LOST): _S.APART,
    (_S.NOT_GRANTED, _E.ASK): _S.ASKING_AGAIN,
    (_S.NOT_GRANTED, _E.LOST): _S.APART,
    (_S.ASKING_AGAIN, _E.NAMED): _S.SPEAKING,
    (_S.ASKING_AGAIN, _E.NOT_NAMED): _S.ABSENT,
    (_S.ASKING_AGAIN, _E.NOT_GRANTED): _S.NOT_GRANTED,
    (_S.ASKING_AGAIN, _E.LOST): _S.APART,
    (_S.HELD_BACK, _E.OPENED): _S.HELD_BACK,
    (_S.HELD_BACK, _E.OPENED_WITHOUT): _S.ABSENT,
    # Of requests that were sent in v14 before one of them was refused.
    (_S.HELD_BACK, _E.ANSWERED): _S.HELD_BACK,
    (_S.HELD_BACK, _E.REFUSED): _S.HELD_BACK,
    (_S.HELD_BACK, _E.ASK): _S.ASKING_AGAIN,
    (_S.HELD_BACK, _E.SPEAK): _S.SPEAKING,
    (_S.HELD_BACK, _E.LOST): _S.HELD_BACK,
}

_ASKING = frozenset({_S.ASKING, _S.ASKING_AGAIN})
_SPOKEN = frozenset({_S.SPEAKING, _S.HEARD})


class Finding(NamedTuple):
    """Something about a broker's window that a user should know."""

    text: str
    warning: bool
    """Whether something is to be done about it; what brokers of today do is no warning."""


class Discovery:
    """What is known of one broker and Produce v14, across its connections."""

    __slots__ = (
        "_again_at",
        "_ask",
        "_broker",
        "_finding",
        "_grant",
        "_hold",
        "_proven",
        "_told",
        "_unanswered",
        "_wanted",
        "reason",
        "state",
    )

    def __init__(self, broker: str, config: ProducerConfig, random: Callable[[], float]) -> None:
        self.state = DiscoveryState.APART
        self.reason = f"{broker} has not answered in Produce v14 yet"
        self._broker = broker
        self._wanted = config.enable_idempotence and config.window_discovery != "off"
        self._ask = config.window_discovery == "auto"
        longest = _LONGEST_WAIT if self._ask else _LONGEST_WAIT_WHEN_ON
        self._hold = Backoff(_FIRST_WAIT, longest, random)
        self._grant = Backoff(_FIRST_WAIT, longest, random)
        self._again_at = 0.0
        # Whether it has ever answered in v14, and how many connections in a row have left our
        # question or our first v14 request unanswered.
        self._proven = False
        self._unanswered = 0
        self._finding: Finding | None = None
        self._told = ""

    def _move(self, event: DiscoveryEvent) -> None:
        self.state = transition(DISCOVERY_TRANSITIONS, self.state, event, self._broker)

    # -- what may be done ------------------------------------------------------------------------

    @property
    def speaks(self) -> bool:
        """Whether Produce goes out in v14."""
        return self.state in _SPOKEN

    @property
    def holds_up(self) -> bool:
        """Whether batches wait for the answer about the config.

        If they were sent in v13 meanwhile, the first one would be acknowledged without naming the
        window: one more round trip at 5.
        """
        return self.state is DiscoveryState.ASKING

    def again_at(self) -> float | None:
        """When the broker is asked or tried again; None where nothing is waited for."""
        waits = (DiscoveryState.NOT_GRANTED, DiscoveryState.HELD_BACK)
        return self._again_at if self.state in waits else None

    def due(self, now: float) -> bool:
        """Whether `begin` has something to do."""
        again_at = self.again_at()
        return self.state is DiscoveryState.UNASKED or (again_at is not None and now >= again_at)

    def begin(self) -> bool:
        """Ask about the config, or speak v14 at once where that needs no question.

        Returns:
            Whether the question is to be asked now.
        """
        unheard = self._proven and self._unanswered >= _STRIKES
        ask = self.state is DiscoveryState.NOT_GRANTED or (self._ask and not unheard)
        if ask:
            self._move(DiscoveryEvent.ASK)
        else:
            self._speak(DiscoveryEvent.SPEAK)
        return ask

    def _speak(self, event: DiscoveryEvent) -> None:
        self._move(event)
        self.reason = f"{self._broker} has not answered in Produce v14 yet"

    # -- what happens ----------------------------------------------------------------------------

    def opened(self, produce_version: int) -> None:
        """Note that a connection is up.

        `produce_version` is the highest that is spoken on both sides.
        """
        if not self._wanted:
            self._move(DiscoveryEvent.OPENED_WITHOUT)
            self.reason = "window_discovery is off"
        elif produce_version < PRODUCE_WITH_WINDOW:
            self._absent(DiscoveryEvent.OPENED_WITHOUT, "does not offer Produce v14")
        else:
            self._move(DiscoveryEvent.OPENED)

    def _absent(self, event: DiscoveryEvent, why: str) -> None:
        self._move(event)
        self.reason = f"{self._broker} {why}"
        self._tell(f"window 5: {self.reason} (KIP-1269)", warning=False)

    def described(self, error_code: int, *, named: bool, topic: str, now: float) -> None:
        """DescribeConfigs of a topic was answered."""
        if self.state not in _ASKING:
            return
        if named:
            self._speak(DiscoveryEvent.NAMED)
        elif error_code:
            self._not_granted(error_code, topic, now)
        else:
            self._absent(DiscoveryEvent.NOT_NAMED, f"does not name the topic config {_CONFIG}")

    def _not_granted(self, error_code: int, topic: str, now: float) -> None:
        self._move(DiscoveryEvent.NOT_GRANTED)
        self._again_at = now + self._grant.next_delay()
        denied = error_code in _NOT_GRANTED
        why = (
            f"DESCRIBE_CONFIGS on topic {topic!r} is not granted"
            if denied
            else f"DescribeConfigs of topic {topic!r} ended with error {error_code}"
        )
        self.reason = f"{self._broker} did not say whether it has {_CONFIG}: {why}"
        self._tell(
            f"window 5: {self.reason}; it is asked again, at the latest every 5 minutes "
            "(cure: grant it, or window_discovery='on' where all brokers have KIP-1269)",
            warning=True,
        )

    def unsupported(self) -> None:
        """Note that the broker offers no DescribeConfigs at all."""
        if self.state in _ASKING:
            self._absent(DiscoveryEvent.NOT_NAMED, "does not offer DescribeConfigs")

    def answered(self) -> None:
        """Note that a request in v14 was answered in v14."""
        if self.state is DiscoveryState.HEARD:
            return  # the first answer on this connection has said it all
        self._proven = True
        self._unanswered = 0
        self._hold.reset()
        self._grant.reset()
        if self.speaks:
            self._move(DiscoveryEvent.ANSWERED)
            self.reason = f"{self._broker} answers in Produce v14"
            self._tell(f"{self.reason}, which names its window (KIP-1269)", warning=False)

    def refused(self, why: str, now: float) -> None:
        """v14 was refused, or its answer cannot be decoded."""
        if self.speaks:
            self._hold_back(why, now)

    def _hold_back(self, why: str, now: float) -> None:
        self._move(DiscoveryEvent.REFUSED)
        wait = self._hold.next_delay()
        self._again_at = now + wait
        self.reason = f"{self._broker} is spoken to in Produce v13 for a while: {why}"
        self._tell(
            f"window 5: {self.reason}; v14 is tried again in {wait:.1f} s, then ever less often",
            warning=True,
            told=self.reason,
        )

    def lost(self, *, v14_unanswered: bool, now: float) -> None:
        """Note that the connection is lost.

        `v14_unanswered`: whether it owed answers to requests in v14.
        """
        if self.state is DiscoveryState.APART:
            return
        silent = self.state in _ASKING or (self.state is DiscoveryState.SPEAKING and v14_unanswered)
        self._move(DiscoveryEvent.LOST)
        if not silent:
            return
        self._unanswered += 1
        if not self._proven and self._unanswered >= _STRIKES:
            self._hold_back(
                f"{_STRIKES} connections in a row ended before their first answer in v14", now
            )

    # -- what a user reads -------------------------------------------------------------------------

    def _tell(self, text: str, *, warning: bool, told: str | None = None) -> None:
        """Keep it for `take_finding`, unless it is what was told last."""
        key = told or text
        if key != self._told:
            self._told = key
            self._finding = Finding(text, warning)

    def take_finding(self) -> Finding | None:
        """Return what changed since the last call, if a user should know it."""
        finding, self._finding = self._finding, None
        return finding
