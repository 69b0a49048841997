"""Discovery: whether Produce v14 is used with a broker (KIP-1269).

Answers in v14 name the window: the most batches of a producer that may be in flight per partition.

There is one `Discovery` per node (broker address), and it outlives the node's connections. It says
which Produce version may be used on the present connection, and why the window stays at 5 batches.
It also says when the question must be sent first: a DescribeConfigs request that shows whether a
topic has the config of KIP-1269.

Each of these events rules v14 out for some time, never for good:

- The question was refused, mostly for a missing permission. It is sent again on the same connection
  after a back-off, while batches are sent in v13; and at once on the next connection.
- v14 was refused, or answered in a way that cannot be decoded. v13 is used until a back-off has
  passed, across connections; then v14 is tried again on whatever connection there is.
- Two connections in a row ended before the broker answered the question, or the first request in
  v14. The cause may be a bad network, or a broker that closes the connection when it gets v14: the
  two look the same. Here, too, v13 is used until a back-off has passed.

A broker that has once answered in v14 does not close a connection because of v14. If connections to
such a broker end without an answer, the network is at fault, and v14 stays in use. But after two
such connections in a row, the question is not sent on the next one, because batches would wait for
its answer.

Back-offs start at one second and double, up to 5 minutes, or up to 15 seconds if `window_discovery`
is "on" (the user says that the brokers have KIP-1269). The first answer in v14 resets them.

Invariants: v14 is used only in the states SPEAKING and HEARD; batches wait for an answer only in
ASKING, which is the first question of a connection; each change that a user should know is reported
once.

Rejected: remembering a refusal until the process ends. Two connections lost by chance were enough
to rule out v14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.lifecycle import Named, transition

__all__ = [
    "DISCOVERY_TRANSITIONS",
    "PRODUCE_WITH_WINDOW",
    "Discovery",
    "DiscoveryEvent",
    "DiscoveryState",
    "Finding",
]

PRODUCE_WITH_WINDOW = 14
"""The first Produce version whose answers name the broker's window (KIP-1269)."""

_CONFIG = "producer.state.batches.to.retain"
_NOT_GRANTED = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
)
_STRIKES = 2
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 300.0
_LONGEST_WAIT_WHEN_ON = 15.0


class DiscoveryState(Named):
    """What is known about a broker's support for Produce v14."""

    APART = "not connected"
    UNASKED = "not asked yet"
    ASKING = "being asked"
    """The connection's first DescribeConfigs request is unanswered; batches wait for the answer."""
    SPEAKING = "spoken to in v14"
    """Produce is sent in v14, and no answer in v14 has come on this connection yet."""
    HEARD = "answers in v14"
    ABSENT = "not offered"
    """v14 is not used on this connection: it is not offered, is switched off, or lacks KIP-1269."""
    NOT_GRANTED = "not granted"
    """DescribeConfigs was answered with an error, usually for a missing permission; it is requested
    again after a back-off.
    """
    ASKING_AGAIN = "being asked again"
    """A later DescribeConfigs request of the connection is unanswered; batches go on in v13."""
    HELD_BACK = "held back"
    """v14 was refused, or too often not answered; it is tried again after a back-off."""


class DiscoveryEvent(Named):
    """An event that changes a broker's `DiscoveryState`."""

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
    (_S.HELD_BACK, _E.ASK): _S.ASKING_AGAIN,
    (_S.HELD_BACK, _E.SPEAK): _S.SPEAKING,
    (_S.HELD_BACK, _E.LOST): _S.HELD_BACK,
}

_ASKING = frozenset({_S.ASKING, _S.ASKING_AGAIN})
_SPOKEN = frozenset({_S.SPEAKING, _S.HEARD})
_HELD = frozenset({_S.NOT_GRANTED, _S.HELD_BACK})
_DUE = _HELD | {_S.UNASKED}


class Finding(NamedTuple):
    """A message for the user about a broker's window: how many batches may be in flight and why."""

    text: str
    warning: bool
    """Whether the user should act on the message; not if the broker merely does not offer v14."""


class Discovery:
    """Decides whether Produce v14 is used with one broker, on all connections to this broker."""

    __slots__ = (
        "_again",
        "_again_at",
        "_ask",
        "_broker",
        "_finding",
        "_grant",
        "_hold",
        "_longest",
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
        self._longest = longest
        self._hold = Backoff(_FIRST_WAIT, longest, random)
        self._grant = Backoff(_FIRST_WAIT, longest, random)
        self._again_at = 0.0
        # `_proven`: whether the broker has ever answered in v14. `_unanswered`: how many
        # connections in a row ended while DescribeConfigs or the first v14 request was unanswered.
        self._proven = False
        self._unanswered = 0
        self._finding: Finding | None = None
        # `_again`: what the finding says is done again at `_again_at`; empty if nothing is.
        # `_told`: the text of the latest finding.
        self._again = self._told = ""

    def _move(self, event: DiscoveryEvent) -> None:
        self.state = transition(DISCOVERY_TRANSITIONS, self.state, event, self._broker)

    # -- what may be done ------------------------------------------------------------------------

    @property
    def speaks(self) -> bool:
        """Whether Produce requests are sent in v14."""
        return self.state in _SPOKEN

    def holds_up(self) -> bool:
        """Return whether batches must wait for the broker's answer about its config.

        A batch sent before the answer would have to be sent in v13. Its acknowledgement would not
        name the window, so the window would stay at 5 batches for one more round trip.
        """
        return self.state is DiscoveryState.ASKING

    def again_at(self) -> float | None:
        """Return the time in seconds at which DescribeConfigs or Produce v14 is tried again.

        None if no back-off has to end first.
        """
        return self._again_at if self.state in _HELD else None

    def due(self, now: float) -> bool:
        """Return whether `begin` has something to do."""
        if self.state not in _DUE:
            return False
        return self.state is DiscoveryState.UNASKED or now >= self._again_at

    def begin(self) -> bool:
        """Begin to ask for a topic's config, or use v14 at once if that is not needed.

        Returns:
            Whether the caller must send the DescribeConfigs request now.
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

    # -- events on the broker's connections ------------------------------------------------------

    def opened(self, produce_version: int) -> None:
        """Note that a connection to the broker is up.

        Args:
            produce_version: the highest Produce version that client and broker both support.
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
        """Handle the answer to DescribeConfigs of a topic.

        Args:
            error_code: the error code of the answer; 0 for none.
            named: whether the answer has the topic config that belongs to KIP-1269.
            topic: the topic, for messages.
            now: seconds.
        """
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
        cure = "Grant that permission" if denied else "Check the broker's log"
        self._tell(
            f"window 5: {self.reason}. {cure}, or set window_discovery='on' if all brokers have "
            "KIP-1269",
            warning=True,
            again="The broker is asked again",
        )

    def unsupported(self) -> None:
        """Note that the broker does not offer DescribeConfigs."""
        if self.state in _ASKING:
            self._absent(DiscoveryEvent.NOT_NAMED, "does not offer DescribeConfigs")

    def answered(self) -> None:
        """Note that the broker answered a Produce request in v14."""
        if self.state is DiscoveryState.HEARD:
            return  # only the first answer on a connection changes anything
        self._proven = True
        self._unanswered = 0
        self._hold.reset()
        self._grant.reset()
        if self.speaks:
            self._move(DiscoveryEvent.ANSWERED)
            self.reason = f"{self._broker} answers in Produce v14"
            self._tell(f"{self.reason}, which names its window (KIP-1269)", warning=False)

    def refused(self, why: str, now: float) -> None:
        """Note that v14 was refused, or that an answer in v14 cannot be decoded.

        Args:
            why: the reason, for messages.
            now: seconds.
        """
        if self.speaks:
            self._hold_back(why, now)

    def _hold_back(self, why: str, now: float) -> None:
        self._move(DiscoveryEvent.REFUSED)
        self._again_at = now + self._hold.next_delay()
        self.reason = f"{self._broker} gets Produce v13 in place of v14 for a while: {why}"
        self._tell(f"window 5: {self.reason}", warning=True, again="v14 is tried again")

    def lost(self, *, v14_unanswered: bool, now: float) -> None:
        """Note that the connection to the broker ended.

        Args:
            v14_unanswered: whether requests in v14 were outstanding on it.
            now: seconds.
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

    def _tell(self, text: str, *, warning: bool, again: str = "") -> None:
        """Keep a text for `take_finding`, unless it repeats the last one.

        Args:
            text: what the user reads.
            warning: whether the user should act on it.
            again: what is done again after a back-off; the text then ends with when.
        """
        if text != self._told:
            self._told = text
            self._finding = Finding(text, warning)
            self._again = again

    def take_finding(self, now: float) -> Finding | None:
        """Take out the latest finding that was not reported yet; None if there is none.

        Args:
            now: seconds.
        """
        finding, self._finding = self._finding, None
        if finding is None or not self._again:
            return finding
        wait = max(0.0, self._again_at - now)
        return finding._replace(
            # `Backoff` varies each of the later waits by up to 20 %.
            text=f"{finding.text}. {self._again} in {wait:.1f} s, then after waits that double up "
            f"to about {self._longest:g} s"
        )
