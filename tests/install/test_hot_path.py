"""An installation is compiled where there is a C compiler, and pure Python where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.ci import CI
from tests.hot.conftest import compiler

from .tools import ROOT, Environment, copy_tree, run

_NO_COMPILER = pytest.mark.skipif(compiler() is None, reason="no C compiler here")


def _wheel(tree: Path, tmp_path: Path, **environment: str) -> Path:
    """Run `make wheels` in a copy of the tree, with this process's Python."""
    place = copy_tree(tree, tmp_path / "aioidem")
    home = Path(sys.prefix)
    # The option -o declares this process's environment to be up to date. Otherwise make would
    # install the copy of the tree into that environment.
    done = run(
        *("make", "-o", f"{home}/.ready", f"VENV={home}", "wheels"),
        cwd=place,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (place / "dist").glob("*.whl")
    return wheel


def _extensions(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]


@_NO_COMPILER
def test_the_wheel_that_make_builds_sends_with_the_compiled_form(
    tree: Path, tmp_path: Path
) -> None:
    """`make wheels` builds a wheel for this machine, which works in an empty environment."""
    wheel = _wheel(tree, tmp_path)
    assert len(_extensions(wheel)) == 1
    environment = Environment(tmp_path / "environment")
    environment.install(str(wheel))
    environment.run("hot_path", "compiled")


def test_without_a_compiler_it_is_installed_in_pure_python(tree: Path, tmp_path: Path) -> None:
    """If the C compiler fails, the wheel has no compiled module, and it works."""
    wheel = _wheel(tree, tmp_path, CC="/bin/false")
    assert _extensions(wheel) == []
    environment = Environment(tmp_path / "environment")
    environment.install(str(wheel))
    environment.run("hot_path", "pure")


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        (
            "linux",
            {"manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64"},
        ),
        ("macos", {"macosx_x86_64", "macosx_arm64"}),
        ("windows", {"win_amd64", "win_arm64"}),
    ],
)
def test_wheels_are_configured_for_each_python_and_platform(
    platform: str, expected: set[str]
) -> None:
    """Every supported CPython, and the free-threaded build, has a wheel for each platform."""
    command = shutil.which("cibuildwheel", path=str(Path(sys.executable).parent))
    if command is None:
        assert not CI, "cibuildwheel is not installed"
        pytest.skip("cibuildwheel is not installed")
    done = subprocess.run(
        [command, "--print-build-identifiers", "--platform", platform, str(ROOT)],
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = {tuple(line.split("-", 1)) for line in done.stdout.split()}
    pythons = {"cp311", "cp312", "cp313", "cp314", "cp314t"}
    assert found == {(python, where) for python in pythons for where in expected}


def test_a_published_wheel_is_tested_to_be_compiled() -> None:
    """cibuildwheel refuses a wheel that fell back to pure Python."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["cibuildwheel"]
    assert "build_info().hot_path == 'compiled'" in settings["test-command"]
