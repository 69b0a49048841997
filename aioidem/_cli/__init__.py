"""The command line: `aioidem perf`, `broker`, `audit`, `doctor` and `resolve`.

Invariants:

- `import aioidem._cli` needs only the standard library. Typer, rich and hdrhistogram belong to the
  extra `cli` and are imported by `main`; if they are missing, one line says so.
- `main` turns every error that a user can cause into an exit status. The status is 0 for success; 1
  if a record was not acknowledged, the audit found an anomaly, an incident is undecided, or the
  command could not run; 2 for bad usage; 128 + signal if interrupted. Every message about usage is
  one line on standard error.

Rejected: Typer's standalone mode. It prints usage errors as a box of several lines, which scripts
cannot match and which does not fit a log.
"""

from __future__ import annotations

import io
import os
import signal
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
"""The packages that the extras install: name to import, name to install, and the extra."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; `None` takes them from `sys.argv`.

    Returns:
        The exit status: 0, 1, 2 or 128 + the number of the signal that ended the command.
    """
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is shown as "?" instead of raising an
        # error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:  # reports of bugs need it, also without the extra
        return _tell_version()
    # If a package of an extra is missing, this import fails, or an import that the command makes
    # inside `run`.
    try:
        from aioidem._cli.app import run

        return run(words)
    except KeyboardInterrupt:  # while something is imported
        return 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        library, extra = _EXTRAS[missing]
        print(f"aioidem: needs {library}: pip install 'aioidem[{extra}]'", file=sys.stderr)
        return 1


def _tell_version() -> int:
    from aioidem import build_info
    from aioidem._load.spool import output_failed

    try:
        print(build_info(), flush=True)
    except OSError as error:
        return output_failed("aioidem", error)
    return 0


def _open_standard_streams() -> None:
    """Open /dev/null in the place of each standard stream that was closed (`>&-`).

    Otherwise sockets and files get the streams' numbers, and uvloop aborts the process.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
