"""Triage: what was found out about the mutants that survived, read from `triage.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["EQUIVALENT", "VERDICTS", "Triage"]

EQUIVALENT: Final = "equivalent"
VERDICTS: Final = {
    EQUIVALENT: "no run can tell it from the original",
    "costs only": "it does the same, with more or less work; nothing promises how much",
    "closed": "a test was written that kills it",
    "hole": "it breaks something, and no test notices yet",
    "simulation": "unit tests kill it, and the simulation should have",
}


class Triage(NamedTuple):
    """The verdict and reason for each mutant, by its name."""

    verdicts: Mapping[str, tuple[str, str]]

    @classmethod
    def read(cls, file: Path) -> Triage:
        """Read a file.

        Raises:
            ValueError: An entry has no reason, or a verdict that does not exist.
        """
        found = {}
        for entry in tomllib.loads(file.read_text()).get("survivor", []):
            verdict, reason = entry["verdict"], entry["because"]
            if verdict not in VERDICTS or not reason:
                raise ValueError(f"neither reason nor verdict: {entry}")
            for name in entry["mutants"]:
                found[name] = verdict, reason
        return cls(found)

    @property
    def names(self) -> frozenset[str]:
        """The names of all mutants that were triaged."""
        return frozenset(self.verdicts)

    def verdict(self, mutant: str) -> str | None:
        """Return the verdict about a mutant."""
        found = self.verdicts.get(mutant)
        return None if found is None else found[0]
