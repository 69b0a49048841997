"""The options: what they mean, which values are legal, and how secrets among them are kept.

`options` is the table, `kinds` says which values there are, `producer_config` holds the checked
result, `names` and `reading` know Java's and aiokafka's names, and `described` makes documentation
of the table. The rest of the library imports from this package, and from `secret`.
"""

from __future__ import annotations

from aioidem._config.described import add_section, keyword_help, native_help
from aioidem._config.options import (
    OPTIONS,
    BrokerDedup,
    CompressionType,
    InDoubt,
    OnClusterChange,
    ProducerOptions,
    WindowDiscovery,
)
from aioidem._config.producer_config import ProducerConfig
from aioidem._config.secret import Secret
from aioidem._config.security import SaslMechanism, SecurityProtocol, TokenProvider
from aioidem._config.topic_name import validate_topic

__all__ = [
    "OPTIONS",
    "BrokerDedup",
    "CompressionType",
    "InDoubt",
    "OnClusterChange",
    "ProducerConfig",
    "ProducerOptions",
    "SaslMechanism",
    "Secret",
    "SecurityProtocol",
    "TokenProvider",
    "WindowDiscovery",
    "add_section",
    "keyword_help",
    "native_help",
    "validate_topic",
]

add_section(ProducerConfig, "Attributes", native_help)
