"""Make the next task in the same Python worker start sooner.

Spark keeps its Python workers, and each runs many tasks. Two things that Spark does per task cost
more than the task of a small write, and most of their work is in vain (CPU time with CPython 3.11):

- Before a task it calls `importlib.invalidate_caches()`, with which each finder of a zip archive
  reads the archive's directory again. There is one finder for each package of `pyspark.zip` that
  was imported: 16 finders took 0.1 s. A finder that is forgotten is made anew by the next import
  from its package, from a directory that Python keeps.
- After a task it calls `gc.collect()`, which looks at every object of every imported module: 30 ms.
  Objects that are frozen are left out.

`gc.get_freeze_count()` counts the frozen objects one by one, in 5 ms, so it is not asked.

Invariant: imports find the same modules as before.

Rejected: a worker or daemon module of our own (`spark.python.daemon.module`): it is internal to
Spark, and a setting of the whole application.
"""

from __future__ import annotations

import gc
import sys
import zipimport
from functools import cache

__all__ = ["make_next_task_cheap"]


def make_next_task_cheap() -> None:
    """Forget the finders of zip archives, and, once per process, freeze the objects that exist."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
    _freeze()


@cache
def _freeze() -> None:
    """Freeze the objects that exist now; only the first call does that."""
    gc.collect()
    gc.freeze()
