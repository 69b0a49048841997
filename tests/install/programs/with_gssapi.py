"""Configure GSSAPI, which raises ConfigError if the package gssapi is missing."""

from __future__ import annotations

import aioidem

aioidem.ProducerConfig.from_properties(
    {
        "bootstrap.servers": "broker.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "GSSAPI",
    }
)
