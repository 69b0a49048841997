"""Quick: judge mutants by plain tests in this one process, which takes seconds for a file.

Usage: `python -m tests.mutation.quick --only "windows.py" tests/engine/test_windows.py`. It prints
the mutants that survive the given tests. It is for those who write the tests of a class: whatever
survives these tests alone is a promise that they do not check. The verdicts that count are those of
`python -m tests.mutation`, which has all tests, seeds and spaces.

The code of a mutated function is exchanged, and put back after the verdict. So this judge has only
mutants inside of functions, and only tests that leave nothing behind: those without fixtures, event
loops and generated examples. A test that takes ten times its usual CPU time has noticed the mutant.
"""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from .applying import Functions, Unfit
from .judges import cpu_seconds
from .operators import Mutant
from .reach import Run, Tracer
from .sources import ROOT, all_mutants, paths

__all__ = ["main"]

_OPTIONS: Final = (
    *("--quiet", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", "-s"),
    *("-m", "not slow and not kafka and not install and not spark"),
    # This package was imported before pytest was; none of its asserts is a test's here.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)
_LEAST: Final = 0.5
"""Seconds of CPU time that every test may take with a mutant in place."""


class _LateError(BaseException):
    """A test has used up its CPU time; no test expects this exception."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or that of pytest if it cannot collect tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name has this text")
    parser.add_argument("--budget", type=float, default=1.0, help="CPU seconds for each verdict")
    parser.add_argument("tests", nargs="+", help="files and folders of tests")
    asked = parser.parse_args(arguments)
    options = [*_OPTIONS, "--rootdir", str(ROOT), *asked.tests]
    status = pytest.main(options, plugins=[_Judge(asked.only, asked.budget)])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


class _Judge:
    """The plugin that judges mutants instead of running the tests once."""

    def __init__(self, only: str, budget: float) -> None:
        self._only = only
        self._budget = budget
        self._items: dict[str, pytest.Item] = {}
        self._runs: list[Run] = []
        # By function: which tests have killed mutants of it, and how many.
        self._kills: dict[str, Counter[str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True  # pytest says what cannot be collected
        self._items = {item.nodeid: item for item in session.items if _plain(item)}
        self._runs = list(self._traced())
        chosen = [mutant for name, mutant in all_mutants().items() if self._only in name]
        mutants = [mutant for mutant in chosen if mutant.place.function]
        functions = Functions(paths())
        killed = 0
        for mutant in mutants:
            try:
                with _in_place(functions, mutant):
                    killer = self._killer(mutant)
            except Unfit:
                killer = None
            killed += killer is not None
            if killer is None:
                _say(f"{mutant.place.line}: {mutant.name}")
        _say(f"{len(self._runs)} tests: killed {killed} of {len(mutants)}")
        return True

    def _traced(self) -> Iterator[Run]:
        tracer = Tracer(paths())
        for name, item in self._items.items():
            began = cpu_seconds()
            with tracer.traced() as lines:
                wrong = _attempt(item, 60.0)
            if wrong is None:
                yield Run.of(name, cpu_seconds() - began, lines)
            else:
                _say(f"{name} fails without any mutant: {wrong}")

    def _killer(self, mutant: Mutant) -> str | None:
        """Return the test that notices the mutant; None if none does, or none in time."""
        place = mutant.place
        runs: list[Run] = []
        for line in (place.line, place.statement):
            runs = runs or [run for run in self._runs if run.executes(place.path, 1 << line)]
        kills = self._kills.setdefault(f"{place.path} {place.function}", Counter())
        began = cpu_seconds()
        for run in sorted(runs, key=lambda run: (-kills[run.name], run.seconds)):
            if cpu_seconds() - began > self._budget:
                break
            if _attempt(self._items[run.name], _LEAST + 10 * run.seconds) is not None:
                kills[run.name] += 1
                return run.name
        return None


@contextmanager
def _in_place(functions: Functions, mutant: Mutant) -> Iterator[None]:
    """Exchange the code of the mutant's function while the block runs.

    Raises:
        Unfit: The mutant's code does not fit into the function.
    """
    found, code = functions.check(mutant)
    before = [function.__code__ for function in found]
    for function in found:
        function.__code__ = code
    try:
        yield
    finally:
        for function, old in zip(found, before, strict=True):
            function.__code__ = old


def _plain(item: pytest.Item) -> bool:
    """Return whether a test is a function that needs only its own parameters."""
    test: Any = getattr(item, "obj", None)
    if not inspect.isfunction(test) or inspect.iscoroutinefunction(test):
        return False
    if hasattr(test, "hypothesis") or getattr(item, "cls", None) is not None:
        return False
    return set(inspect.signature(test).parameters) <= set(_parameters(item))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else dict(callspec.params)


def _attempt(item: pytest.Item, seconds: float) -> str | None:
    """Run a test, and return what is wrong; None if nothing is."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        item.obj(**_parameters(item))  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the mutant raises is noticed
        return repr(error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return None


def _late(_signal: int, _frame: object) -> None:
    raise _LateError


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGVTALRM, _late)
    sys.exit(main())
