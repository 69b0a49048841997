"""The flight recorder: what went into the engine lately, kept in memory, dumped and replayed.

`recorder` stands between the Sender and the engine and keeps a bounded number of events. `dump`
writes them to a file; `record` reads such a file; `replay` gives its events to a real engine, and
compares what that engine decides with what was decided. The rest shows what a replay saw.

No payload, key, header or credential is kept: a record is known by its size and times alone.
"""

from __future__ import annotations
