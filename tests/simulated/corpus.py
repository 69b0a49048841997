"""The corpus: seeds that together take every row and every pair that a search has found.

Usage: `python -m tests.simulated.corpus --seeds N [--from K] [--branches]`. It runs N seeds of the
profiles, of the swarm and of the transactions, and of the seeds in `corpus.json`; chooses the few
seeds that reach all that the others reach; and writes `corpus.json`. In `corpus_rows.json` it
writes a seed for each row that is taken; `--rows` writes only that, from the corpus as it is.
"Reach" means rows of the engine's tables and pairs (`rows`); with `--branches` also the engine's
branches, which takes some ten times as long with Python 3.11, and hardly longer with a later one,
which has `sys.monitoring`. What the seeds of the swarm draw changes with its list
of features. Then this has to be run again, and `test_corpus` says so if rows are lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from aioidem._engine import core

from .rows import Rows, all_rows
from .soak import MIXES, PROCESSES, quiet, run_transactional
from .world import Result

__all__ = ["CORPUS", "RUNS", "Reached", "chosen", "main", "reached", "rows_of_corpus", "seeds_of"]

CORPUS = Path(__file__).with_name("corpus.json")
CORPUS_ROWS = Path(__file__).with_name("corpus_rows.json")
RUNS: dict[str, Callable[[int], Result]] = {**MIXES, "transactions": run_transactional}
_ENGINE = str(Path(core.__file__).parent)
_CHUNK = 20


class Reached(NamedTuple):
    """What one seed has reached."""

    mix: str
    seed: int
    what: frozenset[str]
    wrong: str


def seeds_of(path: Path = CORPUS) -> list[tuple[str, int]]:
    """Return (mix, seed) of all seeds of the corpus."""
    kept: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
    return [(mix, seed) for mix, seeds in kept.items() for seed in seeds]


def rows_of_corpus() -> dict[str, tuple[str, int]]:
    """Return the rows that the corpus takes, each with (mix, seed) of the first seed that does."""
    kept: dict[str, list[Any]] = json.loads(CORPUS_ROWS.read_text())
    return {row: (mix, seed) for row, (mix, seed) in kept.items()}


def _write_rows(runs: list[Reached]) -> None:
    rows = [f"{table}: {row}" for table, names in all_rows().items() for row in names]
    taken: dict[str, tuple[str, int]] = {}
    for row in rows:
        by = next((run for run in runs if row in run.what), None)
        if by is not None:
            taken[row] = by.mix, by.seed
    lines = json.dumps(taken, indent=1).replace("[\n  ", "[").replace(",\n  ", ", ")
    CORPUS_ROWS.write_text(lines.replace("\n ]", "]") + "\n")


@contextmanager
def _traced(found: set[str], branches: bool) -> Iterator[None]:
    """Collect the branches of the engine that are taken: a line, and the line that came after."""
    if not branches:
        yield
        return
    if hasattr(sys, "monitoring"):
        with _monitored(found):
            yield
        return

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_ENGINE):
            return None
        name = f"{code.co_filename.rpartition('/')[2]}:"
        before = frame.f_lineno

        def line(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add(f"{name}{before}>{frame.f_lineno}")
                before = frame.f_lineno
            return line

        return line

    saved = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(saved)


@contextmanager
def _monitored(found: set[str]) -> Iterator[None]:
    """Collect the branches of the engine that are taken, by `sys.monitoring` (Python 3.12)."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool, off = monitoring.COVERAGE_ID, monitoring.DISABLE
    taken: dict[tuple[CodeType, int], set[int]] = {}

    def branch(code: CodeType, at: int, to: int) -> Any:
        if not code.co_filename.startswith(_ENGINE):
            return off
        ways = taken.setdefault((code, at), set())
        ways.add(to)
        return off if len(ways) > 1 else None

    monitoring.use_tool_id(tool, "corpus")
    monitoring.register_callback(tool, monitoring.events.BRANCH, branch)
    monitoring.set_events(tool, monitoring.events.BRANCH)
    monitoring.restart_events()
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    for (code, at), ways in taken.items():
        name = code.co_filename.rpartition("/")[2]
        found.update(f"{name}:{code.co_qualname}:{at}>{to}" for to in ways)


def reached(mix: str, seed: int, branches: bool = False) -> Reached:
    """Run a seed, and return what it has reached."""
    rows, found = Rows(), set[str]()
    with quiet(), rows.counted(), _traced(found, branches):
        result = RUNS[mix](seed)
    wrong = str(result.violations[0]) if result.violations else ""
    return Reached(mix, seed, frozenset(found | rows.taken.keys() | rows.pairs.keys()), wrong)


def chosen(runs: list[Reached]) -> list[Reached]:
    """Return few of the runs that reach all that all runs reach: the greedy cover of a set."""
    left = set().union(*(run.what for run in runs))
    kept: list[Reached] = []
    candidates = list(runs)
    while left:
        candidates = [run for run in candidates if run.what & left]
        best = max(candidates, key=lambda run: len(run.what & left))
        kept.append(best)
        left -= best.what
    return kept


def _chunk(plan: list[tuple[str, int]], branches: bool) -> list[Reached]:
    return [reached(mix, seed, branches) for mix, seed in plan]


def main() -> int:
    """Search, and write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=600)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--branches", action="store_true")
    parser.add_argument("--rows", action="store_true")
    asked = parser.parse_args()
    if asked.rows:
        _write_rows([reached(mix, seed) for mix, seed in seeds_of()])
        return 0
    wanted = range(asked.first, asked.first + asked.seeds)
    plan = sorted({*seeds_of(), *((mix, seed) for seed in wanted for mix in RUNS)})
    chunks = [plan[at : at + _CHUNK] for at in range(0, len(plan), _CHUNK)]
    runs: list[Reached] = []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_chunk, chunks, [asked.branches] * len(chunks)):
            runs += part
    say = sys.stdout.write
    wrong = [run for run in runs if run.wrong]
    for run in wrong:
        say(f"{run.mix} {run.seed}: {run.wrong}\n")
    kept = chosen([run for run in runs if not run.wrong])
    everything = set().union(*(run.what for run in kept))
    by_mix = {mix: sorted(run.seed for run in kept if run.mix == mix) for mix in RUNS}
    CORPUS.write_text(json.dumps(by_mix, indent=1).replace(",\n  ", ", ") + "\n")
    _write_rows(kept)
    rows = Rows()
    rows.taken.update(everything)
    for line in rows.lines():
        say(line + "\n")
    say(f"{len(plan)} seeds reach {len(everything)}; {len(kept)} of them reach the same\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
