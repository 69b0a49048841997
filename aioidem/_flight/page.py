"""The page: a replay's timeline as one self-contained HTML file.

Everything that comes from the file is escaped, and the page forbids itself scripts, images and
connections, so that it shows a hostile file as harmless text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from aioidem._flight.record import FlightRecord
from aioidem._flight.timeline import Row
from aioidem._flight.verdict import Verdict

__all__ = ["page"]

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Flight record of {client}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; }}
table {{ border-collapse: collapse; margin: 0 0 2em; width: 100%; }}
th, td {{ text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid #ddd;
          vertical-align: top; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
tr.wrong td {{ background: #fdd; }}
tr.doubt td {{ background: #ffd; }}
.bar {{ display: inline-block; height: 9px; width: 80px; background: #eee; }}
.bar i {{ display: block; height: 9px; background: #47a; }}
.good {{ color: #161; }} .bad {{ color: #a11; }}
details {{ margin: 1em 0; }}
</style></head><body>
"""


def page(record: FlightRecord, rows: Iterable[Row], verdict: Verdict) -> str:
    """Return the page of a replay.

    Args:
        record: what was replayed.
        rows: the timeline.
        verdict: what the replay has shown.
    """
    head = record.head
    client = escape(str(record.config.client_id))
    told = f"{head.get('reason')}. aioidem {head.get('aioidem')}, Python {head.get('python')}."
    good = "good" if verdict.same and verdict.kept else "bad"
    parts = [
        _HEAD.format(client=client),
        f"<h1>Flight record of {client}</h1>",
        f"<p>{escape(told)}</p>",
        f'<p class="{good}"><b>{escape(verdict.text)}</b></p>',
        _options(head.get("options")),
    ]
    by_place: dict[str, list[Row]] = {}
    for row in rows:
        by_place.setdefault(row.where, []).append(row)
    for where in sorted(by_place):
        parts.append(f"<h2>{escape(where) or 'The producer'}</h2>")
        parts.append(_table(where, by_place[where]))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _options(options: Any) -> str:
    if not isinstance(options, dict):
        return ""
    rows = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>"
        for name, value in options.items()
    )
    return f"<details><summary>Options</summary><table>{rows}</table></details>"


def _table(where: str, rows: list[Row]) -> str:
    names = ["s", "event", "what happened"]
    if where:
        names += ["batches before", "span of window", "in doubt", "epoch", "leader"]
    lines = ["<table><tr>", *(f"<th>{name}</th>" for name in names), "</tr>"]
    for row in rows:
        kind = "wrong" if row.wrong else "doubt" if row.in_doubt else ""
        lines.append(
            f'<tr class="{kind}"><td class="n">{row.at:.3f}</td><td class="n">{row.event}</td>'
            f"<td>{escape(row.what)}</td>"
        )
        if where:
            share = min(100, round(100 * row.span / max(1, row.window)))
            lines.append(
                f'<td class="n">{row.quiet or ""}</td><td class="n">{row.span} of {row.window} '
                f'<span class="bar"><i style="width:{share}%"></i></span></td>'
                f'<td class="n">{row.in_doubt or ""}</td><td class="n">{_or(row.epoch)}</td>'
                f'<td class="n">{_or(row.leader)}</td>'
            )
        lines.append("</tr>")
    return "\n".join([*lines, "</table>"])


def _or(value: int | None) -> str:
    return "" if value is None else str(value)
