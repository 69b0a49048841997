"""The drill of `Discovery`: whether one broker gets Produce v14, over many connections.

An ordinary broker does not offer v14. The producer asks one that does whether its topics name a
window, and speaks to it in v14 if so. What has happened with the broker is kept as rows
(`broker_history`). What may be done now, what waits for how long, and what a user reads is derived
from the rows each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.discovery import Discovery, DiscoveryState

from .broker_history import History, Kind
from .comparing import differs, unequal

__all__ = ["drill_discovered"]

_STEPS: Final = 80
_BROKER: Final = "broker 7"
_TOPICS: Final = ("orders", "payments")
_Option: TypeAlias = Literal["auto", "on", "off"]
_OPTIONS: Final[Mapping[_Option, int]] = {"auto": 6, "on": 2, "off": 1}
"""How often each value of `window_discovery` is drawn."""
_LONGEST: Final = {"auto": 300.0, "on": 15.0, "off": 15.0}
"""Seconds that a back-off lasts at most, by the option `window_discovery`."""
_STRIKES: Final = 2
"""After so many connections that were lost before an answer, v14 is ruled out for a while."""
_DENIED: Final = (ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed)
_SPOKEN: Final = ("spoken", "named", "heard")
"""What is known of v14 (`History.use`) while it is used."""
_NOT_YET: Final = ("has not answered in Produce v14 yet",)


class _Told(NamedTuple):
    """A text for users: words that it must have, and what is tried again later, if anything is."""

    words: tuple[str, ...]
    again: str = ""


def drill_discovered(dice: Random) -> Iterator[str]:
    """Yield what is wrong with whether and when Produce v14 is used."""
    yield from _DiscoveryDrill(dice).run()


class _Draws:
    """Random numbers, of which the last one is kept."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.last = 0.0
        self.count = 0

    def __call__(self) -> float:
        """Draw another number."""
        self.last = self._dice.random()
        self.count += 1
        return self.last


class _DiscoveryDrill:
    """What is known of one broker, and everything that has happened with it."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        (self._option,) = dice.choices([*_OPTIONS], [*_OPTIONS.values()])
        idempotent = dice.random() < 0.95
        config = ProducerConfig.build(
            "b:9092", window_discovery=self._option, enable_idempotence=idempotent
        )
        self._wanted = idempotent and self._option != "off"
        # What this broker and its connections are like.
        self._losing = dice.choice((0.2, 0.6))
        self._naming = dice.choice((0.6, 1.0))
        self._denying = dice.choice((0.02, 0.4))
        self._silent = dice.choice((0.1, 0.6))
        self._refusing = dice.choice((0.05, 0.5))
        self._draws = _Draws(dice)
        self._part = Discovery(_BROKER, config, self._draws)
        self._now = dice.choice((0.0, 5000.0))
        self._history = History()
        self._pauses = 0
        """How many back-offs have begun, each of which takes one random number."""
        self._in_v14 = 0
        """How many requests in v14 are unanswered on the present connection."""
        self._mute = False
        """Whether the broker answers nothing on the present connection."""
        self._reason: tuple[str, ...] = _NOT_YET
        self._told: list[_Told] = []
        self._reported = 0
        """How many of `_told` were taken, or replaced by a later one."""

    def run(self) -> Iterator[str]:
        """Let connections come, answer and go, at random, and yield what is wrong."""
        wrong = self._difference()
        for _ in range(_STEPS):
            action = self._dice.choice(self._possible())
            wrong = wrong or action() or self._difference()
            if wrong is not None:
                yield f"discovery: {wrong} after {action.__name__} at {self._now:.3f}"
                return

    def _possible(self) -> list[Callable[[], str | None]]:
        """Return what may happen now; what is likely is in the list more than once."""
        use, sent = self._history.use, self._in_v14
        actions: list[Callable[[], str | None]] = [self._wait, self._wait_exactly, self._read]
        if not self._history.connected:
            return [*actions, *[self._open] * 9, self._be_late, self._lose]
        actions += [self._ask] * (6 if self._due else 0) + [self._send] * (use in _SPOKEN) * 2
        if not self._mute:
            actions += [self._describe] * (use == "asked") * 6 + [self._answer] * (sent > 0) * 4
        late = () if use == "asked" else (self._describe,)
        return [*actions, *late, self._be_late, *[self._lose] * 2]

    # -- what the rows say -------------------------------------------------------------------------

    @property
    def _due(self) -> bool:
        """Whether the present connection is to be asked, or spoken to in v14, now."""
        return self._history.use == "unsettled" or (
            self._history.until is not None and self._now >= self._history.until
        )

    def _pause(self, kind: Kind) -> None:
        """Note that v14 or the question is refused: each time the pause is twice as long."""
        before = self._history.since_heard(kind)
        seconds = min(2.0**before, _LONGEST[self._option])
        self._pauses += 1
        until = self._now + seconds * (0.8 + 0.4 * self._draws.last)
        self._history.add(kind, until)

    def _tell(self, words: tuple[str, ...], again: str = "") -> None:
        """Note what a user should know, unless it is what was told last."""
        self._reason = words
        told = _Told(words, again)
        if not self._told or self._told[-1] != told:
            self._told.append(told)

    def _difference(self) -> str | None:
        """Return how the part differs from what the rows say; None if it does not."""
        part, until, use = self._part, self._history.until, self._history.use
        pairs: dict[str, tuple[object, object]] = {
            "v14 in use": (part.speaks, use in _SPOKEN),
            "batches waiting": (part.holds_up(), self._history.batches_wait),
            "random numbers drawn": (self._draws.count, self._pauses),
            "no back-off is under way": (part.again_at() is None, until is None),
            "no connection": (part.state is DiscoveryState.APART, use == "apart"),
            "answered in v14 on this connection": (
                part.state is DiscoveryState.HEARD,
                use == "heard",
            ),
        }
        if self._history.connected:
            pairs["a question, or v14, is due"] = (part.due(self._now), self._due)
        wrong = unequal(pairs)
        if wrong is not None:
            return f"{wrong}, while {use!r}"
        told = part.again_at()
        if told is not None and until is not None and abs(told - until) > 1e-6:
            return differs("when it is tried again", told, until)
        if not all(word in part.reason for word in self._reason):
            return f"why v14 is not used: told {part.reason!r}, expected {self._reason} in it"
        return None

    # -- what happens; each returns what is wrong by itself ----------------------------------------

    def _open(self) -> str | None:
        """Open a connection; its broker offers some version, and perhaps answers nothing."""
        if self._history.connected:
            return None
        version = self._dice.choice((3, 13, *[14] * 10, 15))
        self._mute = self._dice.random() < self._silent
        self._part.opened(version)
        if self._wanted and version >= 14:
            self._history.add("opened")
            return None
        self._history.add("opened without")
        if self._wanted:
            self._tell((_BROKER, "does not offer Produce v14"))
        else:
            self._reason = ("window_discovery is off",)
        return None

    def _lose(self) -> str | None:
        """Lose the connection perhaps; what was unanswered may be why."""
        if self._dice.random() > self._losing:
            return None
        use, unanswered = self._history.use, self._in_v14 > 0
        silent = use == "asked" or (use in ("spoken", "named") and unanswered)
        connected, self._in_v14 = self._history.connected, 0
        self._part.lost(v14_unanswered=unanswered, now=self._now)
        if not connected:
            return None
        self._history.add("lost in silence" if silent else "lost")
        if silent and not self._history.proven and self._history.silences >= _STRIKES:
            self._rule_out("2 connections in a row")
        return None

    def _rule_out(self, why: str) -> None:
        self._pause("ruled out")
        self._tell((_BROKER, "v13 in place of v14", why), again="v14 is tried again")

    def _ask(self) -> str | None:
        """Ask whether topics name a window, or use v14 without asking."""
        if not (self._history.connected and self._due):
            return None
        unheard = self._history.proven and self._history.silences >= _STRIKES
        asks = self._history.use == "question refused" or (self._option == "auto" and not unheard)
        if self._part.begin() is not asks:
            return differs("the question is asked before v14 is used", not asks, asks)
        self._history.add("asked" if asks else "spoken")
        if not asks:
            self._reason = _NOT_YET
        return None

    def _describe(self) -> str | None:
        """Answer the question; an answer that nobody waits for changes nothing."""
        dice, topic = self._dice, self._dice.choice(_TOPICS)
        awaited = self._history.use == "asked"
        if not awaited and dice.random() < 0.8:
            return None
        if dice.random() < 0.1:
            self._part.unsupported()
            if awaited:
                self._history.add("not named")
                self._tell((_BROKER, "does not offer DescribeConfigs"))
            return None
        code = dice.choice((-1, *_DENIED)) if dice.random() < self._denying else 0
        named = code == 0 and dice.random() < self._naming
        self._part.described(code, named=named, topic=topic, now=self._now)
        if not awaited:
            return None
        if named:
            self._history.add("named")
            self._reason = _NOT_YET
        elif code:
            self._pause("question refused")
            why = "DESCRIBE_CONFIGS" if code in _DENIED else f"ended with error {code}"
            self._tell((_BROKER, topic, why), again="The broker is asked again")
        else:
            self._history.add("not named")
            self._tell((_BROKER, "does not name the topic config"))
        return None

    def _send(self) -> str | None:
        self._in_v14 += self._history.connected and self._part.speaks
        return None

    def _answer(self) -> str | None:
        """Answer a request in v14; it may be refused, or come when v13 is in use again."""
        if not self._in_v14:
            return None
        self._in_v14 -= 1
        speaks = self._history.use in _SPOKEN
        if self._dice.random() < self._refusing:
            why = self._dice.choice(("UNSUPPORTED_VERSION", "it cannot be decoded"))
            self._part.refused(why, self._now)
            if speaks:
                self._rule_out(why)
            return None
        self._part.answered()
        if self._history.use == "heard":
            return None
        self._history.add("heard" if speaks else "heard late")
        if speaks:
            self._tell((_BROKER, "answers in Produce v14"))
        return None

    def _wait(self) -> str | None:
        self._now += self._dice.choice((0.0, 0.1, 0.5, 1.0, 3.0, 20.0, 500.0))
        return None

    def _wait_exactly(self) -> str | None:
        """Wait until just before a back-off ends, or until it ends."""
        until = self._part.again_at()
        if until is not None:
            self._now = max(self._now, until - self._dice.choice((0.0, 0.001)))
        return None

    def _be_late(self) -> str | None:
        """Let v14 be refused by an answer that comes when v13 is in use: nothing changes."""
        if self._history.use not in _SPOKEN:
            self._part.refused("too late", self._now)
        return None

    def _read(self) -> str | None:
        """Read the news for users: of those that were not read yet the latest, once."""
        finding = self._part.take_finding(self._now)
        unread = self._told[self._reported :]
        self._reported = len(self._told)
        if finding is None or not unread:
            return (
                None
                if finding is None and not unread
                else f"news: told {finding}, expected {unread}"
            )
        latest = unread[-1]
        words = list(latest.words)
        if latest.again:
            until = self._history.kinds("ruled out", "question refused")[-1].until
            wait = max(0.0, until - self._now)
            words += [f". {latest.again} in {wait:.1f} s", f"{_LONGEST[self._option]:g} s"]
        again = "then after waits" in finding.text
        if finding.warning is not bool(latest.again) or again is not bool(latest.again):
            return f"news: told {finding}, expected that {latest.again or 'nothing is tried again'}"
        missing = [word for word in words if word not in finding.text]
        return f"news: told {finding}, expected {missing} in it" if missing else None
