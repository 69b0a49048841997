"""The engine: every decision of the producer, as plain functions of (state, event, now).

Sans-IO: no clock, no socket, no event loop, no randomness of its own. Time is an argument (`now`,
seconds on a monotonic clock), random numbers come from a callable given at construction. Whoever
drives it (the Sender over sockets, a simulation over a virtual clock) asks `poll(now)` for steps,
performs them, and feeds what happened back.

Rejected: an engine of coroutines. Deciding inside `async def` ties every rule to a loop, and a
schedule that broke a rule could then be neither replayed nor shrunk.
"""

from __future__ import annotations

from aioidem._engine.core import ProducerCore

__all__ = ["ProducerCore"]
