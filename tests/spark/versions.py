"""Run the Spark tests with several versions of pyspark.

    python -m tests.spark.versions                         # 4.0.0 and the newest
    python -m tests.spark.versions --pyspark 4.1.4,4.2.1 -- tests/spark/test_sink.py -x

Each version is installed into a folder of its own (`.venv-pyspark-VERSION`, once), with py4j and
nothing else. The tests run in this environment with that folder in front of its packages. Arguments
after `--` replace those of pytest.

Invariants: the versions run one after another, because each has a JVM of its own. A run that takes
more than `--minutes` is ended and counts as failed. The exit status is 0 if all tests passed with
each version; the last lines say what ran with which version.

Rejected: an environment for each version (half a gigabyte of other packages that do not differ).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OLDEST: Final = "4.0.0"
NEWEST: Final = "newest"
_RANGE: Final = "pyspark>=4,<5"
_TESTS: Final = ("tests/spark", "--ignore-glob", "*/on_kafka", "-m", "slow", "-q")
_INSTALL_SECONDS: Final = 900


def install(version: str, folder: Path) -> None:
    """Install a version of pyspark into a folder; `newest` is the newest of the declared range.

    Raises:
        subprocess.CalledProcessError: it cannot be installed.
    """
    wanted = _RANGE if version == NEWEST else f"pyspark=={version}"
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable),
            *("--resolution", "highest", "--target", str(folder), wanted),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
    )


def version_in(folder: Path) -> str:
    """Return the version of pyspark in a folder; an empty string if there is none."""
    found = next(folder.glob("pyspark-*.dist-info"), None)
    return "" if found is None else found.name.removesuffix(".dist-info").partition("-")[2]


def run_tests(folder: Path, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run pytest with the pyspark of a folder; return its exit status and its output.

    After `seconds` the run and all processes that it has started are ended; its status is then that
    of the signal, which is not 0.
    """
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        told, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        told, _ = running.communicate()
    return running.returncode, told


def main() -> int:
    """Run the tests with each version, and print what ran."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pyspark", default=f"{OLDEST},{NEWEST}", metavar="VERSION,VERSION,...")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    lines = []
    worst = 0
    for version in options.pyspark.split(","):
        folder = ROOT / f".venv-pyspark-{version}"
        if version == NEWEST or version_in(folder) != version:
            install(version, folder)
        began = time.monotonic()
        status, told = run_tests(folder, options.pytest or _TESTS, options.minutes * 60)
        sys.stdout.write(told)
        sys.stdout.flush()
        last = told.rstrip().rpartition("\n")[2].strip("= ") if status >= 0 else "ended: too long"
        took = time.monotonic() - began
        lines.append(f"pyspark {version_in(folder)}: exit status {status}, {took:.0f} s: {last}")
        worst = worst or status
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
