"""No known way to lose, double or reorder a record is forgotten: each has a test that names it.

The lists are what was collected before this producer was built: behaviours other producers test
(A), bugs of the Java client (C-J), hazards of KIP-1269 (D2), attacks on this design (attack.md),
and issues of other clients. An id counts as covered when the name or the docstring of a test has
it, or when DESIGN.md says in "Known bugs without a test" why there is none. Faults (F) that real
brokers can suffer have a test on real brokers.

Rejected: searching the files' text. A comment, or this list, would then count.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.written import files_of_tests, written_in

ROOT = Path(__file__).parents[2]
SECTION = "## Known bugs without a test"

# The thirty behaviours that matter most for an idempotent producer.
STARRED = {
    "A1": (1, 2, 3, 4),
    "A2": (11, 12, 13, 14, 15),
    "A3": (19, 20, 21, 22, 26),
    "A4": (30, 31, 32, 37),
    "A5": (38, 39, 40, 41, 46),
    "A6": (49,),
    "A7": (56, 59),
    "A8": (68,),
    "A9": (72, 73),
    "A10": (77,),
}
BEHAVIOURS = [f"{part}.{number}" for part, numbers in STARRED.items() for number in numbers]
JAVA = [f"C-J{number}" for number in range(1, 19)]
KIP_1269 = [f"D2.{number}" for number in range(1, 12)]
ATTACKS = [f"attack.md finding {number}" for number in range(1, 32)]
SECOND_ATTACK = [f"2nd attack, {letter}" for letter in "abcdefg"]
CLIENTS = {
    "librdkafka": "#4953 #3584 dotnet#704 #4736 #3672 #3575 #3720 #4134 #4898",
    "franz-go": "#1217 #930 #223 #781 v1.5.3 v0.6.3 v1.18.1 #832 v1.17.1 #1348 #1312 c733b9d",
    "aiokafka": "#1017 #228 #1039 #1101 #512 #176 #710 #711 #409 #246 #444",
    "kafka-python": "#2937 #2843 #2841 #3026",
    "confluent-kafka-python": "#2071 #2154",
    "KafkaJS": "#598 #1790",
    "platformatic": "#326 #309",
    "Sarama": "#2619 #2860 #1430 #3354",
    "fluss": "#2826",
    "fluss-rust": "#448",
    "Dekaf": "#3342 #3341 #3385",
    "Redpanda": "#3039 #12712 #22670",
}
ISSUES = [f"{client} {issue}" for client, issues in CLIENTS.items() for issue in issues.split()]
# Found by reading aiokafka's source: there is no issue.
UNFILED = [
    f"aiokafka's {place}"
    for place in ("increment_sequence_number", "DUPLICATE_SEQUENCE_NUMBER", "handle_response")
]
# Rows of reliability.md; the others are of the client alone, and tested without a broker.
FAULTS_ON_KAFKA = {*range(1, 6), *range(7, 15), *range(16, 22), 24, 35}
EVERYTHING = [
    *BEHAVIOURS,
    *JAVA,
    *KIP_1269,
    *ATTACKS,
    *SECOND_ATTACK,
    *ISSUES,
    *UNFILED,
]

_NUMBERS = r"\d+(?:(?:, | and )\d+)*"
_ISSUE = r"(?:(?:dotnet)?#\d+|v\d+\.\d+\.\d+|c733b9d)"
_PLAIN = re.compile(r"(?<![\w.-])(?:A\d+\.\d+|C-J\d+|D2\.\d+|2nd attack, [a-g])(?!\w)")
_ATTACKS = re.compile(rf"attack\.md,? findings? ({_NUMBERS})")
_ISSUES = re.compile(rf"(?<![\w-])([\w-]+)(?:/kafka)? ({_ISSUE}(?:(?:, | and ){_ISSUE})*)")


def ids_in(text: str) -> set[str]:
    """The ids that a text names, in the spelling of the lists above."""
    text = " ".join(text.split()).replace("rd#", "librdkafka #")
    found = set(_PLAIN.findall(text)) | {place for place in UNFILED if place in text}
    for numbers in _ATTACKS.findall(text):
        found.update(f"attack.md finding {number}" for number in re.findall(r"\d+", numbers))
    for client, issues in _ISSUES.findall(text):
        found.update(f"{client} {issue}" for issue in re.findall(_ISSUE, issues))
    return found


@functools.cache
def named_by_tests() -> dict[str, list[str]]:
    """Id -> the tests that name it."""
    named: dict[str, list[str]] = {}
    for path, whole in files_of_tests():
        if path.name != "test_attack.py" and not ids_in(whole):
            continue
        for name, said in written_in(path).items():
            number = re.match(r"test_(\d+)_", name) if path.name == "test_attack.py" else None
            text = f"{said} attack.md finding {number[1]}" if number else said
            for each in ids_in(text):
                named.setdefault(each, []).append(f"{path.name}::{name}")
    return named


def faults_on_kafka() -> set[int]:
    """The faults that tests on real brokers name, as `test_f13_...` or as F13."""
    found: set[int] = set()
    for path in sorted((ROOT / "tests" / "kafka").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named = re.match(r"test((?:_f\d+)+)_", node.name)
                found.update(map(int, re.findall(r"\d+", named[1]) if named else ()))
                found.update(map(int, re.findall(r"\bF(\d+)\b", ast.get_docstring(node) or "")))
    return found


def excused() -> set[str]:
    """The ids that DESIGN.md gives a reason for."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    return ids_in(text[text.index(SECTION) :].removeprefix(SECTION).split("\n## ")[0])


def test_every_known_bug_has_a_test_that_names_it_or_a_reason_why_not() -> None:
    missing = set(EVERYTHING) - set(named_by_tests()) - excused()
    assert not missing, sorted(missing)


def test_every_fault_that_real_brokers_can_suffer_is_shown_on_them() -> None:
    assert not sorted(FAULTS_ON_KAFKA - faults_on_kafka())


def test_no_reason_is_given_for_what_has_a_test() -> None:
    assert not sorted(excused() & set(named_by_tests()))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("A5.39, C-J5: as rd#3672 and KAFKA-1", {"A5.39", "C-J5", "librdkafka #3672"}),
        ("A1.11, AA1.1, C-J50, D2.1x", {"A1.11", "C-J50"}),
        ("attack.md findings 2, 3 and 4.", {f"attack.md finding {n}" for n in (2, 3, 4)}),
        ("attack.md, finding 28: 7", {"attack.md finding 28"}),
        (
            "franz-go #1217, v1.5.3 and #930.",
            {f"franz-go {n}" for n in ("#1217", "v1.5.3", "#930")},
        ),
        ("confluent-kafka-python\n    #2071", {"confluent-kafka-python #2071"}),
        ("platformatic/kafka #326; 2nd attack, a", {"platformatic #326", "2nd attack, a"}),
        ("librdkafka dotnet#704 (#2163)", {"librdkafka dotnet#704"}),
    ],
)
def test_ids_are_found_as_they_are_written(text: str, ids: set[str]) -> None:
    assert ids_in(text) == ids
