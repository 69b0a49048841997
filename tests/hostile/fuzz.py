"""Fuzzing: `python -m tests.hostile.fuzz --inputs N [--seed S] [--target T]`, or `make fuzz`.

Runs every target (`targets.py`) on two processes, prints progress and each finding with the command
that replays it, and ends with one line, `N inputs, F failures, ...`. Exit status 1 when there were
failures. Where atheris is installed it guides by coverage (libFuzzer); elsewhere inputs are mutated
blindly, and the last line says which it was.

    python -m tests.hostile.fuzz --replay TARGET BASE64    one input, with its traceback
    ... --keep                                             add what found new lines to the corpus

A failure is an error that is not of the declared tree, a broken promise of a target, more than the
target's processor time, or more memory than the input accounts for: traced for one input in fifty,
and for all of them by the limit of the process's address space.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import importlib.util
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .targets import Target

__all__ = ["BASE_BYTES", "Judge", "main", "mutated"]

BASE_BYTES: Final = 12 << 20
"""What one input may take whatever its size: codecs have a limit of 1 MiB here, and copies."""
_ADDRESS_SPACE: Final = 3 << 30
_TRACED: Final = 50
_PER_FINDING: Final = 3
_PROCESSES: Final = 2
_KEPT: Final = 40


def coverage_guided() -> bool:
    """Whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


@dataclass
class Judge:
    """Gives inputs to a target and keeps what was wrong."""

    target: Target
    inputs: int = 0
    failures: int = 0
    slowest: float = 0.0
    largest: int = 0
    findings: dict[str, list[bytes]] = field(default_factory=dict)

    def __call__(self, data: bytes, *, traced: bool = False) -> str | None:
        """What is wrong with it: one line that names the kind; None: nothing."""
        self.inputs += 1
        wrong = self._run(data, traced or self.inputs % _TRACED == 0)
        if wrong is not None:
            self.failures += 1
            same = self.findings.setdefault(wrong, [])
            if len(same) < _PER_FINDING:
                same.append(data)
        return wrong

    def _run(self, data: bytes, traced: bool) -> str | None:
        if traced:
            tracemalloc.start()
        began = time.process_time()
        try:
            self.target.run(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return _kind(error)
        finally:
            took = time.process_time() - began
            peak = tracemalloc.get_traced_memory()[1] if traced else 0
            if traced:
                tracemalloc.stop()
            self.slowest, self.largest = max(self.slowest, took), max(self.largest, peak)
        if took > self.target.seconds:
            return f"took more than {self.target.seconds:g} s"
        if peak > BASE_BYTES + self.target.room * len(data):
            return f"took more than {self.target.room} bytes a byte"
        return None

    def smaller(self, data: bytes, wrong: str) -> bytes:
        """As short an input as a few hundred tries find that is wrong in the same way."""
        tries, size = 300, max(1, len(data) // 2)
        while size and tries:
            at = 0
            while at < len(data) and tries:
                tries -= 1
                shorter = data[:at] + data[at + size :]
                if self._run(shorter, traced="bytes a byte" in wrong) == wrong:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data


def _kind(error: BaseException) -> str:
    """The same for the same defect: the error's type, and where in the project it came from."""
    places = [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "aioidem" in frame.filename or "hostile" in frame.filename
    ]
    if isinstance(error, BaseExceptionGroup):
        return f"group of {_kind(error.exceptions[0])}"
    return f"{type(error).__name__} in {places[-1] if places else '?'}"


_ODD = [b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\xff" * 8, b"\n"]


def mutated(chance: random.Random, pool: list[bytes]) -> bytes:
    """One of the pool with up to four changes."""
    data = bytearray(chance.choice(pool))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                odd = chance.choice(_ODD)
                data[at : at + len(odd)] = odd
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                del data[at : at + chance.randint(1, 16)]
            case 4:
                data[at:] = chance.choice(pool)[at:]
            case _:
                data[at:at] = data[at : at + 16]
    return bytes(data)


# --- a process for one target ---------------------------------------------------------------------


class Worker:
    """Runs one target and tells how far it is in a file."""

    def __init__(self, name: str, inputs: int, seed: int, folder: Path) -> None:
        from .targets import TARGETS, seeds

        self._judge = Judge(TARGETS[name])
        self._target = self._judge.target
        self._inputs = inputs
        self._seed = seed
        self._folder = folder
        self._pool = seeds(self._target)
        self._told = 0.0
        self._known: set[str] = set()

    def blindly(self) -> None:
        """The pool, then mutations of it."""
        chance = random.Random(self._seed)
        for each in self._pool[: self._inputs]:
            self._take(each)
        while self._judge.inputs < self._inputs:
            self._take(mutated(chance, self._pool)[: self._target.longest])

    def guided(self, atheris: Any) -> None:
        """By libFuzzer, which ends the process."""
        corpus = self._folder / "corpus"
        corpus.mkdir()
        for number, each in enumerate(self._pool):
            (corpus / f"seed-{number:04}").write_bytes(each)
        options = {
            "runs": self._inputs,
            "seed": self._seed % 2**31 + 1,
            "max_len": self._target.longest,
            "timeout": 120,
            "rss_limit_mb": 0,
            "verbosity": 0,
        }
        atheris.Setup(
            ["fuzz", *(f"-{name}={value}" for name, value in options.items()), str(corpus)],
            self._take,
        )
        atheris.Fuzz()

    def _take(self, data: bytes) -> None:
        wrong = self._judge(data)
        if wrong is not None and wrong not in self._known:
            self._known.add(wrong)
            self._judge.findings[wrong] = [self._judge.smaller(data, wrong)]
        now = time.monotonic()
        if now - self._told > 1.0 or self._judge.inputs == self._inputs:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """Write down how far it is."""
        from .conversation import LIVED

        judge = self._judge
        status = {
            "lived": ", ".join(f"{what} {count}" for what, count in LIVED.most_common()),
            "inputs": judge.inputs,
            "failures": judge.failures,
            "slowest": judge.slowest,
            "largest": judge.largest,
            "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "findings": {
                wrong: [base64.b64encode(each).decode() for each in inputs]
                for wrong, inputs in judge.findings.items()
            },
        }
        unfinished = self._folder / "status.new"
        unfinished.write_text(json.dumps(status), encoding="ascii")
        unfinished.rename(self._folder / "status.json")


def _work(name: str, inputs: int, seed: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    if not coverage_guided():
        worker = Worker(name, inputs, seed, folder)
        worker.blindly()
        worker.tell()
        return
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["aioidem", "scramp"]):
        worker = Worker(name, inputs, seed, folder)
    worker.guided(atheris)


# --- all targets ----------------------------------------------------------------------------------


@dataclass
class _Run:
    """The process of one target, as the parent sees it."""

    name: str
    asked: int
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    seconds: float = 0.0

    def status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        if not path.exists():
            nothing = dict.fromkeys(("inputs", "failures", "slowest", "largest", "resident"), 0)
            return nothing | {"findings": {}, "lived": ""}
        status: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        return status


def _start(name: str, inputs: int, seed: int, out: Path) -> _Run:
    folder = out / name
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--work", name, str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--inputs", str(inputs), "--seed", str(seed)], stdout=log, stderr=log
        )
    return _Run(name, inputs, folder, process, time.monotonic())


def fuzz(shares: dict[str, int], seed: int, out: Path, say: Callable[[str], object]) -> list[_Run]:
    """Run so many inputs of each target, the longest runs first."""
    waiting = list(shares)
    running: list[_Run] = []
    done: list[_Run] = []
    told: set[str] = set()
    last = time.monotonic()
    while waiting or running:
        while waiting and len(running) < _PROCESSES:
            name = waiting.pop(0)
            running.append(_start(name, shares[name], seed, out))
        time.sleep(0.2)
        for each in [each for each in running if each.process.poll() is not None]:
            each.seconds = time.monotonic() - each.began
            running.remove(each)
            done.append(each)
        for each in (*running, *done):
            _tell_findings(each, told, say)
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            total = sum(each.status()["inputs"] for each in (*running, *done))
            say(f"... {total} inputs, now {', '.join(each.name for each in running)}")
    return done


def _tell_findings(run: _Run, told: set[str], say: Callable[[str], object]) -> None:
    for wrong, inputs in run.status()["findings"].items():
        if f"{run.name} {wrong}" not in told:
            told.add(f"{run.name} {wrong}")
            data = base64.b64decode(inputs[0])
            saved = run.folder / f"failure-{hashlib.sha256(data).hexdigest()[:12]}"
            saved.write_bytes(data)
            say(f"{run.name}: {wrong}; {len(data)} bytes, saved as {saved}")
            say(f"    python -m tests.hostile.fuzz --replay {run.name} {inputs[0]}")


def _figures(run: _Run, say: Callable[[str], object]) -> tuple[int, int]:
    """Say what a target came to; its inputs and failures."""
    status = run.status()
    died = run.process.returncode != 0 or status["inputs"] < run.asked
    lived = ""
    if status["lived"]:
        lived = f"; the last record: {status['lived']}"
    say(
        f"{run.name}: {status['inputs']} inputs in {run.seconds:.0f} s, "
        f"{status['failures']} failures; slowest {status['slowest'] * 1000:.0f} ms, most traced "
        f"{status['largest'] >> 10} KiB, resident {status['resident'] >> 20} MiB{lived}"
    )
    if died:
        log = (run.folder / "log").read_text(errors="replace")[-2000:]
        say(f"{run.name}: the process ended early with {run.process.returncode}: {log}")
    return status["inputs"], status["failures"] + died


# --- the corpus -----------------------------------------------------------------------------------


def keep(name: str, found: Iterable[bytes], at_most: int) -> int:
    """Add to the corpus what runs lines of the library that nothing kept before runs."""
    from .targets import CORPUS, TARGETS, seeds

    target = TARGETS[name]
    known: set[tuple[str, int]] = set()
    for each in seeds(target):
        known |= _lines(target, each)
    added: list[str] = []
    for each in sorted(found, key=len):
        new = _lines(target, each) - known
        if new and len(added) < at_most:
            known |= new
            added.append(base64.b64encode(each).decode() + "\n")
    with (CORPUS / f"{name}.txt").open("a", encoding="ascii") as file:
        file.writelines(added)
    return len(added)


def _lines(target: Target, data: bytes) -> set[tuple[str, int]]:
    """The lines of the library that an input runs."""
    ran: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, _argument: object) -> Any:
        if "/aioidem/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            ran.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        Judge(target)(data)
    finally:
        sys.settrace(None)
    return ran


# --- the command line -----------------------------------------------------------------------------


def _shares(inputs: int, only: str | None) -> dict[str, int]:
    from .targets import TARGETS

    if only is not None:
        return {only: inputs}
    # The slowest first: the last one should not run alone.
    shares = {name: math.ceil(inputs * each.share) for name, each in TARGETS.items()}
    return dict(reversed(shares.items()))


def _replay(name: str, encoded: str) -> int:
    from .targets import TARGETS

    judge, data = Judge(TARGETS[name]), base64.b64decode(encoded)
    wrong = judge(data, traced=True)
    _say(f"{judge.slowest * 1000:.0f} ms, {judge.largest >> 10} KiB: {wrong or 'nothing wrong'}")
    if wrong is None:
        return 0
    TARGETS[name].run(data)
    return 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--target")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "BASE64"))
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replay:
        return _replay(*asked.replay)
    if asked.work:
        _work(asked.work[0], asked.inputs, asked.seed, Path(asked.work[1]))
        return 0
    began = time.monotonic()
    out = Path(tempfile.mkdtemp(prefix="fuzz-"))
    _say(f"seed {asked.seed}, findings in {out}")
    runs = fuzz(_shares(asked.inputs, asked.target), asked.seed, out, _say)
    figures = [_figures(run, _say) for run in runs]
    if asked.keep:
        for run in runs:
            found = [each.read_bytes() for each in (run.folder / "corpus").iterdir()]
            _say(f"{run.name}: {keep(run.name, found, _KEPT)} of {len(found)} kept")
    inputs, failures = (sum(each) for each in zip(*figures, strict=True))
    guide = "guided by coverage" if coverage_guided() else "mutated blindly"
    took = time.monotonic() - began
    _say(f"{inputs} inputs, {failures} failures, {len(runs)} targets, {guide}, {took:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
