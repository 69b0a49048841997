"""Compile the simulation in a copy of the tree, for soaks of a million seeds.

Usage: `python -m tests.simulated.compiled DIRECTORY [--seeds N]`, or `make soak-compiled SEEDS=N
FROM=K MIX=MIX LEDGER=FILE`, which also runs the soak in the copy. The engine, the embedded broker
and the judges are compiled with mypyc from the same sources, and a seed takes about 60 % of its
time. Then N seeds of each mix are run by both: unless every result is the same, the exit status
is 1. A seed that fails in the copy is replayed and shrunk in the tree itself.

The library is not delivered in this form, so whatever is claimed of it rests on the comparison.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from .soak import MIXES, quiet
from .world import Result

__all__ = ["compiled_modules", "fingerprint", "main"]

_TREE = Path(__file__).resolve().parents[2]
_COPIED = ("aioidem", "tests")
_LOG = "compiling.log"
_SEEDS = 40
_FIRST = 5_000_000

# Classes of these modules have subclasses in modules that stay as they are, or subclasses or
# attributes that the simulation replaces. A compiled class allows neither.
_OPEN = {
    "aioidem/_broker/controls.py",
    "aioidem/_broker/transaction_coordinator.py",
    "aioidem/_engine/idempotence.py",
    "aioidem/_engine/partitions.py",
    "aioidem/_engine/record_block.py",
    "aioidem/_engine/request_ledger.py",
    "aioidem/_engine/watch.py",
    "tests/simulated/broker_changes.py",
    "tests/simulated/line_tap.py",
    "tests/simulated/schedule.py",
    "tests/simulated/swarm.py",
}
# Classes of these modules are subclasses of classes that stay as they are, and have slots.
_DERIVED = {
    "aioidem/_engine/memory.py",
    "aioidem/_engine/partition_queue.py",
    "aioidem/_engine/record.py",
    "aioidem/_engine/sticky.py",
    "aioidem/_engine/sticky_target.py",
}
# These have a part in a run over real time only.
_UNUSED = {
    "aioidem/_broker/embedded_cluster.py",
    "aioidem/_broker/server.py",
    "aioidem/_broker/threaded.py",
}
_HELPERS = (
    "aioidem/_testing/history.py",
    "aioidem/_testing/monitor.py",
    "aioidem/_testing/wire_account.py",
    "aioidem/_testing/wire_frames.py",
)
_JUDGES = (
    *("alarms", "allowances", "attempts", "audit", "conduct", "contents", "deadlines", "decoding"),
    *("filling", "flushes", "frame_watch", "freshness", "ledger", "lines", "missing", "numbers"),
    *("progress", "read_committed", "reading", "reasons", "removed", "rows", "sim_connection"),
    *("sim_core", "trace_lines", "wording", "world"),
)
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
setup(name="compiled", packages=[], ext_modules=mypycify(sys.argv.pop().split(), opt_level="2",
      debug_level="0", multi_file=True))
"""


def compiled_modules(tree: Path) -> list[str]:
    """Return the modules that are compiled, as paths within the tree."""
    found = [
        path.relative_to(tree).as_posix()
        for package in ("_engine", "_broker")
        for path in sorted((tree / "aioidem" / package).glob("*.py"))
        if path.name != "__init__.py"
    ]
    found += [*_HELPERS, *(f"tests/simulated/{name}.py" for name in _JUDGES)]
    return [path for path in found if path not in _OPEN | _DERIVED | _UNUSED]


def fingerprint(seeds: int) -> str:
    """Run seeds of each mix, and return a digest of all results."""
    digest = hashlib.sha256()
    with quiet():
        for run_one in MIXES.values():
            for seed in range(_FIRST, _FIRST + seeds):
                digest.update(repr(_told(run_one(seed))).encode())
    return digest.hexdigest()


def _told(result: Result) -> list[object]:
    told: list[object] = [result.schedule.seed, result.violations]
    told += sorted((outcome.name, count) for outcome, count in result.outcomes.items())
    values = [getattr(result, field.name) for field in fields(result)]
    return told + [value for value in values if isinstance(value, int | float | str)]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _build(directory: Path) -> bool:
    """Copy the tree, compile the copy, and return whether that succeeded."""
    if directory.exists():
        shutil.rmtree(directory)
    for name in _COPIED:
        shutil.copytree(
            _TREE / name, directory / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "docs/soaks.csv"):
        (directory / name).parent.mkdir(exist_ok=True)
        shutil.copy(_TREE / name, directory / name)
    modules = compiled_modules(directory)
    _say(f"compiling {len(modules)} modules in {directory}, which takes some minutes")
    with (directory / _LOG).open("w") as log:
        built = subprocess.run(
            [sys.executable, "-c", _SETUP, "build_ext", "--inplace", " ".join(modules)],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return built.returncode == 0


def _fingerprint_in(directory: Path, seeds: int) -> str:
    """Return the digest of the results in a tree, from a process of its own."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulated.compiled", "--fingerprint", str(seeds)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    """Compile a copy of the tree and compare it with the tree; return the exit status."""
    parser = argparse.ArgumentParser(description="Compile the simulation in a copy of the tree.")
    parser.add_argument("directory", nargs="?", type=Path, help="where the copy is made anew")
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="seeds of each mix to compare")
    parser.add_argument("--fingerprint", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.fingerprint is not None:
        _say(fingerprint(asked.fingerprint))
        return 0
    if asked.directory is None:
        parser.error("name the directory of the copy")
    directory = asked.directory.resolve()
    if directory.exists() and not (directory / _LOG).is_file():
        parser.error(f"{directory} exists, and this did not make it")
    if not _build(directory):
        _say(f"mypyc or the C compiler failed: read {directory / _LOG}")
        return 1
    same = _fingerprint_in(_TREE, asked.seeds) == _fingerprint_in(directory, asked.seeds)
    found = "have the same results" if same else "have OTHER results"
    _say(f"{asked.seeds} seeds of each of {len(MIXES)} mixes {found} when compiled")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
