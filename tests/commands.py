"""Run commands as users do: in a new process, without hypothesis, which only tests install.

kio imports hypothesis if it is installed. That import is more than half of the CPU time of a start
of aioidem (0.3 s), and users do not have hypothesis.
"""

from __future__ import annotations

import sys

__all__ = ["AIOIDEM", "ALONE"]

ALONE = "import sys; sys.modules['hypothesis'] = None\n"
"""The first line of a Python program that imports aioidem."""

AIOIDEM = (
    sys.executable,
    "-c",
    f"{ALONE}import runpy; runpy.run_module('aioidem', run_name='__main__', alter_sys=True)",
)
"""The equivalent of `python -m aioidem`, to be followed by the arguments."""
