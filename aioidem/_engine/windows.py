"""The two limits on batches in flight (KIP-1269): one per partition, and one per connection.

`PartitionWindow` limits a *span*: the number of batches from the oldest unresolved one (its outcome
is not known) to the newest sent one, both included. Counting outstanding requests instead would be
wrong. If batch b1 is unanswered and b2 to b5 are acknowledged, the broker must still remember b1,
to recognise a resend; b6 would make it forget b1 (KAFKA-9199, KAFKA-18905). `ConnectionWindow`
limits the requests outstanding at one broker, whatever they carry; that is the meaning of
`max.in.flight.requests.per.connection` under KIP-1269.

Invariants: a partition window is DEFAULT_BATCHES_RETAINED until a successful Produce answer of the
current leader names another value. A reconnect or a change of leader sets it back, because the new
leader may be an older broker. The value is a tagged field of the answer, which brokers leave out if
it equals its default. So an answer without the field means the default, even after a larger value
was seen.

`PartitionState` enforces the window in `may_send_new` and `next_resend`; `Leadership` learns it
from a success, and resets it with each route. `limit` and `heard` are also read by `window_reason`,
which puts the window into words for users; `said` and `heard` also by the check of what a broker
retains (`retention`).

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
"""The number of batches that a stock broker remembers per producer id and partition.

Kafka calls it ProducerStateEntry.NUM_BATCHES_TO_RETAIN.
"""

MAX_BATCHES_RETAINED = 1000
"""The largest window in use; a larger number in a broker's answer is cut, as a likely error."""


class PartitionWindow:
    """The limit on a partition's span.

    The span is the number of batches from the oldest one with an unknown outcome up to the newest
    one sent, both included.
    """

    __slots__ = ("heard", "limit", "max_span", "said", "sequence_cap")

    def __init__(self, sequence_cap: int | None = None) -> None:
        self.limit = DEFAULT_BATCHES_RETAINED
        # The most records that all unresolved batches may have together, if `broker_dedup` is
        # "range" (KIP-758). It then replaces `limit`, the number of batches. None if the option has
        # another value.
        self.sequence_cap = sequence_cap
        # Whether a successful Produce answer has come since `reset`. The answer names the limit in
        # a tagged field, or implies the default by leaving the field out.
        self.heard = False
        # The limit in the last successful Produce answer of any leader; `reset` does not change it.
        # What may be sent depends on `limit` alone. `said` serves to check that a broker retains as
        # many batches as it says.
        self.said = DEFAULT_BATCHES_RETAINED
        self.max_span = 0

    def learn(self, retained: int | None) -> bool:
        """Set the limit to the number of retained batches that a successful answer names.

        Args:
            retained: that number; None if the answer names none, which implies the default.

        Returns:
            Whether it is another number than in the last answer.
        """
        value = DEFAULT_BATCHES_RETAINED
        if retained is not None:
            value = max(1, min(retained, MAX_BATCHES_RETAINED))
        before = self.said
        self.limit = self.said = value
        self.heard = True
        return self.said != before

    def reset(self) -> None:
        """Set the limit back to the default, for a new connection or a new leader."""
        self.limit = DEFAULT_BATCHES_RETAINED
        self.heard = False

    def limit_records(self, sequence_cap: int | None) -> None:
        """Limit how many records the unresolved batches may have, not how many batches (KIP-758).

        Args:
            sequence_cap: the most records; None limits the number of batches again.
        """
        self.sequence_cap = sequence_cap

    def admits(self, span: int) -> bool:
        """Return whether a batch may be sent if the span, with that batch, is `span` batches."""
        return span <= self.limit

    def observe(self, span: int) -> None:
        """Note the span after a batch was sent; `statistics()` shows the largest one."""
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
