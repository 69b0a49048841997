"""A producer's options: what they mean, which values are legal, and how passwords stay hidden.

`options` is the table of options, and `kinds` has the types of their values. `producer_config` has
the checked result. `names` and `reading` translate Java's and aiokafka's names. `described` writes
documentation from the table. Other packages import the names below from here, and import the
modules `secret` and `named_values` directly.
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
