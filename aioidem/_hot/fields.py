"""What the hot path reads and changes of the engine's objects for every record.

`Appender` and `PlainSends` are given these objects. In the compiled form their attributes are
fields of C, which compiled code reaches without looking up a name; for all other code they are
attributes like any others. The engine's classes inherit from these and add what they need.
"""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["BudgetFields", "QueueFields", "StickyFields", "TargetFields"]


class QueueFields:
    """The records of a partition that are not in a batch yet.

    Attributes:
        records: single records, and blocks of them, oldest first.
        bytes: the sum of their sizes.
    """

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records: deque[Any] = deque()
        self.bytes = 0


class StickyFields:
    """The partition that gets the records without a key.

    Attributes:
        left: how many bytes it still gets before another partition is chosen.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class TargetFields:
    """Where the next record without a key goes.

    Args:
        state: the partition's state, with its `queue`.
        sticky: how many bytes the partition still gets.
    """

    __slots__ = ("queue", "state", "sticky")

    def __init__(self, state: Any, sticky: StickyFields) -> None:
        self.state = state
        self.sticky = sticky
        self.queue: QueueFields = state.queue


class BudgetFields:
    """The memory for records.

    Attributes:
        limit: the bytes that records may take at present.
        used: the bytes that they have taken.
        waiting: how many callers wait for room.
    """

    __slots__ = ("limit", "used", "waiting")

    def __init__(self) -> None:
        self.limit = self.used = self.waiting = 0
