"""The public modules, and the names in the signatures of their exports, read from the source.

The source is read because names that are imported only for annotations do not exist at run time.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_VARIABLE = re.compile(r"\b(?:TypeVar|ParamSpec)\(")
_SPECIAL = {"__init__", "__call__", "__aenter__", "__enter__", "__await__", "__iter__"}


class Definition(NamedTuple):
    """The module and the statement that define a name."""

    module: str
    name: str
    node: ast.stmt


def public_modules() -> list[str]:
    """Return the names of the modules that users may import: those without a leading underscore."""
    files = sorted((ROOT / "aioidem").rglob("*.py"))
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    public = [each for each in parts if not any(p.startswith("_") for p in each[:-1])]
    names = [".".join(each[:-1] if each[-1] == "__init__" else each) for each in public]
    return [name for name in names if "_" not in name.rpartition(".")[2][:1]]


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module of the library."""
    base = ROOT / module.replace(".", "/")
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def listed(module: str) -> list[str]:
    """Return a module's `__all__`."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


@functools.cache
def definition(module: str, name: str) -> Definition | None:
    """Return the definition of a name, found along imports; None if another library defines it."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aioidem"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(node.module or "", alias.name)
    for statement in tree_of(module).body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        elif isinstance(statement, _DEFINITIONS) and statement.name == name:
            return Definition(module, name, statement)
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return Definition(module, name, statement)
    return None


def in_signature(found: Definition) -> Iterator[Definition]:
    """Yield the library's own names in the signature of a function, a class or an alias."""
    for annotation in _annotations(found):
        for node in ast.walk(annotation):
            text = node.value if isinstance(node, ast.Constant) else None
            names = [node.id] if isinstance(node, ast.Name) else []
            if isinstance(text, str) and text.isidentifier():
                names = [text]
            for name in names:
                other = definition(found.module, name)
                if other is None or other[:2] == found[:2]:
                    continue
                if name.startswith("_") or _is_type_variable(other.node):
                    yield from in_signature(other)
                else:
                    yield other


def _is_type_variable(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and bool(_VARIABLE.search(ast.unparse(node.value)))


def _annotations(found: Definition) -> Iterator[ast.expr]:
    node = found.node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _of_function(node)
    elif isinstance(node, ast.ClassDef):
        yield from _of_class(found.module, node)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        yield node.value


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    every = node.args
    for argument in [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]:
        if argument is not None and argument.annotation is not None:
            yield argument.annotation
    if node.returns is not None:
        yield node.returns


def _of_class(
    module: str, node: ast.ClassDef, overridden: frozenset[str] = frozenset()
) -> Iterator[ast.expr]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            if member.name in overridden:
                continue
            if not member.name.startswith("_") or member.name in _SPECIAL:
                yield from _of_function(member)
        elif isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            yield member.annotation
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        inherited = definition(module, name)
        if inherited is not None and isinstance(inherited.node, ast.ClassDef):
            own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            yield from _of_class(inherited.module, inherited.node, overridden | own)
