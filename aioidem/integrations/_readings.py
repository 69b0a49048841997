"""The metrics of several producers, read together: what the exporters of metrics share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from typing import Final, TypeAlias

from aioidem._aiokafka.producer import AIOKafkaProducer
from aioidem._producer.metric_table import Reading
from aioidem._producer.native import Producer, internals
from aioidem.errors import ConfigError

__all__ = ["LOOP_SECONDS", "AnyProducer", "check_client_ids", "read"]

AnyProducer: TypeAlias = Producer | AIOKafkaProducer
"""A producer of either API."""

LOOP_SECONDS: Final = 5.0
"""How many seconds the event loops of producers have to answer."""


def check_client_ids(producers: Iterable[AnyProducer]) -> None:
    """Check that the `client_id` tells the producers apart.

    Raises:
        ConfigError: Two producers have the same `client_id`.
    """
    names = [_native(producer).config.client_id for producer in producers]
    if len(set(names)) < len(names):
        raise ConfigError(f"producers with the same client_id cannot be told apart: {names}")


def read(
    producers: Iterable[AnyProducer], seconds: float
) -> Iterator[tuple[str, list[Reading] | None]]:
    """Yield each producer's `client_id` and metrics; this may be called in any thread.

    The metrics are read on each producer's own event loop, and the loops are asked at the same
    time: one that is blocked takes nothing from the others' time.

    Args:
        producers: The producers.
        seconds: For how long to wait until all loops have answered. For a producer whose loop has
            not, None is yielded.
    """
    natives = map(_native, producers)
    asked = {each.config.client_id: internals(each).readings() for each in natives}
    wait(asked.values(), seconds)
    for client_id, answer in asked.items():
        yield client_id, answer.result() if answer.done() else None


def _native(producer: AnyProducer) -> Producer:
    """Return the producer itself, or the one that a drop-in has now: a failed start renews it."""
    if isinstance(producer, AIOKafkaProducer):
        return producer._native  # noqa: SLF001 - a part of aioidem
    return producer
