"""Which modules a profile's time was spent in."""

from __future__ import annotations

import pstats
from pathlib import Path


def shares(stats: pstats.Stats) -> list[str]:
    """Return each module's share of the time that was not spent waiting."""
    seconds: dict[str, float] = {}
    waiting = ("select", "poll")
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        if not any(f"method '{each}'" in name for each in waiting):
            where = _module(file, name)
            seconds[where] = seconds.get(where, 0.0) + own
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [f"{100 * own / total:5.1f} %  {where}" for where, own in ranked[:20]]


def _module(file: str, name: str) -> str:
    if file == "~":
        return "the socket" if "_socket" in name else "built-in functions"
    parts = Path(file).with_suffix("").parts
    for package in ("aioidem", "asyncio", "anyio", "uvloop"):
        if package in parts:
            first = len(parts) - 1 - parts[::-1].index(package)
            return package if package != "aioidem" else "/".join(parts[first:])
    return "this script" if parts[-1] == "short_link_clients" else "other libraries"
