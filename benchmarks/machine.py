"""What a figure depends on besides the code: the processor, the Python, and other load."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

QUIET = 0.25
"""The load average per core above which other programs take a visible share of the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine at the start of a run.

    Args:
        date: The date and time in UTC.
        cpu: The model of the processor.
        cores: How many cores this process may use.
        load: The load average over the last minute.
        system: The operating system and its release.
        python: Python's implementation and version.
        commit: The commit of the checkout, or empty outside of one.
    """

    date: str
    cpu: str
    cores: int
    load: float
    system: str
    python: str
    commit: str

    @classmethod
    def here(cls) -> Self:
        """Return the facts of this machine."""
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
            load=round(os.getloadavg()[0], 2),
            system=f"{platform.system()} {platform.release()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            commit=_commit(),
        )

    @property
    def quiet(self) -> bool:
        """Return whether other programs leave the processor to a benchmark."""
        return self.load <= QUIET * self.cores

    def complaint(self) -> str:
        """Return what to say about a machine that is not quiet."""
        return (
            f"the machine is not quiet: its load average is {self.load:g} on {self.cores} cores, "
            f"and at most {QUIET * self.cores:g} leaves rates and latencies to the clients"
        )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],  # noqa: S607 - as on PATH
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
