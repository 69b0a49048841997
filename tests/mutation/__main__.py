"""Which mutants made by machine the tests notice: `python -m tests.mutation --sample 60`.

Each mutant is judged twice: by the simulation and the exploration alone, and by the unit tests
alone. Results are kept in `.venv/mutation/results.jsonl`, so a run that was ended goes on where it
was. The output ends with how many were killed by which; the exit status is 1 if a mutant survived
both that `triage.toml` does not have.

`--sample N --seed S` judges N mutants that the seed draws; `--all` judges all, in a drawn order;
`--only WORDS` those whose name contains the words.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from .applying import Unfit
from .fresh import fresh_runs
from .judges import FOLDERS, Job, drill_runs, simulation_runs
from .operators import Mutant
from .reach import Reach, Run
from .results import Result, Results, report
from .sources import ROOT, all_mutants, digest, paths
from .triage import Triage
from .worker import Worker

__all__ = ["main"]

KEPT: Final = Path(sys.prefix) / "mutation"
PROCESSES: Final = 2
_SIMULATION: Final = "simulation"
_OWN: Final = "tests/mutation/test_operators.py"
"""What a worker collects if it needs no test: pytest fails if there is none."""

_SIMULATION_FILES: Final = (
    "tests/simulated",
    "tests/exploration",
    "aioidem/_testing",
    "aioidem/_broker",
)
_CHOICE: Final = ("tests/simulated/corpus.json", "tests/mutation/judges.py")
"""The files that say which seeds are tried."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the command line asks for, and print what came of it."""
    asked = _parser().parse_args(arguments)
    asked.began = time.monotonic()
    mutants = all_mutants()
    names = _chosen(asked, mutants)
    triage = Triage.read(Path(__file__).parent / "triage.toml")
    results = Results(KEPT / "results.jsonl", {path: digest(ROOT / path) for path in paths()})
    if not asked.report:
        reach = _reach(asked.tests)
        left = [
            name
            for name in names
            if results.get(mutants[name]) is None
            or (asked.survivors and not results[name].killed)
            or asked.again
        ]
        _Judging(reach, results, asked).run([mutants[name] for name in left])
    judged = [found for name in names if (found := results.get(mutants[name])) is not None]
    for line in report(judged, triage):
        _say(line)
    stale = [name for name in triage.names if name not in mutants]
    for name in stale:
        _say(f"no longer a mutant: {name}")
    return 1 if any(not each.killed and each.mutant not in triage.names for each in judged) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, help="draws the sample; by default a new one")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument("--only", metavar="WORDS", help="those whose name contains the words")
    parser.add_argument("--again", action="store_true", help="judge again what was judged before")
    parser.add_argument("--survivors", action="store_true", help="judge survivors again")
    parser.add_argument("--report", action="store_true", help="judge nothing, print the results")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="CPU time per mutant and judge, about"
    )
    parser.add_argument(
        "--soak", type=float, default=60.0, help="CPU time per mutant for seeds besides, about"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no mutant later")
    parser.add_argument("--tests", nargs="*", default=list(FOLDERS), help="other unit tests")
    return parser


def _chosen(asked: argparse.Namespace, mutants: dict[str, Mutant]) -> list[str]:
    names = [name for name in mutants if asked.only is None or asked.only in name]
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    count = len(names) if asked.all or asked.only is not None else min(asked.sample, len(names))
    _say(f"{count} of {len(mutants)} mutants, drawn by --seed {seed}")
    random.Random(seed).shuffle(names)  # so a larger sample begins with the smaller one
    return names[:count]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# -- which runs execute what ----------------------------------------------------------------------


def _reach(tests: Sequence[str]) -> Reach:
    """Return which runs execute which lines; trace those whose files have changed."""
    reach = Reach(KEPT / "reach.json", digest(*(ROOT / path for path in paths())))
    wanted = {path: digest(ROOT / path) for path in _files(tests, "test_*.py")}
    simulation = [*_files(_SIMULATION_FILES, "*.py"), *_CHOICE]
    wanted[_SIMULATION] = digest(*(ROOT / path for path in simulation))
    unknown = [group for group, made in wanted.items() if not reach.knows(group, made)]
    if unknown:
        _say(f"tracing which lines {len(unknown)} groups of runs execute")
        parts = [unknown[place::PROCESSES] for place in range(PROCESSES)]
        if _SIMULATION in unknown:  # as long as many others
            parts = [[_SIMULATION], [group for group in unknown if group != _SIMULATION]]
        with ThreadPoolExecutor(PROCESSES) as pool:
            tracing = partial(_trace, reach, wanted)
            list(pool.map(tracing, range(PROCESSES), parts))
    return reach


def _files(places: Sequence[str], pattern: str) -> list[str]:
    found = (
        [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).glob(pattern))
        for place in places
    )
    return [path.relative_to(ROOT).as_posix() for path in chain.from_iterable(found)]


def _trace(reach: Reach, wanted: dict[str, str], place: int, groups: list[str]) -> None:
    """Trace some groups in a process of their own, and keep each as soon as it is done."""
    if not groups:
        return
    files = [group for group in groups if group != _SIMULATION]
    worker = Worker(files or [_OWN], KEPT / f"worker-{place}.log")
    try:
        names = worker.names()
        for group in groups:
            own = [name for name in names if name.partition("::")[0] == group]
            runs = simulation_runs() if group == _SIMULATION else own
            reach.add(group, wanted[group], worker.trace(runs))
    finally:
        worker.close()


# -- judging --------------------------------------------------------------------------------------


class _Judging:
    """Judges mutants in some processes at once."""

    def __init__(self, reach: Reach, results: Results, asked: argparse.Namespace) -> None:
        self.reach = reach
        self.results = results
        self.asked = asked
        self.order = {name: place for place, name in enumerate(simulation_runs())}
        self.files = _files(asked.tests, "test_*.py")
        self.queue: SimpleQueue[Mutant] = SimpleQueue()
        self.began = asked.began
        self.done = 0

    def run(self, mutants: Sequence[Mutant]) -> None:
        if not mutants:
            return
        for mutant in mutants:
            self.queue.put(mutant)
        with ThreadPoolExecutor(PROCESSES) as pool:
            list(pool.map(self._serve, range(PROCESSES)))

    def _serve(self, place: int) -> None:
        log = KEPT / f"worker-{place}.log"
        worker = Worker(self.asked.tests, log)
        try:
            for mutant in self._queued():
                result = self._judged(mutant, worker, log)
                self.results.add(result)
                self.done += 1
                _say(f"{self.done}, {time.monotonic() - self.began:.0f} s: {result.line}")
        finally:
            worker.close()

    def _queued(self) -> Iterator[Mutant]:
        with suppress(Empty):
            while time.monotonic() - self.began < 60 * self.asked.minutes:
                yield self.queue.get_nowait()

    def _judged(self, mutant: Mutant, worker: Worker, log: Path) -> Result:
        simulated = self._simulation(mutant)
        units = self._job(self.files, mutant, lambda run: run.seconds)
        # What no run executes may have been executed by an import.
        reached = bool(units.runs or self.reach.runs([_SIMULATION], mutant.place))
        if mutant.place.function and reached:
            try:
                return Result(
                    mutant.name, worker.judge(mutant, simulated), worker.judge(mutant, units)
                )
            except Unfit:
                pass
        if not reached:
            imported = mutant._replace(place=mutant.place._replace(function=""))
            simulated = self._simulation(imported)
            units = self._job(self.files, imported, lambda run: run.seconds)
        files = sorted({name.partition("::")[0] for name, _ in units.runs})
        own = Worker(files or [_OWN], log.with_suffix(".own.log"), mutant)
        try:
            return Result(mutant.name, own.judge(None, simulated), own.judge(None, units))
        finally:
            own.close()

    def _simulation(self, mutant: Mutant) -> Job:
        """Return the simulation's runs: drills, seeds that execute the place, and further seeds."""
        traced = self._job([_SIMULATION], mutant, lambda run: self.order[run.name])
        fresh = fresh_runs([name for name, _ in traced.runs])
        runs = [*drill_runs(), *traced.runs, *fresh]
        return Job(runs, self.asked.seconds + self.asked.soak)

    def _job(self, groups: Sequence[str], mutant: Mutant, key: Callable[[Run], float]) -> Job:
        runs = sorted(self.reach.runs(groups, mutant.place), key=key)
        return Job([(run.name, run.seconds) for run in runs], self.asked.seconds)


if __name__ == "__main__":
    sys.exit(main())
