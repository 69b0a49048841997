"""Tests that run examples/lost_answers.py, which docs/testing.md shows, without Kafka."""

from __future__ import annotations

import importlib
from pathlib import Path

import anyio
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.anyio
async def test_answers_are_lost_and_no_record_on_the_embedded_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with anyio.fail_after(30):
        lost = await importlib.import_module("lost_answers").main(50, without_kafka=True)
    assert lost >= 5
    told = f"50 records, 50 in the log, {lost} answers lost, 0 violations\n"
    assert capsys.readouterr().out == told
