"""How many bytes an answer may have, depending on the API.

Most answers have a fixed size, some grow with the request, and those of Metadata, Fetch and Produce
grow most. If a frame's length prefix is more than the limit of the API, the frame is refused before
any of it is kept.

Invariants: no limit exceeds the user's `max_frame_bytes`. For Metadata and Fetch that option is the
only limit; every other API also has a limit of its own, which the option cannot raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Final

from aioidem._protocol.frames import FrameLimit
from aioidem._protocol.versions import ApiKey

__all__ = ["answer_limit", "produce_answer_limit"]

_FIXED: Final = 1 << 16
_PER_PARTITION: Final = 1 << 10
_PER_RECORD: Final = 1 << 9

_GROWING: Final[Mapping[int, int | None]] = MappingProxyType(
    {
        # These grow with the cluster or with the stored data: only the user's limit applies.
        ApiKey.FETCH: None,
        ApiKey.METADATA: None,
        # The answer has an entry for each producer that wrote to the partition recently.
        ApiKey.DESCRIBE_PRODUCERS: 8 << 20,
        # These grow with the number of partitions or names in the request.
        ApiKey.ADD_PARTITIONS_TO_TXN: 1 << 20,
        ApiKey.TXN_OFFSET_COMMIT: 1 << 20,
        ApiKey.DESCRIBE_CONFIGS: 1 << 20,
    }
)
"""Limits in bytes of the answers that have no fixed size; None stands for `max_frame_bytes`."""


@cache
def answer_limit(api_key: ApiKey, max_frame_bytes: int) -> FrameLimit:
    """Return how many bytes an answer of this API may have.

    Args:
        api_key: The API of the request.
        max_frame_bytes: The user's limit on every answer.
    """
    own = _GROWING.get(api_key, _FIXED)
    return _limit(api_key, max_frame_bytes if own is None else own, max_frame_bytes)


@lru_cache(maxsize=256)
def produce_answer_limit(partitions: int, records: int, max_frame_bytes: int) -> FrameLimit:
    """Return how many bytes the answer to a Produce request may have.

    The answer has an entry for each partition, and at most one error for each record (KIP-467).
    """
    most = _FIXED + _PER_PARTITION * partitions + _PER_RECORD * records
    return _limit(ApiKey.PRODUCE, most, max_frame_bytes)


def _limit(api_key: ApiKey, most: int, max_frame_bytes: int) -> FrameLimit:
    cure = "" if most < max_frame_bytes else " (the option max_frame_bytes)"
    return FrameLimit(min(most, max_frame_bytes), _NAMES[api_key], cure)


_NAMES: Final[Mapping[int, str]] = {
    key: f"{''.join(part.title() for part in key.name.split('_'))} answer" for key in ApiKey
}
