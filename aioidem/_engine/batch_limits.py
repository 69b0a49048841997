"""How large a batch of a topic one broker is known to take.

A batch that was refused for its size, and whose refusal was lost, is in doubt: it is never split,
every copy of it is refused, and it ends UNKNOWN. So a batch larger than `batch.size` is sent only
where its size is known to be taken: told by the topic's config (DescribeConfigs), or acknowledged
before. Who may not ask (DESCRIBE_CONFIGS on the topic) has batches of `batch.size`.

What is known hangs on the connection, as windows do: another leader may have another
`message.max.bytes`, and the config may have changed while there was no connection. It is asked for
when a batch could grow, after a refusal that it does not explain, and again after
`metadata.max.age`.

Rejected: trying a larger batch and keeping what was acknowledged. The first of each size would be
the one in doubt. Rejected: `max.message.bytes` as Kafka has it by default, for a topic that nobody
tells of: the topics that are refused are those that are configured otherwise.
"""

from __future__ import annotations

__all__ = ["BatchLimit", "BatchLimits"]


class BatchLimit:
    """What is known for one topic on one connection."""

    __slots__ = ("_answered", "_asked_at", "_asking", "_refused", "acknowledged", "told")

    def __init__(self) -> None:
        # The topic's own limit in bytes, None while it was not told.
        self.told: int | None = None
        # The largest batch acknowledged here, in bytes.
        self.acknowledged = 0
        self._asked_at: float | None = None
        self._asking = False
        self._answered = True
        # Whether a refusal came that what was told does not explain.
        self._refused = False

    def known(self, batch_size: int) -> int:
        """Return the most bytes known to be taken; `batch_size` is the caller's promise."""
        return max(batch_size, self.acknowledged) if self.told is None else self.told

    def wants(self, now: float, max_age: float, *, growth: bool) -> bool:
        """Whether the topic's config should be asked for now.

        Args:
            now: the time, seconds.
            max_age: seconds after which an answer, or its refusal, is old.
            growth: whether a batch could grow if the limit allows it.
        """
        if self._asking or not (growth or self._refused):
            return False
        return self._asked_at is None or now >= self._asked_at + max_age

    @property
    def awaited(self) -> bool:
        """Whether to wait for the answer: something was refused, and would be refused again."""
        return self._asking and self._refused

    def ask(self, now: float) -> None:
        """Note that the question is on its way."""
        self._asked_at, self._asking = now, True

    def tell(self, told: int | None) -> None:
        """Handle the answer; None: the broker does not say."""
        self.told, self._asking, self._refused = told, False, False
        self._answered = told is not None

    def accept(self, nbytes: int) -> None:
        """Note that a batch of `nbytes` was acknowledged."""
        self.acknowledged = max(self.acknowledged, nbytes)

    def refuse(self, nbytes: int) -> None:
        """Note that a batch of `nbytes` was refused for its size."""
        if self.acknowledged >= nbytes:
            self.acknowledged = 0
        if self.told is not None and self.told < nbytes:
            return
        self._refused = True
        if self._answered:
            self._asked_at = None  # it was lowered meanwhile, or never asked for


class BatchLimits:
    """The limits of one connection, by topic."""

    __slots__ = ("_by_topic", "may_ask")

    def __init__(self) -> None:
        self._by_topic: dict[str, BatchLimit] = {}
        # False where the connection before ended over this question.
        self.may_ask = True

    def of(self, topic: str) -> BatchLimit:
        """Return what is known of a topic; it is made on first use."""
        limit = self._by_topic.get(topic)
        if limit is None:
            limit = self._by_topic[topic] = BatchLimit()
        return limit
