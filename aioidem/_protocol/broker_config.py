"""DescribeConfigs of a broker, for two of its configs.

`producer.id.expiration.ms` says when the broker forgets a producer (KIP-854), and
`max.in.flight.sequence.number.per.connection` says how many sequence numbers of a producer the
broker remembers (KIP-758). The second config is used only if the answer has a value for it: a
broker of today does not implement it, and returns its name without a value if an administrator has
set it. To read either, a producer needs the ACL DESCRIBE_CONFIGS on the cluster, which few have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.describe_configs import BROKER, describe_configs_request, positive

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["BrokerFacts", "broker_config_request", "broker_facts"]

_EXPIRATION: Final = "producer.id.expiration.ms"
_SEQUENCES: Final = "max.in.flight.sequence.number.per.connection"


class BrokerFacts(NamedTuple):
    """The values of a broker's configs; None where there is no usable value."""

    expiration: float | None = None
    """The seconds after which the broker forgets a producer that does not write (KIP-854)."""
    sequence_cap: int | None = None
    """How many sequence numbers of a producer the broker remembers (KIP-758)."""


def broker_config_request(version: int, node_id: int) -> RequestPayload:
    """Make the request for a broker's own configs.

    Raises:
        InternalError: The library kio has no such version.
    """
    return describe_configs_request(version, BROKER, str(node_id), (_EXPIRATION, _SEQUENCES))


def broker_facts(response: Any) -> BrokerFacts:
    """Return the config values in a DescribeConfigs answer; results with an error are ignored."""
    values = {
        config.name: config.value
        for result in response.results
        if int(result.error_code) == ErrorCode.none
        for config in result.configs
    }
    expiration = positive(values.get(_EXPIRATION))
    return BrokerFacts(
        None if expiration is None else expiration / 1000.0, positive(values.get(_SEQUENCES))
    )
