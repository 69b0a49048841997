"""Run inputs on a target and decide what is wrong with them: what they raise, and what they cost.

A measurement is usually taken once. Two cases are measured three times, and the lowest of the three
values counts: processor time that exceeds the budget or the time of the slowest input so far, and
memory that exceeds the budget. The reason is that an import, a garbage collection or a busy machine
slows one run down, but hardly three. So a replay of the slowest input takes about as long as the
judge has noted.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .budget import GROWTH, OverTimeError, growth, seconds_of, stopped_after, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from .targets import Target

__all__ = ["Costliest", "Judge"]

_TRACED: Final = 50
_PER_FINDING: Final = 3
_REPEATS: Final = 2
_ENDLESS: Final = 20
"""An input is stopped after this many times its budget."""


@dataclass(frozen=True)
class Costliest:
    """The accepted input with the highest cost so far, which is in seconds or in bytes."""

    cost: float = 0
    data: bytes = b""


class _Found(NamedTuple):
    """What is wrong with an input, or what it cost."""

    wrong: str | None
    took: float = 0.0
    peak: int = 0


@dataclass
class Judge:
    """Runs inputs on a target and keeps what was wrong.

    Attributes:
        slowest: the accepted input that took the most processor time.
        largest: the accepted input that took the most memory, among those that were traced.
    """

    target: Target
    inputs: int = 0
    failures: int = 0
    slowest: Costliest = Costliest()
    largest: Costliest = Costliest()
    findings: dict[str, list[bytes]] = field(default_factory=dict)

    def __call__(self, data: bytes, *, trace: bool = False) -> str | None:
        """Return the kind of an input's failure in one line; None if the input is accepted."""
        self.inputs += 1
        found = self._run(data, trace=trace or self.inputs % _TRACED == 0)
        if found.wrong is None:
            if found.took > self.slowest.cost:
                self.slowest = Costliest(found.took, data)
            if found.peak > self.largest.cost:
                self.largest = Costliest(found.peak, data)
            return None
        self.failures += 1
        same = self.findings.setdefault(found.wrong, [])
        if len(same) < _PER_FINDING:
            same.append(data)
        return found.wrong

    def _run(self, data: bytes, *, trace: bool) -> _Found:
        budget, length = self.target.budget, len(data)
        run = partial(self.target.run, data)
        took, peak = 0.0, 0

        def timed() -> None:
            nonlocal took
            took = seconds_of(run)

        try:
            with stopped_after(budget.time_for(length) * _ENDLESS):
                grew = growth(timed)
                if took > min(budget.time_for(length), self.slowest.cost):
                    took = min(took, *(seconds_of(run) for _ in range(_REPEATS)))
                if trace or grew > GROWTH:
                    peak = _least(lambda: traced(run), budget.memory_for(length))
        except OverTimeError:
            return _Found(f"did not end in {_ENDLESS} times its processor time")
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - all are failures
            return _Found(_kind(error))
        wrong = None
        if took > budget.time_for(length):
            per_byte = f"{budget.seconds_per_byte * 1e6:g} us a byte"
            wrong = f"took more than {budget.seconds:g} s and {per_byte} of processor time"
        elif peak > budget.memory_for(length):
            per_byte = f"{budget.memory_per_byte} bytes a byte"
            wrong = f"took more than {budget.memory >> 10} KiB and {per_byte} of memory"
        return _Found(wrong, took, peak)

    def smaller(self, data: bytes, wrong: str) -> bytes:
        """Return a shorter input that is wrong in the same way, found in a few hundred attempts."""
        tries, size = 300, max(1, len(data) // 2)
        while size and tries:
            at = 0
            while at < len(data) and tries:
                tries -= 1
                shorter = data[:at] + data[at + size :]
                if self._run(shorter, trace="memory" in wrong).wrong == wrong:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data


def _least(measure: Callable[[], int], limit: int) -> int:
    """Return a measurement, or the lowest of three if it is above a limit."""
    first = measure()
    return first if first <= limit else min(first, *(measure() for _ in range(_REPEATS)))


def _kind(error: BaseException) -> str:
    """Name the kind of a failure: the error's type, and where in the project it was raised."""
    places = [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "aioidem" in frame.filename or "hostile" in frame.filename
    ]
    if isinstance(error, BaseExceptionGroup):
        return f"group of {_kind(error.exceptions[0])}"
    return f"{type(error).__name__} in {places[-1] if places else '?'}"
