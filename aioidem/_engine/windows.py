"""The two limits on batches in flight (KIP-1269): one per partition, and one per connection.

`PartitionWindow` limits a *span*: the batches from the oldest unresolved one to the newest sent
one, both included. Counting outstanding requests instead would be wrong: if b1 is unanswered and b2
to b5 are acknowledged, b1 must still be in the broker's cache, and b6 would push it out
(KAFKA-9199, KAFKA-18905). `ConnectionWindow` limits the requests outstanding at one broker,
whatever they carry; that is the meaning of `max.in.flight.requests.per.connection` under KIP-1269.

Invariants: a partition window is DEFAULT_BATCHES_RETAINED until a success of the current leader
names another value, and again after a reconnect and a change of leader (the new leader may be an
older broker). A tagged field that equals its default is not serialised, so its absence means the
default, also after a larger value was seen.

Rejected: remembering the largest value seen per topic. Brokers can have different values, and a
window that is too large by one turns a retry into OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

__all__ = [
    "DEFAULT_BATCHES_RETAINED",
    "MAX_BATCHES_RETAINED",
    "ConnectionWindow",
    "PartitionWindow",
]

DEFAULT_BATCHES_RETAINED = 5
"""The number of batches that every broker retains per producer id and partition
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
"""

MAX_BATCHES_RETAINED = 1000
"""The largest value that is believed: a larger one in an answer is probably an error."""


class PartitionWindow:
    """The limit on batches from a partition's oldest unresolved one to its newest sent one."""

    __slots__ = ("heard", "limit", "max_span", "said")

    def __init__(self) -> None:
        self.limit = DEFAULT_BATCHES_RETAINED
        # Whether a success of the present leader has come, which names the limit or implies the
        # default.
        self.heard = False
        # The last value that any leader named. `reset` keeps it: it serves to judge how many
        # batches a broker retains, and never admits a batch.
        self.said = DEFAULT_BATCHES_RETAINED
        self.max_span = 0

    def learn(self, retained: int | None) -> None:
        """Set the limit that a successful answer names; None if the field was absent."""
        value = DEFAULT_BATCHES_RETAINED if retained is None else retained
        self.limit = self.said = max(1, min(value, MAX_BATCHES_RETAINED))
        self.heard = True

    def reset(self) -> None:
        """Go back to the default: on a new connection, and on a new leader."""
        self.limit = DEFAULT_BATCHES_RETAINED
        self.heard = False

    def admits(self, span: int) -> bool:
        """Return whether a batch may be sent if the span, that batch included, is `span`."""
        return span <= self.limit

    def observe(self, span: int) -> None:
        """Keep the largest span ever sent, for `statistics()`."""
        if span > self.max_span:
            self.max_span = span


class ConnectionWindow:
    """The limit on outstanding requests at one broker (`max_in_flight_requests_per_connection`)."""

    __slots__ = ("limit", "outstanding")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.outstanding = 0

    def admits(self) -> bool:
        """Return whether one more request may be sent."""
        return self.outstanding < self.limit
