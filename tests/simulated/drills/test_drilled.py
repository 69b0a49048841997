"""All drills find nothing wrong, and notice parts that are broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from aioidem._engine.batch import Batch
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import IdentityLedger, SequenceLedger
from aioidem._engine.incidents import Incident, Incidents, Repeats
from aioidem._engine.log_position import LogPosition
from aioidem._engine.retention import BrokerMemory, RetentionEvidence
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.windows import PartitionWindow

from .drilled import DRILLS, drill, drills

SEEDS = range(60)


def wrong(name: str) -> list[str]:
    return [what for seed in SEEDS for what in drill(name, seed)]


@pytest.mark.parametrize("name", DRILLS)
def test_the_parts_do_what_they_should(name: str) -> None:
    assert not wrong(name)


def test_a_seed_runs_each_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []

    def noted(name: str, _: Random) -> Iterator[str]:
        run.append(name)
        return iter(())

    for name in DRILLS:
        monkeypatch.setitem(DRILLS, name, partial(noted, name))
    assert not list(drills(7))
    assert run == list(DRILLS)


def never(*_: object, **__: object) -> None:
    """Do nothing."""


def always(*_: object, **__: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "part", "attribute", "broken"),
    [
        ("batch lives", Batch, "shift", never),
        ("batch lives", Batch, "keeps_numbers", property(lambda batch: batch.in_doubt)),
        ("batch lives", Batch, "absent_here", property(lambda batch: batch.renamed)),
        ("identities", IdentityLedger, "is_newer", always),
        ("identities", IdentityLedger, "bump", never),
        ("identities", SequenceLedger, "skip", never),
        ("lines", Incident, "_outlasts", never),
        ("lines", Incidents, "explained", lambda _, event: event),
        ("lines", Repeats, "admit", always),
        ("remembered", Suspicion, "leader_changed", never),
        ("remembered", Suspicion, "given_up", never),
        ("remembered", FirstAckGate, "close_unless_fresh", never),
        ("remembered", LogPosition, "leaves_room", always),
        ("remembered", LogPosition, "renumber", never),
        ("remembered", PartitionWindow, "reset", never),
        ("retained", RetentionEvidence, "verdict", never),
        ("retained", RetentionEvidence, "ended", never),
        ("retained", BrokerMemory, "believed", lambda _, said, _now: said),
    ],
)
def test_a_broken_part_is_noticed(
    name: str,
    part: Any,
    attribute: str,
    broken: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, attribute, broken)
    assert wrong(name)
