"""The load that `aioidem perf` generates, in this process or in Spark's tasks.

`plan` checks the flags (`properties` reads those that are producer properties), `perf` makes the
runs, `load` sends the records of a run, `measure` counts their outcomes, and `screen`, `render` and
`report` show the results.
"""

from __future__ import annotations
