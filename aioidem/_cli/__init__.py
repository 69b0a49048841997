"""The command line: `aioidem perf` and `aioidem broker`.

Invariants:

* `import aioidem._cli` needs nothing but the standard library. Typer, rich and the histogram belong
  to the extra `cli` and are imported by `main`; without them it says so in one line.
* `main` returns the exit status and never raises for what a user can cause: 0 done, 1 not
  everything was acknowledged or the run could not be made, 2 bad usage, 128 + signal when
  interrupted. Every message about usage is one line on standard error.

Rejected: letting Typer run in its standalone mode. It prints usage errors as a box of several
lines, which scripts cannot match and a log cannot hold.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRAS = {
    "typer": ("typer", "cli"),
    "rich": ("rich", "cli"),
    "hdrh": ("hdrhistogram", "cli"),
    "javaproperties": ("javaproperties", "cli"),
    "py4j": ("pyspark", "spark"),
    "pyspark": ("pyspark", "spark"),
    "pyarrow": ("pyarrow", "spark"),
}
"""What extras install: names to import, names to install, and the extra."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; `None` takes them from `sys.argv`.

    Returns:
        The exit status: 0, 1, 2 or 128 + the number of the signal that ended the command.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another locale shows a question mark, and does not end a measurement.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    # Commands load what they need when they run, so an extra can be missed at either moment.
    try:
        from aioidem._cli.app import run

        return run(words)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        library, extra = _EXTRAS[missing]
        print(f"aioidem: needs {library}: pip install aioidem[{extra}]", file=sys.stderr)
        return 1
