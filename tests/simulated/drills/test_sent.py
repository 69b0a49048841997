"""The drill of the Sender finds nothing wrong, and notices a Sender that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem import errors
from aioidem._producer import sender
from aioidem._producer.sender import Alarm, Sender, _Channel

from .sent import drill_sent
from .sent_loop import drill_loop

SEEDS = range(60)


def wrong(drill: Callable[[Random], Any], seeds: range = SEEDS) -> list[str]:
    return [what for seed in seeds for what in drill(Random(f"sent {seed}"))]


@pytest.mark.parametrize("drill", [drill_sent, drill_loop])
def test_the_sender_does_what_the_engine_and_connections_ask_for(
    drill: Callable[[Random], Any],
) -> None:
    assert not wrong(drill)


def noticed() -> bool:
    """Return whether a seed of a drill yields something, or raises."""
    for drill in (drill_sent, drill_loop):
        for seed in SEEDS:
            try:
                if any(drill(Random(f"sent {seed}"))):
                    return True
            except Exception:  # noqa: BLE001 - as good as a sentence
                return True
    return False


def sets_the_alarm_later(alarm: Alarm, at: float | None) -> None:
    if at is not None:
        alarm._at = at
        alarm._rearm.set()


def polls_with_outcomes_left(sender: Sender) -> bool:
    begin_turn(sender)
    return True


async def waits_for_nothing(_: Sender, condition: Callable[[], bool]) -> None:
    condition()


async def reads_nothing(_: Sender) -> None:
    """Do nothing."""


def never(*_: object, **__: object) -> None:
    """Do nothing."""


def without_a_cause(error: Exception) -> errors.KafkaError:
    return errors.KafkaConnectionError(f"cannot connect: {error!r}")


begin_turn = Sender._begin_turn


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Alarm, "set", sets_the_alarm_later),
        (Sender, "_begin_turn", polls_with_outcomes_left),
        (Sender, "until", waits_for_nothing),
        (Sender, "_catch_up", reads_nothing),
        (Sender, "_report_sent", never),
        (Sender, "_undecodable", never),
        (Sender, "_announce", never),
        (Sender, "_close", never),
        (_Channel, "unwritten", lambda channel: list(channel.refused)),
        (sender, "_told", without_a_cause),
    ],
)
def test_a_broken_sender_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert noticed()
