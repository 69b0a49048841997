"""Tests of swarm testing, where each seed draws a random subset of all faults."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from . import mutants
from .perform import perform
from .run import main as command_line
from .schedule import IDLE_TIME
from .soak import quiet, run_swarm, run_varied
from .swarm import FEATURES, ONLY_HERE, draw_odd, draw_swarm, draw_varied, kind_of
from .test_soak import kinds_drawn, kinds_known, nothing_is_wrong, seeds_are_right
from .whole import WholeInjector

EVERYDAY = 60  # how many of the 300 seeds `make check` runs; `make test` runs all of them

# One seed in three runs the whole producer, whose ResourceWarnings are no failure here.
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.parametrize("first", range(0, EVERYDAY, 20))
def test_the_first_seeds_of_the_swarm_show_nothing_wrong(first: int) -> None:
    seeds_are_right(range(first, first + 20), run_swarm)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(4215515, id="a repeated answer about topics is none about the cluster alone"),
        pytest.param(4243496, id="a batch that is proved stored is no company"),
        pytest.param(4250019, id="records grow old although the client's clock was set back"),
        pytest.param(4256755, id="a flush counts what nobody had been told when it began"),
        pytest.param(4262097, id="a leader that refuses a proved batch has shown its state"),
        pytest.param(4271920, id="a refusal under new numbers leaves nothing to ask"),
        pytest.param(4279473, id="two partitions leave each other room beside questions"),
        pytest.param(4314918, id="a record that a call refused has no partition to lack"),
        pytest.param(4318034, id="a code that takes the producer id away fences nothing"),
        pytest.param(4327659, id="of two copies a broker loses the one that was acknowledged"),
        pytest.param(4402495, id="a record of a recreated topic was never sent to the new one"),
        pytest.param(32000012, id="a wait that is told counts from when it is told"),
        pytest.param(32000112, id="a window of one batch is one batch"),
        pytest.param(4448389, id="nobody waits for a partition that only lacks an answer"),
        pytest.param(99050057, id="a range of sequences that a broker kept to itself is unknown"),
        pytest.param(99000246, id="all addresses that failed before are tried at once"),
        pytest.param(4464893, id="what has a grace time keeps it when its partition moves"),
        pytest.param(4531772, id="a poll that finds no leader is followed by one that asks"),
        pytest.param(4509659, id="what an unknown code puts in question was sent before it"),
        pytest.param(4475209, id="no record waits for a leader of a deleted topic"),
        pytest.param(4220359, id="a success behind an unknown code proves nothing"),
        pytest.param(4554272, id="a flush counts what ended since anybody was last told"),
        pytest.param(4551363, id="what a leader counts from may have ended unknown"),
        pytest.param(5712224, id="what a log that lost its end shows is not read"),
        pytest.param(3472, id="what was refused waits for the doubt behind it"),
        pytest.param(4600152, id="what all answers refuse has a turn of its own"),
        pytest.param(4578423, id="a leader that lost what was acknowledged is not asked for ever"),
        pytest.param(4615440, id="a batch too large for a topic that was recreated since"),
        pytest.param(4559539, id="a late copy may follow the one that was acknowledged"),
        pytest.param(4642070, id="a broker may forget the producer while it holds a copy back"),
        pytest.param(4648538, id="a new replica knows what is left of a log"),
        pytest.param(4678701, id="metadata may be asked for on two silent connections"),
        pytest.param(4697035, id="values of a call wait for room one after the other"),
        pytest.param(4704550, id="offsets from before a loss say nothing of the log"),
        pytest.param(4733151, id="a leader that lost its log knows what is committed"),
        pytest.param(4774079, id="metadata may have lost the leader in the instant of a deadline"),
        pytest.param(4803206, id="a late copy of what was removed, and forgotten with it"),
        pytest.param(4871903, id="an answer from before a newer leader epoch names no window"),
        pytest.param(4879826, id="what is in doubt in an old cluster is behind nothing there"),
        pytest.param(4895461, id="an answer counts when it is decoded, not when it has come"),
        pytest.param(4995774, id="a leader that lost a known duplicate is asked after back-offs"),
        pytest.param(4973260, id="leaders count as soon as a part of an answer is merged"),
        pytest.param(4629102, id="each of two clusters gets back its own expiration"),
    ],
)
def test_seeds_that_were_wrong_are_right(seed: int) -> None:
    with quiet():
        result = perform(draw_swarm(seed))
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.parametrize("first", [0, 20])
def test_calls_of_every_kind_show_nothing_wrong(first: int) -> None:
    seeds_are_right(range(first, first + 20), run_varied)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(5037105, id="a batch of the caller's that waits for metadata is sent whole"),
        pytest.param(5038971, id="a batch may be compressed in the next poll"),
        pytest.param(5043115, id="the first wait that is told may be a later one"),
        pytest.param(5062643, id="a refusal may end the doubt about another batch"),
        pytest.param(5096746, id="what has a grace time keeps it when its partition moves"),
        pytest.param(5108767, id="the log is read as soon as the leader may have forgotten"),
        pytest.param(5047675, id="metadata may be old while its answer comes after slow ones"),
        pytest.param(5117105, id="a gap is not looked into where a clock has made records old"),
        pytest.param(5121696, id="the producer moves to the cluster that it names"),
        pytest.param(5221076, id="a leader that lost its log knows what is committed"),
        pytest.param(5245582, id="offsets from before a loss say nothing of the log"),
        pytest.param(5284506, id="no page is asked for once what was in doubt has ended"),
        pytest.param(5297194, id="an answer to Produce that says that there is no session"),
        pytest.param(5376921, id="a time that is derived from a deadline is rounded"),
        pytest.param(5405340, id="a refusal where another client has the id is no loss"),
        pytest.param(260, id="the size of a batch that was given up is refused all the same"),
    ],
)
def test_seeds_of_calls_of_every_kind_that_were_wrong_are_right(seed: int) -> None:
    seeds_are_right(range(seed, seed + 1), run_varied)


def test_some_schedules_end_with_an_idle_time_and_one_record() -> None:
    """It comes when brokers may have forgotten the producer, or half a minute before."""
    plans = [draw_varied(seed) for seed in range(400)]
    idle = [plan for plan in plans if IDLE_TIME in plan.features]
    assert len(idle) > 15
    for plan in idle:
        kept = int(plan.broker_configs["producer.id.expiration.ms"]) / 1000
        *before, last = plan.calls
        assert last.at - max(call.at for call in before) > kept / 2
        assert last.age == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_further_seeds_of_the_swarm_show_nothing_wrong() -> None:
    nothing_is_wrong(300 - EVERYDAY, "--mix", "swarm", first=EVERYDAY)
    nothing_is_wrong(200, "--mix", "varied", first=40)


@pytest.mark.slow
def test_every_pair_of_features_occurs_unless_it_is_excluded() -> None:
    """Some seed combines any two features, except for those that exclude each other."""
    pairs: Counter[frozenset[str]] = Counter()
    for seed in range(4000):
        chosen = draw_swarm(seed).features
        pairs.update(frozenset((a, b)) for a in chosen for b in chosen if a < b)
    apart = {frozenset((name, other)) for name, f in FEATURES.items() for other in f.without}
    apart |= {
        frozenset((a, b))
        for a in FEATURES
        for b in FEATURES
        if {FEATURES[a].only, FEATURES[b].only} == {"engine", "whole"}
    }
    everything = {frozenset((a, b)) for a in FEATURES for b in FEATURES if a < b}
    assert everything - apart - pairs.keys() == set()
    assert apart & pairs.keys() == set()


def test_most_features_are_left_out_of_a_schedule() -> None:
    counts = [len(draw_swarm(seed).features) for seed in range(500)]
    assert sum(count <= 5 for count in counts) > 150
    assert sum(count > 10 for count in counts) > 50


def test_the_swarm_draws_every_fault_that_the_injector_knows() -> None:
    """The swarm and its variations draw all faults but one that no other fault may accompany."""
    drawn = kinds_drawn(draw_swarm(seed) for seed in range(1000))
    drawn += kinds_drawn(draw_odd(seed) for seed in range(300))
    known = kinds_known(WholeInjector)
    # After an epoch bump our producer could have the epoch of the stranger: see `_carried_here`.
    assert known - drawn.keys() == {"stranger"}
    assert drawn.keys() >= ONLY_HERE
    assert min(drawn[kind] for kind in known - {"stranger"}) >= 10


def test_one_seed_in_three_drives_the_whole_producer() -> None:
    kinds = [kind_of(seed) for seed in range(300)]
    assert kinds.count("trio") + kinds.count("asyncio") == 100
    assert kinds.count("asyncio") == 20


def test_drawing_from_the_swarm_is_a_function_of_the_seed() -> None:
    assert draw_swarm(17) == draw_swarm(17)
    assert draw_swarm(17) != draw_swarm(18)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_seed_of_the_swarm_replays_to_the_letter(seed: int) -> None:
    first, again = (perform(draw_swarm(seed), trace=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.outcomes == again.outcomes


@pytest.mark.parametrize("name", ["no first ack gate", "lost request taken for unwritten"])
def test_the_swarm_catches_a_mutant(name: str) -> None:
    with mutants.applied(mutants.MUTANTS[name]), quiet():
        assert any(perform(draw_swarm(seed)).violations for seed in range(300))


def test_the_command_line_replays_a_seed_of_the_swarm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--seed", "5", "--mix", "swarm"])
    assert command_line() == 0
    assert f"features={draw_swarm(5).features!r}" in capsys.readouterr().out
