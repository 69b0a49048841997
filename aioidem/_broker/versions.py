"""Which APIs the brokers serve, and in which versions.

The versions are those of Kafka 4.3.1 for which kio has a schema; the highest Produce version is set
per broker. ApiVersions lists Produce from version 0 on, although only versions 3 and up are served:
Kafka does so because librdkafka requires it (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from aioidem._broker.topology import Broker

__all__ = ["VERSIONS", "Versions", "announced", "serves"]

_PRODUCE: Final = 0


class Versions(NamedTuple):
    """The first and the last version of an API that a broker serves."""

    first: int
    last: int


VERSIONS: Final[Mapping[int, Versions]] = {
    0: Versions(3, 14),
    1: Versions(4, 18),
    2: Versions(1, 11),
    3: Versions(0, 13),
    8: Versions(2, 10),
    9: Versions(1, 10),
    10: Versions(0, 6),
    11: Versions(0, 9),
    12: Versions(0, 4),
    13: Versions(0, 5),
    14: Versions(0, 5),
    15: Versions(0, 6),
    16: Versions(0, 5),
    17: Versions(1, 1),
    18: Versions(0, 4),
    19: Versions(2, 7),
    20: Versions(1, 6),
    21: Versions(0, 2),
    22: Versions(0, 5),
    23: Versions(2, 4),
    24: Versions(0, 3),
    25: Versions(0, 4),
    26: Versions(0, 5),
    28: Versions(0, 5),
    32: Versions(1, 4),
    36: Versions(0, 2),
    42: Versions(0, 2),
    44: Versions(0, 1),
    47: Versions(0, 0),
    60: Versions(0, 2),
    61: Versions(0, 0),
    66: Versions(0, 2),
}
"""The served versions by API key; `Broker.produce_version` can lower the last one of Produce."""


def serves(broker: Broker, api_key: int, version: int) -> bool:
    """Return whether a broker answers this version of an API."""
    versions = VERSIONS.get(api_key)
    return versions is not None and versions.first <= version <= _last(broker, api_key, versions)


def announced(broker: Broker) -> list[tuple[int, int, int]]:
    """Return (API key, first version, last version) of each API that ApiVersions lists."""
    return [
        (key, 0 if key == _PRODUCE else versions.first, _last(broker, key, versions))
        for key, versions in VERSIONS.items()
    ]


def _last(broker: Broker, api_key: int, versions: Versions) -> int:
    return min(versions.last, broker.produce_version) if api_key == _PRODUCE else versions.last
