"""Every public name is documented and can be imported, as can the types that annotations need."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import aioidem
from tests.house.public_names import Definition, definition, in_signature, listed, public_modules

ROOT = Path(__file__).parents[2]
MODULES = [name for name in public_modules() if listed(name)]

# Public signatures contain these, but users only receive such objects and do not name the types.
INNER = {
    "Asked",
    "BatchRecordMetadata",
    "ClusterView",
    "Entity",  # a type of the library kio
    "HomeLoop",
    "KafkaProcess",
    "Link",
    "Offsets",
    "Omitted",
    "Partition",
    "Pending",
    "SaslSession",
    "Serializer",
    "Topic",
    "TopicLookup",
}

# The type of the headers of a record that was read, which users need not name. The public
# `aioidem.Headers` is the type of headers to send.
READ = {("aioidem._records._decode", "Headers")}


def _documented() -> dict[str, dict[str, str]]:
    """Return the rows of docs/api.md, by module and name."""
    rows: dict[str, dict[str, str]] = {}
    module = ""
    for line in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## `([\w.]+)`", line):
            module = heading[1]
            rows[module] = {}
        elif row := re.fullmatch(r"\| `(\w+)` \| (.*) \|", line):
            rows[module][row[1]] = row[2]
    return rows


def _public(module: str) -> set[str]:
    return {name for name in listed(module) if name == "__version__" or not name.startswith("_")}


def test_every_public_module_has_a_section() -> None:
    """docs/api.md has one section for each module that users may import names from."""
    assert set(_documented()) == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_exactly_what_a_module_exports(module: str) -> None:
    """docs/api.md lists exactly the names that can be imported from each public module."""
    rows = _documented()[module]
    assert set(rows) == _public(module)
    loaded = importlib.import_module(module)
    assert [name for name in rows if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_described_in_a_sentence(module: str) -> None:
    """Each row of docs/api.md describes its name in a sentence."""
    for name, text in _documented()[module].items():
        assert text.endswith("."), name
        assert len(text.split()) >= 3, name


def test_names_in_public_signatures_are_exported() -> None:
    """Every type in a public signature can be imported from a public module, for annotations."""
    found = _unexported(MODULES)
    assert {each for each in found if each[1] not in INNER} - READ == set()


def test_a_name_that_is_not_exported_is_found() -> None:
    """The check above can fail: aioidem.errors does not export every type in its signatures."""
    names = {name for _, name in _unexported(["aioidem.errors"])}
    assert names >= {"DeliveryStatus", "RecordMetadata"}


def _unexported(modules: list[str]) -> set[tuple[str, str]]:
    found = [each for module in modules for each in _definitions(module)]
    exported = {each[:2] for each in found}
    return {
        other[:2] for each in found for other in in_signature(each) if other[:2] not in exported
    }


def _definitions(module: str) -> Iterator[Definition]:
    for name in listed(module):
        if (found := definition(module, name)) is not None:
            yield found


def test_a_producer_shows_users_only_what_is_for_them() -> None:
    """Public attributes of producers and deliveries are for users; others have an underscore."""
    assert _members(aioidem.Producer) == {
        *("start", "stop", "close", "flush", "config", "statistics", "metrics"),
        "set_sasl_credentials",
        *("send", "send_nowait", "send_many", "send_table", "wait_for_room", "partitions_for"),
        "resolve",
        *("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"),
        *("transaction", "send_offsets_to_transaction", "dump_flight_record"),
    }
    assert _members(aioidem.Delivery) == {
        *("status", "done", "metadata", "exception", "add_done_callback", "resolve"),
    }


def _members(cls: type) -> set[str]:
    annotated = {name for each in cls.__mro__ for name in vars(each).get("__annotations__", ())}
    return {name for name in {*dir(cls), *annotated} if not name.startswith("_")}


def test_no_two_exceptions_have_one_name() -> None:
    """An exception's name means the same class in every public module."""
    names: Counter[str] = Counter()
    for file in (ROOT / "aioidem").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and re.search(r"Error$|Exception$", node.name):
                names[node.name] += 1
    assert [name for name, count in names.items() if count > 1] == []


def test_the_page_of_options_is_what_the_table_says() -> None:
    """docs/options.md is what docs/write_options.py writes from the table of options."""
    done = subprocess.run(
        [sys.executable, "docs/write_options.py", "--check"], cwd=ROOT, check=False, timeout=30
    )
    assert done.returncode == 0, "run: python docs/write_options.py"


def test_the_page_of_metrics_is_what_the_table_says() -> None:
    """The tables of docs/metrics.md are what docs/write_metrics.py writes."""
    done = subprocess.run(
        [sys.executable, "docs/write_metrics.py", "--check"], cwd=ROOT, check=False, timeout=30
    )
    assert done.returncode == 0, "run: python docs/write_metrics.py"


@pytest.mark.parametrize("name", ["ConfigError", "KafkaTimeoutError", "error_for_code"])
def test_errors_show_the_module_that_users_import_from(name: str) -> None:
    """A traceback and help() show an error under aioidem.errors, wherever its class is defined."""
    assert getattr(aioidem.errors, name).__module__ == "aioidem.errors"
