"""Make the next task in the same Python worker start sooner.

Spark keeps its Python workers, and each runs many tasks. Two things that Spark does per task cost
more than the task of a small write, and most of their work is in vain (CPU time with CPython 3.11):

- Before a task it calls `importlib.invalidate_caches()`, with which each finder of a zip archive
  reads the archive's directory again. There is one finder for each package of `pyspark.zip` that
  was imported: 16 finders took 0.1 s. A finder that is forgotten is made anew by the next import
  from its package, from a directory that Python keeps.
- After a task it calls `gc.collect()`, which looks at every object of every imported module, and at
  what the sink's producer keeps between tasks, most of all the events of its flight recorder: 30
  ms, and 7 to 16 ms more after a thousand tasks. Objects that are frozen are left out.

Invariants:

- Imports find the same modules as before.
- Cycles of objects that are garbage when a task ends are collected then. What becomes garbage later
  is collected at most 100 tasks later, when all objects are looked at.

Rejected:

- To freeze only once. The recorder's events were replaced by later ones, which were not frozen: an
  exactly-once task of 1,000 rows had 32 ms of CPU time after some hundred tasks, and has 12 now.
- A worker or daemon module of our own (`spark.python.daemon.module`). It is internal to Spark, and
  a setting of the whole application.
"""

from __future__ import annotations

import gc
import sys
import zipimport
from itertools import count
from typing import Final

__all__ = ["make_next_task_cheap"]

_TASKS_TO_LOOK_AT_ALL: Final = 100
_ENDED: Final = count()
"""How often a task of this process was ended."""


def make_next_task_cheap() -> None:
    """Forget the finders of zip archives, collect garbage, and freeze the objects that remain."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
    if next(_ENDED) % _TASKS_TO_LOOK_AT_ALL == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
