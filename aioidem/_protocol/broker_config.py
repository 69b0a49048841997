"""DescribeConfigs for two questions to a broker about itself.

`producer.id.expiration.ms` says when it forgets a producer (KIP-854), and
`max.in.flight.sequence.number.per.connection` how wide its range of sequences is (KIP-758; a value
only counts, a mere name does not: brokers of today name it once somebody has set it). Both need
DESCRIBE_CONFIGS on the cluster, which is rarely granted: no answer is the normal answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.describe_configs import BROKER, describe_configs_request, positive

__all__ = ["BrokerFacts", "broker_config_request", "broker_facts"]

_EXPIRATION: Final = "producer.id.expiration.ms"
_SEQUENCES: Final = "max.in.flight.sequence.number.per.connection"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker says of itself; None where it says nothing usable."""

    expiration: float | None = None
    """Seconds after which it forgets a producer."""
    sequence_cap: int | None = None


def broker_config_request(version: int, node_id: int) -> RequestPayload:
    """Ask a broker about itself.

    :raises InternalError: the version is not one that kio has.
    """
    return describe_configs_request(version, BROKER, str(node_id), (_EXPIRATION, _SEQUENCES))


def broker_facts(response: Any) -> BrokerFacts:
    """What the answer tells; errors tell nothing."""
    values = {
        config.name: config.value
        for result in response.results
        if int(result.error_code) == 0
        for config in result.configs
    }
    expiration = positive(values.get(_EXPIRATION))
    return BrokerFacts(
        None if expiration is None else expiration / 1000.0, positive(values.get(_SEQUENCES))
    )
