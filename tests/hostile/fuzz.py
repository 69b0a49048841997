"""Run the fuzz targets: `make fuzz`, or `python -m tests.hostile.fuzz --inputs N [--target T]`.

    python -m tests.hostile.fuzz --replay TARGET INPUT    one input (a file or base64), with its
                                                          traceback
    ... --keep    add to the corpus the inputs that ran new lines, and each target's slowest input

Every target (`targets.py`) runs in a process of its own, two of them at a time. The script prints
progress, each failure with the command that replays it, and one last line, `N inputs, F failures,
...`. The exit status is 1 if there were failures. Where atheris is installed, libFuzzer selects
inputs by coverage; elsewhere they are mutated at random, and the last line says which it was.

A failure is an error outside of the documented hierarchy, a broken guarantee of a target, or more
processor time or memory than the target's budget for an input of that length (`budget.py`). The
limits of the process, on address space and resident size, bound what many inputs leave behind.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import importlib.util
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .budget import resident
from .judge import Costliest, Judge

if TYPE_CHECKING:
    from .targets import Target

__all__ = ["main", "mutated"]

_ADDRESS_SPACE: Final = 3 << 30
_RESIDENT: Final = 512 << 20
"""The limit on the resident size of a target's process after any number of inputs."""
_PROCESSES: Final = 2
_KEPT: Final = 40


def coverage_guided() -> bool:
    """Return whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


_ODD = [b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\xff" * 8, b"\n"]


def mutated(chance: random.Random, pool: list[bytes]) -> bytes:
    """Return an input of the pool with up to four changes."""
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
    """Runs one target, and writes its progress to a file."""

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
        """Run the inputs of the pool (seeds and corpus), then mutations of them."""
        chance = random.Random(self._seed)
        for each in self._pool[: self._inputs]:
            self._take(each)
        while self._judge.inputs < self._inputs:
            self._take(mutated(chance, self._pool)[: self._target.longest])

    def guided(self, atheris: Any) -> None:
        """Run under libFuzzer, which ends the process."""
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
        """Write the counts, the findings and the costliest inputs to status.json."""
        from .conversation import LIVED

        judge = self._judge
        status = {
            "lived": ", ".join(f"{what} {count}" for what, count in LIVED.most_common()),
            "inputs": judge.inputs,
            "failures": judge.failures,
            "slowest": _written(judge.slowest),
            "largest": _written(judge.largest),
            "resident": resident(),
            "findings": {
                wrong: [base64.b64encode(each).decode() for each in inputs]
                for wrong, inputs in judge.findings.items()
            },
        }
        unfinished = self._folder / "status.new"
        unfinished.write_text(json.dumps(status), encoding="ascii")
        unfinished.rename(self._folder / "status.json")


def _written(costliest: Costliest) -> dict[str, Any]:
    return {
        "cost": costliest.cost,
        "data": base64.b64encode(costliest.data).decode(),
    }


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
    """The process of one target, as seen by the parent."""

    name: str
    asked: int
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    seconds: float = 0.0

    def status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        if not path.exists():
            nothing: dict[str, Any] = dict.fromkeys(("inputs", "failures", "resident"), 0)
            costs = {"slowest": _written(Costliest()), "largest": _written(Costliest())}
            return nothing | costs | {"findings": {}, "lived": ""}
        status: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        return status


def _start(name: str, inputs: int, seed: int, out: Path) -> _Run:
    folder = out / name
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--work", name, str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--inputs", str(inputs), "--seed", str(seed)],
            stdout=log,
            stderr=log,
            # With this variable malloc returns freed blocks of 128 KiB or more to the system at
            # once. Otherwise the next input would reuse them, and the process would not grow
            # however much memory that input takes.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)},
        )
    return _Run(name, inputs, folder, process, time.monotonic())


def fuzz(shares: dict[str, int], seed: int, out: Path, say: Callable[[str], object]) -> list[_Run]:
    """Run `shares[name]` inputs of each target, two targets at a time, in the order of `shares`."""
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
    """Print the result of a target; return the numbers of its inputs and failures."""
    status = run.status()
    died = run.process.returncode != 0 or status["inputs"] < run.asked
    grew = status["resident"] > _RESIDENT
    slowest, largest = (_save(run, status, which) for which in ("slowest", "largest"))
    lived = ""
    if status["lived"]:
        lived = f"; the last record: {status['lived']}"
    say(
        f"{run.name}: {status['inputs']} inputs in {run.seconds:.0f} s, "
        f"{status['failures']} failures; slowest {slowest.cost * 1000:.2f} ms "
        f"({len(slowest.data)} bytes), most memory {int(largest.cost) >> 10} KiB "
        f"({len(largest.data)} bytes), resident {status['resident'] >> 20} MiB{lived}"
    )
    if grew:
        say(f"{run.name}: the process had more than {_RESIDENT >> 20} MiB in memory")
    if died:
        log = (run.folder / "log").read_text(errors="replace")[-2000:]
        say(f"{run.name}: the process ended early with {run.process.returncode}: {log}")
    return status["inputs"], status["failures"] + died + grew


def _save(run: _Run, status: dict[str, Any], which: str) -> Costliest:
    """Save the slowest or the largest input (`which`) in the target's folder, and return it."""
    costliest = Costliest(status[which]["cost"], base64.b64decode(status[which]["data"]))
    (run.folder / which).write_bytes(costliest.data)
    return costliest


# --- the corpus -----------------------------------------------------------------------------------


def keep(name: str, found: Iterable[bytes], slowest: bytes, at_most: int) -> int:
    """Add to the corpus the slowest input, and at most `at_most` that run new library lines."""
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
    if slowest not in seeds(target):
        added += ["# The slowest of a run.\n", base64.b64encode(slowest).decode() + "\n"]
    with (CORPUS / f"{name}.txt").open("a", encoding="ascii") as file:
        file.writelines(added)
    return len(added)


def _lines(target: Target, data: bytes) -> set[tuple[str, int]]:
    """Return the lines of the library that an input runs."""
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
    # Targets run in parallel. The last one of `TARGETS` takes longest, so that one starts first:
    # otherwise it would still run alone when the others are done.
    shares = {name: math.ceil(inputs * each.share) for name, each in TARGETS.items()}
    return dict(reversed(shares.items()))


def _replay(name: str, told: str) -> int:
    from .targets import TARGETS

    file = Path(told)
    data = file.read_bytes() if len(told) < 1000 and file.is_file() else base64.b64decode(told)
    judge = Judge(TARGETS[name])
    wrong = judge(data, trace=True)
    if wrong is None:
        _say(
            f"{judge.slowest.cost * 1000:.2f} ms, {int(judge.largest.cost) >> 10} KiB,"
            f" {len(data)} bytes: nothing wrong"
        )
        return 0
    _say(f"{len(data)} bytes: {wrong}")
    TARGETS[name].run(data)
    return 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--target")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "INPUT"))
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
            corpus = run.folder / "corpus"  # the folder of libFuzzer's own corpus
            found = [each.read_bytes() for each in corpus.iterdir()] if corpus.is_dir() else []
            kept = keep(run.name, found, (run.folder / "slowest").read_bytes(), _KEPT)
            _say(f"{run.name}: {kept} lines for {len(found)} inputs that were found")
    _say(f"the costliest inputs: {out}/TARGET/slowest and largest, for --replay TARGET FILE")
    inputs, failures = (sum(each) for each in zip(*figures, strict=True))
    guide = "guided by coverage" if coverage_guided() else "mutated blindly"
    took = time.monotonic() - began
    _say(f"{inputs} inputs, {failures} failures, {len(runs)} targets, {guide}, {took:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
