"""Be ready for GSSAPI: without its library this is a ConfigError."""

from __future__ import annotations

import aioidem

aioidem.ProducerConfig(
    bootstrap_servers="broker.example:9093",
    security_protocol="SASL_SSL",
    sasl_mechanism="GSSAPI",
)
