"""The drill of Produce v14's discovery finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from aioidem._engine.discovery import Discovery, DiscoveryState, Finding

from .discovered import drill_discovered

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_discovered(Random(f"discovered {seed}"))]


def test_v14_is_discovered_as_it_should_be() -> None:
    assert not wrong()


lost, answered, take_finding = Discovery.lost, Discovery.answered, Discovery.take_finding
described, refused = Discovery.described, Discovery.refused


def waits_for_each_answer(self: Discovery) -> bool:
    return self.state in (DiscoveryState.ASKING, DiscoveryState.ASKING_AGAIN)


def asks_at_any_time(self: Discovery, _now: float) -> bool:
    return self.state in (
        DiscoveryState.UNASKED,
        DiscoveryState.NOT_GRANTED,
        DiscoveryState.HELD_BACK,
    )


def blames_the_broker_for_each_loss(self: Discovery, *, v14_unanswered: bool, now: float) -> None:
    lost(self, v14_unanswered=v14_unanswered or self.speaks, now=now)


def never_blames_the_broker(self: Discovery, *, now: float, **_unanswered: bool) -> None:
    lost(self, v14_unanswered=False, now=now)


def believes_only_the_version_in_use(self: Discovery) -> None:
    if self.speaks:
        answered(self)


def believes_an_error(
    self: Discovery, error_code: int, *, named: bool, topic: str, now: float
) -> None:
    described(self, 0 if error_code == -1 else error_code, named=named, topic=topic, now=now)


def refuses_for_longer(self: Discovery, why: str, now: float) -> None:
    refused(self, why, now + 1.0)


def tells_everything_as_news(self: Discovery, now: float) -> Finding | None:
    finding = take_finding(self, now)
    self._told = ""
    return finding


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("holds_up", waits_for_each_answer),
        ("due", asks_at_any_time),
        ("lost", blames_the_broker_for_each_loss),
        ("lost", never_blames_the_broker),
        ("answered", believes_only_the_version_in_use),
        ("described", believes_an_error),
        ("refused", refuses_for_longer),
        ("take_finding", tells_everything_as_news),
    ],
)
def test_a_broken_discovery_is_noticed(
    name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Discovery, name, broken)
    assert wrong()
