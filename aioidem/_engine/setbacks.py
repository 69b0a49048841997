"""Setbacks: what has failed at a partition since its last success, and until when it waits."""

from __future__ import annotations

from aioidem._engine.backoff import Backoff
from aioidem._engine.overdue import Trouble
from aioidem.errors import KafkaError

__all__ = ["Setbacks"]


class Setbacks:
    """The failures of one partition since its last acknowledgement, and the back-off after them."""

    __slots__ = ("_retry", "retry_at", "trouble")

    def __init__(self, retry: Backoff) -> None:
        self._retry = retry
        # Before this time nothing is sent, in seconds.
        self.retry_at = 0.0
        # What has failed since the last acknowledgement, for messages; None after a success, and
        # when a record comes after the partition had nothing to do.
        self.trouble: Trouble | None = None

    def failed(self, reason: KafkaError | str, now: float) -> None:
        """Note that an attempt has failed."""
        self._trouble_since(now).add(reason)

    def leaderless(self, now: float) -> None:
        """Note that metadata names no leader of the partition."""
        trouble = self._trouble_since(now)
        if trouble.leaderless_since is None:
            trouble.leaderless_since = now

    def _trouble_since(self, now: float) -> Trouble:
        """Return what has failed since the last acknowledgement; it begins now if nothing has."""
        if self.trouble is None:
            self.trouble = Trouble(now)
        return self.trouble

    def led(self) -> None:
        """Note that metadata names a leader."""
        if self.trouble is not None:
            self.trouble.leaderless_since = None

    def leader_changed(self) -> None:
        """End the back-off, which applied to the leader before."""
        self.retry_at = 0.0

    def back_off(self, now: float) -> None:
        """Wait for longer than after the last failure, unless the partition waits already."""
        # Batches that fail together are one failure: the delay doubles once for all of them, not
        # once for each.
        if now >= self.retry_at:
            self.retry_at = now + self._retry.next_delay()

    def wait_until(self, at: float) -> None:
        """Send nothing before a time, in seconds."""
        self.retry_at = at

    def end(self) -> None:
        """Forget the failures: a batch was acknowledged."""
        self._retry.reset()
        self.retry_at = 0.0
        self.trouble = None

    def forget(self) -> None:
        """Forget what has failed, but not the back-off: nothing waited any more."""
        self.trouble = None
