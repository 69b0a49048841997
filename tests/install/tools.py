"""What the tests of installing share: uv, a copy of the tree, and an environment of its own."""

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
    "dist", "*.egg-info", "__pycache__", "*.py[co]", "*.so",
)  # fmt: skip
_SECONDS = 350


@dataclass(frozen=True)
class Built:
    """What is uploaded for users to install."""

    wheel: Path
    sdist: Path


def copy_tree(root: Path, to: Path) -> Path:
    """Copy what .gitignore does not name: there may be no git, and the tree may be an sdist's."""
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
    """A virtual environment with what one `pip install` brings, and nothing else."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.python = home / "bin" / "python"
        done = uv("venv", "--quiet", "--python", sys.executable, str(home), cwd=home.parent)
        assert done.returncode == 0, done.stderr

    def install(self, what: str) -> None:
        """Install a requirement with its dependencies resolved."""
        where = ("--quiet", "--python", str(self.python))
        done = uv("pip", "install", *where, what, cwd=self._home)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *words: str) -> str:
        """Run one of the programs, which sees neither the checkout nor the user's settings.

        Returns:
            What it printed.
        """
        work = self._home / "work"
        work.mkdir(exist_ok=True)
        plain = {"HOME": str(work), "PATH": os.environ["PATH"]}
        # -I: no PYTHONPATH, and nothing from the program's folder; -W: as tests have it.
        command = (str(self.python), "-I", "-W", "error", str(PROGRAMS / f"{program}.py"), *words)
        done = run(*command, cwd=work, env=plain)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout
