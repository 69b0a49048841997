"""`build_info` says whether the hot loops of this process are compiled or pure Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import aioidem
from aioidem import _hot as hot

ROOT = Path(__file__).parents[2]

_SHOW = """
import aioidem
from aioidem.partitioner import murmur2
print(type(murmur2).__name__)
print(aioidem.build_info())
"""


def _shown(**environment: str) -> list[str]:
    """Run `_SHOW` with these environment variables, and return the lines that it prints."""
    plain = {name: value for name, value in os.environ.items() if name != "AIOIDEM_NO_EXTENSIONS"}
    done = subprocess.run(
        [sys.executable, "-c", _SHOW],
        cwd=ROOT,
        env={**plain, **environment},
        capture_output=True,
        check=True,
        text=True,
        timeout=50,
    )
    return done.stdout.splitlines()


def test_it_says_the_version_and_the_python() -> None:
    info = aioidem.build_info()
    assert info.version == aioidem.__version__
    assert info.python.endswith(".".join(map(str, sys.version_info[:3])))
    assert isinstance(info.free_threaded, bool)


def test_the_form_is_compiled_unless_there_is_a_reason() -> None:
    """`hot_path` is "compiled" exactly where `why` is None."""
    info = aioidem.build_info()
    assert info.why == hot.WHY_PURE
    assert info.hot_path == ("compiled" if info.why is None else "pure")


def test_a_process_that_refuses_extensions_runs_pure_python() -> None:
    """With AIOIDEM_NO_EXTENSIONS the functions are Python's, and the reason names the variable."""
    kind, build = _shown(AIOIDEM_NO_EXTENSIONS="1")
    assert kind == "function"
    assert build == (
        f"aioidem {aioidem.__version__} "
        "(hot path: pure Python, because AIOIDEM_NO_EXTENSIONS is set)"
    )


def test_a_process_runs_the_compiled_form_where_it_is_installed(compiled: object) -> None:
    """Without the variable the functions are the compiled module's, and the build says so."""
    kind, build = _shown()
    assert kind == type(getattr(compiled, "murmur2")).__name__  # noqa: B009 - it has no types
    assert build == f"aioidem {aioidem.__version__} (hot path: compiled)"
