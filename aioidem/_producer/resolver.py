"""Resolver: asks the log what became of records that ended UNKNOWN, for `Producer` and `Delivery`.

The code that does it is imported with the first question, because few producers ask one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._network.transport import Connector

if TYPE_CHECKING:
    from aioidem._producer.resolving import Failed
    from aioidem.resolution import Resolution

__all__ = ["Resolver"]


class Resolver:
    """Asks the log about failed records, on connections of its own.

    A copy in another process has no configuration, because that may contain passwords, and so
    refuses to ask.

    Args:
        config: how to connect.
        connector: opens the connections.
    """

    __slots__ = ("_config", "_connector")

    def __init__(
        self, config: ProducerConfig | None = None, connector: Connector | None = None
    ) -> None:
        self._config = config
        self._connector = connector

    def __reduce__(self) -> tuple[type[Resolver], tuple[()]]:
        return Resolver, ()

    async def resolve(self, failed: Iterable[Failed], timeout: float | None) -> list[Resolution]:
        """Return what the log says about each of these records, in the same order.

        Args:
            failed: the records, whose outcomes are known.
            timeout: seconds for all of them; None is the configuration's `request_timeout`.
        """
        if self._config is None:
            raise errors.IllegalStateError(
                "a delivery that was copied to another process cannot ask: use `aioidem resolve`"
            )
        from aioidem._producer.resolving import resolve_failed

        return await resolve_failed(self._config, self._connector, failed, timeout)
