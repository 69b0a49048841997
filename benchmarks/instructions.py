"""Compare the machine instructions of a record with recorded counts, under valgrind's callgrind.

    python benchmarks/instructions.py
    python benchmarks/instructions.py --loops
    python benchmarks/instructions.py --record

It counts, for the compiled form of the hot loops and for the pure one:

- each hot loop (encoding, sizes, murmur2) over 200 records: 5 s;
- a record that is queued and delivered, with the embedded cluster's part in it, and a record that
  is sent and awaited by itself, in the client's process alone: two minutes, left out with
  `--loops`.

Unlike `opcode_guard.py` this sees what C code does. The counts do not depend on the machine's
speed or load, but on the compilers of CPython and of the extension. So they are recorded with the
build that executed them: a count may be 5 % above the recorded one if it comes from the same build,
and 30 % if it comes from another. (CPython 3.11.2 of Debian and 3.11.7 built from source differ by
up to 15 %.) A count that is 30 % below fails too, so that what was gained is kept. `--record`
replaces the counts of the Python that runs it.

It needs valgrind (`apt-get install valgrind`), and so Linux, macOS or FreeBSD.

Rejected: the kernel's hardware counters (most containers hide them); callgrind's own switches,
which follow the names of C functions that CPython may inline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Final

from instructions_workloads import LONG, LOOPS, RECORDS, SHORT

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[1]
RECORDED: Final = HERE.with_suffix(".json")
PYTHON: Final = "{}.{}".format(*sys.version_info)
FORMS: Final = ("compiled", "pure")
SAME_BUILD: Final = 0.05
"""The part by which a count may exceed one that was recorded with the same build."""
OTHER_BUILD: Final = 0.30
"""The part by which a count may exceed one that was recorded with another build."""
BELOW: Final = 0.30
"""The part by which a count may stay below the recorded one."""
PRODUCER: Final = "a record queued and delivered, and the cluster's part"
CLIENT: Final = "a record awaited by itself, without the cluster's part"

Counts = dict[str, float]
"""By workload, the instructions of one record."""


def valgrind() -> str | None:
    """Return the path of valgrind; None if it is not installed."""
    return shutil.which("valgrind")


def build() -> str:
    """Return what compiled the interpreter and the extension, and their C library."""
    found = util.find_spec("aioidem._hot._compiled")
    content = Path(found.origin).read_bytes() if found is not None and found.origin else b""
    compilers = sorted(set(re.findall(rb"GCC: [ -~]+|clang version [ -~]+", content)))
    extension = b", ".join(compilers).decode() or "no extension"
    libc = " ".join(platform.libc_ver())
    return f"{' '.join(sys.version.split())}; {extension}; {libc}; {platform.machine()}"


def counted(form: str, what: str, *arguments: str, layout: int = 0) -> list[int]:
    """Run a workload under callgrind, and return the instructions between its marks.

    Args:
        form: The form of the hot loops, one of `FORMS`.
        what: The name of the workload.
        arguments: Its arguments.
        layout: A number that puts the objects of the interpreter at other addresses.

    Raises:
        SystemExit: It failed; the output says why.
    """
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        "PYTHONHASHSEED": "0",
        "AIOIDEM_NO_EXTENSIONS": "1" if form == "pure" else "",
        **{f"LAYOUT_{number}": "x" * 7 * number for number in range(layout)},
    }
    script = HERE.with_name("instructions_workloads.py")
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [valgrind() or "valgrind", "--tool=callgrind"]
        command += ["--dump-before=getppid", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, "-s", *(["-S"] if what == "loops" else []), script, ROOT, what]
        command += arguments
        done = subprocess.run(  # noqa: S603 - a script of ours
            command, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        totals = [re.search(r"^totals: (\d+)", each.read_text(), re.MULTILINE) for each in dumps]
    # The first dump has what was executed before the first mark.
    return [int(total[1]) for total in totals if total is not None][1:]


def measured(form: str, *, loops_only: bool, layout: int = 0) -> Counts:
    """Count the instructions of each workload.

    Args:
        form: The form of the hot loops, one of `FORMS`.
        loops_only: Whether to leave out the workloads that take a minute each.
        layout: See `counted`.

    Raises:
        SystemExit: valgrind failed, or its output has another form than that of releases of today.
    """
    found = counted(form, "loops", layout=layout)
    if len(found) != len(LOOPS):
        raise SystemExit(f"callgrind has seen {len(found)} of {len(LOOPS)} workloads")
    counts = {name: total / RECORDS for name, total in zip(LOOPS, found, strict=True)}
    if not loops_only:
        fewer, more = counted(form, "producer", layout=layout)
        counts[PRODUCER] = (more - fewer) / (LONG - SHORT)
        counts[CLIENT] = awaited(form, layout)
    return counts


def awaited(form: str, layout: int = 0) -> float:
    """Count the instructions of a record that is sent and awaited by itself.

    The embedded cluster runs in this process, and the client in another.
    """
    sys.path.insert(0, str(ROOT))
    from aioidem.broker import EmbeddedCluster

    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t", partitions=1)
        fewer, more = counted(form, "client", cluster.bootstrap_servers, layout=layout)
    return (more - fewer) / (LONG - SHORT)


def recorded(form: str) -> tuple[Counts, str] | None:
    """Return a form's recorded counts and their build; None if this Python has none."""
    content = json.loads(RECORDED.read_text()).get(PYTHON)
    return None if content is None else (content[form], content["build"])


def compare(form: str, before: Counts, now: Counts, *, same_build: bool) -> tuple[str, bool]:
    """Compare counts with the recorded ones.

    Returns:
        A table, followed by what to do if a count is out of bounds; and whether all are within.
    """
    above = SAME_BUILD if same_build else OTHER_BUILD
    lines = [f"{f'{form}, Python {PYTHON}':54}{'recorded':>10}{'now':>10}{'change':>9}"]
    verdicts = set()
    for name, found in now.items():
        was = before.get(name, 0.0)
        change = found / was - 1.0 if was else float("inf")
        verdict = "MORE" if change > above else "LESS" if change < -BELOW else ""
        verdicts.add(verdict)
        lines.append(f"{name:54}{was:10.0f}{found:10.0f}{change:+9.1%}  {verdict}".rstrip())
    where = "the same build" if same_build else "another build of Python or of the extension"
    lines.append(f"instructions per record; recorded with {where}: {above:+.0%}, {-BELOW:+.0%}")
    if verdicts != {""}:
        lines.append("If that is meant: `python benchmarks/instructions.py --record`.")
    return "\n".join(lines), verdicts == {""}


def judged(form: str, before: Counts, *, loops_only: bool, same_build: bool) -> tuple[str, bool]:
    """Count, and compare with the recorded counts; see `compare`.

    CPython's caches of attributes are indexed by addresses, so once in a while two attributes of a
    loop share an entry, and the loop takes longer. A count that is out of bounds is therefore
    repeated with objects at other addresses, and the smallest one is compared.
    """
    now: Counts = {}
    table, within = "", False
    for layout in range(0, 20, 7):
        found = measured(form, loops_only=loops_only, layout=layout)
        now = {name: min(count, now.get(name, count)) for name, count in found.items()}
        table, within = compare(form, before, now, same_build=same_build)
        if within:
            break
    return table, within


def record() -> None:
    """Replace the recorded counts of this Python."""
    everything = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    everything[PYTHON] = {"build": build()}
    for form in FORMS:
        counts = measured(form, loops_only=False)
        everything[PYTHON][form] = {name: round(count, 1) for name, count in counts.items()}
    RECORDED.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Record, or compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loops", action="store_true", help="only the hot loops")
    parser.add_argument("--record", action="store_true", help="replace the recorded counts")
    options = parser.parse_args()
    if valgrind() is None:
        print("valgrind is not installed: apt-get install valgrind")
        return 1
    if options.record:
        record()
        return 0
    well = True
    for form in FORMS:
        before = recorded(form)
        if before is None:
            print(f"nothing is recorded for Python {PYTHON}: --record")
            return 1
        same = before[1] == build()
        table, within = judged(form, before[0], loops_only=options.loops, same_build=same)
        print(table, end="\n\n")
        well &= within
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
