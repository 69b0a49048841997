"""Metrics through the API of OpenTelemetry, observed when the application's SDK collects them.

An SDK asks for one instrument after the other. All of them are read at once, when the first is
asked for, so that the values of a collection belong together and a blocked event loop is waited for
once. An observation is given out once: an instrument that is asked again gets new ones, and so does
every one after it.

Instruments cannot be removed from a meter, and a second one of the same name gets no callbacks.
Therefore each meter provider has one set of instruments, which observes the producers that are
exported at the time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from aioidem._aiokafka.producer import AIOKafkaProducer
from aioidem._build import __version__
from aioidem._producer.metric_table import GROUPS, Group, MetricKind
from aioidem._producer.native import Producer
from aioidem.integrations import _readings

__all__ = ["ProducerMetrics", "instrument_name"]

_ANSWERS = "aioidem.answers"


def instrument_name(group: str, name: str) -> str:
    """Return the name of the instrument that exports a metric.

    Java's metrics have the names that OpenTelemetry's instrumentation of Java's Kafka clients gives
    them, such as `kafka.producer.record_send_total`.

    Args:
        group: The group in `Producer.metrics()`, without a broker's, topic's or partition's name.
        name: The metric's name in that group.
    """
    if group.startswith("aioidem-"):
        prefix = group.removesuffix("metrics").replace("-", ".")
    else:
        prefix = "kafka.producer."
    return prefix + name.replace("-", "_")


_GROUP_OF: dict[str, Group] = {
    instrument_name(group.name, metric.name): group for group in GROUPS for metric in group.metrics
}
"""The group whose metric an instrument exports.

Java has some metrics twice: of the producer, and of each topic or broker. As in OpenTelemetry's
instrumentation of Java's clients, both have one name, and only the finer one is exported: otherwise
a sum over the instrument would count everything twice. The finer groups are the later ones.
"""


class ProducerMetrics:
    """Exports the metrics of producers through OpenTelemetry, until it is closed.

    The SDK may collect in any thread: the numbers are read on each producer's own event loop. If a
    loop does not answer within five seconds (or half of the time that the SDK has left, if that is
    less), the metrics of its producer are left out of this collection, and `aioidem.answers` is 0
    instead of 1. The object need not be kept, unless it is to be closed; it is a context manager.

    Args:
        producers: The producers, of either API, each with a `client_id` of its own: it is an
            attribute.
        meter_provider: Where to export; None is the provider that is configured globally, now or
            later.

    Raises:
        ConfigError: Two producers that are exported there have the same `client_id`.
    """

    def __init__(
        self, *producers: Producer | AIOKafkaProducer, meter_provider: MeterProvider | None = None
    ) -> None:
        self._producers = producers
        self._instruments = _instruments_of(meter_provider)
        self._instruments.add(producers)

    def close(self) -> None:
        """Export these producers no longer. A second call does nothing."""
        self._instruments.remove(self._producers)
        self._producers = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Instruments:
    """The instruments of one meter, and the producers that they observe."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.Lock()
        self._producers: tuple[Producer | AIOKafkaProducer, ...] = ()
        # What is known of the present collection, for the instruments that have not been asked.
        self._observations: dict[str, list[Observation]] = {}
        for group in GROUPS:
            for metric in group.metrics:
                name = instrument_name(group.name, metric.name)
                if _GROUP_OF[name] is group:
                    counts = metric.kind is MetricKind.COUNTER
                    create = (
                        meter.create_observable_counter if counts else meter.create_observable_gauge
                    )
                    create(name, [partial(self._observe, name)], metric.unit, metric.text)
        meter.create_observable_gauge(
            _ANSWERS,
            [partial(self._observe, _ANSWERS)],
            "1",
            "whether the producer's event loop answered",
        )

    def add(self, producers: Iterable[Producer | AIOKafkaProducer]) -> None:
        """Observe more producers; raise ConfigError if two have the same `client_id`."""
        with self._lock:
            together = (*self._producers, *producers)
            _readings.check_client_ids(together)
            self._producers = together

    def remove(self, producers: Iterable[Producer | AIOKafkaProducer]) -> None:
        """Observe these producers no longer."""
        gone = set(map(id, producers))
        with self._lock:
            self._producers = tuple(each for each in self._producers if id(each) not in gone)
            self._observations = {}

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if name not in self._observations:
                seconds = min(_readings.LOOP_SECONDS, options.timeout_millis / 2000)
                self._observations = self._read(seconds)
            return self._observations.pop(name)

    def _read(self, seconds: float) -> dict[str, list[Observation]]:
        found: dict[str, list[Observation]] = {name: [] for name in (_ANSWERS, *_GROUP_OF)}
        for client_id, readings in _readings.read(self._producers, seconds):
            answered = int(readings is not None)
            found[_ANSWERS].append(Observation(answered, {"client-id": client_id}))
            for group, tags, metric, value in readings or ():
                name = instrument_name(group.name, metric.name)
                # NaN stands for "nothing happened lately"; SDKs take no such value.
                if _GROUP_OF[name] is group and math.isfinite(value):
                    attributes = dict(
                        zip(group.tags, tags, strict=True), **{"client-id": client_id}
                    )
                    found[name].append(Observation(value, attributes))
        return found


_lock = threading.Lock()
_by_provider: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_global: _Instruments | None = None


def _instruments_of(provider: MeterProvider | None) -> _Instruments:
    """Return the instruments of a meter provider; None is the one that is configured globally.

    Until the application has configured one, the API has a stand-in, whose instruments move to the
    real provider later. So what was made for the stand-in is used for the real one.
    """
    global _global  # noqa: PLW0603 - there is one global provider
    with _lock:
        current = get_meter_provider()
        wanted = current if provider is None else provider
        instruments = _by_provider.get(wanted)
        if instruments is None and wanted is current:
            instruments = _global
        if instruments is None:
            instruments = _Instruments(wanted.get_meter("aioidem", __version__))
        _by_provider[wanted] = instruments
        if wanted is current:
            _global = instruments
        return instruments
