"""Kafka's wire protocol without IO: schemas, framing, the choice of versions, and Produce v14.

The library kio has the schema of every message; `codec` reads them safely. Nothing here awaits,
opens a connection or reads a clock.
"""

from __future__ import annotations
