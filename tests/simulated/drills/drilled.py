"""The list of all drills.

`python -m tests.simulated.drills --seeds N [--from K]` runs all drills of some seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from .accumulated import drill_accumulated
from .answered import drill_answered
from .asked import drill_asked
from .batch_lives import drill_batch_lives
from .batches import drill_batches
from .blocks import drill_blocks
from .codes import drill_codes
from .coordinated import drill_coordinated
from .counted import drill_counted
from .discovered import drill_discovered
from .doubted import drill_doubted
from .identities import drill_identities
from .late import drill_late
from .led import drill_led
from .life_cycles import drill_life_cycles
from .linked import drill_linked
from .many_partitions import drill_many_partitions
from .merged import drill_merged
from .moved import drill_moved
from .parts import drill_budget, drill_distribution
from .produced import drill_produced
from .queued import drill_queued
from .refreshed import drill_refreshed
from .remembered import drill_remembered
from .resolved import drill_resolved
from .retained import drill_retained
from .said import drill_said
from .sending import drill_sending
from .sent import drill_sent
from .sizes import drill_sizes
from .told_lines import drill_lines
from .turned import drill_turned
from .watched import drill_watched

__all__ = ["DRILLS", "drill", "drills"]

DRILLS: Final[dict[str, Callable[[Random], Iterator[str]]]] = {
    "accumulated": drill_accumulated,
    "answered": drill_answered,
    "asked": drill_asked,
    "batch lives": drill_batch_lives,
    "batches": drill_batches,
    "blocks": drill_blocks,
    "budget": drill_budget,
    "codes": drill_codes,
    "coordinated": drill_coordinated,
    "counted": drill_counted,
    "discovered": drill_discovered,
    "distribution": drill_distribution,
    "doubted": drill_doubted,
    "identities": drill_identities,
    "late": drill_late,
    "led": drill_led,
    "life cycles": drill_life_cycles,
    "lines": drill_lines,
    "linked": drill_linked,
    "many partitions": drill_many_partitions,
    "merged": drill_merged,
    "moved": drill_moved,
    "produced": drill_produced,
    "queued": drill_queued,
    "refreshed": drill_refreshed,
    "remembered": drill_remembered,
    "resolved": drill_resolved,
    "retained": drill_retained,
    "said": drill_said,
    "sending": drill_sending,
    "sent": drill_sent,
    "sizes": drill_sizes,
    "turned": drill_turned,
    "watched": drill_watched,
}
"""All drills by name. Each is given random numbers, and yields what is wrong, in words."""


def drill(name: str, seed: int) -> Iterator[str]:
    """Yield what is wrong in one drill of a seed."""
    for wrong in DRILLS[name](Random(f"{name} {seed}")):
        yield f"drill {name!r}: {wrong}"


def drills(seed: int) -> Iterator[str]:
    """Yield what is wrong in all drills of a seed."""
    for name in DRILLS:
        yield from drill(name, seed)
