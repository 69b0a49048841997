"""DESIGN.md is correct: its diagrams show the engine's tables, and its map names real files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    """DESIGN.md's state diagrams are what docs/draw_states.py draws from the engine's tables."""
    drawn = subprocess.run(
        [sys.executable, "docs/draw_states.py", "--check"],
        cwd=ROOT,
        check=False,
        timeout=30,
    )
    assert drawn.returncode == 0, "run: python docs/draw_states.py"


def test_the_file_map_names_what_exists() -> None:
    """Each path in DESIGN.md's file map exists."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    table = text[text.index("## File map") : text.index("## When can a batch fail")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 20
    folder = ""
    missing = []
    for row in rows:
        for number, name in enumerate(re.findall(r"`([^`]+)`", row)):
            folder = str(Path(name).parent) if number == 0 else folder
            found = (ROOT / "aioidem" / name).exists() or (
                ROOT / "aioidem" / folder / name
            ).exists()
            missing += [] if found else [name]
    assert not missing
