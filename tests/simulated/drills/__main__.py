"""Run all drills of many seeds: `python -m tests.simulated.drills --seeds N [--from K]`.

It prints what is wrong, with the seed, and ends with one line. The exit status is 1 if something
was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time

from .drilled import DRILLS, drill

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the drills that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulated.drills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--only", choices=list(DRILLS), help="one drill")
    asked = parser.parse_args(arguments)
    names = [asked.only] if asked.only else list(DRILLS)
    say, wrong, began = sys.stdout.write, 0, time.monotonic()
    for seed in range(asked.first, asked.first + asked.seeds):
        for name in names:
            for what in drill(name, seed):
                wrong += 1
                say(f"seed {seed}: {what}\n")
    took = time.monotonic() - began
    say(f"{asked.seeds} seeds of {len(names)} drills, {wrong} wrong, {took:.0f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
