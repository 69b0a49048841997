"""An input that exceeds its budget of time or memory fails; noise in one measurement fails none."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import targets
from .budget import DEFAULT, Budget, growth, traced
from .fuzz import Worker
from .judge import Judge
from .targets import Target

MIB = 1 << 20
LARGE = 40 * MIB
SMALL = Budget(seconds=0.005, seconds_per_byte=0.0, memory=MIB, memory_per_byte=0)


def judge(run: Callable[[bytes], None], budget: Budget = DEFAULT) -> Judge:
    return Judge(Target("made", run, lambda: iter((b"", b"a", b"ab")), 1.0, budget))


def burn(seconds: float) -> None:
    """Use this much processor time."""

    def used() -> float:
        now = resource.getrusage(resource.RUSAGE_SELF)
        return now.ru_utime + now.ru_stime

    end = used() + seconds
    while used() < end:
        pass


def slow(_data: bytes) -> None:
    burn(0.02)


def greedy(_data: bytes) -> None:
    # The buffer is written to, because the system provides no memory for untouched pages. It has
    # more than 32 MiB, because malloc may reuse smaller blocks.
    bytearray(b"x") * LARGE


def endless(_data: bytes) -> None:
    while True:
        pass


def test_too_much_time_is_a_failure() -> None:
    """An input that takes more processor time than its budget is a failure."""
    judged = judge(slow, SMALL)
    wrong = judged(b"")
    assert wrong == "took more than 0.005 s and 0 us a byte of processor time"
    assert (judged.failures, judged.slowest.data) == (1, b"")
    assert judged.slowest.cost == 0


def test_a_longer_input_may_take_more_time() -> None:
    """The budget of processor time grows with the input's length."""
    judged = judge(slow, Budget(seconds=0.002, seconds_per_byte=0.01))
    assert judged(b"") is not None
    assert judged(b"x" * 100) is None
    assert judged.slowest.data == b"x" * 100


def test_an_input_that_never_ends_is_stopped_and_is_a_failure() -> None:
    """An input that never ends is stopped after 20 times its budget, and is a failure."""
    assert judge(endless, SMALL)(b"") == "did not end in 20 times its processor time"


def test_what_is_slow_only_once_is_noise() -> None:
    """An input that is slow only once, for example because of an import, is not a failure."""
    burned: list[float] = []

    def run(_data: bytes) -> None:
        if not burned:
            burned.append(0.1)
            burn(0.1)

    judged = judge(run)
    assert judged(b"first") is None
    assert burned
    assert judged.slowest.cost < 0.1


def test_too_much_memory_is_a_failure_though_it_was_not_to_be_traced() -> None:
    """Too much memory is a failure even if the input was not chosen for tracing."""
    if growth(lambda: greedy(b"")) == 0:
        pytest.skip("this system does not tell by how much a process grew")
    judged = judge(greedy, Budget(seconds=1, memory=MIB, memory_per_byte=0))
    assert judged(b"") == "took more than 1024 KiB and 0 bytes a byte of memory"
    assert judged.largest.cost == 0


def test_too_much_memory_is_a_failure_where_it_is_traced() -> None:
    """An input that takes more memory than its budget fails if tracemalloc measures it."""
    wrong = "took more than 1024 KiB and 0 bytes a byte of memory"
    strict = Budget(seconds=1, memory=MIB, memory_per_byte=0)
    assert judge(greedy, strict)(b"", trace=True) == wrong
    roomy = Budget(seconds=1, memory=MIB, memory_per_byte=10 * MIB)
    assert judge(greedy, roomy)(b"", trace=True) is not None
    judged = judge(greedy, roomy)
    assert judged(b"x" * 4, trace=True) is None
    assert LARGE <= judged.largest.cost < LARGE + MIB
    assert judged.largest.data == b"x" * 4


def test_one_input_in_fifty_is_traced() -> None:
    seen: list[int] = []

    def run(data: bytes) -> None:
        seen.append(len(data))
        bytearray(MIB // 2)

    judged = judge(run, Budget(seconds=1, memory=1000))
    wrong = [judged(b"") for _ in range(100)]
    assert [number for number, each in enumerate(wrong, 1) if each is not None] == [50, 100]
    assert len(seen) >= 100


def test_memory_is_traced_to_the_byte() -> None:
    assert MIB <= traced(lambda: bytearray(MIB)) < MIB + 10_000


def test_the_costliest_input_is_one_that_was_accepted() -> None:
    """The costliest input is never one that failed."""

    def run(data: bytes) -> None:
        if data == b"refused":
            burn(0.004)
            raise ValueError("a defect")
        burn(0.002 if data == b"slow" else 0.0)

    judged = judge(run)
    for data in (b"fast", b"slow", b"refused", b"fast again"):
        judged(data)
    assert (judged.failures, judged.slowest.data) == (1, b"slow")
    assert judged.slowest.cost >= 0.002


def test_a_run_tells_what_exceeded_its_budget_and_what_cost_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status file of a run has each kind of failure, and the slowest input."""

    def run(data: bytes) -> None:
        burn(0.02 if b"b" in data else 0.0005)

    def begin() -> Iterator[bytes]:
        yield from (b"a", b"b", b"aa")

    monkeypatch.setitem(targets.TARGETS, "made", Target("made", run, begin, 1.0, SMALL))
    worker = Worker("made", 3, 1, tmp_path)
    worker.blindly()
    worker.tell()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["inputs"], status["failures"]) == (3, 1)
    assert list(status["findings"]) == ["took more than 0.005 s and 0 us a byte of processor time"]
    assert status["slowest"]["data"] in ("YQ==", "YWE=")
