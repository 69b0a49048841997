"""Rules for the source that no linter has.

Each rule is a function from a file's text to its violations. A test gives each rule a violation
that it must find.
"""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import aioidem

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "aioidem").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = sorted(
    path
    for folder, kinds in (
        ("", "*.md"),
        ("docs", "*.*"),
        ("examples", "*.py"),
        ("benchmarks", "*.py"),
    )
    for path in (ROOT / folder).glob(kinds)
)

# These texts are split, so that this file does not contain what its rules look for.
_HOSTS = ("files." + "pythonhosted", "py" + "pi.org", "registry." + "npmjs", "repo1." + "maven")
_DOCUMENT = re.compile(r"(?<![\w/.-])(?:[\w.-]+/)*[A-Za-z][\w-]*\.md\b")
# Item numbers of lists that are not in the tree, such as of findings. Issue numbers of Kafka and
# of other clients are permitted.
_LIST = re.compile(
    r"(?<![\w.#/%+-])(?:A\d{1,2}\.\d{1,2}|C-J\d{1,2}|D\d\.\d{1,2}|S\d-\d{1,2})(?!\w)"
    r"|\b(?:[Ff]indings?|[Rr]ules?) \d|\b[Rr]ows? [A-Z]\d|\b2nd attack\b"
    r"|def test_(?:[aefs]\d{1,2}_)+"
)
_MACHINE_PATH = re.compile(r"(?<![\w.])/" + r"(?:work|home|root|Users)/\w")


def _committed() -> list[Path]:
    """Return the files that git tracks, or all source files where there is no git (in an sdist)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=50,
    )
    if listing.returncode != 0:
        return [*LIBRARY, *TESTS]
    return [ROOT / name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]


def missing_header(text: str) -> Iterable[str]:
    """Find a module without a docstring."""
    # Only the first statement is parsed: parsing whole files would take most of these tests' time.
    skipped = (tokenize.COMMENT, tokenize.NL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    first = next(token for token in tokens if token.type not in skipped)
    if first.type != tokenize.STRING or not ast.get_docstring(ast.parse(first.string)):
        yield "no header docstring"


def assert_statements(text: str) -> Iterable[str]:
    """Find asserts in the library: `python -O` removes them; bad input needs a documented error."""
    for node in ast.walk(ast.parse(text)) if "assert" in text else ():
        if isinstance(node, ast.Assert):
            yield f"line {node.lineno}: assert"


def unfinished(text: str) -> Iterable[str]:
    """Find markers of unfinished work."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b", line):
            yield f"line {number}: {line.strip()}"


def sleeps(text: str) -> Iterable[str]:
    """Find sleeps, which are too long on a fast machine and too short on a busy one.

    A test waits for an event or for a condition.
    """
    if "sleep" not in text:
        return
    tree, lines = ast.parse(text), text.splitlines()
    # A sleep in a loop with a condition is permitted: other processes can only be polled.
    polls = {
        call
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
        for call in ast.walk(loop)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in polls:
            if lines[node.lineno - 1].endswith("# virtual time"):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            # sleep(0) and sleep_forever() do not depend on a clock.
            if name == "sleep" and [ast.unparse(argument) for argument in node.args] != ["0"]:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def stop_watches(text: str) -> Iterable[str]:
    """Find clocks of this machine: tests must count events or use virtual time instead."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"\b(?:perf_counter|process_time|thread_time)(?:_ns)?\(", line):
            yield f"line {number}: {line.strip()}: measure in benchmarks/"


def machine_traces(text: str) -> Iterable[str]:
    """Find paths and hosts that exist on one machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if _MACHINE_PATH.search(line) or any(host in line for host in _HOSTS):
            yield f"line {number}: {line.strip()[:100]}"


def absent_documents(text: str) -> Iterable[str]:
    """Find references to documents, and to items of numbered lists, that are not in the tree."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in _DOCUMENT.findall(line):
            if not any((ROOT / folder / name).exists() for folder in ("", "docs", "tests")):
                yield f"line {number}: {name} is not in the tree"
        for listed in _LIST.findall(line):
            yield f"line {number}: {listed} is a number of a list that is not in the tree"


def incomplete_all(text: str) -> Iterable[str]:
    """Find public functions and classes that the module's `__all__` does not name."""
    tree = ast.parse(text)
    listed: set[str] | None = None
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
    if listed is not None:
        missing = {name for name in defined if not name.startswith("_")} - listed
        yield from (f"{name} is not in __all__" for name in sorted(missing))


RULES: list[tuple[Callable[[str], Iterable[str]], list[Path], list[str]]] = [
    (missing_header, [*LIBRARY, *TESTS], ["x = 1"]),
    (assert_statements, LIBRARY, ["'''Doc.'''\nassert x"]),
    (unfinished, LIBRARY, ["raise NotImplementedError"]),
    (
        absent_documents,
        [*LIBRARY, *TESTS, *OTHERS],
        ["as no-such-page" + ".md says", "def test_e" + "4_it(): ..."],
    ),
    (stop_watches, TESTS, ["began = time.perf_counter" + "()"]),
    (sleeps, TESTS, ["import anyio\nanyio.sleep(0.1)"]),
    (incomplete_all, LIBRARY, ["__all__ = []\ndef public(): ..."]),
]


def _name(value: object) -> str:
    return getattr(value, "__name__", "") if callable(value) else ""


@pytest.mark.parametrize(("rule", "files"), [(rule, files) for rule, files, _ in RULES], ids=_name)
def test_every_file_keeps(rule: Callable[[str], Iterable[str]], files: list[Path]) -> None:
    """No file violates the rule."""
    wrong = [
        f"{path.relative_to(ROOT)}: {complaint}"
        for path in files
        for complaint in rule(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("rule", "planted"), [(rule, text) for rule, _, texts in RULES for text in texts], ids=_name
)
def test_a_planted_violation_is_found_by(
    rule: Callable[[str], Iterable[str]], planted: str
) -> None:
    """The rule finds a violation that was written for it."""
    assert list(rule(planted))


def test_no_committed_file_has_a_path_or_a_host_of_one_machine() -> None:
    """No committed file contains a path or a host that exists on one machine only."""
    wrong: list[str] = []
    for path in _committed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a binary file, such as golden bytes
            continue
        wrong += [f"{path.relative_to(ROOT)}: {trace}" for trace in machine_traces(text)]
    assert not wrong, "\n".join(wrong)


def test_every_committed_file_has_a_plain_name() -> None:
    """A command that was tried out in the tree has not left its results there."""
    plain = re.compile(r"[A-Za-z0-9_./-]+")
    names = (str(path.relative_to(ROOT).as_posix()) for path in _committed())
    assert [name for name in names if not plain.fullmatch(name)] == []


@pytest.mark.parametrize(
    "planted", [f"see {'/'}home/me", f"https://{_HOSTS[1]}/", f"at {'/'}work/x"]
)
def test_a_planted_path_or_host_is_found(planted: str) -> None:
    """The rule finds a path and a host that exist on one machine only."""
    assert list(machine_traces(planted))


@pytest.mark.parametrize("harmless", ["a /homely thing", "https://kafka.apache.org/", "net/work/x"])
def test_what_only_looks_like_a_path_is_not_taken_for_one(harmless: str) -> None:
    """The rule permits texts that only resemble a path or a host of one machine."""
    assert not list(machine_traces(harmless))


def test_every_name_in_every_all_exists() -> None:
    """Each name in a module's `__all__` exists and is listed once."""
    for module in pkgutil.walk_packages(aioidem.__path__, "aioidem."):
        if module.name.endswith("__main__"):  # importing it would run the command line
            continue
        loaded = importlib.import_module(module.name)
        names = getattr(loaded, "__all__", ())
        assert len(set(names)) == len(names), module.name
        assert [name for name in names if not hasattr(loaded, name)] == [], module.name


def test_the_version_is_one() -> None:
    """`aioidem.__version__` is the version in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == aioidem.__version__


@pytest.mark.parametrize(
    "planted",
    ["S4" + "-5: a rule", "see A1" + ".6.", "C-J" + "14", "as D2" + ".4 has it", "finding" + " 7"],
)
def test_a_planted_number_of_a_list_is_found(planted: str) -> None:
    """The rule finds each kind of number that refers to a list outside of the tree."""
    assert list(absent_documents(planted))


@pytest.mark.parametrize(
    "harmless", ["KIP-854", "KAFKA-9199", "franz-go #1312", "RFC 6749", "SHA-256", "docs/spark.md"]
)
def test_what_can_be_looked_up_is_not_taken_for_absent(harmless: str) -> None:
    """The rule permits public issues, standards and pages of the tree."""
    assert not list(absent_documents(harmless))
