"""`aioidem replay`: the timeline in the terminal and as a page, the test it writes, bad files."""

from __future__ import annotations

import gzip
import html
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioidem._cli import main
from aioidem._flight.record import FlightRecord
from aioidem._flight.replay import Replay
from aioidem._flight.timeline import Timeline
from aioidem.incident import incidents_from_json
from tests.commands import AIOIDEM
from tests.flight.simulated import flown
from tests.simulated.mutants import MUTANTS, applied
from tests.simulated.soak import drawn

Captured = pytest.CaptureFixture[str]

MUTANT = "in doubt batch is renumbered"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a record of an engine that lost connections and broke no rule."""
    path = tmp_path_factory.mktemp("flight") / "good.flight.gz"
    path.write_bytes(flown(drawn(4), 1_000_000)[1])
    return path


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a record of an engine with a planted bug."""
    path = tmp_path_factory.mktemp("flight") / "bad.flight.gz"
    with applied(MUTANTS[MUTANT]):
        path.write_bytes(flown(drawn(3), 1_000_000)[1])
    return path


def test_the_timeline_says_what_happened(
    good: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal shows connections, doubt, windows and leaders, and that all is the same."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["replay", str(good), "--full"]) == 0
    out = capsys.readouterr().out
    assert "sim: the run has ended" in out
    for said in ("ended: the broker closed it", "window 5 -> 20", "sent again", "no doubt is left"):
        assert said in out
    assert "the engine decided what was recorded; no rule broken" in out


def test_one_partition_can_be_chosen(good: Path, capsys: Captured) -> None:
    """--partition shows the rows of one partition, and refuses one that the record lacks."""
    assert main(["replay", str(good), "--partition", "t-0"]) == 0
    assert "connection" not in capsys.readouterr().out.replace("on connection", "")
    assert main(["replay", str(good), "--partition", "t-77"]) == 2
    assert "says nothing of 't-77'" in capsys.readouterr().err


def test_a_record_of_a_bug_is_told_apart(bad: Path, capsys: Captured) -> None:
    """The status is 1 if the engine decides something else, and if it breaks a rule."""
    assert main(["replay", str(bad)]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT: recorded" in out
    assert "no rule broken" in out
    with applied(MUTANTS[MUTANT]):
        assert main(["replay", str(bad)]) == 1
    out = capsys.readouterr().out
    assert "RULE BROKEN" in out
    assert "the engine decided what was recorded" in out


def test_the_page_escapes_whatever_a_file_says(good: Path, tmp_path: Path) -> None:
    """A page has no script and loads nothing, whatever text a file has."""
    evil = '<script>alert("x")</script>'
    lines = [json.loads(line) for line in gzip.decompress(good.read_bytes()).splitlines()]
    lines[0]["reason"] = lines[0]["options"]["acks\n"] = evil
    lines[0]["options"]["client_id"] = "<b>sim"
    lines[0]["aioidem"] = evil
    for line in lines[2:-1]:
        if line[0] == "lost":
            line[2] = ["x", "errors.KafkaConnectionError", evil, None]
    hostile = tmp_path / "evil.flight.gz"
    hostile.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    page = tmp_path / "page.html"
    assert main(["replay", str(hostile), "--html", str(page)]) in (0, 1)
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>sim" not in text
    assert html.escape(evil) in text
    assert "default-src 'none'" in text
    assert "t-0" in text


def test_the_written_test_passes_and_fails_with_the_bug(bad: Path, tmp_path: Path) -> None:
    """--to-test writes a module for pytest, which fails while the engine has the bug."""
    module = tmp_path / "test_bug.py"
    main(["replay", str(bad), "--to-test", str(module)])
    namespace: dict[str, object] = {}
    exec(compile(module.read_text(encoding="utf-8"), str(module), "exec"), namespace)  # noqa: S102
    test = namespace["test_the_recorded_events_break_no_rule"]
    assert callable(test)
    test()
    with applied(MUTANTS[MUTANT]), pytest.raises(AssertionError):
        test()


def test_the_written_test_of_a_good_record_expects_the_same_steps(
    good: Path, tmp_path: Path
) -> None:
    """The test of a record that replays to the same steps expects them, and pytest runs it."""
    module = tmp_path / "test_good.py"
    assert main(["replay", str(good), "--to-test", str(module)]) == 0
    assert "replay.differences] == []" in module.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)]
    done = subprocess.run(
        command, check=False, capture_output=True, timeout=120, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_rows_count_what_is_nothing_to_read(good: Path) -> None:
    """Each batch that is sent for the first time is counted in a later row of its partition."""
    replay = Replay(FlightRecord.read(good))
    rows = list(Timeline(replay).rows())
    assert sum(row.quiet for row in rows) > 3
    assert [row.event for row in rows] == sorted(row.event for row in rows)
    assert all(row.at >= 0 for row in rows)
    assert max(row.in_doubt for row in rows) > 1


def test_batches_that_ended_unknown_are_written_for_resolve(tmp_path: Path) -> None:
    """--incidents writes what `aioidem resolve --incident` reads."""
    path, written = tmp_path / "unknown.flight.gz", tmp_path / "incidents.json"
    path.write_bytes(flown(drawn(0), 1_000_000)[1])
    main(["replay", str(path), "--incidents", str(written)])
    found = incidents_from_json(written.read_text(encoding="utf-8"))
    assert found
    assert {each.topic for each in found} == {"t"}


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", gzip.compress(b"{}"), gzip.compress(b"[[[")],
    ids=["empty", "text", "object", "list"],
)
def test_a_bad_file_is_one_line_and_status_2(
    content: bytes, tmp_path: Path, capsys: Captured
) -> None:
    """A file that is no flight record ends in one line on standard error."""
    path = tmp_path / "x.flight.gz"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"aioidem replay: {path}: ")


def damaged(good: Path, change: Callable[[list[Any]], None]) -> Path:
    """Write a copy of a flight record whose lines were changed."""
    lines = [json.loads(line) for line in gzip.decompress(good.read_bytes()).splitlines()]
    change(lines)
    lines[-1]["events"] = len(lines) - 3
    path = good.with_name("damaged.flight.gz")
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


@pytest.mark.parametrize("event", [["lost", 1, None, 100.0, 5], ["fatal", 5]])
def test_a_value_of_a_wrong_kind_is_a_damaged_file(
    good: Path, capsys: Captured, event: list[Any]
) -> None:
    """It ends in one line, whether the engine or the timeline is the first to stumble over it."""
    path = damaged(good, lambda lines: lines.insert(40, event))
    assert main(["replay", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"aioidem replay: {path}: the flight record is damaged: ")


def test_text_that_no_file_can_have_is_written_in_another_form(good: Path, tmp_path: Path) -> None:
    """JSON can have half a character, which UTF-8 cannot."""

    def change(lines: list[Any]) -> None:
        lines[0]["reason"] = "half \ud800"

    page = tmp_path / "half.html"
    assert main(["replay", str(damaged(good, change)), "--html", str(page)]) == 0
    assert "half \\ud800" in page.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_to_is_named(good: Path, capsys: Captured) -> None:
    """A page that cannot be written is status 2, with the flag and the reason."""
    assert main(["replay", str(good), "--html", "/no/such/folder/page.html"]) == 2
    assert "--html: /no/such/folder/page.html: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--html", "--to-test", "--incidents"])
def test_no_file_takes_the_place_of_the_record(good: Path, capsys: Captured, flag: str) -> None:
    content = good.read_bytes()
    assert main(["replay", str(good), flag, str(good)]) == 2
    assert capsys.readouterr().err.startswith(f"aioidem replay: FILE and {flag}: both name ")
    assert good.read_bytes() == content


def test_a_reader_that_goes_away_takes_no_file_along(good: Path, tmp_path: Path) -> None:
    """The page is whole although nobody reads the timeline (`| head -1`)."""
    page = tmp_path / "page.html"
    words = [*AIOIDEM, "replay", str(good), "--full", "--html", str(page)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
        process.wait(timeout=60)
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, capsys: Captured) -> None:
    """A mistaken name must not fill the memory with a file of any size."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 29)  # and no block of the disk
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.endswith("has more than 268435456 bytes: no flight record\n")
