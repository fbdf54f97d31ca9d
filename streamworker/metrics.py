"""``measure``: metrics of the workers and senders in this process, for Prometheus and OpenTelemetry.

``streamworker run --metrics-port`` does this by itself. A program that sends, or that runs a worker with
``app.worker()``, calls ``measure(app)`` once, before its first send. Nothing here is loaded otherwise.
"""

from collections.abc import Callable, Iterable
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from streamworker.runtime.meters import METERS, Sink, Tell
from streamworker.runtime.observing import Observable, Observer, meter_provider

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation


def measure(app: Observable, registry: CollectorRegistry = REGISTRY) -> None:
    """Measure what workers and senders of an app do in this process.

    Call it before the first send and before a worker begins. To call it again for the same registry does
    nothing. If the program has configured a meter provider of OpenTelemetry's SDK, that gets the metrics too.

    Parameters
    ----------
    app
        The app; several may share a registry.
    registry
        Where Prometheus' client library keeps the values; by default where your own metrics are.

    Examples
    --------
    >>> from streamworker import App
    >>> app = App("shop")
    >>> measure(app)
    """
    known: tuple[Sink, ...] = app.observer.sinks if app.observer else ()
    sinks: list[Sink] = [_Prometheus(registry)]
    if (provider := meter_provider()) is not None:
        sinks.append(_Otel(provider))
    if more := [sink for sink in sinks if sink not in known]:
        app.observer = Observer(*known, *more)


@cache
class _Prometheus:
    """Keeps values in a registry of Prometheus' client library, which has one of these for all apps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics: dict[str, Any] = {}
        for name, meter in METERS.items():
            given = name, meter.text, meter.labels
            if meter.kind == "histogram":
                self._metrics[name] = Histogram(*given, registry=registry, buckets=meter.bounds)
            else:
                kind = Counter if meter.kind == "counter" else Gauge
                self._metrics[name] = kind(*given, registry=registry)

    def teller(self, name: str, labels: dict[str, str]) -> Tell:
        child = self._metrics[name].labels(**labels)
        tell: Tell = child.observe if METERS[name].kind == "histogram" else child.inc
        return tell

    def read(self, name: str, labels: dict[str, str], value: Callable[[], float]) -> None:
        self._metrics[name].labels(**labels).set_function(value)


@cache
class _Otel:
    """Keeps values in instruments of a meter provider, which has one of these; they have the same names."""

    def __init__(self, provider: "MeterProvider") -> None:
        self._meter = provider.get_meter("streamworker")
        self._instruments: dict[str, Any] = {}
        self._values: dict[str, dict[tuple[str, ...], tuple[dict[str, str], Callable[[], float]]]] = {}
        create: Callable[..., Any] = self._meter.create_histogram
        advice = "explicit_bucket_boundaries_advisory"
        known = signature(create).parameters  # Before 1.30 a view of the program has to give the bounds.
        for name, (kind, _, text, bounds, _) in METERS.items():
            given = name, _unit(name), text
            if kind == "counter":
                self._instruments[name] = self._meter.create_counter(*given)
            elif kind == "histogram":
                self._instruments[name] = create(*given, **({advice: bounds} if advice in known else {}))

    def teller(self, name: str, labels: dict[str, str]) -> Tell:
        instrument = self._instruments[name]
        tell = instrument.record if METERS[name].kind == "histogram" else instrument.add
        return lambda value: tell(value, labels)

    def read(self, name: str, labels: dict[str, str], value: Callable[[], float]) -> None:
        if name not in self._values:
            values = self._values[name] = {}

            def observe_all(_: "CallbackOptions") -> "Iterable[Observation]":
                from opentelemetry.metrics import Observation

                return [Observation(value(), labels) for labels, value in list(values.values())]

            self._meter.create_observable_gauge(name, [observe_all], _unit(name), METERS[name].text)
        self._values[name][tuple(labels.values())] = labels, value


def _unit(name: str) -> str:
    """Return the unit as OpenTelemetry writes it; what turns it into a suffix finds it in the name."""
    return "s" if name.endswith("_seconds") else "By" if "_bytes" in name else ""
