"""The native producer, with all of its parts but the engine (`aioidem._engine`).

The engine decides what to send and when, and does no IO. `native` is the API. `life` says whether a
producer may be used, `intake` queues records, `topic_lookup` waits for metadata, and `sender` is
the one loop that carries out what the engine decides. `delivery` has the outcome of a record as
callers see it, and `queued` the methods by which the producer sets that outcome.
"""

from __future__ import annotations
