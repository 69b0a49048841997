"""Results: what became of each mutant, kept in a file with one line per mutant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from .judges import Verdict
from .operators import Mutant
from .triage import EQUIVALENT, Triage

__all__ = ["Result", "Results", "report"]


class Result(NamedTuple):
    """The two verdicts about a mutant."""

    mutant: str
    simulation: Verdict
    units: Verdict

    @property
    def killed(self) -> bool:
        """Whether anything noticed the mutant."""
        return self.simulation.killed or self.units.killed

    @property
    def line(self) -> str:
        """What to print about it."""
        killers = [
            name
            for name, verdict in (("simulation", self.simulation), ("tests", self.units))
            if verdict.killed
        ]
        by = f"killed by {' and '.join(killers)}" if killers else "SURVIVED"
        return f"{by}: {self.mutant}"


class Results:
    """All results that are known for the present sources."""

    def __init__(self, file: Path, sources: Mapping[str, str]) -> None:
        """Read the file.

        Args:
            file: where results are kept.
            sources: by path, a digest of the mutated file: its older results are not used.
        """
        self._file = file
        self._sources = sources
        self._lock = Lock()
        self._known: dict[str, Result] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        for name, source, simulation, units in map(json.loads, lines):
            if sources.get(name.partition(" ")[0]) == source:
                self._known[name] = Result(name, Verdict(*simulation), Verdict(*units))

    def __getitem__(self, name: str) -> Result:
        return self._known[name]

    def get(self, mutant: Mutant) -> Result | None:
        """Return the result for a mutant, if it was judged."""
        return self._known.get(mutant.name)

    def add(self, result: Result) -> None:
        """Keep a result; it replaces an earlier one."""
        source = self._sources[result.mutant.partition(" ")[0]]
        with self._lock:
            self._known[result.mutant] = result
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps([result.mutant, source, result.simulation, result.units]))
                file.write("\n")


def report(results: Sequence[Result], triage: Triage) -> Iterator[str]:
    """Yield what to print about results: the survivors, and how many were killed by what."""
    for each in results:
        if not each.killed:
            yield f"survived: {each.mutant} ({triage.verdict(each.mutant) or 'not triaged'})"
    real = [each for each in results if triage.verdict(each.mutant) != EQUIVALENT]
    for each in results:
        if each.killed and triage.verdict(each.mutant) == EQUIVALENT:
            yield f"killed although triaged as equivalent: {each.mutant}"
    late = sum(
        verdict.how.startswith("out of time")
        for each in real
        for verdict in (each.simulation, each.units)
    )
    yield f"{len(results)} judged, {len(results) - len(real)} of them equivalent"
    counted = {
        "by simulation and exploration": [each.simulation.killed for each in real],
        "by unit tests": [each.units.killed for each in real],
        "by both": [each.simulation.killed and each.units.killed for each in real],
        "by either": [each.killed for each in real],
        "by neither": [not each.killed for each in real],
    }
    for what, which in counted.items():
        share = 100 * sum(which) / len(real) if real else 0.0
        yield f"killed {what}: {sum(which)} of {len(real)}, {share:.1f} %"
    yield f"verdicts because a run took too long: {late}"
