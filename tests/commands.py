"""Run commands as users do: in a new process, without hypothesis, which only tests install.

kio imports hypothesis if it is installed. That import is more than half of the CPU time of a start
of aioidem (0.3 s), and users do not have hypothesis.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["AIOIDEM", "ALONE", "FULL_DISK", "told_on_a_full_disk"]

FULL_DISK = Path("/dev/full")
"""A file that Linux has, and that takes no byte."""

ALONE = "import sys; sys.modules['hypothesis'] = None\n"
"""The first line of a Python program that imports aioidem."""

AIOIDEM = (
    sys.executable,
    "-c",
    f"{ALONE}import runpy; runpy.run_module('aioidem', run_name='__main__', alter_sys=True)",
)
"""The equivalent of `python -m aioidem`, to be followed by the arguments."""


def told_on_a_full_disk(*words: str) -> tuple[int, str]:
    """Run `aioidem` with these words and its output to a full disk.

    Returns:
        The exit status, and what the command wrote to standard error.
    """
    with FULL_DISK.open("w") as full:
        done = subprocess.run(
            [*AIOIDEM, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr
