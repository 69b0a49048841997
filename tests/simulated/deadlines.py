"""The judge of deadlines: when each record must have its outcome, to the turn of the loop.

A record has its outcome when its delivery timeout is over, counted from the moment when it was
queued. One request timeout more is granted to a record that is being asked about: at its deadline
it was in doubt, and since the doubt arose a broker that has led its partition has answered a
Produce request. If the process is stopped at such a moment, the outcome is due when it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aioidem._broker.state import ClusterState
from aioidem._config import ProducerConfig
from aioidem.testing import Anomaly, Row, Violation

from .attempts import Attempts

__all__ = ["GRACE", "Deadlines"]

GRACE = "grace after the deadline"
"""The name of the allowance: a record in doubt was asked about after its delivery timeout."""

# How much a turn of the loop may add to a deadline, in seconds.
_SLACK = 0.001


class Deadlines:
    """Judges whether each record had its outcome in time.

    Args:
        config: The producer's options.
        attempts: What the wire shows of each record.
        now: Returns the time, in seconds.
        slack: How much later than due an outcome may come, in seconds.
    """

    def __init__(
        self,
        config: ProducerConfig,
        attempts: Attempts,
        now: Callable[[], float],
        slack: float = _SLACK,
    ) -> None:
        self._config = config
        self._attempts = attempts
        self._now = now
        self._slack = slack
        self._stalls: list[tuple[float, float]] = []
        self._led: dict[tuple[str, int], set[int]] = {}
        self._answers: list[tuple[float, int]] = []

    def stalled(self, seconds: float) -> None:
        """Note that the producer's process is stopped for a while from now on."""
        self._stalls.append((self._now(), self._now() + seconds))

    def led(self, cluster: ClusterState) -> None:
        """Note which brokers lead the partitions now."""
        for name, topic in cluster.topics.items():
            for partition in topic.partitions:
                self._led.setdefault((name, partition.index), set()).add(partition.leader)

    def answered(self, broker: int) -> None:
        """Note that an answer of a broker to a Produce request has reached the producer."""
        self._answers.append((self._now(), broker))

    def judge(self, rows: Iterable[Row], used: Callable[[str], None]) -> Iterator[Violation]:
        """Yield a violation for each record whose outcome came too late.

        Args:
            rows: The records; `Row.started` is when each was queued.
            used: Is told the name of each allowance that was needed.
        """
        for row in rows:
            if row.settled is None:
                continue
            due = self._awake(row.started + self._config.delivery_timeout)
            if row.settled <= due + self._slack:
                continue
            longest = row.started + self._config.delivery_timeout + self._config.request_timeout
            asked = self._asked_about(row, due)
            if asked and row.settled <= self._awake(longest) + self._slack:
                used(GRACE)
                continue
            yield Violation(
                Anomaly.LATE,
                f"{row.value} {row.outcome.value} after {row.settled - row.started:.3f} s of "
                f"{due - row.started:.3f}" + ", and a request timeout" * asked,
            )

    def _awake(self, when: float) -> float:
        """Return the first time from `when` on at which the process is not stopped."""
        for began, ended in self._stalls:
            if began <= when < ended:
                when = ended
        return when

    def _asked_about(self, row: Row, due: float) -> bool:
        story = self._attempts.of(row.value)
        if story is None or story.doubted_at is None:
            return False
        leaders = self._leaders(row)
        return any(
            story.doubted_at < at <= due + self._slack and broker in leaders
            for at, broker in self._answers
        )

    def _leaders(self, row: Row) -> set[int]:
        if row.partition >= 0:
            return self._led.get((row.topic, row.partition), set())
        every = (brokers for (topic, _), brokers in self._led.items() if topic == row.topic)
        return set().union(*every)
