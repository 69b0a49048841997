"""The source text of the test files, and the docstrings of their tests."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

__all__ = ["TESTS", "files_of_tests", "written_in"]

TESTS = Path(__file__).parent


def files_of_tests() -> Iterator[tuple[Path, str]]:
    """Yield each test file and its text: searching the text is much faster than parsing it."""
    for path in sorted(TESTS.rglob("test_*.py")):
        yield path, path.read_text(encoding="utf-8")


@functools.cache
def written_in(path: Path) -> dict[str, str]:
    """Return the docstring of each test in a file, by name; empty where there is none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [*tree.body]
    nodes += [
        member for node in tree.body if isinstance(node, ast.ClassDef) for member in node.body
    ]
    return {
        node.name: ast.get_docstring(node) or ""
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }
