"""The compiled hot loops run if installed and not refused; else pure Python runs, with a reason."""

from __future__ import annotations

import importlib.machinery
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aioidem._hot as hot
from aioidem._hot import encoding

_MODULE = "aioidem._hot._compiled"
_TWINS = hot._TWINS  # noqa: SLF001 - the names that have two forms


def chosen() -> dict[str, Any]:
    """Run the package's source again and return its names."""
    return runpy.run_path(hot.__file__)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Install a module in place of the compiled one."""
    fake = SimpleNamespace(**{name: object() for name in _TWINS})
    monkeypatch.setitem(sys.modules, _MODULE, fake)
    monkeypatch.delenv("AIOIDEM_NO_EXTENSIONS", raising=False)
    return fake


def test_the_compiled_form_runs_where_it_is_installed(installed: SimpleNamespace) -> None:
    """If the compiled module is installed, every name in `_hot` with two forms comes from it."""
    names = chosen()
    assert names["WHY_PURE"] is None
    assert {name: names[name] for name in _TWINS} == vars(installed)


@pytest.mark.usefixtures("installed")
def test_the_environment_can_refuse_the_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AIOIDEM_NO_EXTENSIONS the pure form runs although the compiled one is installed."""
    monkeypatch.setenv("AIOIDEM_NO_EXTENSIONS", "1")
    names = chosen()
    assert names["WHY_PURE"] == "AIOIDEM_NO_EXTENSIONS is set"
    assert names["encode_records"] is encoding.encode_records


@pytest.mark.usefixtures("installed")
def test_an_empty_variable_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """AIOIDEM_NO_EXTENSIONS without a value is the same as no variable."""
    monkeypatch.setenv("AIOIDEM_NO_EXTENSIONS", "")
    assert chosen()["WHY_PURE"] is None


@pytest.mark.usefixtures("installed")
def test_pure_python_runs_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiled module the pure form runs."""
    monkeypatch.setitem(sys.modules, _MODULE, None)
    names = chosen()
    assert names["WHY_PURE"] == "no compiled module is installed for this Python"
    assert names["encode_records"] is encoding.encode_records


@pytest.mark.usefixtures("installed")
def test_a_compiled_module_that_cannot_be_loaded_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the compiled module cannot be loaded, the pure form runs, and `WHY_PURE` says so."""
    monkeypatch.delitem(sys.modules, _MODULE)
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (tmp_path / f"_compiled{suffix}").write_bytes(b"damaged")
    monkeypatch.setattr(hot, "__path__", [str(tmp_path)])
    why = chosen()["WHY_PURE"]
    assert why.startswith("the compiled module cannot be loaded: ")


def test_a_compiled_module_of_another_version_is_not_used(installed: SimpleNamespace) -> None:
    """If the compiled module lacks one of the names, the pure form runs, and `WHY_PURE` says so."""
    del installed.take_fitting
    names = chosen()
    assert names["WHY_PURE"].startswith("the compiled module is of another version of aioidem")
    assert names["encode_records"] is encoding.encode_records


def test_a_loop_is_documented_and_named_alike_in_both_forms(compiled: Any, pure: Any) -> None:
    """Each compiled loop has the name and the first line of the docstring of its pure twin."""
    for name in _TWINS:
        twin, other = getattr(compiled, name), getattr(pure, name)
        assert (twin.__name__, twin.__module__) == (name, _MODULE)
        assert twin.__doc__.splitlines()[0] == other.__doc__.splitlines()[0]
