"""No verdict about a batch that ended UNKNOWN is wrong in simulated worlds, which know the truth.

`make resolve-soak` looks for a thousand batches and runs the mutants of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from aioidem._engine import log_search
from aioidem._engine.log_search import LogFacts, LoggedBatch, LogSearch
from aioidem.incident import Incident
from aioidem.resolution import Resolution

from . import other_logs
from .resolving import MUTANTS, Tally, caught, resolve_seed
from .soak import quiet

FEW = (11, 17, 28)


def looked_for(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    with quiet():
        for seed in seeds:
            tally.add(resolve_seed(seed), keep=True)
    return tally


def test_no_verdict_is_wrong_and_a_broken_rule_is_noticed() -> None:
    """A few seeds have batches that are written, absent and undecided, and no verdict is wrong.

    The same looks show that a batch without a fence must not be called absent.
    """
    tally = looked_for(FEW)
    assert not tally.wrong
    assert caught("absent without a fence", tally, range(0)) is not None
    assert tally.looks.keys() == {"WRITTEN", "ABSENT", "UNDECIDED"}


def test_other_logs_show_a_rule_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of these seeds ends a transaction, and none has a fence at the bound of forgetting."""
    verdict = log_search.judge

    def hasty(incident: Incident, search: LogSearch | None, facts: LogFacts) -> Resolution:
        return verdict(incident, search, facts._replace(expiration=facts.expiration * 2))

    assert not looked_for(FEW).wrong
    monkeypatch.setattr(other_logs, "judge", hasty)
    assert any("another log" in each for each in looked_for(FEW).wrong)
    monkeypatch.setattr(other_logs, "judge", verdict)
    take = LogSearch._take

    def ended_by_any_marker(search: LogSearch, batch: LoggedBatch) -> None:
        take(search, batch)
        if batch.control and search.found is not None:
            search.ended = batch

    monkeypatch.setattr(LogSearch, "_take", ended_by_any_marker)
    assert any("another log" in each for each in looked_for(FEW).wrong)


@pytest.mark.slow
def test_most_mutants_of_the_rule_give_a_wrong_verdict() -> None:
    """The bytes that two hundred seeds have read are enough to notice them."""
    tally = looked_for(range(200))
    assert not tally.wrong
    noticed = {
        name for name, (_, live) in MUTANTS.items() if not live and caught(name, tally, range(0))
    }
    assert noticed >= {
        "absent without a fence",
        "any batch of the epoch is a fence",
        "any other epoch is a fence",
        "epoch of the batch not compared",
    }
