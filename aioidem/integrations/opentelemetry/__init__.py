"""OpenTelemetry: export a producer's metrics, and trace its records (`aioidem[opentelemetry]`).

    from aioidem.integrations.opentelemetry import ProducerMetrics, TracedProducer

    async with TracedProducer("localhost:9092") as producer:  # a Producer that makes spans
        ProducerMetrics(producer)  # works with every Producer

Both need the API of OpenTelemetry only. Without an SDK, which the application chooses and
configures, they do nothing.
"""

from __future__ import annotations

from aioidem.integrations._extras import missing_library

try:
    from aioidem.integrations.opentelemetry._metrics import ProducerMetrics, instrument_name
    from aioidem.integrations.opentelemetry._tracing import TracedProducer
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise missing_library(error, "opentelemetry") from error

__all__ = ["ProducerMetrics", "TracedProducer", "instrument_name"]
