"""The reason for a partition's present window, in words for `statistics()`.

A partition's window is the largest allowed number of batches from the oldest one with an unknown
outcome up to the newest one sent (KIP-1269). A user who sees a window of 5 and expected 20 learns
from the reason what to change. This module sets no limit: the modules `windows` and `discovery` do.
Its tests are in tests/producer/test_discovery.py.
"""

from __future__ import annotations

from aioidem._config import ProducerConfig
from aioidem._engine.discovery import DiscoveryState
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState

__all__ = ["window_reason"]


def window_reason(state: PartitionState, link: Link | None, config: ProducerConfig) -> str:
    """Return why a partition's window has its present value.

    Args:
        state: the partition.
        link: the connection to the partition's leader; None if there is none.
        config: validated options.
    """
    if not config.enable_idempotence:
        return "no window: enable_idempotence is off"
    if config.broker_dedup == "range":
        return "no window: broker_dedup is 'range' (KIP-758)"
    if link is None:
        return "the partition's leader is not connected"
    reason = _reason_of_the_broker(state, link)
    in_flight = config.max_in_flight_requests_per_connection
    if in_flight < state.window.limit:
        return f"limited by max_in_flight_requests_per_connection ({in_flight}); {reason}"
    return reason


def _reason_of_the_broker(state: PartitionState, link: Link) -> str:
    if link.discovery.state is not DiscoveryState.HEARD:
        return link.discovery.reason
    broker = f"broker {link.node_id}"
    if not state.window.heard:
        return f"{broker} has not acknowledged a batch of this partition yet"
    if link.memory.limit is not None and state.window.limit >= link.memory.limit:
        return (
            f"{broker} says that it retains more batches than {link.memory.limit}, but was seen to "
            "refuse a retry within that number; the limit ends after some minutes or longer"
        )
    return f"{broker} retains {state.window.limit} batches"
