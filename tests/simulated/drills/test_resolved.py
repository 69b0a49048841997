"""The drill of doubt finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.log_lookup import LogLookup
from aioidem._engine.partition import PartitionState
from aioidem._engine.read_back import ReadBack

from .resolved import drill_resolved

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_resolved(Random(f"resolved {seed}"))]


def test_doubt_is_resolved_as_it_should_be() -> None:
    assert not wrong()


def sees_the_last_clock(self: DoubtResolution, wall_ms: float | None, now: float) -> None:
    if wall_ms is not None:
        self._wall_ahead = wall_ms - now * 1000.0


def is_never_behind(self: ReadBack, *_: float) -> bool:
    del self
    return False


def takes_any_page(self: ReadBack, token: int) -> bool:
    del self, token
    return True


def reads_on_the_whole_log(self: ReadBack, page: Any, high_watermark: int) -> int | None:
    del high_watermark
    self.offset = page[-1].next_offset if page else None
    return self.offset


def ends_a_second_late(self: LogLookup, retry_at: float | None = None) -> None:
    end(self, None if retry_at is None else retry_at + 1.0)


def never_takes_a_turn(self: DoubtResolution, state: PartitionState, now: float) -> float | None:
    del self, state, now
    return None


end = LogLookup.end


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (DoubtResolution, "see_clock", sees_the_last_clock),
        (DoubtResolution, "_is_deposed", lambda *_: False),
        (DoubtResolution, "awaits", lambda *_: None),
        (DoubtResolution, "turns_at", never_takes_a_turn),
        (LogLookup, "end", ends_a_second_late),
        (LogLookup, "begin", lambda self: self._read_back.begin(self._log.offset)),
        (ReadBack, "is_behind", is_never_behind),
        (ReadBack, "takes", takes_any_page),
        (ReadBack, "following", reads_on_the_whole_log),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
