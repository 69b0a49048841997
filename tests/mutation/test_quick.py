"""The quick judge kills what the tests of a class notice, and names what they do not."""

from __future__ import annotations

import re
import subprocess
import sys

from .sources import ROOT

IS_OPEN = "first_ack_gate.py FirstAckGate.is_open"


def judged(only: str, test: str) -> tuple[int, int, list[str]]:
    """Return how many mutants are killed, how many there are, and the names of the others."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.mutation.quick", "--only", only, test],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    counts = re.search(r"tests: killed (\d+) of (\d+)", made.stdout)
    assert counts is not None, made.stdout + made.stderr
    survivors = re.findall(r"^\d+: (aioidem/.*)$", made.stdout, re.MULTILINE)
    return int(counts[1]), int(counts[2]), survivors


def test_the_tests_of_a_class_kill_its_mutants() -> None:
    killed, count, survivors = judged(IS_OPEN, "tests/engine/test_first_ack_gate.py")
    assert (killed, survivors) == (count, [])
    assert count > 3


def test_the_tests_of_another_class_kill_none() -> None:
    killed, count, survivors = judged(IS_OPEN, "tests/engine/test_backoff.py")
    assert killed == 0
    assert len(survivors) == count
    assert all(IS_OPEN in name for name in survivors)
