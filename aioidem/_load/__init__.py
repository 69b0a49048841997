"""The load that `aioidem perf` generates, here or in Spark's tasks.

What is asked for (`plan`), the loop (`load`), what is measured (`measure`), how it is shown.
"""

from __future__ import annotations
