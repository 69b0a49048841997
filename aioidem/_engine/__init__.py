"""The engine: every decision of the producer, as plain functions of (state, event, now).

The engine is sans-IO: it has no clock, socket, event loop or random source of its own. Time is an
argument (`now`, seconds on a monotonic clock), and random numbers come from a callable given at
construction. The driver (the Sender over sockets, or a simulation over a virtual clock) calls
`poll(now)` for steps such as opening a connection, performs them, and reports what happened.

Rejected: an engine of coroutines. Deciding inside `async def` ties every rule to an event loop. A
sequence of events that broke a rule could then be neither replayed nor reduced to a shorter one.
"""

from __future__ import annotations

from aioidem._engine.core import ProducerCore

__all__ = ["ProducerCore"]
