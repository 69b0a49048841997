"""Draw the life cycles in DESIGN.md from the engine's tables, so that no diagram becomes outdated.

`python docs/draw_states.py` rewrites the diagrams between their markers in DESIGN.md. With
`--check` it changes nothing, and its exit status is 1 if a diagram differs from its table; a test
runs this check.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aioidem._engine.batch import BATCH_TRANSITIONS, PERSISTENCE_TRANSITIONS
from aioidem._engine.discovery import DISCOVERY_TRANSITIONS
from aioidem._engine.idempotence import IDENTITY_TRANSITIONS
from aioidem._engine.links import LINK_TRANSITIONS
from aioidem._engine.recovery import RECOVERY_TRANSITIONS
from aioidem._engine.transactions import TRANSACTION_TRANSITIONS

DESIGN = Path(__file__).resolve().parent.parent / "DESIGN.md"

Table = Mapping[tuple[Any, Any], Any]
"""The state that follows each (state, event); all of them are members of enums."""

TABLES: dict[str, Table] = {
    "batch": BATCH_TRANSITIONS,
    "persistence": PERSISTENCE_TRANSITIONS,
    "recovery": RECOVERY_TRANSITIONS,
    "identity": IDENTITY_TRANSITIONS,
    "link": LINK_TRANSITIONS,
    "discovery": DISCOVERY_TRANSITIONS,
    "transaction": TRANSACTION_TRANSITIONS,
}


def draw(table: Table) -> str:
    """Return a Mermaid state diagram, in which the events between two states share one arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), following in table.items():
        arrows.setdefault((state.name, following.name), []).append(str(event.value))
    first = next(iter(table))[0].name
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for (state, following), events in arrows.items():
        lines.append(f"    {state} --> {following}: {', '.join(events)}")
    return "\n".join([*lines, "```"])


def redrawn(text: str) -> str:
    """Return the document with every diagram drawn again from its table."""
    for name, table in TABLES.items():
        opening, closing = f"<!-- states: {name} -->\n", "<!-- end -->"
        start = text.index(opening) + len(opening)
        text = f"{text[:start]}{draw(table)}\n{text[text.index(closing, start) :]}"
    return text


def main() -> int:
    """Rewrite the diagrams in DESIGN.md, or check them; return the exit status."""
    text = DESIGN.read_text(encoding="utf-8")
    wanted = redrawn(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    DESIGN.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
