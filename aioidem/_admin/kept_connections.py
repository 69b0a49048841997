"""Connections that are kept between requests, for a process that asks the same brokers again.

`ask` (`asking.py`) opens a connection for each request, which takes two round trips, and more with
TLS and SASL. A Spark worker asks for a marker in each task, so its connections are kept.

Invariants:

- A connection that has ended is never used again: the next request opens another one. A request
  whose connection ends fails with `KafkaConnectionError`; it is for the caller to repeat it, as
  `until_known` does.
- A request that does not get its answer, because it is late or the call was cancelled, ends the
  connection, so that no later request can take that answer for its own.
- All requests have the same security settings: those of the first.

Rejected: the producer's connections, for the reason that `asking.py` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from aioidem._admin.asking import Asker, Place, open_connection
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection

__all__ = ["KeptConnections"]


class KeptConnections:
    """Connections to brokers, which stay open until `close`.

    Args:
        start: starts a coroutine function in a task that outlives the request, for example the
            `start_soon` of a task group.
    """

    def __init__(self, start: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]) -> None:
        self._start = start
        self._open: dict[Place, _Kept] = {}

    async def ask(
        self,
        config: ProducerConfig,
        place: Place,
        api_key: int,
        make: Callable[[Connection], Any],
    ) -> Any:
        """Send one request to one broker, and return its answer; see `asking.ask`.

        Raises:
            KafkaConnectionError: the broker cannot be reached, or the connection was lost.
            KafkaTimeoutError: there was no answer within the configuration's `request_timeout`.
            AuthenticationFailedError: the broker refuses the credentials, or the broker itself
                cannot be authenticated.
            IncompatibleBrokerVersion: the broker offers no version of the API that aioidem speaks.
        """
        kept = self._usable(place)
        if kept is None:
            connection = await open_connection(config, place)
            kept = self._usable(place)  # another request may have opened one meanwhile
            if kept is None:
                kept = self._keep(config, place, connection)
            else:
                await connection.aclose()
        return await kept.ask(api_key, make)

    def _usable(self, place: Place) -> _Kept | None:
        kept = self._open.get(place)
        return None if kept is None or kept.connection.closed else kept

    def _keep(self, config: ProducerConfig, place: Place, connection: Connection) -> _Kept:
        kept = self._open[place] = _Kept(config, connection)
        self._start(partial(self._serve, place, kept))
        return kept

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        for kept in self._open.values():
            kept.connection.close_soon("not used any more")
        self._open.clear()

    async def _serve(self, place: Place, kept: _Kept) -> None:
        # Nobody awaits this task. The request that waits on the connection gets the error.
        with suppress(Exception):
            await kept.asker.run()
        if self._open.get(place) is kept:
            del self._open[place]


class _Kept:
    """An open connection, and the requests on it, which take turns."""

    def __init__(self, config: ProducerConfig, connection: Connection) -> None:
        self.connection = connection
        self.asker = Asker(config, connection)
        self._turn = anyio.Lock()

    async def ask(self, api_key: int, make: Callable[[Connection], Any]) -> Any:
        """Send a request, and return its answer; see `KeptConnections.ask`."""
        async with self._turn:
            try:
                return await self.asker.ask(api_key, make)
            except BaseException:
                self.connection.close_soon("a request on it has failed")
                raise
