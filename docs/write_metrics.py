"""Write the tables of docs/metrics.md from the table of metrics, so that they stay true.

`python docs/write_metrics.py` replaces what follows the heading of the tables. With `--check` it
changes nothing, and its exit status is 1 if the page differs; a test runs this check.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aioidem._producer.metric_table import GROUPS, Group

PAGE = Path(__file__).resolve().parent / "metrics.md"
BEFORE = "writes these tables from `aioidem/_producer/metric_table.py`.\n"
"""The end of what people write."""


def page() -> str:
    """Return the text of the page as it should be."""
    written, end, _ = PAGE.read_text(encoding="utf-8").partition(BEFORE)
    return written + end + "".join(map(_section, GROUPS))


def _section(group: Group) -> str:
    key = ".".join([group.name, "-".join(f"<{tag}>" for tag in group.tags)]).rstrip(".")
    lines = [
        f"\n### `{key}`\n\n",
        f"Of {group.text}.\n\n",
        "| metric | kind | value |\n|---|---|---|\n",
    ]
    lines += [f"| `{each.name}` | {each.kind.value} | {each.text} |\n" for each in group.metrics]
    return "".join(lines)


def main() -> int:
    """Write the page, or check it; return the exit status."""
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
