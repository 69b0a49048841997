"""Sources: the files that are mutated, and all their mutants."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Final

from .operators import Mutant, mutants_of

__all__ = ["ROOT", "all_mutants", "digest", "module_of", "paths"]

ROOT: Final = Path(__file__).parents[2]
_HEADER: Final = ("builder", "checksum", "layout", "reader", "section", "_decode")
"""The modules of `aioidem/_records` that write and read the header of a batch, and its records."""


def paths() -> list[str]:
    """Return the mutated files, relative to the root: what decides, what acts, and batches."""
    engine = sorted((ROOT / "aioidem/_engine").glob("*.py"))
    return [
        *(path.relative_to(ROOT).as_posix() for path in engine),
        "aioidem/_producer/sender.py",
        *(f"aioidem/_records/{name}.py" for name in _HEADER),
    ]


def module_of(path: str) -> str:
    """Return the name of the module that a file is imported as."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def all_mutants() -> dict[str, Mutant]:
    """Return all mutants by name, in the order of the files and of their text."""
    found: dict[str, Mutant] = {}
    for path in paths():
        names = vars(importlib.import_module(module_of(path)))
        for mutant in mutants_of(path, (ROOT / path).read_text(), names):
            found[mutant.name] = mutant
    return found


def digest(*files: Path) -> str:
    """Return a short hash of the contents of files."""
    made = hashlib.sha256()
    for file in files:
        made.update(file.read_bytes())
    return made.hexdigest()[:16]
