"""The drill of Produce requests finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.produce import ProduceRequests
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.requests import Entry, Outstanding
from aioidem._protocol.produce import ProduceAnswer

from .produced import drill_produced

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_produced(Random(f"produced {seed}"))]


def test_requests_carry_what_they_should() -> None:
    assert not wrong()


def keeps_the_order(self: Partitions, state: PartitionState) -> None:
    del self, state


def one_request_at_a_time(
    self: ProduceRequests, link: Link, states: list[PartitionState], now: float
) -> None:
    if not link.outstanding:
        send_on(self, link, states, now)


def one_batch_each(
    self: RecordAccumulator, link: Link, states: list[PartitionState], now: float
) -> list[Entry]:
    return drain(self, link, states[:1], now)


def never_hears_v14(self: ProduceRequests, link: Link, answer: ProduceAnswer, now: float) -> None:
    del self, link, answer, now


def forgives_what_does_not_fit(
    self: ProduceRequests, link: Link, request: Outstanding, answer: ProduceAnswer, now: float
) -> None:
    on_answer(self, link, request, answer, now)


send_on = ProduceRequests._send_on
drain = RecordAccumulator.drain
on_answer = ProduceRequests.on_answer


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Partitions, "served", keeps_the_order),
        (Partitions, "holds", lambda *_: True),
        (ProduceRequests, "_send_on", one_request_at_a_time),
        (ProduceRequests, "_hear_v14", never_hears_v14),
        (ProduceRequests, "_learn_leaders", lambda *_: None),
        (ProduceRequests, "_is_current", lambda *_: True),
        (ProduceRequests, "on_answer", forgives_what_does_not_fit),
        (RecordAccumulator, "drain", one_batch_each),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
