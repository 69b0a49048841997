"""docs/operations.md explains every line of the log, and the code logs all that it explains."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from aioidem._log import LogLine

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "aioidem"
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `([a-z-]+)` \(([A-Z]+)", PAGE, re.MULTILINE)

# The embedded broker, the checkers, the load and the sink log as programs of their own.
_OTHERS = {"_broker", "_spark", "_load", "_testing", "_cli", "integrations", "_log.py"}
_SOURCES = [
    path
    for path in sorted(LIBRARY.rglob("*.py"))
    if path.relative_to(LIBRARY).parts[0] not in _OTHERS
]


def test_each_line_is_in_the_page_and_each_line_of_the_page_is_in_the_code() -> None:
    """The page has one heading for each line, with the line's level, and no other heading."""
    assert len(HEADINGS) > 20
    assert dict(HEADINGS) == {line.value: logging.getLevelName(line.level) for line in LogLine}
    assert len(HEADINGS) == len(LogLine)


@pytest.mark.parametrize("line", LogLine, ids=lambda line: line.value)
def test_each_line_is_logged_somewhere(line: LogLine) -> None:
    """Each member of `LogLine` is used in the library."""
    name = re.compile(rf"\bLogLine\.{line.name}\b")
    assert any(name.search(path.read_text(encoding="utf-8")) for path in _SOURCES)


@pytest.mark.parametrize("line", LogLine, ids=lambda line: line.value)
def test_each_heading_is_followed_by_an_explanation(line: LogLine) -> None:
    """The page says more about a line than its name."""
    _, _, rest = PAGE.partition(f"### `{line.value}` (")
    explanation = rest.partition("\n#")[0].partition("\n\n")[2]
    assert len(explanation.split()) >= 8


def test_nothing_else_is_logged() -> None:
    """No module of the producer logs except by `write`, so that no line is missing in the page."""
    methods = "debug|info|warning|error|exception|critical|log"
    logging_calls = re.compile(rf"\b(?:logger|logging)\.(?:{methods})\(")
    found = {
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in _SOURCES
        for match in logging_calls.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found


def test_the_page_has_the_attributes_of_every_line(caplog: pytest.LogCaptureFixture) -> None:
    """The attributes that each line has are in the page's table."""
    from aioidem._log import write

    before = set(vars(logging.makeLogRecord({})))
    write(LogLine.NO_BROKER, "x", client_id="me")
    [record] = caplog.records
    assert record.getMessage() == "me: x [no-broker]"
    added = set(vars(record)) - before - {"message", "asctime"}
    assert added == {"incident", "phase", "client_id"}
    for name in added | {"seconds", "count", "acked", "not_written", "unknown", "error"}:
        assert re.search(rf"^\|.*`{name}`.*\|", PAGE, re.MULTILINE), name


def test_the_alerts_name_lines_that_exist() -> None:
    """The table of alerts names lines of the log, and no line twice for the same alert."""
    _, _, rest = PAGE.partition("## What to alert on")
    rows = re.findall(r"^\| ([a-z* ]+) \| (`.*?) \|", rest.partition("\n## ")[0], re.MULTILINE)
    named = [
        name
        for _, cell in rows
        for name in re.findall(r"`([a-z]+(?:-[a-z]+)+|throttled|unclosed)`", cell)
    ]
    assert len(rows) > 8
    assert len(named) == len(set(named))
    assert set(named) <= {line.value for line in LogLine}
