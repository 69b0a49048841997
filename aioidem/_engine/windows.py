"""The two limits on what may be in flight (KIP-1269): per partition and per connection.

`PartitionWindow` bounds a *span*: batches from the oldest unresolved one to the newest sent,
inclusive. Counting requests outstanding instead is wrong: an unanswered b1 with b2..b5 acknowledged
still needs b1 in the broker's cache, and b6 would push it out (KAFKA-9199, KAFKA-18905).
`ConnectionWindow` bounds requests outstanding at a broker, whatever they carry; it is what
`max.in.flight.requests.per.connection` means again.

Invariants: a partition window is DEFAULT until a success of the current leader names another value,
and DEFAULT again on reconnect and on leader change (the new leader may be an old broker). A tagged
field equal to its default is not serialised, so its absence means DEFAULT, also after a larger
value was seen.

Rejected: remembering the largest value seen per topic. Different brokers can hold different values,
and a window too large by one turns a retry into OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

__all__ = [
    "DEFAULT_BATCHES_RETAINED",
    "MAX_BATCHES_RETAINED",
    "ConnectionWindow",
    "PartitionWindow",
]

DEFAULT_BATCHES_RETAINED = 5
"""What every broker retains per producer id and partition
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
"""

MAX_BATCHES_RETAINED = 1000
"""The largest value we believe: beyond it a broker's answer is more likely garbage than memory."""


class PartitionWindow:
    """How many batches a partition may have from its oldest unresolved to its newest sent one."""

    __slots__ = ("heard", "limit", "max_span", "said")

    def __init__(self) -> None:
        self.limit = DEFAULT_BATCHES_RETAINED
        # Whether the present leader has said it, or nothing.
        self.heard = False
        # The last value that any leader named. `reset` keeps it: it serves to judge a broker's
        # memory, and never admits a batch.
        self.said = DEFAULT_BATCHES_RETAINED
        self.max_span = 0

    def learn(self, retained: int | None) -> None:
        """Take the leader's word from a successful answer; `None` when the field was absent."""
        value = DEFAULT_BATCHES_RETAINED if retained is None else retained
        self.limit = self.said = max(1, min(value, MAX_BATCHES_RETAINED))
        self.heard = True

    def reset(self) -> None:
        """Fall back to what every broker can deduplicate: on reconnect and on leader change."""
        self.limit = DEFAULT_BATCHES_RETAINED
        self.heard = False

    def admits(self, span: int) -> bool:
        """Whether a batch may be sent for the first time when the span with it is `span`."""
        return span <= self.limit

    def observe(self, span: int) -> None:
        """Keep the widest span ever sent, for `statistics()`."""
        if span > self.max_span:
            self.max_span = span


class ConnectionWindow:
    """Requests that may be outstanding at one broker: `max.in.flight.requests.per.connection`."""

    __slots__ = ("limit", "outstanding")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.outstanding = 0

    def admits(self) -> bool:
        """Whether one more request may be sent."""
        return self.outstanding < self.limit
