"""Run many seeds of the simulation.

Usage: `python -m tests.simulated.soak --seeds N [--from K] [--mix MIX] [--ledger FILE]`, or `make
soak SEEDS=N FROM=K MIX=MIX LEDGER=FILE`. It runs on two processes, prints progress and every
failing seed as it is found, and ends with one line, `N schedules, V violations, U unknown`:
schedules run, schedules in which something was wrong, records that ended UNKNOWN. The exit status
is 1 when something was wrong. `--ledger` adds a line of the run to a file (`ledger`).

With `--transactions` (`make soak-transactions`) every seed draws transactions. The mix says what a
seed draws: with "profiles" one of the profiles of `schedule` (or of `transactional`), with "swarm"
a random subset of all faults (`swarm`, `transactional_swarm`). Without `--transactions` and with
profiles, one seed in ten drives the whole producer, tasks and all, on trio's mock clock; one in
fifty does so on asyncio with a loop whose time is virtual. With the swarm, one seed in three drives
the whole producer. All others drive the engine without tasks. Transactions always drive the whole
producer.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aioidem.testing import Outcome

from . import ledger
from .perform import perform
from .rows import Rows, is_compiled
from .schedule import Schedule, draw
from .swarm import draw_odd, draw_swarm, draw_varied
from .transactional import draw_transactional
from .transactional_swarm import draw_transactional_swarm
from .whole import draw_whole
from .world import Result

__all__ = [
    "DRAWS",
    "INTERPRETED",
    "MIXES",
    "PROCESSES",
    "TRANSACTIONAL_MIXES",
    "Tally",
    "drawn",
    "kind_of",
    "main",
    "run_odd",
    "run_seed",
    "run_swarm",
    "run_transactional",
    "run_transactional_swarm",
    "run_varied",
    "soak",
]

PROCESSES = 2
_CHUNK = 40


def kind_of(seed: int) -> str:
    """Return how a seed is run: "engine", "trio" or "asyncio"."""
    if seed % 10 == 3:
        return "asyncio" if seed % 50 == 3 else "trio"
    return "engine"


def drawn(seed: int) -> Schedule:
    """Return the schedule that the soak runs for a seed."""
    kind = kind_of(seed)
    return draw(seed) if kind == "engine" else draw_whole(seed, kind)


def run_seed(seed: int) -> Result:
    """Run one seed as the soak does."""
    return perform(drawn(seed))


def run_swarm(seed: int) -> Result:
    """Run one seed as the soak does with `--mix swarm`."""
    return perform(draw_swarm(seed))


def run_transactional(seed: int) -> Result:
    """Run one seed as the soak of transactions does."""
    return perform(draw_transactional(seed))


def run_transactional_swarm(seed: int) -> Result:
    """Run one seed as the soak of transactions does with `--mix swarm`."""
    return perform(draw_transactional_swarm(seed))


def run_varied(seed: int) -> Result:
    """Run one seed as the soak does with `--mix varied`."""
    return perform(draw_varied(seed))


def run_odd(seed: int) -> Result:
    """Run one seed as the soak does with `--mix odd`."""
    return perform(draw_odd(seed))


DRAWS: dict[str, Callable[[int], Schedule]] = {
    "profiles": drawn,
    "swarm": draw_swarm,
    "varied": draw_varied,
    "odd": draw_odd,
}
MIXES: dict[str, Callable[[int], Result]] = {
    "profiles": run_seed,
    "swarm": run_swarm,
    "varied": run_varied,
    "odd": run_odd,
}
INTERPRETED = frozenset({"odd"})
"""The mixes that are not run compiled: compiled code checks the types of what users' partitioners
return where Python does not.
"""
TRANSACTIONAL_MIXES: dict[str, Callable[[int], Result]] = {
    "profiles": run_transactional,
    "swarm": run_transactional_swarm,
}


@dataclass
class Tally:
    """The sums over the results of some seeds."""

    schedules: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    unknown_by_profile: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    allowances: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    retries: int = 0
    bumps: int = 0
    events: int = 0
    losses: int = 0
    convictions: int = 0
    lossy: Counter[str] = field(default_factory=Counter)
    max_span: int = 0
    virtual_seconds: float = 0.0
    rows: Rows = field(default_factory=Rows)

    def add(self, result: Result) -> None:
        """Add the result of one seed."""
        schedule = result.schedule
        self.schedules += 1
        self.outcomes.update(result.outcomes)
        profile = ":".join(filter(None, (schedule.backend, schedule.profile)))
        self.profiles[profile] += 1
        self.features.update(schedule.features)
        self.faults.update(fault.kind for fault in schedule.faults)
        self.faults.update(glitch.kind for glitch in schedule.glitches)
        self.faults.update(f"read {glitch.kind}" for glitch in schedule.reads)
        windows = ("says", schedule.says), ("noticed", schedule.noticed)
        self.faults.update(name for name, drawn in windows if drawn)
        self.faults.update(f"coordinator's {each.kind}" for each in schedule.coordination)
        self.faults.update(["small limit"] * bool(schedule.small_limit))
        self.faults.update(["bad records"] * schedule.bad_records)
        self.transactions.update(result.transactions)
        self.allowances.update(result.allowances)
        self.reasons.update(result.reasons)
        self.unknown_by_profile[profile] += result.unknown
        self.batches += result.batches
        self.retries += result.retries
        self.bumps += result.bumps
        self.events += result.events
        self.losses += result.losses
        self.convictions += result.convictions
        if result.lost:
            self.lossy["answers proved it" if result.losses else "no answer could"] += 1
        self.max_span = max(self.max_span, result.max_span)
        self.virtual_seconds += result.took
        if result.violations:
            which = ", ".join(schedule.features)
            self.failed[schedule.seed] = f"{which or profile}: {result.violations[0]}"

    def merge(self, other: Tally) -> None:
        """Add another tally."""
        self.schedules += other.schedules
        self.failed |= other.failed
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        self.batches += other.batches
        self.retries += other.retries
        self.bumps += other.bumps
        self.events += other.events
        self.losses += other.losses
        self.convictions += other.convictions
        self.max_span = max(self.max_span, other.max_span)
        self.virtual_seconds += other.virtual_seconds
        self.rows.merge(other.rows)

    @property
    def line(self) -> str:
        """The closing line of the soak."""
        unknown = self.outcomes[Outcome.UNKNOWN]
        return f"{self.schedules} schedules, {len(self.failed)} violations, {unknown} unknown"

    def figures(self) -> Iterator[str]:
        """Yield further figures, one line each."""
        yield f"profiles: {_table(self.profiles)}"
        yield f"features: {_table(self.features)}"
        yield f"faults: {_table(self.faults)}"
        yield f"records: {_table(Counter({k.value: n for k, n in self.outcomes.items()}))}"
        yield f"unknown by profile: {_table(self.unknown_by_profile)}"
        yield f"batches that ended UNKNOWN: {_table(self.reasons)}"
        yield f"transactions: {_table(self.transactions)}"
        shares = (
            f"{name} {count} ({count / self.schedules:.2%})"
            for name, count in self.allowances.most_common()
        )
        yield f"schedules that needed an allowance: {'; '.join(shares)}"
        yield f"schedules that lost acknowledged records: {_table(self.lossy)}"
        yield (
            f"batches sent: {self.batches}, again: {self.retries}, epoch bumps: {self.bumps}, "
            f"data-loss events: {self.events}, losses that answers proved: {self.losses}, "
            f"brokers that keep less than they say: {self.convictions}, "
            f"widest span: {self.max_span}, virtual time: {self.virtual_seconds:.0f} s"
        )
        yield from self.rows.lines()


_COUNTERS = (
    *("outcomes", "profiles", "features", "faults", "unknown_by_profile", "lossy", "transactions"),
    *("allowances", "reasons"),
)


def _table(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage before the end: a schedule's garbage is small, and looking for it slow."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's log, which the whole producer fills with thousands of lines here."""
    logger = logging.getLogger("aioidem")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_chunk(seeds: range, run_one: Callable[[int], Result]) -> Tally:
    """Run some seeds in this process."""
    tally = Tally()
    with quiet(), _uncollected():
        for seed in seeds:
            with tally.rows.counted():
                result = run_one(seed)
            tally.add(result)
    return tally


def soak(
    first: int,
    seeds: int,
    progress: Callable[[Tally], None] | None = None,
    run_one: Callable[[int], Result] = run_seed,
) -> Tally:
    """Run seeds first .. first + seeds - 1 on two processes."""
    chunks = [
        range(at, min(at + _CHUNK, first + seeds)) for at in range(first, first + seeds, _CHUNK)
    ]
    total = Tally()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=gc.freeze) as pool:
        for done in as_completed([pool.submit(run_chunk, chunk, run_one) for chunk in chunks]):
            total.merge(done.result())
            if progress is not None:
                progress(total)
    return total


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--transactions", action="store_true")
    parser.add_argument("--mix", choices=list(MIXES), default="profiles")
    parser.add_argument("--ledger", type=Path, help="add a line of this run to a file (see ledger)")
    asked = parser.parse_args()
    if is_compiled() and asked.mix in INTERPRETED:
        parser.error(f"the mix {asked.mix} is not run compiled: use make soak")
    say = sys.stdout.write
    began = time.monotonic()
    told: set[int] = set()
    last = [began]
    which = " --transactions" * asked.transactions + f" --mix {asked.mix}"
    run_one = (TRANSACTIONAL_MIXES if asked.transactions else MIXES)[asked.mix]

    def progress(total: Tally) -> None:
        for seed in sorted(set(total.failed) - told):
            say(f"seed {seed}: {total.failed[seed]}\n")
            say(f"    python -m tests.simulated.run --seed {seed}{which} --shrink --trace\n")
        told.update(total.failed)
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            say(f"... {total.line}, {last[0] - began:.0f} s\n")
        sys.stdout.flush()

    code = ledger.code_digest() if asked.ledger else ""
    total = soak(asked.first, asked.seeds, progress, run_one)
    took = time.monotonic() - began
    for line in total.figures():
        say(line + "\n")
    say(f"took {took:.0f} s\n")
    if asked.ledger:
        kind = "transactions" if asked.transactions else "ordinary"
        kind += " compiled" * is_compiled()
        portion = ledger.Portion(
            date=ledger.today(),
            code=code,
            kind=kind,
            mix=asked.mix,
            first=asked.first,
            seeds=total.schedules,
            violations=len(total.failed),
            unknown=total.outcomes[Outcome.UNKNOWN],
            seconds=round(took),
        )
        ledger.note(asked.ledger, portion)
    say(total.line + "\n")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
