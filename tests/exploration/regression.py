"""Regression: a test that replays the path to a violation."""

from __future__ import annotations

import re
from pathlib import Path

from .search import Violation
from .space import Space

__all__ = ["write_test"]

_TEST = '''"""A path on which the exploration found the engine wrong; it must stay right there."""

from __future__ import annotations

from tests.exploration.search import replay
from tests.exploration.spaces import SPACES


def test_{name}() -> None:
    """In the space {space!r}: {what}."""
    path = (
{path}
    )
    assert replay(SPACES[{space!r}], path) is None
'''


def write_test(space: Space, violation: Violation, folder: Path | None = None) -> Path:
    """Write a test that fails as long as the violation is there, and return the file's path.

    Args:
        space: the space in which it was found.
        violation: what was found.
        folder: the folder for the file; by default the present one. A test that is worth keeping
        moves to `test_regressions.py`.
    """
    words = re.findall(r"[a-z]+", violation.what.lower())
    name = "_".join(words[:8]) or "violation"
    path = "\n".join(f'        "{action}",' for action in violation.path)
    file = (folder or Path.cwd()) / f"test_explored_{name}.py"
    file.write_text(
        _TEST.format(name=name, space=space.name, what=violation.what.rstrip("."), path=path),
        encoding="utf-8",
    )
    return file
