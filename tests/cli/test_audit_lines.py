"""If Spark fails, `aioidem audit` reports it in one line on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

from aioidem._cli import main

FORGED = "no such topic: \x1b[2J\x07x\u202e" + "y" * 9000


def test_a_failed_job_is_reported_in_one_printable_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed job is reported in one printable line, whatever broker text Spark's error quotes."""

    def fail(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(FORGED)

    monkeypatch.setattr("aioidem._spark.session.open_session", fail)
    words = ["--ledger", str(tmp_path), "--bootstrap-server", "h:1", "--topic", "t"]
    assert main(["audit", *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioidem audit: no such topic: ")
    assert line.isprintable(), repr(line[:300])
    assert len(line) < 3000
