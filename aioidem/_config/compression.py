"""What Kafka's compression codecs need: a library, and a level within the codec's bounds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["LEVELS", "compression_complaints"]

# The lowest and the highest level of each codec, as in Java, so that a level that is legal there is
# legal here. A codec that is not listed has no levels.
LEVELS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
)
# For each codec: the module that it needs, and what to pass to pip to install it.
_LIBRARIES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "snappy": ("cramjam", "aioidem[snappy]"),
        "lz4": ("lz4", "lz4"),
        "zstd": ("zstandard", "zstandard"),
    }
)


def compression_complaints(codec: str, level: int | None) -> Iterator[str]:
    """Yield what is wrong with a codec and its level, in words.

    Args:
        codec: The option compression_type.
        level: The option compression_level; None is the codec's own default.
    """
    library, install = _LIBRARIES.get(codec, (None, None))
    if library is not None and importlib.util.find_spec(library) is None:
        yield f"compression_type={codec!r} needs the package {library}: pip install '{install}'"
    if level is None:
        return
    if codec not in LEVELS:
        yield f"compression_level={level}: expected None, {codec} has no levels"
        return
    low, high = LEVELS[codec]
    if not low <= level <= high:
        yield f"compression_level={level}: expected {low} to {high} for {codec}"
