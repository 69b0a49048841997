"""OpenTelemetry: export a producer's metrics (`aioidem[opentelemetry]`).

    from aioidem.integrations.opentelemetry import ProducerMetrics

    ProducerMetrics(producer)  # through the meter provider that is configured globally

It needs the API of OpenTelemetry only. Without an SDK, which the application chooses and
configures, it does nothing.
"""

from __future__ import annotations

from aioidem.integrations.opentelemetry._metrics import ProducerMetrics, instrument_name

__all__ = ["ProducerMetrics", "instrument_name"]
