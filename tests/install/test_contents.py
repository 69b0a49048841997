"""The sdist contains the whole project, the wheel only the package."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.hot.conftest import compiler

from .tools import Built, uv

_EXTENSIONS = importlib.machinery.EXTENSION_SUFFIXES
_NOT_SHIPPED = {".gitignore"}
_MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


def files(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()}


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the sdist and return its folder."""
    where = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built.sdist) as archive:
        archive.extractall(where, filter="data")
    [folder] = where.iterdir()
    return folder


def test_the_sdist_is_the_whole_project(tree: Path, unpacked: Path) -> None:
    """The sdist contains every file of the project."""
    shipped = {name for name in files(unpacked) if not name.startswith("aioidem.egg-info/")}
    assert shipped - _MADE_BY_SETUPTOOLS == files(tree) - _NOT_SHIPPED


def test_the_projects_tests_run_from_the_sdist(unpacked: Path, tmp_path: Path) -> None:
    """Tests pass in a copy of the unpacked sdist (a copy, because they leave files behind)."""
    shipped = shutil.copytree(unpacked, tmp_path / "shipped")
    folders = ("tests/errors", "tests/structs", "tests/partitioner", "tests/jars")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=shipped, env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def _checksums(wheel: Path) -> dict[str, int | None]:
    """Return the CRC of each file, or None for compiled files and for the list of checksums.

    Compiled files differ from build to build, because they contain the path of the build's folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: None if each.filename.endswith((*_EXTENSIONS, "/RECORD")) else each.CRC
            for each in archive.infolist()
        }


def test_the_wheel_is_the_same_from_the_tree_and_from_the_sdist(
    built: Built, tmp_path: Path
) -> None:
    """The wheel built from the sdist has the same files as the wheel built from the tree."""
    done = uv(
        "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(built.sdist), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    [again] = tmp_path.glob("*.whl")
    assert _checksums(built.wheel) == _checksums(again)


def test_the_wheel_has_the_package_and_nothing_else(tree: Path, built: Built) -> None:
    """The wheel contains the files of the package, and no others."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    made = {f"aioidem/_hot/_compiled{_EXTENSIONS[0]}"} if compiler() else set[str]()
    sources = {name for name in files(tree / "aioidem") if not name.endswith(".pyx")}
    assert names == {f"aioidem/{name}" for name in sources} | made
