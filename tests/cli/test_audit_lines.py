"""If Spark fails, `audit` and `perf --spark` report it in one line on standard error."""

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


def test_a_spark_that_does_not_start_is_one_line_of_perf_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a --master that Spark does not know, Java ends before pyspark has reached it."""

    def fail(*_: object, **__: object) -> None:
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    monkeypatch.setattr("aioidem._spark.load.open_session", fail)
    words = "perf --spark --tasks 1 --bootstrap-server h:1 --topic t --num-records 1 --master none"
    assert main(words.split()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == "aioidem perf: [JAVA_GATEWAY_EXITED] Java gateway process exited"
