"""Run one seed of the simulation.

Usage: `python -m tests.simulated.run --seed N [--trace] [--shrink] [--profile NAME]
[--mix MIX] [--transactions]`.

It prints the schedule, what was wrong, and with `--trace` every step and answer. The exit status is
1 when something was wrong.
"""

from __future__ import annotations

import argparse
import sys

from .perform import perform
from .schedule import PROFILES, draw
from .shrink import shrink
from .soak import DRAWS, MIXES, quiet
from .transactional import draw_transactional
from .transactional_swarm import draw_transactional_swarm

__all__ = ["main"]


def main() -> int:
    """Run the seed that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--profile", choices=list(PROFILES))
    parser.add_argument("--mix", choices=list(MIXES), default="profiles")
    parser.add_argument("--transactions", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    asked = parser.parse_args()
    if asked.transactions:
        draws = draw_transactional_swarm if asked.mix == "swarm" else draw_transactional
        schedule = draws(asked.seed)
    elif asked.mix == "profiles" and asked.profile is not None:
        schedule = draw(asked.seed, asked.profile)
    else:
        schedule = DRAWS[asked.mix](asked.seed)
    with quiet():
        if asked.shrink and perform(schedule).violations:
            schedule = shrink(schedule)
        result = perform(schedule, trace=asked.trace)
    say = sys.stdout.write
    say(result.schedule.describe() + "\n")
    for line in result.trace:
        say(line.rstrip() + "\n")
    ended = ", ".join(f"{n} {verdict}" for verdict, n in result.transactions.items())
    say(f"transactions: {ended}\n" if ended else "")
    counts = ", ".join(f"{n} {outcome.value}" for outcome, n in result.outcomes.items())
    say(f"{counts}; {result.batches} batches, {result.retries} of them again, ")
    say(f"{result.bumps} bumps, span {result.max_span}, {result.events} data-loss events\n")
    for violation in result.violations:
        say(f"VIOLATION {violation}\n")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
