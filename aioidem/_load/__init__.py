"""The load that `aioidem perf` generates, in this process or in Spark's tasks.

`plan` checks what was asked for, `load` sends the records, `measure` counts their outcomes, and the
other modules show the results.
"""

from __future__ import annotations
