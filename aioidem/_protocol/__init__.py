"""Kafka's wire protocol without IO: messages, frames, the choice of versions, and Produce v14.

The library kio has the schema of every message, and `codec` reads messages by these schemas safely.
Nothing here awaits, opens a connection or reads a clock.
"""

from __future__ import annotations
