"""BatchLimits: how large a batch of each topic one broker is known to accept.

A batch that is refused for its size, and whose refusal is lost, is in doubt: it is never split,
every copy of it is refused, and it ends UNKNOWN. Therefore several records are sent in a batch
larger than `batch_size` only if the broker is known to accept its size. Usually the topic's config
says so (DescribeConfigs). Without the permission DESCRIBE_CONFIGS on the topic, the limit is the
largest batch that was acknowledged on the connection, but at least `batch_size`. A batch larger
than `batch_size` is then first sent only for a single record that alone is larger.

The limits are kept per connection: another leader may have another `message.max.bytes`, and the
config may have changed while there was no connection. The config is requested when a batch could
grow, after a refusal that the known limit does not explain, and again `metadata_max_age` after the
answer. (That counts from the answer and not from the request, because a request that takes longer
would be due again at once, and would leave no room for records on a connection that may carry one.
Such a connection may carry a Metadata request first, which takes longer, too. So the limit does not
age until there is room for records, but for at most `request_timeout`. The topic's partitions share
it: what the first one finds in a poll, the next one must not count as a reason to ask again.)

Rejected: sending ever larger batches of several records to find the limit by trial, because the
first batch of each size could end in doubt. Rejected: assuming Kafka's default of
`max.message.bytes` for a topic whose config cannot be read: the topics that refuse batches are
those with another value.
"""

from __future__ import annotations

__all__ = ["BatchLimit", "BatchLimits"]


class BatchLimit:
    """The known size limit of one topic's batches on one connection."""

    __slots__ = (
        *("_answered", "_asking", "_refused", "_told_at"),
        *("acknowledged", "told", "topic", "unused"),
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        # The limit that the topic's config names, in bytes; None while it is not known.
        self.told: int | None = None
        # The largest batch of the topic that was acknowledged on this connection, in bytes.
        self.acknowledged = 0
        # When the last answer came, in seconds; None if the config is to be requested at once.
        self._told_at: float | None = None
        self._asking = False
        # Whether an answer has come, and there was no room for records on the connection since.
        self.unused = False
        # Whether the last answer about the config named a limit; True before the first answer.
        self._answered = True
        # Whether a batch was refused for its size, and no known limit explains that.
        self._refused = False

    def known(self, batch_size: int) -> int:
        """Return the largest size that is known to be accepted, in bytes.

        Args:
            batch_size: the option of that name, in bytes; batches of this size are assumed to be
            accepted.
        """
        return max(batch_size, self.acknowledged) if self.told is None else self.told

    def wants(self, now: float, max_age: float, unused_for: float, *, growth: bool) -> bool:
        """Return whether the topic's config should be requested now.

        Args:
            now: the time, in seconds.
            max_age: how many seconds after its answer the config is requested again.
            unused_for: so many at least, if there was no room for records since the answer.
            growth: whether the next batch may become larger than the option `batch_size`.
        """
        if self._asking or not (growth or self._refused):
            return False
        after = max(max_age, unused_for) if self.unused else max_age
        return self._told_at is None or now >= self._told_at + after

    def find_room(self, now: float, unused_for: float) -> None:
        """Note that the connection has room for records now: from here on the limit ages.

        Args:
            now: the time, in seconds.
            unused_for: for how many seconds after its answer, at most, it has not aged before.
        """
        self.unused = False
        if self._told_at is not None and now <= self._told_at + unused_for:
            self._told_at = now

    def awaited(self) -> bool:
        """Return whether batches wait for the limit, because one was refused for its size."""
        return self._asking and self._refused

    def ask(self) -> None:
        """Note that the request for the topic's config is being sent."""
        self._asking = True

    def tell(self, told: int | None, now: float) -> None:
        """Record the limit in the broker's answer, in bytes; None if the answer names none."""
        self.told, self._asking, self._refused = told, False, False
        self._told_at, self.unused = now, True
        self._answered = told is not None

    def accept(self, nbytes: int) -> None:
        """Note that a batch of `nbytes` was acknowledged."""
        if nbytes > self.acknowledged:
            self.acknowledged = nbytes

    def refuse(self, nbytes: int) -> None:
        """Note that a batch of `nbytes` was refused for its size."""
        if self.acknowledged >= nbytes:
            self.acknowledged = 0
        if self.told is not None and self.told < nbytes:
            return
        self._refused = True
        if self._answered:
            # Ask at once: the limit was lowered, or the topic's config was never requested.
            self._told_at = None


class BatchLimits:
    """The size limits of all topics on one connection."""

    __slots__ = ("_by_topic", "may_ask")

    def __init__(self) -> None:
        self._by_topic: dict[str, BatchLimit] = {}
        # Whether the topics' configs may be requested on this connection. False if the previous
        # connection to the broker ended before such a request was answered, because the broker may
        # have closed the connection upon that request.
        self.may_ask = True

    def of(self, topic: str) -> BatchLimit:
        """Return the limit of a topic; it is created on first use."""
        limit = self._by_topic.get(topic)
        if limit is None:
            limit = self._by_topic[topic] = BatchLimit(topic)
        return limit

    def forget(self, topic: str) -> None:
        """Forget the limit of a topic that was deleted: its successor may have another one."""
        self._by_topic.pop(topic, None)
