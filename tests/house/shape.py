"""Measure the structure of the source: `python -m tests.house.shape [CHECKOUT]`.

Run it on another checkout to compare two states of the tree:

    git worktree add --detach /tmp/before COMMIT
    python -m tests.house.shape /tmp/before
    python -m tests.house.shape

Files are read and never imported, so any state of the tree can be measured.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kio.schema.errors import ErrorCode

__all__ = ["circles", "main", "sources", "two_levels_in", "way"]

_MOST = 6
_CODES = {code.name.upper() for code in ErrorCode}
_TAKES_CODE = {"classify", "classify_call", "broker_error", "may_pass"}
_TWO_IN = re.compile(r"\b_?core\.(?!partitions\b)([a-z]\w*)\.(?!_)(\w+)")
_DOCUMENT = re.compile(r"\b([\w-]+\.md)\b")

# The functions that a record goes through, in order, as `file: function`. The path of a file is
# shortened to its end.
_WAY = """
producer/native: send; intake: enqueue, record, queue; memory: try_take;
record_accumulator: append, _append, _assign, _choose_partition; partitions: state;
partition_queue: append;
producer/sender: _turn; core: poll; produce: send, _route; partition: follow; produce: _send_on;
record_accumulator: drain, _next_batch; sealing: seal; partition_queue: cut;
hot/queueing: take_fitting; idempotence: take; builder: build_body, add_header;
partition: enlist, send; produce: _write;
producer/sender: _perform, _send_produce; connection: write;
producer/sender: _on_frame, _answered; core: on_answer; produce: on_answer, _on_partition;
acknowledgements: on_ack; endings: settle_ack; outcomes: settle;
producer/sender: deliver; producer/settled_records: tell; hot/settling: settle_each;
hot/record: settle
"""
_WAY_BEFORE = """
producer/native: send, enqueue, _record; accumulator: try_take; producer/native: _queue;
core: append, _assign, _choose_partition, partition; accumulator: append;
sender: _turn; core: poll, _prepare, _send_batches, _route; partition: follow;
core: _send_on, _next_batch; sealing: seal; accumulator: cut; idempotence: take;
builder: build_batch; partition: enlist, send; core: _write, _register;
sender: _perform, _produce; connection: write;
sender: _on_frame, _on_produce; core: on_produce_answer, _on_partition_answer;
partition: on_ack, _settle_ack; core: settle; sender: deliver; outcomes: tell; delivery: settle
"""


class Source:
    """One parsed file of the tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.module = ".".join(self.path.with_suffix("").parts)
        self.lines = self.text.count("\n")


def sources(root: Path, folder: str) -> list[Source]:
    """Read every file below a folder of a checkout."""
    return [Source(root, path) for path in sorted((root / folder).rglob("*.py"))]


def main(root: Path) -> None:
    """Print all measurements of one checkout."""
    library, tests = sources(root, "aioidem"), sources(root, "tests")
    _section("largest classes: lines, methods", _classes(library))
    _section("largest files: lines", _files(library))
    _section("circles among files of a package", circles(library))
    _section("imports that avoid the order (in a function, or for types alone)", _hidden(library))
    outside = [each for each in (*library, *tests) if "engine" not in each.module]
    _section("names reached two levels in, from outside of the engine", two_levels_in(outside))
    _section("bare error codes", _codes((*library, *tests)))
    _section("references to absent documents", _documents(root, (*library, *tests)))
    _section("a record's way", way(library))


def _section(title: str, rows: Iterable[str]) -> None:
    found = list(rows)
    sys.stdout.write(f"{title}: {len(found)}\n")
    for row in found[: 60 if "way" in title else _MOST]:
        sys.stdout.write(f"    {row}\n")


def _classes(files: Iterable[Source]) -> Iterator[str]:
    found = [
        (
            (node.end_lineno or 0) - node.lineno + 1,
            sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body),
            f"{source.path}: {node.name}",
        )
        for source in files
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
    ]
    for lines, methods, name in sorted(found, reverse=True)[:_MOST]:
        yield f"{lines:5} {methods:4}  {name}"


def _files(files: Iterable[Source]) -> Iterator[str]:
    found = sorted(((source.lines, str(source.path)) for source in files), reverse=True)
    for lines, path in found[:_MOST]:
        yield f"{lines:5}  {path}"


def _imports(source: Source, names: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & names
            found |= below or ({node.module} & names)
    return found - {source.module}


def circles(files: list[Source]) -> Iterator[str]:
    """Yield each import cycle among the files of one package; imports only for types count too."""
    names = {source.module for source in files}
    graph = {source.module: _imports(source, names) for source in files}
    reach = {name: _reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        circle = {other for other in reach[name] if name in reach[other]}
        same = {each for each in circle if each.rpartition(".")[0] == name.rpartition(".")[0]}
        if len(same) > 1 and name not in seen:
            seen |= same
            yield ", ".join(sorted(each.removeprefix("aioidem.") for each in same))


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def _hidden(files: Iterable[Source]) -> Iterator[str]:
    for source in files:
        order = {id(node) for node in source.tree.body}
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ImportFrom) or id(node) in order:
                continue
            if (node.module or "").startswith("aioidem"):
                yield f"{source.path}:{node.lineno}: {node.module}"


def two_levels_in(files: Iterable[Source]) -> Iterator[str]:
    """Yield each place in a library file that reaches into a part of the core: `core.part.name`."""
    for source in files:
        if source.path.parts[0] != "aioidem":
            continue
        for number, line in enumerate(source.text.splitlines(), 1):
            for part, name in _TWO_IN.findall(line):
                yield f"{source.path}:{number}: core.{part}.{name}"


def _codes(files: Iterable[Source]) -> Iterator[str]:
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.expr | ast.stmt) and _is_bare_code(node):
                yield f"{source.path}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:70]}"


def _is_bare_code(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and not isinstance(node.left, ast.Tuple):
        return "error_code" in ast.unparse(node.left) and any(map(_number, node.comparators))
    if isinstance(node, ast.Call) and node.args:
        called = ast.unparse(node.func).rpartition(".")[2]
        return called in _TAKES_CODE and any(map(_number, node.args[:2])) and _named(node)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id.strip("_") in _CODES and _number(node.value)
    return False


def _named(node: ast.Call) -> bool:
    return _number(node.args[0]) or (len(node.args) > 1 and "CallKind" in ast.unparse(node.args[0]))


def _number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _number(node.operand)
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_number, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value != 0


def _documents(root: Path, files: Iterable[Source]) -> Iterator[str]:
    known = {path.name for path in root.rglob("*.md") if ".venv" not in path.parts}
    for source in files:
        for number, line in enumerate(source.text.splitlines(), 1):
            for name in _DOCUMENT.findall(line):
                if name not in known:
                    yield f"{source.path}:{number}: {name}"


def way(files: list[Source]) -> list[str]:
    """List the functions that a record passes through, from `send()` to its outcome."""
    found = _hops(_WAY, files) or _hops(_WAY_BEFORE, files)
    return found or ["its functions are not where they were: bring `_WAY` up to date"]


def _hops(way: str, files: list[Source]) -> list[str] | None:
    hops = []
    for step in re.sub(r"\s+", " ", way).strip().split("; "):
        where, _, functions = step.partition(": ")
        for function in functions.split(", "):
            found = [s for s in files if _holds(s, where, function)]
            if not found:
                return None
            hops.append(f"{found[0].path}: {function}")
    places = {hop.partition(": ")[0] for hop in hops}
    return [f"{len(hops)} functions in {len(places)} files", *hops]


def _holds(source: Source, where: str, function: str) -> bool:
    path = "/" + str(source.path.with_suffix("")).replace("/_", "/")
    return path.endswith(f"/{where}") and re.search(rf"def {function}\(", source.text) is not None


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
