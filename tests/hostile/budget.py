"""The limits of what one input may cost: processor time and memory, depending on its length.

Processor time is measured instead of elapsed time, so a busy machine fails no test. Memory is
measured in two ways, because `tracemalloc` makes an input take about three times as long:

- For every input, how much the process's resident size grows while it runs. On Linux this takes two
  small reads (`/proc/self/clear_refs` resets the peak, `VmHWM` is the peak); elsewhere it is 0.
- With `tracemalloc`, to the byte: for one input in fifty, and for each that made the process grow.

Rejected: tracing every input (a million inputs would take three times as long); the resident size
alone (the allocator keeps freed memory, so a second greedy input would not show).
"""

from __future__ import annotations

import resource
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

__all__ = [
    "DEFAULT",
    "GROWTH",
    "Budget",
    "OverTimeError",
    "growth",
    "resident",
    "seconds_of",
    "stopped_after",
    "traced",
]

GROWTH: Final = 2 << 20
"""An input is traced if the process grows by this many bytes."""

_CLEAR: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True)
class Budget:
    """What an input of a given length may cost.

    Attributes:
        seconds: of processor time, for any length.
        seconds_per_byte: additional time per byte.
        memory: bytes held at once, for any length. The targets decompress 1 MiB at most, and the
            default has room for some copies of that.
        memory_per_byte: additional memory per byte.
    """

    seconds: float = 0.05
    seconds_per_byte: float = 25e-6
    memory: int = 4 << 20
    memory_per_byte: int = 64

    def time_for(self, length: int) -> float:
        """Return how many seconds of processor time an input of `length` bytes may take."""
        return self.seconds + self.seconds_per_byte * length

    def memory_for(self, length: int) -> int:
        """Return how many bytes of memory an input of `length` bytes may take."""
        return self.memory + self.memory_per_byte * length


DEFAULT: Final = Budget()


class OverTimeError(BaseException):
    """Stops the run of an input that does not end; a handler of `Exception` does not catch it."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `OverTimeError` in the block after `seconds` of processor time, and then repeatedly.

    The error is repeated after each further tenth of that time, in case the block catches it.
    Outside of the main thread, where Python handles no signals, nothing is raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OverTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seconds_of(run: Callable[[], object]) -> float:
    """Measure the processor time of a call, in all threads."""
    began = _processor_time()
    run()
    return _processor_time() - began


def _processor_time() -> float:
    # `time.process_time` would advance in steps of 4 ms while the timer of `stopped_after` is on.
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def traced(run: Callable[[], object]) -> int:
    """Return the peak, in bytes, of what Python allocates during a call."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(run: Callable[[], object]) -> int:
    """Return by how many bytes the resident size rose during a call, at its peak."""
    try:
        _CLEAR.write_bytes(b"5")
        before = _resident(b"VmRSS:")
    except OSError:
        run()
        return 0
    run()
    return max(0, _resident(b"VmHWM:") - before)


def resident() -> int:
    """Return the resident size in bytes; on systems other than Linux, its peak so far."""
    try:
        # Not `ru_maxrss`: on Linux it includes the peak of the parent, from which this process
        # forked.
        return _resident(b"VmRSS:")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident(name: bytes) -> int:
    _, _, rest = _STATUS.read_bytes().partition(name)
    return int(rest.split(None, 1)[0]) << 10
