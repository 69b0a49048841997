"""Compare what a record costs with the recorded cost, in counts that no machine changes.

    python benchmarks/opcode_guard.py
    python benchmarks/opcode_guard.py --record

Each workload of `opcodes.py` has two counts: the Python opcodes that the library executes for one
record, and its calls of other packages' Python functions. They are recorded in `opcode_guard.json`
by minor version of Python, whose compilers make different opcodes of the same source, and by form
of the hot loops: compiled, and in pure Python. A count that is more than 2 % above the recorded one
fails, because sending became slower. So does a count that is more than 10 % below, because nobody
would notice if what was gained were lost again. `--record` replaces the counts of the Python that
runs it; use it after a change that was made on purpose, and say in the commit what changed.

What C code executes is not counted here: of the compiled loops only the calls are guarded.

Rejected: time, which depends on the machine and on what else it does; hardware counters, which
most containers hide; opcodes of other packages, which their releases change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opcodes import WORKLOADS, per_record

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[1]
RECORDED: Final = HERE.with_suffix(".json")
PYTHON: Final = "{}.{}".format(*sys.version_info)
ABOVE: Final = 0.02
"""The part by which a count may exceed the recorded one."""
BELOW: Final = 0.10
"""The part by which a count may stay below the recorded one."""

FORMS: Final = {
    "compiled": tuple(WORKLOADS),
    # The workloads whose opcodes are others where the hot loops are pure Python.
    "pure": ("queued", "keyed", "many"),
}

Counts = dict[str, dict[str, float]]
"""By workload, and then by what is counted, how often it happens for one record."""


def measure(form: str, names: Sequence[str] = ()) -> Counts:
    """Count workloads, all of the form's if none are named, in this process; it must run the form.

    Raises:
        SystemExit: The process runs the other form.
    """
    from aioidem import build_info

    if build_info().hot_path != form:
        raise SystemExit(f"the hot loops are {build_info().hot_path} here, not {form}")
    counts: Counts = {}
    for name in names or FORMS[form]:
        opcodes, calls = per_record(ROOT, WORKLOADS[name])
        counts[name] = {
            "opcodes": round(sum(opcodes.values()), 2),
            "calls": round(sum(calls.values()), 2),
        }
    return counts


def measured(form: str) -> Counts:
    """Count the workloads of a form in a fresh interpreter.

    Raises:
        SystemExit: The counting failed; its output says why.
    """
    # Nothing that a count depends on comes from outside: sets of text have one order, and no other
    # library is found before this one.
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
        "AIOIDEM_NO_EXTENSIONS": "1" if form == "pure" else "",
    }
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, HERE, "--form", form],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    counts: Counts = json.loads(done.stdout)
    return counts


def recorded(form: str) -> Counts | None:
    """Return the recorded counts of a form; None if there are none for this Python."""
    counts: Counts | None = json.loads(RECORDED.read_text()).get(PYTHON, {}).get(form)
    return counts


def compare(form: str, before: Counts, now: Counts) -> tuple[str, bool]:
    """Compare counts with the recorded ones.

    Returns:
        A table, followed by what to do if a count is out of bounds; and whether all are within.
    """
    head = f"{f'{form}, Python {PYTHON}':28}{'recorded':>10}{'now':>10}{'change':>10}"
    lines, slower, faster = [head], False, False
    for name, counts in now.items():
        for what, found in counts.items():
            was = before.get(name, {}).get(what, 0.0)
            change = found / was - 1.0 if was else float("inf")
            verdict = "  MORE" if change > ABOVE else "  LESS" if change < -BELOW else ""
            slower |= change > ABOVE
            faster |= change < -BELOW
            lines.append(f"{name + ', ' + what:28}{was:10.1f}{found:10.1f}{change:+10.1%}{verdict}")
    lines.append(f"per record; allowed: {ABOVE:+.0%} and {-BELOW:+.0%}")
    if slower:
        lines.append(
            "Sending costs MORE than is recorded. `python benchmarks/opcodes.py` lists the\n"
            "functions, and `python benchmarks/opcodes.py CHECKOUT` those of another checkout.\n"
            "If the cost is meant: `python benchmarks/opcode_guard.py --record`."
        )
    elif faster:
        lines.append(
            "Sending costs LESS than is recorded. Keep that:\n"
            "`python benchmarks/opcode_guard.py --record`."
        )
    return "\n".join(lines), not slower and not faster


def record() -> None:
    """Replace the recorded counts of this Python."""
    everything = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    everything[PYTHON] = {form: measured(form) for form in FORMS}
    RECORDED.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Record, or compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="replace the recorded counts")
    parser.add_argument("--form", choices=list(FORMS), help="count this form and print JSON")
    options = parser.parse_args()
    if options.form:
        # kio imports hypothesis where it is installed, which takes a third of a second.
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
        print(json.dumps(measure(options.form)))
        return 0
    if options.record:
        record()
    well = True
    for form in FORMS:
        before = recorded(form)
        if before is None:
            print(f"nothing is recorded for Python {PYTHON}: --record")
            return 1
        table, within = compare(form, before, measured(form))
        print(table, end="\n\n")
        well &= within
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
