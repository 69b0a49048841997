"""Kafka's wire protocol without IO: messages, frames, and the choice of versions.

The library kio has the schema of every message but Produce v14, whose schema is in `produce_v14`.
`codec` reads messages by these schemas safely. Nothing here awaits, opens a connection or reads a
clock.
"""

from __future__ import annotations
