"""Operators: a known source in, known mutants out."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from .operators import Mutant, mutants_of
from .sources import all_mutants


class Light(enum.Enum):
    RED = "red"
    GREEN = "green"


def _made(source: str, **names: Any) -> list[Mutant]:
    return mutants_of("a.py", source, names)


def _changes(source: str, **names: Any) -> list[str]:
    return [mutant.name.partition(": ")[2] for mutant in _made(source, **names)]


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("a < b", ["`a < b` -> `a <= b`", "`a < b` -> `a >= b`"]),
        ("a == b", ["`a == b` -> `a != b`"]),
        ("a is None", ["`a is None` -> `a is not None`"]),
        ("a and b", ["`a and b` -> `a or b`", "`a and b` -> `b`", "`a and b` -> `a`"]),
        ("not a", ["`not a` -> `a`"]),
        ("a + b", ["`a + b` -> `a - b`"]),
        ("a + 'text'", []),
        ("7", ["`7` -> `8`", "`7` -> `6`"]),
        ("True", ["`True` -> `False`"]),
        ("'text'", []),
        ("min(a, b)", ["`min(a, b)` -> `max(a, b)`"]),
        ("a if b else c", ["`b` -> `not b`"]),
        ("Light.GREEN", ["`Light.GREEN` -> `Light.RED`"]),
        ("Other.GREEN", []),
        ("[a for a in b if a < 1]", ["`a < 1` -> `a <= 1`", "`a < 1` -> `a >= 1`",
                                     "`1` -> `2`", "`1` -> `0`"]),
    ],
)  # fmt: skip
def test_each_expression_has_its_mutants(code: str, changes: list[str]) -> None:
    assert _changes(f"x = {code}", Light=Light, Other=str) == changes


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("self.a = b", ["removed `self.a = b`"]),
        ("a = b", []),  # without it the next line would raise, which shows nothing
        ("call()", ["removed `call()`"]),
        ("raise ValueError('a' * 2)", ["removed `raise ValueError('a' * 2)`"]),
        ("n += m", ["removed `n += m`", "`n += m` -> `n -= m`"]),
        ("return", ["removed `return`"]),
        ("return b", ["`return b` -> `return None`"]),
        ("if b:\n  call()\n else:\n  more()", ["`b` -> `not b`", "removed `call()`",
                                               "removed `more()`"]),
        ("'''text'''", []),
        ("logger.info('text %d', 1)", []),
        ("assert a < b", []),
    ],
)  # fmt: skip
def test_each_statement_has_its_mutants(code: str, changes: list[str]) -> None:
    assert _changes(f"def f():\n {code}") == changes


@pytest.mark.parametrize(
    ("returns", "after"),
    [
        ("bool", "`call()` -> `not call()`"),
        ("int", "`return call()` -> `return call() + 1`"),
        ("list[int]", "`return call()` -> `return []`"),
        ("int | None", "`return call()` -> `return None`"),
    ],
)
def test_a_returned_value_is_replaced_by_another_of_its_type(returns: str, after: str) -> None:
    assert _changes(f"def f() -> {returns}:\n return call()") == [after]


def test_what_is_for_people_has_no_mutants() -> None:
    source = """
from __future__ import annotations
__all__ = ["a" * 2]
if TYPE_CHECKING:
    x = 1
class A:
    __slots__ = ("a", 1)
    a: Literal[1]
    def __repr__(self) -> str:
        return f"{1 + 1}"
"""
    assert _changes(source) == []


def test_the_members_of_an_enum_keep_their_values() -> None:
    assert _changes("class Light(enum.Enum):\n RED = 1\n GREEN = 2", Light=Light) == []


def test_equal_changes_in_one_function_have_different_names() -> None:
    """The second mutant of the same text has a number, and each mutant changes its own place."""
    source = "def f(a):\n a.b = 1\n a.b = 1"
    first, second = [each for each in _made(source) if each.operator == "removed"]
    assert second.name == f"{first.name} (2)"
    assert [each.place.line for each in (first, second)] == [2, 3]
    assert first.tree(source).body != second.tree(source).body


def test_a_mutant_knows_its_outermost_function() -> None:
    """The place is that of the function whose code is replaced, with its decorators."""
    source = "class A:\n @cached\n def f(self):\n  def g():\n   return h(\n    1)\n  return g"
    constant = next(each for each in _made(source) if each.operator == "constant")
    assert constant.place == ("a.py", "A.f", 2, 6, 5)


def test_a_default_value_is_outside_of_its_function() -> None:
    """It is computed when the function is defined, so its mutant has to be imported."""
    assert [each.place.function for each in _made("def f(a=1):\n pass")] == ["", ""]


def test_all_mutants_of_the_engine_have_names_of_their_own() -> None:
    mutants = all_mutants()
    assert len(mutants) > 5000
    assert {mutant.name for mutant in mutants.values()} == set(mutants)
