"""The drill of a whole engine finds nothing wrong, and notices parts that are broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from aioidem._engine.connections import Connections
from aioidem._engine.core import ProducerCore
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.lost_links import LostLinks
from aioidem._engine.memory import ByteBudget
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger

from .turned import drill_turned

SEEDS = range(60)


def wrong() -> Iterator[str]:
    for seed in SEEDS:
        yield from drill_turned(Random(f"turned {seed}"))


def test_an_engine_does_what_is_due_and_takes_what_it_is_told() -> None:
    assert not [*wrong()]


def never(*_: object, **__: object) -> None:
    """Do nothing."""


def always(*_: object, **__: object) -> bool:
    return True


def no_time(*_: object) -> float:
    return math.inf


def nobody(*_: object) -> tuple[object, ...]:
    return ()


@pytest.mark.parametrize(
    ("part", "attribute", "broken"),
    [
        (ProducerCore, "_may_sleep_on", always),
        (ProducerCore, "_is_calm", lambda core, _now: core.wake_at is not None),
        (ProducerCore, "_end_overdue", never),
        (ProducerCore, "on_progress", never),
        (ProducerCore, "on_unsupported", never),
        (Connections, "next_wake", no_time),
        (Connections, "spare", nobody),
        (LostLinks, "drop", never),
        (LostLinks, "lose", never),
        (RequestLedger, "lost", never),
        (RecordAccumulator, "abandon", never),
        (MetadataRequests, "ask_clusters", never),
        (IdentityRequest, "report", never),
        (ByteBudget, "wake_all", nobody),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, attribute: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, attribute, broken)
    try:
        noticed = next(wrong(), None)
    except Exception as error:  # noqa: BLE001 - an engine that is broken may raise anything
        noticed = repr(error)
    assert noticed
