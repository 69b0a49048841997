"""Worker: a process that has imported everything, and forks one process per mutant and judge.

It is pytest itself, which has collected the tests but does not run them: it waits for jobs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from .applying import Functions, Unfit, import_mutated
from .judges import WHOLE, Job, Verdict, bound, cpu_seconds, forked, judge, perform
from .operators import Mutant
from .reach import Run, Tracer
from .sources import ROOT, paths

__all__ = ["Worker"]

_OPTIONS: Final = (
    "--quiet",
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # This package was imported before pytest was; none of its asserts is a test's here.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)
_MARKS: Final = "not slow and not kafka and not install and not spark"
_TEST_SECONDS: Final = 30
_IMPORT_SECONDS: Final = 300


class Worker:
    """Asks another process to judge mutants."""

    def __init__(self, tests: Sequence[str], log: Path, mutant: Mutant | None = None) -> None:
        """Start the process.

        Args:
            tests: files and folders of tests.
            log: where the process writes what pytest prints.
            mutant: imported by the process, if it is outside of functions.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, tests, str(log), mutant))
        self._process.start()
        there.close()

    def trace(self, names: Sequence[str]) -> list[Run]:
        """Return what runs execute; without those that fail, and those that do not exist."""
        return self._ask("trace", names)  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """Return the names of the collected tests."""
        return self._ask("names")  # type: ignore[no-any-return]

    def judge(self, mutant: Mutant | None, job: Job) -> Verdict:
        """Try runs with a mutant in place; None means the one that was imported.

        Raises:
            Unfit: The mutant has to be imported.
        """
        try:
            return self._ask("judge", mutant, job)  # type: ignore[no-any-return]
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join()
            if mutant is not None or self._process.exitcode == pytest.ExitCode.INTERRUPTED:
                raise
            # With the mutant something could not be imported, or collected.
            return Verdict(killed=True, how="at import", seconds=0.0)

    def _ask(self, *question: Any) -> Any:
        self._here.send(question)
        answer = self._here.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._here.close()
        self._process.join()


def _serve(there: Connection, tests: Sequence[str], log: str, mutant: Mutant | None) -> None:
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    if mutant is not None:
        bound(_IMPORT_SECONDS)
        import_mutated(mutant)
    options = [*_OPTIONS, "-m", _MARKS, "-o", f"timeout={_TEST_SECONDS}", "--rootdir", str(ROOT)]
    sys.exit(pytest.main([*options, *tests], plugins=[_Serving(there)]))


class _Serving:
    """The plugin that answers questions instead of running the tests."""

    def __init__(self, there: Connection) -> None:
        self.there = there
        self.items: dict[str, pytest.Item] = {}
        self.functions: Functions | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True  # what cannot be imported is seen by closing the connection
        from hypothesis import settings

        settings.register_profile("mutation", deadline=None, derandomize=True, database=None)
        settings.load_profile("mutation")
        self.items = {item.nodeid: item for item in session.items if not _on_other_loop(item)}
        while True:
            try:
                kind, *arguments = self.there.recv()
            except EOFError:
                return True
            answer: Any
            try:
                answer = getattr(self, kind)(*arguments)
            except (RuntimeError, Unfit) as error:
                answer = error
            self.there.send(answer)

    def names(self) -> list[str]:
        return list(self.items)

    def trace(self, names: Sequence[str]) -> list[Run]:
        def tracing(say: Callable[[str], None]) -> list[Run]:
            runs: list[Run] = []
            tracer = Tracer(paths())
            for name in names:
                if name.startswith(WHOLE):  # it executes what it does with fewer faults
                    alike = next(run for run in runs if run.name == name.removeprefix(WHOLE))
                    runs.append(alike._replace(name=name, seconds=20 * alike.seconds))
                    continue
                say(name)
                began = cpu_seconds()
                with tracer.traced() as lines:
                    wrong = perform(name, self.items)
                if wrong is None:
                    runs.append(Run.of(name, cpu_seconds() - began, lines))
                else:
                    sys.stdout.write(f"{name} fails without any mutant: {wrong}\n")
                    sys.stdout.flush()
            return runs

        found = forked(tracing).result
        assert found is not None
        return found  # type: ignore[no-any-return]

    def judge(self, mutant: Mutant | None, job: Job) -> Verdict:
        def apply() -> None:
            if mutant is not None:
                assert self.functions is not None
                self.functions.replace(mutant)

        if mutant is not None:
            self.functions = self.functions or Functions(paths())
            self.functions.check(mutant)
        return judge(apply, job, self.items)


def _on_other_loop(item: pytest.Item) -> bool:
    """Tell whether a test runs on asyncio as well, and this is it on another event loop."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and bool({"uvloop", "trio"} & set(callspec.id.split("-")))
