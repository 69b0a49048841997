"""The judge of progress: when the last fault has healed, every record ends within a computed bound.

The bound is the sum of what an engine may have to wait for, one after the other, when everything
works again: a request on a connection that was lost in silence, the longest back-offs of requests
and connections, the round trips to find the leader again and to learn about the brokers, two passes
of probes, which begin at least a request timeout apart, and one round trip for each record that is
queued before it. Its parts come from the
producer's options and from the schedule, so no time is granted for its own sake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from aioidem._config import ProducerConfig
from aioidem.testing import Anomaly, Row, ValueId, Violation

from .schedule import Schedule

__all__ = ["JITTER", "Progress"]

JITTER = 1.2  # a back-off is at most this much longer than its limit (KIP-580)
_PASSES = 2
# Round trips from a lost connection to a resend: TCP, ApiVersions, the cluster id, Metadata, a
# connection to the leader (TCP, ApiVersions), its configs, InitProducerId, DescribeProducers, the
# reading of the log, and the resend itself.
_SETTING_OUT = 11


class Progress:
    """Judges whether records end soon after the last fault.

    Args:
        config: The producer's options.
        schedule: What happens in the run.
    """

    def __init__(self, config: ProducerConfig, schedule: Schedule) -> None:
        self._config = config
        self._schedule = schedule
        self.healed_at = 0.0
        """When the last fault was over, as far as is known, in seconds."""
        self.slowest = 0.0
        """The largest part of its bound that any record took."""

    def disturbed(self, until: float) -> None:
        """Note that a fault lasts until the given time, in seconds."""
        self.healed_at = max(self.healed_at, until)

    def bound(self, records: int, rtt: float) -> float:
        """Return within how many seconds a record ends when everything works.

        Args:
            records: How many records have no outcome at the same time.
            rtt: The longest round trip, in seconds.
        """
        config = self._config
        backoffs = (2 * config.retry_backoff_max + config.reconnect_backoff_max) * JITTER
        passes = _PASSES * max(rtt, config.retry_backoff_max * JITTER)
        passes += (_PASSES - 1) * config.request_timeout
        trips = _SETTING_OUT + (1 + _PASSES) * records
        threads = records * max(self._schedule.threads[1])
        return config.request_timeout + backoffs + passes + trips * rtt + config.linger + threads

    def judge(
        self, rows: Iterable[Row], rtt: float, held: Collection[ValueId] = ()
    ) -> Iterator[Violation]:
        """Yield a violation for each record that ended too long after the last fault.

        Args:
            rows: The records.
            rtt: The longest round trip, in seconds.
            held: Records that brokers may keep from ending sooner, although they work.
        """
        if any(fault.kind in ("cluster", "split") for fault in self._schedule.faults):
            # A connection that stayed open may lead to the old cluster, and the names to the new
            # one, to the end: the producer stays in the cluster that it can still reach.
            return
        rows = [row for row in rows if row.settled is not None and row.value not in held]
        for row in rows:
            since, ended = max(self.healed_at, row.started), row.settled or 0.0
            if ended - since <= self.bound(0, rtt):
                continue
            beside = sum(r.started <= ended and (r.settled or 0.0) >= since for r in rows)
            bound = self.bound(beside, rtt)
            self.slowest = max(self.slowest, (ended - since) / bound)
            if ended - since > bound:
                yield Violation(
                    Anomaly.STUCK,
                    f"{row.value} {row.outcome.value} {ended - since:.3f} s after the last fault, "
                    f"and {bound:.3f} s are enough",
                )
