"""docs/doctor.md explains every finding, with its severities, and the keys of the JSON."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from aioidem._config import ProducerConfig
from aioidem._doctor.facts import Facts
from aioidem._doctor.finding import FindingName, Severity
from aioidem._doctor.report import as_object

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z0-9-]+)` \| ([a-z, ]+) \| (.+) \|$", PAGE, re.MULTILINE)


def severities_in_code() -> dict[str, set[str]]:
    """Return the severities that the code names beside each finding, where both are constants."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "aioidem" / "_doctor").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                text = ast.unparse(node.args[0])
                words = re.findall(r"Severity\.([A-Z]+)", ast.unparse(node.args[1]))
                if words and "_N." in text:
                    name = FindingName[text.removeprefix("_N.")].value
                    found.setdefault(name, set()).update(word.lower() for word in words)
    return found


def test_the_page_has_each_finding_once_and_no_other() -> None:
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names))
    assert set(names) == {each.value for each in FindingName}


def test_the_page_has_the_severities_of_the_code() -> None:
    on_page = {name: set(words.split(", ")) for name, words, _ in ROWS}
    words = {each.word for each in Severity}
    assert all(of <= words for of in on_page.values())
    code = severities_in_code()
    assert len(code) > 35
    assert {name: on_page[name] for name in code} == code


def test_each_finding_that_is_worse_than_ok_says_what_to_do() -> None:
    for name, words, rest in ROWS:
        meaning, cure = rest.split(" | ") if " | " in rest else (rest.rstrip(" |"), "")
        assert len(meaning.split()) >= 3, name
        assert cure or words == "ok" or name == "broker-timestamps", name


def test_each_finding_is_made_somewhere() -> None:
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "aioidem/_doctor").glob("*.py")
    )
    for each in FindingName:
        assert re.search(rf"_N\.{each.name}\b", code), each.name


def test_the_page_has_the_keys_of_the_json() -> None:
    keys = as_object(Facts(ProducerConfig.build("h:9092,[::1]:9093")), [])
    assert keys["bootstrap_servers"] == ["h:9092", "[::1]:9093"]
    for key in keys:
        assert re.search(rf"^\|.*`{key}`.*\|", PAGE, re.MULTILINE), key
