"""Helpers of the tests of installing: uv, a copy of the tree, and virtual environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

_NOT_IN_A_CLONE = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", ".coverage*", "htmlcov", "artifacts", "build",
    "dist", "*.egg-info", "__pycache__", "*.py[co]", "*.so", "*.pyd",
    "_compiled.c",
)  # fmt: skip
_SECONDS = 350


@dataclass(frozen=True)
class Built:
    """The files that are uploaded for users: a wheel and an sdist."""

    wheel: Path
    sdist: Path


def copy_tree(root: Path, to: Path) -> Path:
    """Copy the files that .gitignore does not name, also where there is no git (in an sdist)."""
    return Path(shutil.copytree(root, to, ignore=_NOT_IN_A_CLONE))


def run(
    *command: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS
    )


def uv(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "uv", *words, cwd=cwd)


class Environment:
    """A virtual environment that contains only what one `pip install` brought."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.python = home / "bin" / "python"
        done = uv("venv", "--quiet", "--python", sys.executable, str(home), cwd=home.parent)
        assert done.returncode == 0, done.stderr

    def install(self, what: str) -> None:
        """Install a requirement and its dependencies, resolved by uv."""
        where = ("--quiet", "--python", str(self.python))
        done = uv("pip", "install", *where, what, cwd=self._home)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *words: str) -> str:
        """Run one of tests/install/programs without access to the checkout or the user's settings.

        Returns:
            Its standard output.
        """
        work = self._home / "work"
        work.mkdir(exist_ok=True)
        plain = {"HOME": str(work), "PATH": os.environ["PATH"]}
        # -I ignores PYTHONPATH and the program's folder; -W makes warnings errors, as in the tests.
        command = (str(self.python), "-I", "-W", "error", str(PROGRAMS / f"{program}.py"), *words)
        done = run(*command, cwd=work, env=plain)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout
