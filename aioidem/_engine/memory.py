"""ByteBudget: the memory that unsettled records may take (`buffer_memory`).

The budget covers a record from append until it is settled. Callers that find no room queue as
waiters, FIFO; a release wakes the one at the head if it fits and touches no other, so N waiting
senders cost O(1) each, not O(N) per release (aiokafka's quadratic wake-ups). While a caller waits
none overtakes it, and one who was granted room waits until it has claimed it: between its wake-up
and its turn another task may call (and trio runs those it woke in any order).

Rejected: a pool of batch.size buffers as in Java. Python frees bytes by itself, and whole-buffer
allocation is what makes Java's budget smaller than it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

__all__ = ["ByteBudget", "MemoryWaiter"]


class MemoryWaiter:
    """Someone who waits for room.

    `wake` is called once, when `granted` became True or the budget was closed. Whoever is granted
    room claims it when its record is queued, or abandons it.
    """

    __slots__ = ("abandoned", "granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False
        self.abandoned = False


class ByteBudget:
    """`buffer.memory`: bytes of unsettled records, with FIFO waiters."""

    __slots__ = ("_granted", "_waiters", "capacity", "used", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.waiting = 0
        self._waiters: deque[MemoryWaiter] = deque()
        # The one waiter who has room and has not claimed it.
        self._granted: MemoryWaiter | None = None

    def try_take(self, size: int) -> bool:
        """Take `size` bytes now if there is room and no caller waits."""
        if self.waiting or not self.fits(size):
            return False
        self.used += size
        return True

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes, if no caller waits."""
        # A record larger than the whole budget may pass when it is alone; max.request.size has
        # refused it before.
        return self.used + size <= self.capacity or self.used == 0

    def wait(self, size: int, wake: Callable[[], None]) -> MemoryWaiter:
        """Queue for `size` bytes."""
        waiter = MemoryWaiter(size, wake)
        self._waiters.append(waiter)
        self.waiting += 1
        self._grant()
        return waiter

    def claim(self, waiter: MemoryWaiter) -> None:
        """Let the next in line have its turn: the granted bytes are being used now."""
        if self._granted is waiter:
            self._granted = None
            self.waiting -= 1
            self._grant()

    def abandon(self, waiter: MemoryWaiter) -> None:
        """Leave the queue (timeout, cancellation); gives back what was granted meanwhile."""
        if waiter.abandoned:
            return
        waiter.abandoned = True
        if waiter.granted:
            self.claim(waiter)
            self.release(waiter.size)
            return
        self.waiting -= 1
        self._grant()

    def release(self, size: int) -> None:
        """Give bytes back and grant room to the waiter at the head if it fits now."""
        self.used -= size
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        waiters = self._waiters
        while waiters and self._granted is None:
            head = waiters[0]
            if not head.abandoned and not self.fits(head.size):
                return
            waiters.popleft()
            if not head.abandoned:
                self.used += head.size
                head.granted = True
                self._granted = head
                head.wake()

    def wake_all(self) -> Iterator[MemoryWaiter]:
        """Empty the queue without granting anything: the producer is closing."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.abandoned:
                waiter.abandoned = True
                self.waiting -= 1
                waiter.wake()
                yield waiter
