"""The corpus and a few hundred mutations of it pass: this is `make fuzz` cut down to seconds.

Each input is judged as in a long run: documented errors only, text that is safe to log, bounded
time, and memory, which is traced for every input here.
"""

from __future__ import annotations

import base64
import random
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from aioidem.errors import InternalError, ProtocolError

from .fuzz import mutated
from .judge import Judge
from .targets import CORPUS, TARGETS, Target, kept, seeds

MUTATIONS = {"connection": 20, "producer": 4, "token": 60, "files": 60}


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_taken(name: str) -> None:
    """No input of a target's corpus, and none of its seeds, is a failure."""
    judge = Judge(TARGETS[name])
    pool = seeds(TARGETS[name])
    # Each seed of `producer` corrupts one answer in one way. A sample of them is enough, because
    # the corpus has the important ones.
    slow = pool[:: len(pool) // 30 + 1] if name == "producer" else pool
    for data in dict.fromkeys([*kept(name), *slow]):
        wrong = judge(data, trace=True)
        assert wrong is None, f"{wrong}: --replay {name} {base64.b64encode(data).decode()}"
    assert judge.inputs >= 3


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_the_corpus_are_taken(name: str) -> None:
    """No random mutation of a target's inputs is a failure; a few hundred are tried."""
    seed = secrets.randbelow(2**32)
    chance = random.Random(seed)
    judge = Judge(TARGETS[name])
    pool = seeds(TARGETS[name])
    for _ in range(MUTATIONS.get(name, 200)):
        data = mutated(chance, pool)[: TARGETS[name].longest]
        wrong = judge(data)
        encoded = base64.b64encode(data).decode()
        assert wrong is None, f"seed {seed}: {wrong}: --replay {name} {encoded}"


def test_every_corpus_has_a_target() -> None:
    """Each corpus file belongs to a target; the targets' shares of a run's inputs add up to 1."""
    assert {path.stem for path in CORPUS.glob("*.txt")} <= set(TARGETS)
    assert sum(target.share for target in TARGETS.values()) == pytest.approx(1.0)


# --- the judge itself -----------------------------------------------------------------------------


def _raises(kind: type[Exception]) -> Target:
    def run(data: bytes) -> None:
        if b"x" in data:
            raise kind("boom")

    return Target("raises", run, lambda: iter(()), 1.0)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, RecursionError, InternalError])
def test_an_error_that_gets_out_is_a_failure_and_its_input_is_made_smaller(
    kind: type[Exception],
) -> None:
    """An undocumented exception is a failure, and its input can be shortened."""
    judge = Judge(_raises(kind))
    assert judge(b"fine") is None
    wrong = judge(b"a" * 50 + b"x" + b"b" * 50)
    assert wrong is not None
    assert wrong.startswith(kind.__name__)
    assert judge.failures == 1
    assert judge.smaller(b"a" * 50 + b"x" + b"b" * 50, wrong) == b"x"


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "x" * 10_000])
def test_text_that_is_not_fit_for_a_log_is_a_failure(text: str) -> None:
    """An error whose text is not safe for a log is a failure."""
    from .parsers import declared

    def run(_data: bytes) -> None:
        with declared():
            raise ProtocolError(text)

    assert Judge(Target("text", run, lambda: iter(()), 1.0))(b"") is not None


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_command_runs_prints_its_figures_and_replays(tmp_path: Path) -> None:
    """`python -m tests.hostile.fuzz` prints its figures, and `--replay` runs one input."""
    command = [sys.executable, "-m", "tests.hostile.fuzz"]
    ran = subprocess.run(
        [*command, "--inputs", "300", "--seed", "1", "--target", "frames"],
        cwd=Path(__file__).parents[2],
        env={"PATH": "", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = ran.stdout.splitlines()
    assert said[-1].startswith("300 inputs, 0 failures, 1 targets, ")
    [saved] = tmp_path.glob("fuzz-*/frames/slowest")
    assert re.search(rf"slowest \d+\.\d\d ms \({saved.stat().st_size} bytes\)", ran.stdout)
    replayed = subprocess.run(
        [*command, "--replay", "frames", str(saved)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert replayed.stdout.endswith(f"{saved.stat().st_size} bytes: nothing wrong\n")
