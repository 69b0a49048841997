"""Every claim of SECURITY.md names a test, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.written import written_in

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_\w+)`")


def test_each_claim_names_code_and_a_test_that_exist() -> None:
    """Each claim of SECURITY.md names a source file and a test that exist."""
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) > 15
    for row in rows:
        code, test = row.split("|")[4:6]
        for path in re.findall(r"`([^`]+)`", code):
            assert (ROOT / "aioidem" / path).exists(), f"{path} of {row}"
        [(file, function)] = NAMED.findall(test)
        assert function in written_in(ROOT / "tests" / file), f"{file}::{function}"
