"""Judges: run tests, seeds or spaces in a forked process, and say whether one of them noticed.

A process that has to stop at a bound of CPU time was stopped by the mutant, so a bound that is
reached is a kill too, which is counted by itself. Without a mutant no run comes near its bound.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, NamedTuple

import pytest

__all__ = [
    "DRILLS",
    "FOLDERS",
    "WHOLE",
    "Ended",
    "Job",
    "Verdict",
    "bound",
    "cpu_seconds",
    "drill_runs",
    "forked",
    "judge",
    "perform",
    "simulation_runs",
]

FOLDERS: Final = (
    "tests/engine",
    "tests/records",
    "tests/hot/test_record_twins.py",
    "tests/hot/test_twins.py",
    "tests/producer",
    "tests/drop_in",
    "tests/flight",
    "tests/hostile",
    "tests/incident",
    "tests/integrations",
)
"""The tests other than simulation and exploration that drive the mutated code.

Without those that compare counts of opcodes or instructions, which notice any change.
"""

WHOLE: Final = "whole "
"""The prefix of a space with all of its faults, and not only one."""

DRILLS: Final = "drills"
"""The mix of the runs that drive parts of the engine by themselves, all parts in each run."""

_DRILLED: Final = 200
"""How many of these runs are tried, before all others. What they execute is not traced."""

_DRILL_SECONDS: Final = 0.1

_SEEDS: Final = {
    "profiles": 80,
    "odd": 60,
    "transactions": 40,
    "transactional swarm": 20,
    "resolve": 20,
}
"""How many seeds of each mix are tried besides those of the corpus."""

_FIRST: Final = 45
"""Seeds of the corpus that are tried before the spaces."""

_STATES: Final = 20_000
"""More states than any of the spaces has, with as many faults."""

_MEMORY: Final = 4 << 30
_PATIENCE: Final = 900.0
"""Seconds of real time after which a process is ended that waits for something."""


class Verdict(NamedTuple):
    """What came of the runs with a mutant in place."""

    killed: bool
    how: str
    """The run that noticed, or how many runs did not."""
    seconds: float
    """The CPU time that it took."""


class Job(NamedTuple):
    """Runs to try, and the CPU time after which no further one is begun."""

    runs: Sequence[tuple[str, float]]
    """Names, and the CPU time that each takes without a mutant."""
    budget: float
    least: float = 10.0
    """The CPU time that every run may take, however quick it is without a mutant."""


def simulation_runs() -> list[str]:
    """Return the names of all seeds and spaces, in the order in which they are tried.

    The corpus comes first: its seeds take the rows and branches that few others take. The spaces
    are those of the everyday tests, with as many faults.
    """
    from tests.exploration.spaces import EVERYDAY, SPACES
    from tests.simulated.corpus import seeds_of

    by_mix: dict[str, list[str]] = {}
    for mix, seed in seeds_of():
        by_mix.setdefault(mix, []).append(f"{mix} {seed}")
    corpus = _by_turns(by_mix.values())
    others = [
        [f"{mix} {seed}" for seed in range(count) if f"{mix} {seed}" not in corpus]
        for mix, count in _SEEDS.items()
    ]
    spaces = [f"space {name}" for name in SPACES]
    return [
        *corpus[:_FIRST],
        *spaces,
        *corpus[_FIRST:],
        f"{WHOLE}space {EVERYDAY}",
        *_by_turns(others),
    ]


def drill_runs() -> list[tuple[str, float]]:
    """Return the runs that drive parts by themselves, and the CPU time that each takes, about."""
    return [(f"{DRILLS} {seed}", _DRILL_SECONDS) for seed in range(_DRILLED)]


def _by_turns(names: Iterable[Iterable[str]]) -> list[str]:
    return [name for turn in zip_longest(*names) for name in turn if name is not None]


class Ended(NamedTuple):
    """How a forked process ended."""

    result: Any
    """What its function returned; None if the process was ended by a signal, as at a bound."""
    last: str
    """The last thing that the function said."""
    seconds: float
    """The CPU time that the process used."""


def forked(action: Callable[[Callable[[str], None]], Any]) -> Ended:
    """Call a function in a forked process.

    Args:
        action: the function. Its argument is a function that tells this process a word.

    Raises:
        RuntimeError: The function raised an exception.
    """
    here, there = Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        here.close()
        _in_fork(action, there)
    there.close()
    last, result = _received(here, pid)
    here.close()
    _, _, used = os.wait4(pid, 0)
    if isinstance(result, RuntimeError):
        raise result
    return Ended(result, last, used.ru_utime + used.ru_stime)


def _received(here: Connection, pid: int) -> tuple[str, Any]:
    last = ""
    while True:
        if not here.poll(_PATIENCE):
            os.kill(pid, signal.SIGKILL)
            return last, None
        try:
            kind, value = here.recv()
        except EOFError:
            return last, None
        if kind == "result":
            return last, value
        last = value


def _in_fork(action: Callable[[Callable[[str], None]], Any], to: Connection) -> None:
    """Call the function, send what it returns, and end this process."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        result: Any
        try:
            result = action(lambda word: to.send(("said", word)))
        except Exception as error:  # noqa: BLE001 - raised again on the other side
            result = RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(OSError):
            to.send(("result", result))
    finally:
        os._exit(0)


def cpu_seconds() -> float:
    """Return the CPU time that this process has used: bounds are counted in it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bound(seconds: float) -> None:
    """Let this process be ended when it has used so many more seconds of CPU time."""
    until = math.ceil(cpu_seconds() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def judge(apply: Callable[[], None], job: Job, items: Mapping[str, pytest.Item]) -> Verdict:
    """Run the job's runs with a mutant in place, until one notices it.

    A test that notices must do so twice: tests that use sockets may fail on a busy machine.

    Args:
        apply: puts the mutant in place, for good.
        job: the runs.
        items: the collected tests by their names.
    """

    def act(runs: Sequence[tuple[str, float]]) -> Ended:
        def acting(say: Callable[[str], None]) -> tuple[bool, str]:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
            bound(job.least)
            apply()
            return _until_noticed(job._replace(runs=runs), items, say)

        return forked(acting)

    ended = act(job.runs)
    if ended.result is None:
        return Verdict(killed=True, how=f"out of time: {ended.last}", seconds=ended.seconds)
    killed, how = ended.result
    if killed and ended.last in items:
        again = act([run for run in job.runs if run[0] == ended.last])
        if again.result is not None and not again.result[0]:
            names = [name for name, _ in job.runs]
            rest = job.runs[names.index(ended.last) + 1 :]
            verdict = judge(apply, job._replace(runs=rest), items)
            return verdict._replace(seconds=ended.seconds + again.seconds + verdict.seconds)
    return Verdict(killed, how, ended.seconds)


def _until_noticed(
    job: Job, items: Mapping[str, pytest.Item], say: Callable[[str], None]
) -> tuple[bool, str]:
    began = cpu_seconds()
    for done, (name, seconds) in enumerate(job.runs):
        if cpu_seconds() - began > job.budget:
            return False, f"{done} of {len(job.runs)} runs, and then no time"
        say(name)
        bound(job.least + 10 * seconds)
        found = perform(name, items)
        if found is not None:
            return True, f"{name}: {found}"[:160]
    return False, f"all of {len(job.runs)} runs"


def perform(name: str, items: Mapping[str, pytest.Item]) -> str | None:
    """Perform one run, and return what is wrong; None if nothing is, or if there is no such test.

    A mutant may change the values of a test's parameters, and so the test's name.
    """
    if "::" in name:
        return _test(items[name]) if name in items else None
    try:
        return _simulated(name)
    except Exception as error:  # noqa: BLE001 - whatever the mutant raises is noticed
        return repr(error)


def _simulated(name: str) -> str | None:
    from tests.exploration.search import explore
    from tests.exploration.spaces import SPACES
    from tests.simulated.corpus import RUNS
    from tests.simulated.drills.drilled import drills
    from tests.simulated.resolving import Tally, resolve_seed
    from tests.simulated.soak import quiet, run_transactional_swarm

    kind, _, which = name.removeprefix(WHOLE).partition(" ")
    if kind == "space":
        faults = None if name.startswith(WHOLE) else 1
        found = explore(SPACES[which], faults=faults, limit=_STATES)
        return None if found.violation is None else found.violation.what
    mix, _, seed = name.rpartition(" ")
    with quiet():
        if mix == DRILLS:
            return next(drills(int(seed)), None)
        if mix == "resolve":
            tally = Tally()
            tally.add(resolve_seed(int(seed)))
            return tally.wrong[0] if tally.wrong else None
        runs = {**RUNS, "transactional swarm": run_transactional_swarm}
        result = runs[mix](int(seed))
    return str(result.violations[0]) if result.violations else None


def _test(item: pytest.Item) -> str | None:
    watch = _Watch()
    item.config.pluginmanager.register(watch)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    finally:
        item.config.pluginmanager.unregister(watch)
    return watch.failed


class _Watch:
    """Learns whether a test failed."""

    failed: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = str(report.longrepr).strip().rpartition("\n")[2]
