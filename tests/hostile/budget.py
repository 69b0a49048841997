"""What one input may cost: processor time and memory, each so much and so much more per byte.

Time is the processor's and not the clock's, so a busy machine fails nobody. Memory is measured in
two ways, because `tracemalloc` makes an input take about three times as long:

* For every input, how much more the process has resident at most while it runs. Linux tells that in
  the time of two small reads (`/proc/self/clear_refs` begins anew, `VmHWM` is the peak); where it
  cannot be asked, it is 0.
* With `tracemalloc`, to the byte: for one input in fifty, and for each that made the process grow.

Rejected: tracing every input (a million inputs would take three times as long), and resident memory
alone (the allocator keeps what it has, so a second greedy input shows nothing).
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
"""Bytes by which the process may grow before an input is traced."""

_CLEAR: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True)
class Budget:
    """What an input of so many bytes may take.

    Attributes:
        seconds: of processor time, whatever the input's length.
        seconds_per_byte: beside that.
        memory: bytes at once, whatever the length. Codecs have a limit of 1 MiB here, and copies.
        memory_per_byte: beside that.
    """

    seconds: float = 0.05
    seconds_per_byte: float = 25e-6
    memory: int = 4 << 20
    memory_per_byte: int = 64

    def time_for(self, length: int) -> float:
        """Seconds of processor time for an input of `length` bytes."""
        return self.seconds + self.seconds_per_byte * length

    def memory_for(self, length: int) -> int:
        """Bytes for an input of `length` bytes."""
        return self.memory + self.memory_per_byte * length


DEFAULT: Final = Budget()


class OverTimeError(BaseException):
    """Ends an input that goes on and on; no handler of `Exception` keeps it."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `OverTimeError` within the block after so many seconds of processor time, and again
    every tenth of them. Does nothing outside of the main thread, where Python handles no signal.
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
    """The processor time of a call, of all threads."""
    began = _processor_time()
    run()
    return _processor_time() - began


def _processor_time() -> float:
    # Not `time.process_time`: with the timer of `stopped_after` it goes on in steps of 4 ms.
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def traced(run: Callable[[], object]) -> int:
    """The bytes that Python has allocated at most during a call, beyond what was there before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(run: Callable[[], object]) -> int:
    """The bytes by which the process had more resident at most during a call than before it."""
    try:
        _CLEAR.write_bytes(b"5")
        before = _resident(b"VmRSS:")
    except OSError:
        run()
        return 0
    run()
    return max(0, _resident(b"VmHWM:") - before)


def resident() -> int:
    """The bytes that the process has resident now; where Linux does not tell it, at most so far."""
    try:
        # Not the system's own peak: a process is born with that of the one that started it.
        return _resident(b"VmRSS:")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident(name: bytes) -> int:
    _, _, rest = _STATUS.read_bytes().partition(name)
    return int(rest.split(None, 1)[0]) << 10
