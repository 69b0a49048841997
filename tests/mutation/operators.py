"""Operators: all small changes of a source file that a machine can think of, one per mutant.

A mutant replaces one node of the syntax tree: a comparison, a boolean or arithmetic operator, a
constant, a condition, a returned value, a member of an enum, or a whole statement. What is for
people is left alone: annotations, docstrings, log lines, and the messages of exceptions.

A mutant's name tells file, function, the code before and after. It has no line number, so it stays
the same while code around it changes.
"""

from __future__ import annotations

import ast
import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["Mutant", "Place", "mutants_of"]

_TEXT: Final = 90
_COMPARE: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_EMPTY: Final = {
    "list": "[]",
    "tuple": "()",
    "dict": "{}",
    "set": "set()",
    "frozenset": "frozenset()",
    "Iterator": "iter(())",
    "Iterable": "()",
    "Sequence": "()",
    "str": "''",
    "bytes": "b''",
}
_FOR_PEOPLE: Final = frozenset({"__repr__", "__str__", "__all__", "__slots__", "__match_args__"})


class Place(NamedTuple):
    """Where a mutated node is."""

    path: str
    """The file, relative to the root of the checkout."""
    function: str
    """The qualified name of the outermost function; empty outside of functions."""
    first: int
    """The first line of that function, with its decorators."""
    line: int
    """The line of the node."""
    statement: int
    """The line of the statement that the node is in."""


class Mutant(NamedTuple):
    """One change of one source file."""

    name: str
    place: Place
    operator: str
    node: int
    """The number of the replaced node, in the order of `ast.walk`."""
    replacement: ast.AST

    def tree(self, source: str) -> ast.Module:
        """Return the syntax tree of the mutated file."""
        tree = ast.parse(source)
        old = next(node for number, node in enumerate(ast.walk(tree)) if number == self.node)
        new = ast.copy_location(self.replacement, old)
        _Replacing(old, new).visit(tree)
        return ast.fix_missing_locations(tree)


def mutants_of(path: str, source: str, names: Mapping[str, Any]) -> list[Mutant]:
    """Return all mutants of a source file, in the order of its text.

    Args:
        path: the file, as the mutants' names shall tell it.
        source: its text.
        names: the module's global names, which tell enums from other classes.
    """
    return list(_Pass(path, ast.parse(source), names).run())


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old = old
        self.new = new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


class _Scope(NamedTuple):
    """What surrounds a node."""

    names: tuple[str, ...] = ()
    function: str = ""
    first: int = 0
    statement: int = 0
    returns: str = ""
    enum: str = ""
    """The class of enum whose body this is, if it is one."""


class _Pass:
    """One walk over a syntax tree."""

    def __init__(self, path: str, tree: ast.Module, names: Mapping[str, Any]) -> None:
        self.path = path
        self.tree = tree
        self.numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
        self.members = {name: list(made) for name, made in names.items() if _is_enum(made)}
        self.seen: Counter[str] = Counter()

    def run(self) -> Iterator[Mutant]:
        for statement in self.tree.body:
            yield from self._statement(statement, _Scope())

    # -- statements -------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt, scope: _Scope) -> Iterator[Mutant]:
        scope = scope._replace(statement=node.lineno)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node, scope)
        elif not _for_people(node):
            yield from self._removed(node, scope)
            if isinstance(node, ast.Return):
                yield from self._returned(node, scope)
            if isinstance(node, ast.If):
                yield from self._negated(node.test, scope)
            if isinstance(node, ast.AugAssign):
                yield from self._other_arithmetic(node, scope)
            if not isinstance(node, ast.Raise):  # its message is for people
                yield from self._parts(node, scope)

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope
    ) -> Iterator[Mutant]:
        if node.name in _FOR_PEOPLE:
            return
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield from self._expression(default, scope)
        names = (*scope.names, node.name)
        inside = scope._replace(names=names, returns=_word(node.returns), enum="")
        if not scope.function:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            inside = inside._replace(function=".".join(names), first=first)
        for statement in node.body:
            yield from self._statement(statement, inside)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> Iterator[Mutant]:
        own = node.name if node.name in self.members else ""
        inside = scope._replace(names=(*scope.names, node.name), enum=own)
        for statement in node.body:
            # The values of an enum's members are names for people.
            if not (own and isinstance(statement, (ast.Assign, ast.AnnAssign))):
                yield from self._statement(statement, inside)

    def _parts(self, node: ast.AST, scope: _Scope) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "type_comment"}:
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.stmt):
                    yield from self._statement(each, scope)
                elif isinstance(each, ast.expr):
                    yield from self._expression(each, scope)
                elif isinstance(each, ast.AST):
                    yield from self._parts(each, scope)

    def _removed(self, node: ast.stmt, scope: _Scope) -> Iterator[Mutant]:
        """Remove statements without which a function still runs."""
        if not scope.function:
            return
        removable = isinstance(
            node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)
        )
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            removable = all(not isinstance(target, ast.Name) for target in targets)
            removable &= isinstance(node, ast.Assign) or node.value is not None
        elif isinstance(node, ast.Return):
            removable = node.value is None
        if removable:
            yield self._mutant("removed", node, ast.Pass(), scope)

    def _returned(self, node: ast.Return, scope: _Scope) -> Iterator[Mutant]:
        value = node.value
        if value is None or isinstance(value, ast.Constant):
            return
        if scope.returns == "bool":
            # Operators and comparisons have mutants of their own.
            if not isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                yield from self._negated(value, scope)
            return
        if scope.returns in {"int", "float"}:
            changed: ast.expr = ast.BinOp(value, ast.Add(), ast.Constant(1))
        else:
            text = _EMPTY.get(scope.returns, "None")
            changed = ast.parse(text, mode="eval").body
            if ast.unparse(value) == text:
                return
        yield self._mutant("returned", node, ast.Return(changed), scope)

    def _negated(self, node: ast.expr, scope: _Scope) -> Iterator[Mutant]:
        """Swap the branches of a condition, where that is no other operator's mutant."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return
        yield self._mutant("negated", node, ast.UnaryOp(ast.Not(), node), scope)

    # -- expressions ------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, scope: _Scope) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):
            return
        yield from self._changed(node, scope)
        if not isinstance(node, (ast.Constant, ast.Name)):
            yield from self._parts(node, scope)

    def _changed(self, node: ast.expr, scope: _Scope) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            yield from self._other_comparison(node, scope)
        elif isinstance(node, ast.BoolOp):
            yield from self._other_boolean(node, scope)
        elif isinstance(node, ast.BinOp):
            yield from self._other_arithmetic(node, scope)
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, (ast.Not, ast.USub)):
                yield self._mutant("sign", node, node.operand, scope)
        elif isinstance(node, ast.IfExp):
            yield from self._negated(node.test, scope)
        elif isinstance(node, ast.Constant):
            yield from self._other_constant(node, scope)
        elif isinstance(node, ast.Attribute):
            yield from self._other_member(node, scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            other = _CALLS.get(node.func.id)
            if other is not None:
                called = ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
                yield self._mutant("call", node, called, scope)

    def _other_comparison(self, node: ast.Compare, scope: _Scope) -> Iterator[Mutant]:
        for place, operator in enumerate(node.ops):
            for other in _COMPARE[type(operator)]:
                ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                yield self._mutant(
                    "compare", node, ast.Compare(node.left, ops, node.comparators), scope
                )

    def _other_boolean(self, node: ast.BoolOp, scope: _Scope) -> Iterator[Mutant]:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield self._mutant("boolean", node, ast.BoolOp(other, node.values), scope)
        for place in range(len(node.values)):
            left = [*node.values[:place], *node.values[place + 1 :]]
            changed = ast.BoolOp(node.op, left) if len(left) > 1 else left[0]
            yield self._mutant("condition dropped", node, changed, scope)

    def _other_arithmetic(self, node: ast.BinOp | ast.AugAssign, scope: _Scope) -> Iterator[Mutant]:
        other = _ARITHMETIC.get(type(node.op))
        if other is None:
            return
        if isinstance(node, ast.BinOp):
            if any(
                isinstance(each, (ast.JoinedStr, ast.List)) or _is_text(each)
                for each in (node.left, node.right)
            ):
                return
            changed: ast.AST = ast.BinOp(node.left, other(), node.right)
        else:
            changed = ast.AugAssign(node.target, other(), node.value)
        yield self._mutant("arithmetic", node, changed, scope)

    def _other_constant(self, node: ast.Constant, scope: _Scope) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self._mutant("constant", node, ast.Constant(not value), scope)
        elif isinstance(value, (int, float)):
            for other in (value + 1, value - 1):
                yield self._mutant("constant", node, ast.Constant(other), scope)

    def _other_member(self, node: ast.Attribute, scope: _Scope) -> Iterator[Mutant]:
        """Replace a member of an enum by the next one, in the order of their definition."""
        if not isinstance(node.value, ast.Name) or not isinstance(node.ctx, ast.Load):
            return
        members = self.members.get(node.value.id, [])
        names = [member.name for member in members]
        if node.attr in names and len(names) > 1:
            other = names[(names.index(node.attr) + 1) % len(names)]
            changed = ast.Attribute(ast.Name(node.value.id, ast.Load()), other, ast.Load())
            yield self._mutant("member", node, changed, scope)

    def _mutant(self, operator: str, node: ast.AST, changed: ast.AST, scope: _Scope) -> Mutant:
        before = _short(ast.unparse(node))
        after = _short(ast.unparse(ast.fix_missing_locations(changed)))
        where = ".".join(scope.names) or "module"
        if operator == "removed":
            name = f"{self.path} {where}: removed `{before}`"
        else:
            name = f"{self.path} {where}: `{before}` -> `{after}`"
        self.seen[name] += 1
        if self.seen[name] > 1:
            name = f"{name} ({self.seen[name]})"
        line = getattr(node, "lineno", scope.statement)
        place = Place(self.path, scope.function, scope.first, line, scope.statement)
        return Mutant(name, place, operator, self.numbers[id(node)], changed)


def _is_enum(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, enum.Enum)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def _word(annotation: ast.expr | None) -> str:
    """Return the first word of an annotation: "list" for `list[int]`; "None" for `int | None`."""
    if annotation is None:
        return ""
    text = ast.unparse(annotation)
    return "None" if "| None" in text else text.partition("[")[0]


def _for_people(node: ast.stmt) -> bool:
    """Tell whether a statement only says something to people, type checkers or importers."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.Pass, ast.Global)):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in {"TYPE_CHECKING", "not TYPE_CHECKING"}
    if isinstance(node, ast.Expr):
        value = node.value
        if isinstance(value, ast.Call):
            return ast.unparse(value.func).startswith("logger.")
        return isinstance(value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(each, ast.Name) and each.id in _FOR_PEOPLE for each in targets)
    return False
