"""Compile the simulation in a copy of the tree, for soaks of a million seeds.

Usage: `python -m tests.simulated.compiled DIRECTORY [--compare N]`. The engine, the embedded broker
and the judges are compiled with mypyc from the same sources; a seed then takes about 60 % of its
time. N seeds of each mix are run in both forms, and the exit status is 1 if a result differs.
`make soak-compiled SEEDS=N FROM=K MIX=MIX LEDGER=FILE` does that, and then runs the soak in the
copy. To replay a seed that fails there, run the command that is printed in the tree itself.

Transactions are not run in this form: mypyc leaves out the `from` of `raise ... from`, and their
judge looks at what an error comes from.

The library is not delivered in this form, so what a compiled soak says of it rests on the
comparison. Rows of the engine's tables are not counted: compiled code calls what `rows` replaces.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .same import fingerprint
from .soak import INTERPRETED, MIXES, quiet

__all__ = ["compiled_modules", "fingerprints", "main"]

_TREE = Path(__file__).resolve().parents[2]
_COPIED = ("aioidem", "tests")
_LOG = "compiling.log"
_SEEDS = 40
_FIRST = 5_000_000
_COMPARED = [mix for mix in MIXES if mix not in INTERPRETED]

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
# Little time is spent in these.
_RARE = {
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
    *("alarms", "allowances", "attempts", "audit", "beliefs", "conduct", "contents"),
    *("credentials", "deadlines", "decoding", "filling", "flushes", "frame_watch", "freshness"),
    *("ledger", "lines", "missing", "numbers", "observed", "progress", "read_committed"),
    *("reading", "reasons", "removed", "renewals", "rows", "sim_connection", "sim_core"),
    *("size_questions", "strange_batches", "trace_lines", "version_choice", "waiting_records"),
    *("window_words", "wording", "world"),
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
    return [path for path in found if path not in _OPEN | _DERIVED | _RARE]


def fingerprints(seeds: int) -> Iterator[str]:
    """Run seeds of each mix, and yield a line for each mix with a digest of all results."""
    for mix in _COMPARED:
        digest = hashlib.sha256()
        for seed in range(_FIRST, _FIRST + seeds):
            with quiet():
                digest.update(fingerprint(MIXES[mix](seed)).encode())
        yield f"{mix} from {_FIRST}: {digest.hexdigest()}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _build(directory: Path) -> bool:
    """Copy the tree, compile the copy, and return whether that succeeded."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / _LOG).touch()  # from now on this directory is known as a copy
    for name in _COPIED:
        shutil.copytree(
            _TREE / name, directory / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(_TREE / "pyproject.toml", directory)
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


def _fingerprints_in(directory: Path, seeds: int) -> list[str]:
    """Return the digests of the results in a tree, from a process of its own."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulated.compiled", "--fingerprints", str(seeds)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return told.stdout.splitlines()


def _compare(directory: Path, seeds: int) -> int:
    """Compare the results in the tree and in its copy; return the exit status."""
    modules = compiled_modules(directory)
    own = _fingerprints_in(_TREE, seeds)
    others = _fingerprints_in(directory, seeds)
    missing = [path for path in modules if path not in others]
    if len(own) != len(_COMPARED) or missing:
        _say(f"no comparison: not compiled, or not run, were {missing or _COMPARED}")
        return 1
    others = [line for line in others if line not in modules]
    wrong = [line for line, other in zip(own, others, strict=True) if line != other]
    for line in wrong:
        _say(f"another result when compiled, in one of {seeds} seeds of {line}")
    if not wrong:
        _say(f"{seeds} seeds of each of {len(_COMPARED)} mixes have the same results when compiled")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """Compile a copy of the tree and compare it with the tree; return the exit status."""
    parser = argparse.ArgumentParser(description="Compile the simulation in a copy of the tree.")
    parser.add_argument("directory", nargs="?", type=Path, help="where the copy is made anew")
    parser.add_argument("--compare", type=int, default=_SEEDS, help="seeds of each mix to compare")
    parser.add_argument("--fingerprints", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.fingerprints is not None:
        for line in (*fingerprints(asked.fingerprints), *_loaded()):
            _say(line)
        return 0
    if asked.directory is None:
        parser.error("name the directory of the copy")
    directory = asked.directory.resolve()
    if directory.exists() and not (directory / _LOG).is_file():
        parser.error(f"{directory} exists, and this did not make it")
    if any(directory.is_relative_to(_TREE / name) for name in _COPIED):
        parser.error(f"{directory} is in what is copied: name another directory")
    if not _build(directory):
        _say(f"mypyc or the C compiler failed: read {directory / _LOG}")
        return 1
    return _compare(directory, asked.compare)


def _loaded() -> Iterator[str]:
    """Yield the modules of this process that are compiled."""
    for path in compiled_modules(_TREE):
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        if not str(module.__file__).endswith(".py"):
            yield path


if __name__ == "__main__":
    sys.exit(main())
