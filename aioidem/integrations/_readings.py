"""The metrics of several producers, read together: what the exporters of metrics share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from typing import Final

from aioidem._producer.metric_table import Reading
from aioidem._producer.native import Producer, internals
from aioidem.errors import ConfigError

__all__ = ["LOOP_SECONDS", "check_client_ids", "read"]

LOOP_SECONDS: Final = 5.0
"""How many seconds the event loops of producers have to answer."""


def check_client_ids(producers: Iterable[Producer]) -> None:
    """Check that the `client_id` tells the producers apart.

    Raises:
        ConfigError: Two producers have the same `client_id`.
    """
    names = [producer.config.client_id for producer in producers]
    if len(set(names)) < len(names):
        raise ConfigError(f"producers with the same client_id cannot be told apart: {names}")


def read(
    producers: Iterable[Producer], seconds: float
) -> Iterator[tuple[str, list[Reading] | None]]:
    """Yield each producer's `client_id` and metrics; this may be called in any thread.

    The metrics are read on each producer's own event loop, and the loops are asked at the same
    time: one that is blocked takes nothing from the others' time.

    Args:
        producers: The producers.
        seconds: For how long to wait until all loops have answered. For a producer whose loop has
            not, None is yielded.
    """
    asked = {each.config.client_id: internals(each).readings() for each in producers}
    wait(asked.values(), seconds)
    for client_id, answer in asked.items():
        yield client_id, answer.result() if answer.done() else None
