"""What the sink does so that the next task in the same Python worker starts sooner."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAM = """
import gc, importlib, sys, zipimport
sys.path.insert(0, sys.argv[1])
from packed import one
from aioidem._spark.python_worker import make_next_task_cheap

def finders():
    return [f for f in sys.path_importer_cache.values() if isinstance(f, zipimport.zipimporter)]

assert finders()
for _ in range(2):
    make_next_task_cheap()
    assert not finders()
    importlib.invalidate_caches()  # as Spark does before a task
    frozen = gc.get_freeze_count()
    assert frozen
from packed import two
make_next_task_cheap()
assert gc.get_freeze_count() == frozen
print(one.__name__, two.__name__)
"""


def test_finders_of_archives_are_forgotten_and_imports_from_them_go_on(tmp_path: Path) -> None:
    """Modules of an archive can be imported after its finders were forgotten."""
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for name in ("__init__", "one", "two"):
            packed.writestr(f"packed/{name}.py", "")
    words = [sys.executable, "-c", PROGRAM, str(archive)]
    ended = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["packed.one", "packed.two"]
