"""TopicState: a topic's records without a partition, its metadata, and its limit on batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.unassigned import UnassignedRecords
from aioidem.errors import KafkaError, broker_error

__all__ = ["TopicState"]

CEILING_MEMORY = 3600.0
"""Seconds for which MESSAGE_TOO_LARGE limits the size of a topic's batches."""


class TopicState:
    """The records without a partition, the metadata error and the batch size limit of one topic."""

    __slots__ = (
        "_ceiling",
        "_ceiling_until",
        "_too_large",
        "described_by",
        "error_code",
        "name",
        "refused",
        "sticky",
        "unassigned",
        "waiting",
    )

    def __init__(self, name: str, switch_after: int, random: Callable[[], float]) -> None:
        self.name = name
        self.sticky = StickyPartitioner(switch_after, random)
        self.unassigned = UnassignedRecords()
        # The number of the last Metadata request whose answer named the topic's partitions.
        self.described_by = 0
        # The number of callers that wait until the topic's partitions are known.
        self.waiting = 0
        self.error_code = 0
        # The error if the last metadata says that the cluster permanently refuses the topic; else
        # None.
        self.refused: KafkaError | None = None
        self._ceiling: int | None = None
        self._ceiling_until = 0.0
        # The size of the smallest batch that was refused as too large, in bytes. It is valid as
        # long as `_ceiling`, the limit that was set because of the refusal.
        self._too_large = 0

    def describe(self, error_code: int, *, told_by: int | None) -> None:
        """Record what a Metadata answer says about the topic.

        Args:
            error_code: the topic's error code, 0 for none.
            told_by: the number of the Metadata request, if its answer names the topic's partitions;
            otherwise None.
        """
        self.error_code = error_code
        self.refused = None
        if told_by is not None:
            self.described_by = told_by

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Count a waiting caller, so that metadata is requested until the partitions are known."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def refuse(self) -> KafkaError:
        """Note that the cluster permanently refuses the topic, and return the error."""
        self.refused = broker_error(
            self.error_code,
            f"topic {self.name!r}: the metadata of the cluster has this error. Check the topic's "
            "name, and whether this client's principal may DESCRIBE and WRITE to it",
        )
        return self.refused

    def too_large(self, nbytes: int, now: float) -> None:
        """Limit batches for an hour to half the size of a batch that was refused as too large.

        Args:
            nbytes: the size of the refused batch, in bytes.
            now: seconds.
        """
        ceiling = max(1, nbytes // 2)
        if self._ceiling is None or now >= self._ceiling_until:
            self._ceiling, self._too_large = ceiling, nbytes
        else:
            self._ceiling = min(self._ceiling, ceiling)
            self._too_large = min(self._too_large, nbytes)
        self._ceiling_until = now + CEILING_MEMORY

    def ceiling(self, default: int, now: float, told: int | None = None) -> int:
        """Return the largest size that a batch of this topic may have now, in bytes.

        Args:
            default: the limit if no batch was refused recently, in bytes.
            now: seconds.
            told: the limit that the topic's leader named, in bytes; None if not known. If it is
            below the size of every refused batch, it explains the refusals, and applies instead of
            half the size of the smallest refused batch.
        """
        if self._ceiling is None or now >= self._ceiling_until:
            return default
        if told is not None and told < self._too_large:
            return min(default, told)
        return min(default, self._ceiling)

    def forget_sizes(self) -> None:
        """Forget how large refused batches were: the topic was deleted and recreated."""
        self._ceiling = None

    def forget_cluster(self) -> None:
        """Forget what the cluster said about the topic: the producer moves to another cluster."""
        self.error_code = 0
        self.refused = None
        self.described_by = 0
        self.forget_sizes()
