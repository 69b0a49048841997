"""Commands as users run them: in a process of their own, without what only tests have installed.

kio imports hypothesis wherever it finds it. No user has it, and it is more than half of what a
start of aioidem costs: 0.3 s of CPU each time.
"""

from __future__ import annotations

import sys

__all__ = ["AIOIDEM", "ALONE"]

ALONE = "import sys; sys.modules['hypothesis'] = None\n"
"""The first line of a program that imports aioidem."""

AIOIDEM = (
    sys.executable,
    "-c",
    f"{ALONE}import runpy; runpy.run_module('aioidem', run_name='__main__', alter_sys=True)",
)
"""As `python -m aioidem`; the words of the command line go behind it."""
