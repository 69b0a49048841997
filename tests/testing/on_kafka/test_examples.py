"""The program examples/lost_answers.py, run as docs/testing.md says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.kafka.tools import bounded

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[3] / "examples"


@bounded(60)
async def test_answers_are_lost_and_no_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example loses answers of the broker, but no record."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    lost = await importlib.import_module("lost_answers").main(50)
    assert lost >= 5
    told = f"50 records, 50 in the log, {lost} answers lost, 0 violations\n"
    assert capsys.readouterr().out == told
