"""Tests of swarm testing of transactions, where each seed draws a random subset of all faults."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from .run import main as command_line
from .swarm import FEATURES
from .test_soak import nothing_is_wrong
from .transactional_swarm import OWN_FEATURES, SHARED_FEATURES, draw_transactional_swarm

EVERYDAY = 12  # how many seeds `make check` runs; `make test` runs 200

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.timeout(600)
def test_the_first_seeds_show_nothing_wrong() -> None:
    nothing_is_wrong(EVERYDAY, "--transactions", "--mix", "swarm")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rest_of_two_hundred_seeds_show_nothing_wrong() -> None:
    nothing_is_wrong(200 - EVERYDAY, "--transactions", "--mix", "swarm", first=EVERYDAY)


def test_every_feature_is_drawn_alone_and_with_others() -> None:
    """Some seeds have a feature with few others, and some with many."""
    few, many = Counter[str](), Counter[str]()
    for seed in range(1500):
        chosen = draw_transactional_swarm(seed).features
        (few if len(chosen) <= 4 else many).update(chosen)
    assert min(few[name] for name in (*SHARED_FEATURES, *OWN_FEATURES)) >= 3
    assert min(many[name] for name in (*SHARED_FEATURES, *OWN_FEATURES)) >= 10
    assert set(SHARED_FEATURES) < FEATURES.keys()


def test_drawing_is_a_function_of_the_seed() -> None:
    assert draw_transactional_swarm(17) == draw_transactional_swarm(17)
    assert draw_transactional_swarm(17) != draw_transactional_swarm(18)


def test_the_command_line_replays_a_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--seed", "5", "--transactions", "--mix", "swarm"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == 0
    assert f"features={draw_transactional_swarm(5).features!r}" in capsys.readouterr().out
