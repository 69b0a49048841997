"""The judge of words: whether what the producer tells its operator and its callers is so.

Texts name counts, brokers, options and waits. They are compared with what was sent and settled. Of
each text the grammar is judged too, because a number that is one too high often shows itself there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.incidents import Event
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine, Phase
from aioidem.errors import AuthenticationFailedError, BrokerResponseError, DeliveryTimeoutError
from aioidem.structs import DeliveryStatus

__all__ = ["PASSING", "Wording", "misworded"]

_NOUNS = "record|batch|broker|partition|caller|attempt|failure|topic|connection|time"
_PLURALS = "records|batches|brokers|partitions|callers|attempts|failures|topics|connections|times"
_WRONG = tuple(
    map(
        re.compile,
        (
            rf"(?<![\w.-])(?<!of the )1 (more )?({_PLURALS})\b",
            # "broker 2 partition" and "record 0: ..." would be names, not counts.
            rf"(?<![\w.-])(?<!broker )(?<!record )(0|[2-9]|\d\d+) (more )?({_NOUNS})\b(?![(:])",
            r"\b(None|nan|inf|True|False)\b",
            r"  |(?<!\.)\.\.(?!\.)|: \.(?!\.\.)| \(\)|, ,|^ | $",
            r"(?<![\w-])-\d+(\.\d+)? s\b",
        ),
    )
)
_OVERDUE = re.compile(
    r"DeliveryTimeoutError: (\S+): (\d+) records? (not written|not acknowledged, perhaps written,) "
    r"in delivery_timeout \((\S+) s\): .*?; (never sent|sent once|sent (\d+) times)"
)
_FAILED = re.compile(r"; last (failure|of \d+ failures): ")
_LEADERLESS = re.compile(r"no leader for \d+\.\d s[;.]")
_REFUSED = re.compile(
    r"(?:\[Error -?\d+\] \w+: )?(\S+): broker \d+ \(\S+\) refused a batch of "
    r"(\d+) records? in attempt (\d+)"
)
_LATER = re.compile(
    r"window 5: (broker \d+) (gets Produce v13|did not say).*\. "
    r"(?:v14 is tried|The broker is asked) again in (\d+\.\d) s, "
    r"then after waits that double up to about (\d+) s"
)
_LONGEST_WAIT = {"auto": "300", "on": "15"}
"""Seconds, by `window_discovery`."""
_SAID: Mapping[LogLine, str] = {
    LogLine.EPOCH_BUMPED: "producer epoch bumped, because",
    LogLine.DATA_LOSS: ": data loss: ",
    LogLine.TOPIC_RECREATED: "was deleted and recreated: batches in doubt",
    LogLine.CLUSTER_CHANGED: "the cluster changed from",
    LogLine.WINDOW_CHANGED: ": the window is ",
    LogLine.FEWER_RETAINED: "was seen to deduplicate",
    LogLine.SHORT_EXPIRATION: "is not below half of",
    LogLine.STATE_EXPIRED: "so a broker may have forgotten",
    LogLine.LIMIT_UNKNOWN: "stay within batch_size",
}
"""What the text of an event says, and that of no other event."""

_ENDED: Mapping[LogLine, str] = {
    LogLine.NO_BROKER: "a broker can be reached again, after",
    LogLine.LEADER_MISSING: "waits for a missing leader any more, after",
    LogLine.LEADER_UNREACHABLE: "waits for an unreachable leader any more, after",
    LogLine.THROTTLED: "throttles this client any more, after",
    LogLine.IN_DOUBT: "no batch is in doubt any more, after",
    LogLine.BUFFER_FULL: "the buffer has room again, after",
}
"""What the last line of an incident says, and that of no other."""

_ADVICE = {
    "no leader": "Check why no replica of the partition can lead it",
    "no connection to the leader": "Check whether ",
    "throttles this client": "Send less, or raise this client's quota",
    "no acknowledgement of the leader": "Check the log of ",
}
"""By what records wait for: what the error of those that are overdue says to do."""

PASSING = {code.value for code in ErrorCode if code.retriable}
"""The codes of which Kafka says that another attempt may succeed."""

_JUST_NOW = 3
"""How often a producer may hear that there is no leader in the instant in which records end."""

_JITTER = 0.2
_ROUNDED = 0.05


def misworded(text: str) -> str | None:
    """Return the part of a text that no careful writer would leave; None if there is none."""
    for pattern in _WRONG:
        found = pattern.search(text)
        if found is not None:
            return found[0]
    return None


class Wording:
    """Judges texts when they are told.

    Args:
        config: The producer's options.
        complain: Is told what is wrong.
    """

    def __init__(self, config: ProducerConfig, complain: Callable[[str], None]) -> None:
        self._config = config
        self._complain = complain
        # How many records of a partition ended at one time for one reason, by the count they tell.
        self._ended: Counter[tuple[float, str, int]] = Counter()
        # `_refused`: when a batch ended UNKNOWN because it was refused, and the words that say so.
        # `_others`: when a batch ended UNKNOWN with the words of another one, and its own attempt.
        self._refused: set[tuple[float, str]] = set()
        self._others: list[tuple[float, str, str]] = []
        # By broker: until when no Produce v14 is sent to it, in seconds.
        self._not_before: dict[str, float] = {}
        self._told_of: set[tuple[str, str]] = set()
        # By broker: how often a connection did not offer v14. Each time that may have been told in
        # place of a wait that had just begun, so the first wait that is told may be a later one.
        self._did_without: Counter[str] = Counter()
        # By broker that has refused v14, which was never told: when it was sent v13 instead.
        self._untold: dict[str, float] = {}
        # When records ended for want of a leader, by whether their errors say since when.
        self._leaderless: dict[bool, set[float]] = {False: set(), True: set()}
        self.ended = False
        """Whether the producer has a fatal error, which may be the refusal of another batch."""

    def told(self, event: Event, now: float) -> None:
        """Note a line for the log."""
        text = event.text
        self._read(text)
        said = {Phase.ONCE: _SAID, Phase.ENDS: _ENDED}.get(event.phase, {})
        names = {line for line, words in said.items() if words in text}
        if names != {event.line}.intersection(said):
            self._complain(f"{event.line.value} is the name of: {text}")
        if text.startswith("the cluster changed"):
            self._not_before.clear()  # these are other brokers now
            self._untold.clear()
            self._told_of.clear()
            self._did_without.clear()
        if ("is not granted" in text) is not ("Grant that permission" in text):
            self._complain(f"the advice does not fit: {text}")
        later = _LATER.match(text)
        if later is None:
            return
        broker, what, wait, longest = later[1], later[2], float(later[3]), later[4]
        if longest != _LONGEST_WAIT.get(self._config.window_discovery):
            self._complain(f"no wait is as long as that: {text}")
        first = (broker, what) not in self._told_of
        self._told_of.add((broker, what))
        if first and wait > 2 ** self._did_without[broker] * (1 + _JITTER) + _ROUNDED:
            self._complain(f"the first wait is about a second: {text}")
        if what.startswith("gets"):
            self._untold.pop(broker, None)
            self._not_before[broker] = now + wait - _ROUNDED

    def without_v14(self, broker: str) -> None:
        """Note that a broker does not offer v14: if it does later, it is another version."""
        self._not_before.pop(broker, None)
        self._untold.pop(broker, None)
        self._did_without[broker] += 1

    def refused_v14(self, broker: str) -> None:
        """Note that a broker has refused v14, which an operator is to learn."""
        if (broker, "gets Produce v13") not in self._told_of:
            self._untold[broker] = math.inf

    def sent(self, broker: str, version: int, now: float) -> None:
        """Note the version of a Produce request."""
        since = self._untold.get(broker)
        if version < 14 and since is not None:
            self._untold[broker] = now
            if now > since:
                self._complain(f"since {since:.3f} nobody is told that {broker} gets no v14")
                del self._untold[broker]
        if version >= 14 and now < self._not_before.get(broker, now):
            self._complain(f"{broker} gets Produce v{version} at {now:.3f}, earlier than told")

    def settled(
        self, settlement: Settlement, sends: int | None, now: float, *, failed: bool = False
    ) -> None:
        """Note the error of some records.

        Args:
            settlement: The records and their outcome.
            sends: How often their batch was sent; None if that is not known.
            now: When that was, in seconds.
            failed: Whether their partition has had a failure since its last acknowledgement.
        """
        outcome = settlement.outcome
        error, unknown = outcome.error, outcome.status is DeliveryStatus.UNKNOWN
        if sends is not None and outcome.attempts != sends and sends:
            self._complain(f"{outcome.attempts} attempts, not {sends}: {error!r}")
        if error is None:
            return
        text, number = str(error), len(settlement.records)
        self._read(text)
        if unknown and "The records may be written" not in text:
            self._complain(f"an error does not say that records may be written: {text}")
        if isinstance(error, DeliveryTimeoutError):
            self._overdue(text, number, sends, now, unknown=unknown)
            self._judge_advice(error)
            if failed and _FAILED.search(text) is None:
                self._complain(f"an attempt has failed since the last success: {text}")
            if "no leader" in text:
                self._leaderless[_LEADERLESS.search(text) is not None].add(now)
        refused = _REFUSED.match(text)
        if refused and isinstance(error, BrokerResponseError) and error.errno in PASSING:
            self._complain(f"records are given up for a code that may pass: {text}")
        if refused is None or self.ended:
            return
        attempt = outcome.attempts if sends is None else sends
        if (int(refused[2]), int(refused[3])) == (number, attempt):
            if unknown:
                self._refused.add((now, refused[0]))
        elif sends is None:
            return  # its answers contradict each other, so the wire does not show its attempts
        elif unknown:  # the refusal of another batch may have ended the doubt about this one
            self._others.append((now, refused[0], f"attempt {sends}, of {number} records"))
        else:
            self._complain(f"it was attempt {sends}, of {number} records: {text}")

    def _judge_advice(self, error: DeliveryTimeoutError) -> None:
        """Judge whether the error of overdue records advises what fits, and has its cause."""
        text = str(error)
        fitting = [to_do for obstacle, to_do in _ADVICE.items() if obstacle in text][:1] or [""]
        if isinstance(error.__cause__, AuthenticationFailedError):
            if "no connection to the leader" in text:
                fitting = ["Check this client's credentials"]
            elif "no acknowledgement of the leader" in text:
                # The last connection was refused, and the next one is being opened; or a broker has
                # answered a code about sessions to Produce.
                fitting.append("Check this client's credentials")
        if not any(advice in text for advice in fitting):
            self._complain(f"the advice does not fit: {text}")
        if error.__cause__ is None and "[Error" in text:
            self._complain(f"there is no cause of: {text}")

    def _overdue(
        self, text: str, number: int, sends: int | None, now: float, *, unknown: bool
    ) -> None:
        said = _OVERDUE.match(text)
        if said is None:
            self._complain(f"an error of records that are overdue says less than others: {text}")
            return
        if ("perhaps" in said[3]) is not unknown:
            self._complain(f"an error says another outcome: {text}")
        if said[4] != f"{self._config.delivery_timeout:g}":
            self._complain(f"an error names another delivery_timeout: {text}")
        self._ended[now, f"{said[1]} {said[3]}", int(said[2])] += number
        times = {"never sent": 0, "sent once": 1}.get(said[5], int(said[6] or 0))
        if sends is not None and times != sends:
            self._complain(f"its records were sent {sends} times: {text}")

    def judge(self) -> None:
        """Judge what only the end shows: counts of records that ended, and refusals of others.

        An error does not say since when there is no leader if metadata has said so just now.
        """
        if len(self._leaderless[False]) > _JUST_NOW and not self._leaderless[True]:
            self._complain("no error says since when there is no leader")
        for at, text, attempt in self._others:
            if (at, text) not in self._refused:
                self._complain(f"at {at:.3f} it was {attempt}: {text}")
        for (at, text, told), ended in self._ended.items():
            if not told or ended % told:
                self._complain(f"at {at:.3f} {ended} records of {text} end, and {told} are told")

    def _read(self, text: str) -> None:
        wrong = misworded(text)
        if wrong is not None:
            self._complain(f"{wrong!r} in: {text}")
