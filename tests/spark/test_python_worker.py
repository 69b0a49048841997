"""What the sink does so that the next task in the same Python worker starts sooner."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAM = """
import importlib, sys, zipimport
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
from packed import two
print(one.__name__, two.__name__)
"""


GARBAGE = """
import gc, weakref
from aioidem._spark.python_worker import make_next_task_cheap

class Node: pass

def cycle():
    node = Node()
    node.itself = node
    return node

gc.disable()
make_next_task_cheap()

kept = [Node() for _ in range(1000)]
ended = weakref.ref(cycle())
later = cycle()
of_later = weakref.ref(later)
make_next_task_cheap()
looked_at = sum(type(each) is Node for each in gc.get_objects())
assert not looked_at, f"{looked_at} of the objects that a task has left"
assert ended() is None, "a cycle that was garbage when the task ended"

del later
tasks = 1
while of_later() is not None:
    make_next_task_cheap()
    tasks += 1
print(tasks)
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


def test_what_a_task_leaves_is_looked_at_once_in_a_hundred_tasks() -> None:
    """The next collection leaves it out; a cycle that becomes garbage later is still collected."""
    words = [sys.executable, "-c", GARBAGE]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert not ended.stderr
    assert 1 < int(ended.stdout) <= 100
