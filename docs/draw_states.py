"""Draws the life cycles of DESIGN.md from the engine's tables, so that no picture can go stale.

`python docs/draw_states.py` rewrites the diagrams between their markers in DESIGN.md; with
`--check` it only says whether they are what the tables say (exit 1 when not). A test runs the check.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from aioidem.engine.batch import BATCH_TRANSITIONS, PERSISTENCE_TRANSITIONS
from aioidem.engine.idempotence import IDENTITY_TRANSITIONS
from aioidem.engine.links import LINK_TRANSITIONS
from aioidem.engine.recovery import RECOVERY_TRANSITIONS

DESIGN = Path(__file__).resolve().parent.parent / "DESIGN.md"

Table = Mapping[tuple[enum.Enum, enum.Enum], enum.Enum]

TABLES: dict[str, Table] = {
    "batch": BATCH_TRANSITIONS,
    "persistence": PERSISTENCE_TRANSITIONS,
    "recovery": RECOVERY_TRANSITIONS,
    "identity": IDENTITY_TRANSITIONS,
    "link": LINK_TRANSITIONS,
}


def draw(table: Table) -> str:
    """A mermaid state diagram; events that lead from one state to the same other one share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), following in table.items():
        arrows.setdefault((state.name, following.name), []).append(str(event.value))
    first = next(iter(table))[0].name
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for (state, following), events in arrows.items():
        lines.append(f"    {state} --> {following}: {', '.join(events)}")
    return "\n".join([*lines, "```"])


def redrawn(text: str) -> str:
    """The document with every diagram replaced by what its table says now."""
    for name, table in TABLES.items():
        marked = re.compile(rf"(<!-- states: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(text):
            raise SystemExit(f"DESIGN.md has no place for the diagram {name!r}")
        text = marked.sub(lambda m, table=table: f"{m[1]}{draw(table)}\n{m[2]}", text)
    return text


def main() -> int:
    """Rewrite DESIGN.md, or check it."""
    text = DESIGN.read_text(encoding="utf-8")
    wanted = redrawn(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    DESIGN.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
