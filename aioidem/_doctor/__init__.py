"""`aioidem doctor`: look at a cluster as a producer would, and say what is wrong and what to do.

`examination` connects and gathers facts (`facts`), `probing` writes a few records if it is allowed
to, and plain functions turn the facts into findings: `diagnosis` calls them all. `report` shows the
findings.

Invariants:

- Nothing is written, created or changed in the cluster, unless the user names a topic to write to.
  (One producer id is requested, as each start of a producer does.)
- A permission that is missing is a finding, and does not end the examination.
- Every wait is bounded. What was not finished in time is a finding too.
- No finding contains a secret, and text from a broker is made printable.
"""

from __future__ import annotations
