"""ByteBudget: the memory that records without an outcome may take (`buffer_memory`).

The budget covers a record from its append until it is settled: the record's bytes, its object and
what belongs to the object (`PendingRecord.charge`). The budget also covers the encoded copies of
batches while their requests are in flight. A part of the budget (`reserve`) is kept for copies,
because records may have taken all the rest when a copy is made. If the copies take more than the
reserve, the limit for records falls (`ByteBudget.limit`). The records that are queued already may
exceed the new limit. So until enough of them are settled, records and copies together can exceed
the budget, by at most what the connections may have in flight, less the reserve. That is
`max_in_flight_requests_per_connection` times `max_request_size` for each broker. The reserve also
pays for what nothing counts: the copies of one batch that exist while it is built and framed, and
what the C library keeps of freed blocks.

Callers that find no room wait in a FIFO queue, and no caller overtakes one that waits. A release of
bytes wakes only the waiter at the head, if its record fits. So a release costs O(1), however many
callers wait; in aiokafka it costs O(N), and N waiting callers cost O(N^2).

Between the wake-up of a waiter and its next step, another task may ask for room (and trio runs
woken tasks in any order). So a waiter that was granted room keeps its place at the head until it
has claimed the room.

Rejected: a pool of `batch_size` buffers as in Java. Python frees bytes by itself, and because a
pool allocates whole buffers, Java's budget holds fewer records than its name says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from aioidem._hot import BudgetFields

__all__ = ["COPIES_SHARE", "ByteBudget", "MemoryWaiter"]

COPIES_SHARE: Final = 3
"""`buffer_memory` divided by this number is kept for the copies of batches in flight.

With 4, values of 1 kB made the resident size grow to 115 % of `buffer_memory` (measured with
`benchmarks/memory.py`). The reason: once glibc has freed a batch of 1 MB, it allocates later
batches in the heap, between the values, and no longer with mmap.
"""


class MemoryWaiter:
    """A caller that waits for room in the budget.

    `wake` is called once, when `granted` becomes True or the budget is closed. A caller that was
    granted room claims it when its record is queued, or abandons it.
    """

    __slots__ = ("abandoned", "granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False
        self.abandoned = False


class ByteBudget(BudgetFields):
    """The `buffer_memory` of one producer, and a FIFO queue of the callers that wait for room.

    It counts the records without an outcome, and the encoded copies of batches in flight.

    Args:
        capacity: bytes, for records and copies together.
        reserve: the part of these bytes that is kept for copies.

    Attributes:
        used: the bytes that records have taken.
        copies: the bytes of encoded batches in flight.
        limit: the bytes that records may take at present.
        waiting: how many callers wait for room.
    """

    __slots__ = (
        "_granted",
        "_reserve",
        "_waiters",
        "capacity",
        "copies",
    )

    def __init__(self, capacity: int, reserve: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self._reserve = reserve
        self.copies = 0
        self.limit = capacity - reserve
        self._waiters: deque[MemoryWaiter] = deque()
        # The one waiter that was granted room and has not claimed it yet.
        self._granted: MemoryWaiter | None = None

    @property
    def in_use(self) -> int:
        """The bytes of records, and of the encoded copies of batches in flight, together."""
        return self.used + self.copies

    @property
    def head(self) -> MemoryWaiter | None:
        """The caller that has waited longest for room; None if none waits."""
        return next((each for each in self._waiters if not each.abandoned), None)

    def usage(self) -> str:
        """Say in words how many bytes records use and may use, for an error's message."""
        return (
            f"records use {self.used} of the {max(self.limit, 0)} bytes that buffer_memory "
            f"({self.capacity}) has for them at present"
        )

    def try_take(self, size: int) -> bool:
        """Take `size` bytes now if there is room and no caller waits; return whether it did."""
        if self.waiting or not self.fits(size):
            return False
        self.used += size
        return True

    def fits(self, size: int) -> bool:
        """Return whether there is room for `size` bytes, not counting callers that wait."""
        # Records that are queued together may exceed the whole budget, and so may a single record
        # together with its object; they are admitted if the budget is empty. A record whose bytes
        # alone exceed the budget was refused before it came here.
        return self.used + size <= self.limit or self.used == 0

    def add_copy(self, size: int) -> None:
        """Count the `size` bytes of an encoded batch, whether or not there is room for them."""
        self.copies += size
        kept = self.copies
        if kept < self._reserve:
            kept = self._reserve
        self.limit = self.capacity - kept

    def drop_copy(self, size: int) -> None:
        """Cease to count an encoded batch, and grant room to the waiter at the head if it fits."""
        self.add_copy(-size)
        if self._waiters:
            self._grant()

    def wait(self, size: int, wake: Callable[[], None]) -> MemoryWaiter:
        """Queue a waiter for `size` bytes, and return it.

        Args:
            size: bytes.
            wake: called once, when the room is granted or the budget is closed.
        """
        waiter = MemoryWaiter(size, wake)
        self._waiters.append(waiter)
        self.waiting += 1
        self._grant()
        return waiter

    def claim(self, waiter: MemoryWaiter) -> None:
        """Note that a waiter has used the room that it was granted, and grant room to the next."""
        if self._granted is waiter:
            self._granted = None
            self.waiting -= 1
            self._grant()

    def abandon(self, waiter: MemoryWaiter) -> None:
        """Remove a waiter (timeout, cancellation), and take back any bytes that it was granted."""
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
        """Give bytes back, and grant room to the waiter at the head if its record fits now."""
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
        """Wake all waiters without granting room, and yield them: the producer is closing."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.abandoned:
                waiter.abandoned = True
                self.waiting -= 1
                waiter.wake()
                yield waiter
