"""Be ready for GSSAPI: without its library this is a ConfigError."""

from __future__ import annotations

import aioidem

aioidem.ProducerConfig.from_properties(
    {
        "bootstrap.servers": "broker.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "GSSAPI",
    }
)
