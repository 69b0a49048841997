"""aioidem on Spark: a load generator of many tasks, and an audit of what came of it.

* `load` spreads `aioidem perf` over tasks that keep ledgers (`ledger`).

Invariants:

* Importing this package needs nothing: pyspark and pyarrow belong to the extra `spark`, and what
  needs them says so in one line.
* Executors import aioidem by name: it is installed wherever a Python worker of Spark's runs.

Rejected: a distribution of its own (one version to pin instead of two).
"""

from __future__ import annotations
