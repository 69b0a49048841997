"""Fixtures for tests of the wheel and the sdist, in otherwise empty environments.

Every test in this folder has the marker ``install`` (see tests/markers.py), and `make check` does
not run it: uv resolves the dependencies, from a package index or from its cache. `UV_RESOLUTION`
applies: `make test-oldest` installs the oldest versions that pyproject.toml allows.

Invariants: wheel and sdist are built from a copy of the tree, and nothing is left in the tree;
where no package index can be reached, a test is skipped with the reason, but fails on CI.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci import lacking

from .tools import ROOT, Built, copy_tree, uv

_HERE = Path(__file__).parent
_SECONDS = 400  # the first test may download, and build packages that have no wheel


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def _index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the tests if no package index can be reached; on CI, fail."""
    wanted = tmp_path_factory.mktemp("index") / "wanted.in"
    wanted.write_text("anyio\n")
    done = uv("pip", "compile", "--quiet", str(wanted), cwd=wanted.parent)
    if done.returncode == 0:
        return
    lacking(f"no package index: {' '.join(done.stderr.split())}")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the files that a clone has."""
    return copy_tree(ROOT, tmp_path_factory.mktemp("clone") / "aioidem")


@pytest.fixture(scope="session")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the wheel and the sdist, each from its own copy of the tree."""
    out, place = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("build") / "aioidem"
    place = copy_tree(tree, place)
    done = uv("build", "--quiet", "--sdist", "--wheel", "--out-dir", str(out), str(place), cwd=out)
    assert done.returncode == 0, done.stderr
    [wheel], [sdist] = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)
